// Products with weights of a byte, w = s·q with s for each output, where the processor multiplies bytes (VNNI). As with weights of 4 bits in
// a model of bfloat16 (fours.h), the x are rounded to t·p for the inputs of a group, and sums of integers are exact:
//
//     Σ x·w = s·Σ t·Σ p·q,  the outer sum being that of the groups
//
// The instruction takes one factor without a sign: q + 128. So a sum begins with −128·Σ p, which is computed once a product.

#pragma once

#include <cstdint>

#include "fours.h"
#include "panels.h"
#include "vectors.h"

namespace gapless {

constexpr int GROUP_BYTES = GROUP * PANEL;  // of 32 inputs of a panel

// Inputs that share a t. Between the sums of two groups a tile is stored and read again, so that tiles take greater groups.
#ifdef __AMX_INT8__
constexpr int BYTES_GROUP = 2 * GROUP;
#else
constexpr int BYTES_GROUP = GROUP;
#endif

// Where a group has an input, in the order of `store_bytes`, of the first output of a tile.
inline int place_of(int input) {
    const int word = input / WORD, half = input / 2 % 2, byte = input / 4 % 2 + input % 2 * 2;
    return ((word * 2 + half) * TILE) * 4 + byte;
}

#ifdef __AVX512VNNI__
// A panel is [depth / 32, 2, 8, 16, 4].
struct ByteKernel {
    // Rows whose sums stay in registers, of one tile or of both.
    static constexpr int TOGETHER = 12, WITH_BOTH_TILES = 6;
    static constexpr int AHEAD = 12 * GROUP_BYTES;

    // From the tile `begin` on.
    template <int ROWS, int TILES>
    [[gnu::noinline]] static void add_tiles(GroupedRows rows, int depth, const int8_t* panel, int begin, float* sums, int lines) {
        const int groups = rows.groups(depth);
        const auto* weights = reinterpret_cast<const char*>(panel) + begin * GROUP * TILE;
        Vector all[TILES][ROWS];
#pragma GCC unroll 16
        for (int row = 0; row < ROWS; ++row) {
#pragma GCC unroll 2
            for (int tile = 0; tile < TILES; ++tile) {
                all[tile][row] = spread(0.f);
            }
        }
        for (int index = 0; index < groups; ++index) {
            Line of[TILES][ROWS];
#pragma GCC unroll 16
            for (int row = 0; row < ROWS; ++row) {
#pragma GCC unroll 2
                for (int tile = 0; tile < TILES; ++tile) {
                    of[tile][row] = spread_number(rows.offsets[row * groups + index]);
                }
            }
            const int end = std::min(BYTES_GROUP, depth - index * BYTES_GROUP);
            for (int input = 0; input < end; input += GROUP, rows.x += GROUP, weights += GROUP_BYTES) {
                fetch(weights + AHEAD, lines);
                for (int word = 0; word < GROUP / 4; ++word) {
                    Line codes[TILES];
#pragma GCC unroll 2
                    for (int tile = 0; tile < TILES; ++tile) {
                        codes[tile] = without_sign(load_line(weights + (tile * GROUP / 4 + word) * 64));
                    }
#pragma GCC unroll 16
                    for (int row = 0; row < ROWS; ++row) {
                        const auto x = spread_word(rows.x + size_t(row) * depth + word * 4);
#pragma GCC unroll 2
                        for (int tile = 0; tile < TILES; ++tile) {
                            of[tile][row] = add_bytes(of[tile][row], codes[tile], x);
                        }
                    }
                }
            }
#pragma GCC unroll 16
            for (int row = 0; row < ROWS; ++row) {
                const auto scale = spread(rows.scales[row * groups + index]);
#pragma GCC unroll 2
                for (int tile = 0; tile < TILES; ++tile) {
                    all[tile][row] = fused(byte_sums(of[tile][row]), scale, all[tile][row]);
                }
            }
        }
#pragma GCC unroll 16
        for (int row = 0; row < ROWS; ++row) {
#pragma GCC unroll 2
            for (int tile = 0; tile < TILES; ++tile) {
                store(sums + row * PANEL + (begin + tile) * TILE, all[tile][row]);
            }
        }
    }
};
#endif

}  // namespace gapless
