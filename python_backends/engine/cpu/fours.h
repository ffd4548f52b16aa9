// Products with weights of 4 bits by group: w = s·q + m for 32 inputs of an output, q from 0 to 15, so that
//
//     Σ x·w = s·Σ x·q + m·Σ x
//
// The q are exact in bfloat16 and float32, and become such in registers; Σ x of each group is computed once a product. Where no
// instruction multiplies bfloat16, x becomes float32.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "panels.h"
#include "vectors.h"

namespace gapless {

constexpr int GROUP = 32;  // inputs

// Of a panel: input 8·w + 2·i + o of the group lies in word w, from bit 4·i + 16·o on.
struct Group {
    uint32_t codes[GROUP / 8][2][TILE];
    uint16_t scales[2][TILE], minima[2][TILE];  // float16
};
static_assert(sizeof(Group) == 640);

#ifdef __AVX512BF16__
template <typename Value>
using Multiplied = Value;
#else
template <typename Value>
using Multiplied = float;
#endif

// Rows x as they are multiplied with such weights.
template <typename Value>
struct GroupedRows {
    const Multiplied<Value>* x;  // [rows, depth]
    const float* totals;         // [rows, depth / 32]
};

// A row [depth] of those. `wide` may be x.
template <typename Value>
void put_grouped(const Value* x, int depth, Multiplied<Value>* wide, float* totals) {
    for (int i = 0; i < depth; i += GROUP) {
        const auto low = load(x + i, TILE), high = load(x + i + TILE, TILE);
        totals[i / GROUP] = total(low + high);
        if constexpr (!std::is_same_v<Value, Multiplied<Value>>) {
            store(wide + i, low);
            store(wide + i + TILE, high);
        }
    }
}

class FourMultiplier {
public:
    // sums [rows, 32] = x [rows, depth] · panel. What follows the panel in memory is fetched.
    template <typename Value>
    static void multiply(GroupedRows<Value> rows, int count, int depth, const Group* panel, float* sums) {
        for (int row = 0; row < count; row += TOGETHER) {
            add<TOGETHER, Value>(std::min(TOGETHER, count - row), rows, depth, panel, sums, row == 0 ? sizeof(Group) / 64 : 0);
            rows.x += size_t(TOGETHER) * depth;
            rows.totals += TOGETHER * (depth / GROUP);
            sums += TOGETHER * PANEL;
        }
    }

private:
    // Rows whose sums of a group stay in registers, of one tile or of both.
#ifdef __AVX512F__
    static constexpr int TOGETHER = 16, WITH_BOTH_TILES = 8;
#else
    static constexpr int TOGETHER = 4, WITH_BOTH_TILES = 1;
#endif
    static constexpr int AHEAD = 16;  // groups that are fetched before they are multiplied

    template <int ROWS, typename Value>
    static void add(int rows, const GroupedRows<Value>& of, int depth, const Group* panel, float* sums, int lines) {
        if constexpr (ROWS > 1) {
            if (rows < ROWS) {
                return add<ROWS - 1>(rows, of, depth, panel, sums, lines);
            }
        }
        if constexpr (ROWS <= WITH_BOTH_TILES) {
            add_tiles<ROWS, 2>(of, depth, panel, 0, sums, lines);
        } else {
            add_tiles<ROWS, 1>(of, depth, panel, 0, sums, lines);
            add_tiles<ROWS, 1>(of, depth, panel, 1, sums, 0);
        }
    }

    // From the tile `begin` on.
    template <int ROWS, int TILES, typename Value>
    [[gnu::noinline]] static void add_tiles(GroupedRows<Value> rows, int depth, const Group* panel, int begin, float* sums, int lines) {
        const int groups = depth / GROUP;
        for (int index = 0; index < groups; ++index, rows.x += GROUP) {
            const auto& group = panel[index];
            fetch(&group + AHEAD, lines);
            Vector of[TILES][ROWS];
#pragma GCC unroll 16
            for (int row = 0; row < ROWS; ++row) {
#pragma GCC unroll 2
                for (int tile = 0; tile < TILES; ++tile) {
                    of[tile][row] = spread(0.f);
                }
            }
            for (int word = 0; word < GROUP / 8; ++word) {
                add_words<ROWS, TILES>(rows.x + word * 8, depth, group.codes[word], begin, of);
            }
#pragma GCC unroll 2
            for (int tile = 0; tile < TILES; ++tile) {
                const auto scale = load_halves(group.scales[begin + tile]), minimum = load_halves(group.minima[begin + tile]);
#pragma GCC unroll 16
                for (int row = 0; row < ROWS; ++row) {
                    float* to = sums + row * PANEL + (begin + tile) * TILE;
                    const auto before = index ? load(to) : spread(0.f);
                    store(to, fused(of[tile][row], scale, fused(minimum, spread(rows.totals[row * groups + index]), before)));
                }
            }
        }
    }

    template <int ROWS, int TILES>
    [[gnu::always_inline]] static void add_words(const float* x, int stride, const uint32_t (&codes)[2][TILE], int begin,
                                                 Vector (&of)[TILES][ROWS]) {
        Line words[TILES];
#pragma GCC unroll 2
        for (int tile = 0; tile < TILES; ++tile) {
            words[tile] = load_line(reinterpret_cast<const char*>(codes[begin + tile]));
        }
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
#pragma GCC unroll 2
            for (int tile = 0; tile < TILES; ++tile) {
                const auto weights = fours(words[tile], i / 2 + i % 2 * 4);
#pragma GCC unroll 16
                for (int row = 0; row < ROWS; ++row) {
                    of[tile][row] = fused(spread(x[size_t(row) * stride + i]), weights, of[tile][row]);
                }
            }
        }
    }

#ifdef __AVX512BF16__
    template <int ROWS, int TILES>
    [[gnu::always_inline]] static void add_words(const Bfloat16* x, int stride, const uint32_t (&codes)[2][TILE], int begin,
                                                 Vector (&of)[TILES][ROWS]) {
        Line words[TILES];
#pragma GCC unroll 2
        for (int tile = 0; tile < TILES; ++tile) {
            words[tile] = load_line(reinterpret_cast<const char*>(codes[begin + tile]));
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 2
            for (int tile = 0; tile < TILES; ++tile) {
                const auto weights = four_pairs(words[tile], i);
#pragma GCC unroll 16
                for (int row = 0; row < ROWS; ++row) {
                    const auto pairs = spread_pair(x + size_t(row) * stride + 2 * i);
                    of[tile][row] =
                        _mm512_dpbf16_ps(of[tile][row], reinterpret_cast<__m512bh>(pairs), reinterpret_cast<__m512bh>(weights));
                }
            }
        }
    }
#endif
};

}  // namespace gapless
