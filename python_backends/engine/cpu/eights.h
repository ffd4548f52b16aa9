// Weights of 8 bits by group: w = s·q for 16 inputs of an output, q from −128 to 127, in a model of float32. Each w is one, to the last bit:
// made in a register where few rows are multiplied by it, else in a memory that stays in a cache until all of them are (multiplier.h).

#pragma once

#include <cstdint>

#include "panels.h"
#include "vectors.h"

namespace gapless {

// Of a panel. Its q lie where numbers of float32 would.
struct Eights {
    static constexpr int INPUTS = TILE;
    int8_t codes[2][INPUTS][TILE];
    float scales[2][TILE];
};
static_assert(sizeof(Eights) == 640);

inline Vector factors_of(const Eights& group, int tile) {
    return load(group.scales[tile]);
}

// Inputs 8·w to 8·w + 7.
inline const int8_t* part_of(const Eights& group, int word, int tile) {
    return group.codes[tile][word * 8];
}

inline Vector weights_of(const int8_t* part, int i, Vector scales) {
    return load(part + i * TILE) * scales;
}

}  // namespace gapless
