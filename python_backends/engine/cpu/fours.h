// Products with weights of 4 bits by group: w = s·q + m for 32 inputs of an output, q from 0 to 15.
//
// With s and m of float32 each w becomes a number of the model's type where it is multiplied (multiplier.h), as if it had been rounded to
// that type when it was read: sums are those of the same weights in that type, to the last bit.
//
// With s and m of float16, in a model of bfloat16, the x are rounded to t·p for the 32 inputs of a group, p from −127 to 127, and integers
// are multiplied, whose sums are exact:
//
//     Σ x·w = s·t·Σ p·q + m·t·Σ p
//
// t and the sums of p of each group are computed once a product.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "panels.h"
#include "vectors.h"

namespace gapless {

constexpr int GROUP = 32;        // inputs
constexpr int WORD = 8;          // inputs of one output that lie together
constexpr float LEAST = 1e-30f;  // a group of x without a greater number is taken as 0

using Float16 = uint16_t;

// Of a panel: input 8·w + 2·i + o of the group lies in word w, from bit 4·i + 16·o on.
template <typename Number>
struct Fours {
    static constexpr int INPUTS = GROUP;
    uint32_t codes[GROUP / WORD][2][TILE];
    Number scales[2][TILE], minima[2][TILE];
};
static_assert(sizeof(Fours<float>) == 768 && sizeof(Fours<Float16>) == 640);

struct Factors {
    Vector scales, minima;
};

inline Factors factors_of(const Fours<float>& group, int tile) {
    return {load(group.scales[tile]), load(group.minima[tile])};
}

// Inputs 8·w to 8·w + 7.
inline Line part_of(const Fours<float>& group, int word, int tile) {
    return load_line(reinterpret_cast<const char*>(group.codes[word][tile]));
}

inline Vector weights_of(Line part, int i, const Factors& factors) {
    return fused(fours(part, i / 2 + i % 2 * 4), factors.scales, factors.minima);
}

// Rows of bfloat16 as they are multiplied with such weights.
struct GroupedRows {
    int each;                // inputs of a group: 32, or more with weights of a byte; the last group may have fewer
    const int8_t* x;         // p [rows, depth]
    const float* scales;     // t [rows, groups]
    const float* totals;     // t·Σ p [rows, groups]
    const int32_t* offsets;  // −128·Σ p [rows, groups]: bytes.h

    int groups(int depth) const {
        return (depth + each - 1) / each;
    }

    GroupedRows from(int row, int depth) const {
        const size_t group = size_t(row) * groups(depth);
        return {each, x + size_t(row) * depth, scales + group, totals + group, offsets + group};
    }
};

// A row [depth] of those. Where a group has what is no number, t is none, whatever its bytes are.
inline void put_grouped(const Bfloat16* x, int depth, int each, int8_t* rounded, float* scales, float* totals, int32_t* offsets) {
    for (int begin = 0; begin < depth; begin += each, ++scales, ++totals, ++offsets) {
        const int end = std::min(begin + each, depth);
        auto all = spread(0.f), most = spread(0.f), sums = spread(0.f);
        for (int i = begin; i < end; i += TILE) {
            const auto some = load(x + i, TILE);
            all = all + some;
            most = greater(most, absolute(some));
        }
        const float limit = greatest(most), sum_of_all = total(all);
        const auto inverse = spread(limit > LEAST ? 127 / limit : 0);
        for (int i = begin; i < end; i += TILE) {
            const auto some = whole(load(x + i, TILE) * inverse);
            store_bytes(rounded + i, some);
            sums = sums + some;
        }
        const float sum = total(sums);
        *scales = limit / 127 + (sum_of_all - sum_of_all);
        *totals = *scales * sum;
        *offsets = sum == sum ? -128 * int(sum) : 0;
    }
}

// Up to ROWS rows by a `Kernel`: both tiles of the panel at once where the sums of so many rows stay in registers, else each alone.
template <typename Kernel, int ROWS, typename Panel>
void add_rows(int rows, const GroupedRows& of, int depth, const Panel* panel, float* sums, int lines) {
    if constexpr (ROWS > 1) {
        if (rows < ROWS) {
            return add_rows<Kernel, ROWS - 1>(rows, of, depth, panel, sums, lines);
        }
    }
    if constexpr (ROWS <= Kernel::WITH_BOTH_TILES) {
        Kernel::template add_tiles<ROWS, 2>(of, depth, panel, 0, sums, lines);
    } else {
        Kernel::template add_tiles<ROWS, 1>(of, depth, panel, 0, sums, lines);
        Kernel::template add_tiles<ROWS, 1>(of, depth, panel, 1, sums, 0);
    }
}

// sums [rows, 32] = x [rows, depth] · panel. What follows the panel in memory is fetched, `lines` for each group.
template <typename Kernel, typename Panel>
void multiply_grouped(const GroupedRows& rows, int count, int depth, const Panel* panel, int lines, float* sums) {
    constexpr int TOGETHER = Kernel::TOGETHER;
    for (int row = 0; row < count; row += TOGETHER) {
        const int some = std::min(TOGETHER, count - row);
        add_rows<Kernel, TOGETHER>(some, rows.from(row, depth), depth, panel, sums + row * PANEL, row ? 0 : lines);
    }
}

struct FourKernel {
    // Rows whose sums stay in registers, of one tile or of both; with AVX2 those of a group do.
#ifdef __AVX512F__
    static constexpr int TOGETHER = 8, WITH_BOTH_TILES = 5;
#else
    static constexpr int TOGETHER = 4, WITH_BOTH_TILES = 1;
#endif
    static constexpr int AHEAD = 16;  // groups that are fetched before they are multiplied

    // From the tile `begin` on.
    template <int ROWS, int TILES>
    [[gnu::noinline]] static void add_tiles(GroupedRows rows, int depth, const Fours<Float16>* panel, int begin, float* sums, int lines) {
        const int groups = depth / GROUP;
        Vector all[TILES][ROWS];
#pragma GCC unroll 16
        for (int row = 0; row < ROWS; ++row) {
#pragma GCC unroll 2
            for (int tile = 0; tile < TILES; ++tile) {
                all[tile][row] = spread(0.f);
            }
        }
        for (int index = 0; index < groups; ++index, rows.x += GROUP) {
            const auto& group = panel[index];
            fetch(&group + AHEAD, lines);
            Line of[TILES][ROWS];
#pragma GCC unroll 16
            for (int row = 0; row < ROWS; ++row) {
#pragma GCC unroll 2
                for (int tile = 0; tile < TILES; ++tile) {
                    of[tile][row] = no_bytes();
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
                    const auto before = fused(minimum, spread(rows.totals[row * groups + index]), all[tile][row]);
                    all[tile][row] = fused(byte_sums(of[tile][row]) * spread(rows.scales[row * groups + index]), scale, before);
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
