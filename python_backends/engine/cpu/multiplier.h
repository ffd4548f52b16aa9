// Products by what the processor has, of bfloat16 tiles (AMX) or vectors (AVX512, AVX2): rows by a panel of 32 outputs (panels.h). Where no
// instruction multiplies bfloat16, weights are read as such and become float32 in registers. A row's sums do not depend on the rows beside
// it.
//
// Weights of one byte lie in the places that numbers of `Value` have, and become such in registers. Or bytes are multiplied as such
// (bytes.h). Weights by group (fours.h, eights.h) become such in registers where few rows of float32 are multiplied, else in a memory that
// stays in a cache until all rows are multiplied.

#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "bytes.h"
#include "eights.h"
#include "fours.h"
#include "panels.h"
#include "vectors.h"
#ifdef __AMX_BF16__
#include "tiles.h"
#endif

namespace gapless {

// 16 pairs of weights as they are multiplied.
#ifdef __AVX512BF16__
using Pairs = Line;
#else
struct Pairs {
    Vector firsts, seconds;
};
#endif

inline Vector weights_of(const float* from, float) {
    return load(from);
}

inline Vector weights_of(const int8_t* from, float) {
    return load(from);
}

inline Pairs weights_of(const Bfloat16* from, Bfloat16) {
    const auto line = load_line(reinterpret_cast<const char*>(from));
#ifdef __AVX512BF16__
    return line;
#else
    return {firsts(line), seconds(line)};
#endif
}

#ifndef __AVX512BF16__
inline Pairs weights_of(const int8_t* from, Bfloat16) {
    const auto words = load_words(from);
    return {first_bytes(words), second_bytes(words)};
}
#endif

inline Vector add_product(Vector sum, const float* input, Vector weights) {
    return fused(spread(*input), weights, sum);
}

inline Vector add_product(Vector sum, const Bfloat16* inputs, Pairs weights) {
    const auto both = spread_pair(inputs);
#ifdef __AVX512BF16__
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(both), reinterpret_cast<__m512bh>(weights));
#else
    return fused(seconds(both), weights.seconds, fused(firsts(both), weights.firsts, sum));
#endif
}

constexpr int AHEAD = 12 << 10;  // bytes from what is multiplied at once to what is fetched

// Where a panel has what is multiplied from an input on.
template <typename Of>
const Of* from_input(const Of* groups, int input) {
    return groups + input / Of::INPUTS;
}

inline void store_weights(float* to, Vector first, Vector second) {
    store(to, first);
    store(to + TILE, second);
}

inline void store_weights(Bfloat16* to, Vector first, Vector second) {
    store_line(reinterpret_cast<char*>(to), rounded_pairs(first, second));
}

// to [inputs, 32] = weights by group. Fetches those that are so many bytes `ahead`.
template <typename Of, typename Value>
void unpack(const Of* groups, int inputs, int ahead, Value* to) {
    const int count = inputs / Of::INPUTS;
    for (int index = 0; index < count; ++index) {
        const auto& group = groups[index];
        fetch(reinterpret_cast<const char*>(&group) + ahead, sizeof(group) / 64);
        for (int word = 0; word < Of::INPUTS / WORD; ++word) {
            const int input = index * Of::INPUTS + word * WORD;
            for (int tile = 0; tile < 2; ++tile) {
                const auto factors = factors_of(group, tile);
                const auto part = part_of(group, word, tile);
                Value* first = to + (input / DEEP<Value> * 2 + tile) * DEEP<Value> * TILE + input % DEEP<Value> * TILE;
#pragma GCC unroll 4
                for (int i = 0; i < WORD; i += 2) {
                    store_weights(first + i * TILE, weights_of(part, i, factors), weights_of(part, i + 1, factors));
                }
            }
        }
    }
}

// Multiplies by vectors: several rows at a time, and of so many inputs that this piece of the panel stays in the first cache for all rows.
// Each time it fetches a share of the next piece, so that reading and multiplying go on together.
template <typename Value>
class VectorMultiplier {
public:
    // sums [rows, 32] = x [rows, depth] · panel. What follows the panel in memory is fetched where another one `follows`.
    void multiply(const Value* x, int rows, int depth, const Value* panel, float* sums, bool follows) {
        if (TWICE && rows == 1) {
            multiply(x, 2, 0, depth, panel, m_pair, follows);
            std::copy_n(m_pair, PANEL, sums);
        } else {
            multiply(x, rows, depth, depth, panel, sums, follows);
        }
    }

    // The same with a panel of bytes; what follows it is always fetched.
    void multiply(const Value* x, int rows, int depth, const int8_t* panel, float* sums) {
        multiply(x, rows, depth, depth, panel, sums, true);
    }

    // The same with weights by group.
    template <typename Of>
    void multiply_groups(const Value* x, int rows, int depth, const Of* panel, float* sums) {
        if constexpr (std::is_same_v<Value, float>) {
            if (rows <= FEW) {
                add_few<FEW>(rows, x, depth, panel, sums);
                return;
            }
        }
        multiply_unpacked(x, rows, depth, panel, sums);
    }

private:
    // Rows whose sums stay in registers, for one tile or for both of them: AVX512 has 32 registers, AVX2 has 16 of half the size, four of
    // which weights need that become float32.
#ifdef __AVX512F__
    static constexpr int TOGETHER = 8, WITH_BOTH_TILES = 8;
    static constexpr int FEW = 8;  // rows of float32 for which weights by group are made in registers
#else
    static constexpr int TOGETHER = sizeof(Value) == 4 ? 6 : 4, WITH_BOTH_TILES = 2;
    static constexpr int FEW = 4;
#endif
    // A lone row of float32 is multiplied twice, as if there were two: weights are read faster then (docs/notebook/cpu_steps.md).
    static constexpr bool TWICE = WITH_BOTH_TILES > 1 && sizeof(Value) == 4;
    static constexpr int PIECE = 8 * DEEP<Value>;
    static constexpr int WEIGHTS = TILE * WIDE<Value>;  // that are multiplied at once

    // Weights are `Of`: `Value`, or bytes.
    template <typename Of>
    struct Piece {
        const Of* panel;
        int inputs;
        bool first;
    };

    template <typename Of>
    static constexpr int LINES_OF = LINES * sizeof(Of) / sizeof(Value);  // of both tiles

    // Of rows that lie `stride` values apart.
    template <typename Of>
    void multiply(const Value* x, int rows, int stride, int depth, const Of* panel, float* sums, bool follows) {
        const int times = (rows + TOGETHER - 1) / TOGETHER;
        const int each = (LINES_OF<Of> + times - 1) / times;  // lines of the next piece that are fetched for a tile's inputs
        for (int i = 0; i < depth; i += PIECE) {
            const Piece<Of> piece{panel + size_t(i) * PANEL, std::min(PIECE, depth - i), i == 0};
            const auto* end = reinterpret_cast<const char*>(piece.panel + (PIECE + piece.inputs) * PANEL);  // of what is fetched
            const auto* ahead = reinterpret_cast<const char*>(piece.panel + PIECE * PANEL);
            const bool fetches = follows || i + PIECE < depth;
            for (int row = 0; row < rows; row += TOGETHER, ahead += piece.inputs / DEEP<Value> * each * 64) {
                const auto* from = x + size_t(row) * stride + i;
                const int lines = fetches && ahead < end ? each : 0;
                add<TOGETHER>(std::min(TOGETHER, rows - row), from, stride, piece, sums + row * PANEL, ahead, lines);
            }
        }
    }

    // With weights that `unpack` makes numbers of `Value`.
    template <typename Of>
    void multiply_unpacked(const Value* x, int rows, int depth, const Of* panel, float* sums) {
        for (int i = 0; i < depth; i += PIECE) {
            const Piece<Value> piece{m_unpacked, std::min(PIECE, depth - i), i == 0};
            const auto *begin = from_input(panel, i), *end = from_input(panel, i + piece.inputs);
            unpack(begin, piece.inputs, (end - begin) * sizeof(Of), m_unpacked);
            for (int row = 0; row < rows; row += TOGETHER) {
                const auto* from = x + size_t(row) * depth + i;
                add<TOGETHER>(std::min(TOGETHER, rows - row), from, depth, piece, sums + row * PANEL, nullptr, 0);
            }
        }
    }

    // sums [rows, 32] = x [rows, depth] · panel.
    template <int ROWS, typename Of>
    static void add_few(int rows, const float* x, int depth, const Of* panel, float* sums) {
        if constexpr (ROWS > 1) {
            if (rows < ROWS) {
                return add_few<ROWS - 1>(rows, x, depth, panel, sums);
            }
        }
        if constexpr (ROWS <= WITH_BOTH_TILES) {
            add_groups<ROWS, 2>(x, depth, panel, 0, sums);
        } else {
            add_groups<ROWS, 1>(x, depth, panel, 0, sums);
            add_groups<ROWS, 1>(x, depth, panel, 1, sums);
        }
    }

    // From the tile `begin` on.
    template <int ROWS, int TILES, typename Of>
    [[gnu::noinline]] static void add_groups(const float* x, int depth, const Of* panel, int begin, float* sums) {
        Vector of[TILES][ROWS];
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; ++row) {
#pragma GCC unroll 2
            for (int tile = 0; tile < TILES; ++tile) {
                of[tile][row] = spread(0.f);
            }
        }
        for (int index = 0; index < depth / Of::INPUTS; ++index) {
            const auto& group = panel[index];
            fetch(reinterpret_cast<const char*>(&group) + AHEAD, begin ? 0 : sizeof(group) / 64);
            for (int word = 0; word < Of::INPUTS / WORD; ++word, x += WORD) {
                decltype(part_of(group, 0, 0)) parts[TILES];
#pragma GCC unroll 2
                for (int tile = 0; tile < TILES; ++tile) {
                    parts[tile] = part_of(group, word, begin + tile);
                }
#pragma GCC unroll 8
                for (int i = 0; i < WORD; ++i) {
#pragma GCC unroll 2
                    for (int tile = 0; tile < TILES; ++tile) {
                        const auto weights = weights_of(parts[tile], i, factors_of(group, begin + tile));
#pragma GCC unroll 8
                        for (int row = 0; row < ROWS; ++row) {
                            of[tile][row] = fused(spread(x[size_t(row) * depth + i]), weights, of[tile][row]);
                        }
                    }
                }
            }
        }
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; ++row) {
#pragma GCC unroll 2
            for (int tile = 0; tile < TILES; ++tile) {
                store(sums + row * PANEL + (begin + tile) * TILE, of[tile][row]);
            }
        }
    }

    template <int ROWS, typename Of>
    static void add(int rows, const Value* x, int stride, const Piece<Of>& piece, float* sums, const char* ahead, int lines) {
        if constexpr (ROWS > 1) {
            if (rows < ROWS) {
                return add<ROWS - 1>(rows, x, stride, piece, sums, ahead, lines);
            }
        }
        if constexpr (ROWS <= WITH_BOTH_TILES) {
            add_tiles<ROWS, 2>(x, stride, piece, piece.panel, sums, ahead, lines);
        } else {
            const int half = lines / 2;
            add_tiles<ROWS, 1>(x, stride, piece, piece.panel, sums, ahead, half);
            ahead += piece.inputs / DEEP<Value> * half * 64;
            add_tiles<ROWS, 1>(x, stride, piece, piece.panel + TILE * WEIGHTS, sums + TILE, ahead, lines - half);
        }
    }

    // Not a part of what calls it, and its loops over rows unrolled early: else the sums do not all stay in registers.
    template <int ROWS, int TILES, typename Of>
    [[gnu::noinline]] static void add_tiles(const Value* x, int stride, const Piece<Of>& piece, const Of* tiles, float* sums,
                                            const char* ahead, int lines) {
        Vector of[TILES][ROWS];
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; ++row) {
#pragma GCC unroll 2
            for (int tile = 0; tile < TILES; ++tile) {
                of[tile][row] = piece.first ? spread(0.f) : load(sums + row * PANEL + tile * TILE);
            }
        }
        for (int i = 0; i < piece.inputs; i += DEEP<Value>, tiles += 2 * TILE * WEIGHTS, ahead += lines * 64) {
            fetch(ahead, lines);
            for (int line = 0; line < TILE; ++line) {
                decltype(weights_of(tiles, Value())) weights[TILES];
#pragma GCC unroll 2
                for (int tile = 0; tile < TILES; ++tile) {
                    weights[tile] = weights_of(tiles + (tile * TILE + line) * WEIGHTS, Value());
                }
#pragma GCC unroll 8
                for (int row = 0; row < ROWS; ++row) {
                    const auto* inputs = x + size_t(row) * stride + i + line * WIDE<Value>;
#pragma GCC unroll 2
                    for (int tile = 0; tile < TILES; ++tile) {
                        of[tile][row] = add_product(of[tile][row], inputs, weights[tile]);
                    }
                }
            }
        }
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; ++row) {
#pragma GCC unroll 2
            for (int tile = 0; tile < TILES; ++tile) {
                store(sums + row * PANEL + tile * TILE, of[tile][row]);
            }
        }
    }

    alignas(64) Value m_unpacked[PIECE * PANEL];
    alignas(64) float m_pair[2 * PANEL];
};

// What a thread multiplies with.
class Multiplier {
public:
    // sums [rows, 32] = x [rows, depth] · panel. What follows the panel in memory is fetched where another one `follows`.
    void multiply(const float* x, int rows, int depth, const char* panel, float* sums, bool follows) {
        m_floats.multiply(x, rows, depth, reinterpret_cast<const float*>(panel), sums, follows);
    }

    void multiply(const Bfloat16* x, int rows, int depth, const char* panel, float* sums, bool follows) {
        m_halves.multiply(x, rows, depth, reinterpret_cast<const Bfloat16*>(panel), sums, follows);
    }

    // The same with a panel of bytes; what follows it is always fetched.
    void multiply(const float* x, int rows, int depth, const int8_t* panel, float* sums) {
        m_floats.multiply(x, rows, depth, panel, sums);
    }

    void multiply([[maybe_unused]] const Bfloat16* x, [[maybe_unused]] int rows, [[maybe_unused]] int depth,
                  [[maybe_unused]] const int8_t* panel, [[maybe_unused]] float* sums) {
#ifndef __AVX512BF16__  // else they are multiplied as such
        m_halves.multiply(x, rows, depth, panel, sums);
#endif
    }

    // The same with a panel of weights by group.
    template <typename Of>
    void multiply_groups(const float* x, int rows, int depth, const Of* panel, float* sums) {
        m_floats.multiply_groups(x, rows, depth, panel, sums);
    }

    template <typename Of>
    void multiply_groups(const Bfloat16* x, int rows, int depth, const Of* panel, float* sums) {
#ifdef __AMX_BF16__
        multiply_unpacked(x, rows, depth, panel, sums);
#else
        m_halves.multiply_groups(x, rows, depth, panel, sums);
#endif
    }

    // The same with a panel of weights of 4 bits, rows being rounded.
    void multiply_fours(GroupedRows rows, int count, int depth, const Fours<Float16>* panel, float* sums) {
#ifdef __AMX_BF16__
        const int blocks = count / TILE, done = blocks * TILE;
        if (blocks) {
            m_halves.multiply_fours(rows, blocks, depth, panel, sums);
        }
        rows = rows.from(done, depth);
        count -= done;
        sums += done * PANEL;
#endif
        multiply_grouped<FourKernel>(rows, count, depth, panel, sizeof(*panel) / 64, sums);
    }

    // The same with a panel of bytes in the order of bytes.h.
    void multiply_bytes([[maybe_unused]] GroupedRows rows, [[maybe_unused]] int count, [[maybe_unused]] int depth,
                        [[maybe_unused]] const int8_t* panel, [[maybe_unused]] float* sums) {
#ifdef __AMX_BF16__
        const int blocks = count / TILE, done = blocks * TILE;
        if (blocks) {
            m_halves.multiply_bytes(rows, blocks, depth, panel, sums);
        }
        rows = rows.from(done, depth);
        count -= done;
        sums += done * PANEL;
#endif
#ifdef __AVX512VNNI__
        multiply_grouped<ByteKernel>(rows, count, depth, panel, GROUP_BYTES / 64, sums);
#endif
    }

private:
#ifdef __AMX_BF16__
    template <typename Of>
    void multiply_unpacked(const Bfloat16* x, int rows, int depth, const Of* panel, float* sums) {
        if (rows > PANEL) {
            auto* unpacked = m_unpacked.of(size_t(depth) * PANEL);
            unpack(panel, depth, AHEAD, unpacked);
            m_halves.multiply(x, rows, depth, unpacked, sums, false);
            return;
        }
        auto* unpacked = m_unpacked.of(PIECE * PANEL);
        m_halves.multiply_block(x, rows, depth, sums, [=](int input) {
            if (input % PIECE == 0) {
                unpack(from_input(panel, input), std::min(PIECE, depth - input), AHEAD, unpacked);
            }
            return reinterpret_cast<const char*>(unpacked + input % PIECE * PANEL);
        });
    }

    static constexpr int PIECE = 256;  // inputs that are unpacked before they are multiplied: they stay in the first cache
    Kept<Bfloat16> m_unpacked;
#endif
    VectorMultiplier<float> m_floats;
#ifdef __AMX_BF16__
    TileMultiplier m_halves;
#else
    VectorMultiplier<Bfloat16> m_halves;
#endif
};

}  // namespace gapless
