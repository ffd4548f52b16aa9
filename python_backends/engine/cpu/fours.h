// Products with weights of 4 bits by group: w = s·q + m for 32 inputs of an output, q from 0 to 15, so that
//
//     Σ x·w = s·Σ x·q + m·Σ x
//
// In a model of float32 the q become float32 in registers. In one of bfloat16 the x are rounded to t·p for the 32 inputs of a group, p from
// −127 to 127, and integers are multiplied: their sums are exact. Σ x of each group is computed once a product, as are t and p.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "panels.h"
#include "vectors.h"

namespace gapless {

constexpr int GROUP = 32;        // inputs
constexpr int WORD = 8;          // inputs of one output that lie together
constexpr float LEAST = 1e-30f;  // a group of x without a greater number is taken as 0

// Of a panel: input 8·w + 2·i + o of the group lies in word w, from bit 4·i + 16·o on.
struct Group {
    uint32_t codes[GROUP / WORD][2][TILE];
    uint16_t scales[2][TILE], minima[2][TILE];  // float16
};
static_assert(sizeof(Group) == 640);

template <typename Value>
using Multiplied = std::conditional_t<std::is_same_v<Value, float>, float, int8_t>;

// Rows as they are multiplied with such weights.
template <typename Value>
struct GroupedRows {
    const Multiplied<Value>* x;  // [rows, depth]
    const float* scales;         // t [rows, depth / 32], of bfloat16
    const float* totals;         // Σ x [rows, depth / 32]
};

// A row [depth] of those.
inline void put_grouped(const float* x, int depth, int8_t*, float*, float* totals) {
    for (int i = 0; i < depth; i += GROUP) {
        totals[i / GROUP] = total(load(x + i) + load(x + i + TILE));
    }
}

// Where a group has what is no number, t is none.
inline void put_grouped(const Bfloat16* x, int depth, int8_t* rounded, float* scales, float* totals) {
    for (int i = 0; i < depth; i += GROUP) {
        const auto low = load(x + i, TILE), high = load(x + i + TILE, TILE);
        const float all = total(low + high), most = greatest(greater(absolute(low), absolute(high)));
        const auto inverse = spread(most > LEAST ? 127 / most : 0);
        const auto low_whole = whole(low * inverse), high_whole = whole(high * inverse);
        store_bytes(rounded + i, low_whole);
        store_bytes(rounded + i + TILE, high_whole);
        scales[i / GROUP] = most / 127 + (all - all);
        totals[i / GROUP] = scales[i / GROUP] * total(low_whole + high_whole);
    }
}

class FourMultiplier {
public:
    // sums [rows, 32] = x [rows, depth] · panel. What follows the panel in memory is fetched.
    template <typename Value>
    static void multiply(GroupedRows<Value> rows, int count, int depth, const Group* panel, float* sums) {
        for (int row = 0; row < count; row += TOGETHER) {
            add<TOGETHER>(std::min(TOGETHER, count - row), rows, depth, panel, sums, row == 0 ? sizeof(Group) / 64 : 0);
            rows.x += size_t(TOGETHER) * depth;
            rows.scales += TOGETHER * (depth / GROUP);
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
            decltype(no_sum(rows.x)) of[TILES][ROWS];
#pragma GCC unroll 16
            for (int row = 0; row < ROWS; ++row) {
#pragma GCC unroll 2
                for (int tile = 0; tile < TILES; ++tile) {
                    of[tile][row] = no_sum(rows.x);
                }
            }
            for (int word = 0; word < GROUP / WORD; ++word) {
                add_words<ROWS, TILES>(rows.x + word * WORD, depth, group.codes[word], begin, of);
            }
#pragma GCC unroll 2
            for (int tile = 0; tile < TILES; ++tile) {
                const auto scale = load_halves(group.scales[begin + tile]), minimum = load_halves(group.minima[begin + tile]);
#pragma GCC unroll 16
                for (int row = 0; row < ROWS; ++row) {
                    float* to = sums + row * PANEL + (begin + tile) * TILE;
                    const auto before = index ? load(to) : spread(0.f);
                    const auto sum = scaled_sum(of[tile][row], rows.scales + row * groups + index);
                    store(to, fused(sum, scale, fused(minimum, spread(rows.totals[row * groups + index]), before)));
                }
            }
        }
    }

    static Vector no_sum(const float*) {
        return spread(0.f);
    }

    static Line no_sum(const int8_t*) {
        return no_bytes();
    }

    static Vector scaled_sum(Vector sum, const float*) {
        return sum;
    }

    static Vector scaled_sum(Line sum, const float* scale) {
        return byte_sums(sum) * spread(*scale);
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
        for (int i = 0; i < WORD; ++i) {
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

    template <int ROWS, int TILES>
    [[gnu::always_inline]] static void add_words(const int8_t* x, int stride, const uint32_t (&codes)[2][TILE], int begin,
                                                 Line (&of)[TILES][ROWS]) {
#pragma GCC unroll 2
        for (int tile = 0; tile < TILES; ++tile) {
            const auto words = load_line(reinterpret_cast<const char*>(codes[begin + tile]));
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half) {
                const auto weights = four_bytes(words, half);
#pragma GCC unroll 16
                for (int row = 0; row < ROWS; ++row) {
                    of[tile][row] = add_bytes(of[tile][row], weights, spread_word(x + size_t(row) * stride + half * WORD / 2));
                }
            }
        }
    }
};

}  // namespace gapless
