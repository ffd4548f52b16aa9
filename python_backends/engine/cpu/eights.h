// Weights of 8 bits by group: w = s·q, or w = s·q + m, for 16 inputs of an output, q from −128 to 127, s and m of float32. Each w becomes a
// number of the model's type where it is multiplied (multiplier.h).

#pragma once

#include <cmath>
#include <cstdint>

#include "fours.h"
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

struct ShiftedEights : Eights {
    float minima[2][TILE];
};
static_assert(sizeof(ShiftedEights) == 768);

inline Vector factors_of(const Eights& group, int tile) {
    return load(group.scales[tile]);
}

inline Factors factors_of(const ShiftedEights& group, int tile) {
    return {load(group.scales[tile]), load(group.minima[tile])};
}

// Inputs 8·w to 8·w + 7.
inline const int8_t* part_of(const Eights& group, int word, int tile) {
    return group.codes[tile][word * 8];
}

inline Vector weights_of(const int8_t* part, int i, Vector scales) {
    return load(part + i * TILE) * scales;
}

inline Vector weights_of(const int8_t* part, int i, const Factors& factors) {
    return fused(load(part + i * TILE), factors.scales, factors.minima);
}

// Of one output.
inline float weight_of(const Eights& group, int tile, int input, int place) {
    return float(group.codes[tile][input][place]) * group.scales[tile][place];
}

inline float weight_of(const ShiftedEights& group, int tile, int input, int place) {
    return std::fma(float(group.codes[tile][input][place]), group.scales[tile][place], group.minima[tile][place]);
}

}  // namespace gapless
