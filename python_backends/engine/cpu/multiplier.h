// Products by what the processor has, of bfloat16 tiles (AMX) or vectors (AVX512_BF16), of float32 vectors: rows by a panel of 32 outputs.
//
// A panel [32 outputs, depth] lies in tiles as the processor takes them: of bfloat16 [depth / 32, 2, 16, 16, 2], the last three being pairs
// of inputs, outputs, and the two of a pair; of float32 [depth / 16, 2, 16, 16], the last two being inputs and outputs. Depth is a multiple
// of 32. A row's sums do not depend on the rows beside it.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

namespace gapless {

using Bfloat16 = uint16_t;

constexpr int TILE = 16;         // rows of a tile of x, outputs of a tile of a weight, floats of a vector
constexpr int PANEL = 2 * TILE;  // outputs of a panel, rows of a block, inputs of a tile
constexpr int LINES = 32;        // of 64 bytes, of both tiles of a panel

template <typename Value>
constexpr int WIDE = 4 / sizeof(Value);  // inputs of one output that lie together
template <typename Value>
constexpr int DEEP = TILE * WIDE<Value>;  // inputs that a tile has

// A memory that begins with a cache line, as tiles are loaded fastest; what was in it is lost when it grows.
template <typename Value>
class Kept {
public:
    Value* of(size_t size) {
        const size_t lines = (size * sizeof(Value) + 63) / 64;
        if (m_lines.size() < lines) {
            m_lines = std::vector<Line>(lines);
        }
        return reinterpret_cast<Value*>(m_lines.data());
    }

private:
    struct alignas(64) Line {
        char bytes[64];
    };

    std::vector<Line> m_lines;
};

// Which cache `fetch` fills. Processors differ: fetch.py tries both at the start.
inline std::atomic<bool> fetches_into_first{true};

inline void fetch(const void* from, int lines) {
    const auto* at = static_cast<const char*>(from);
    if (fetches_into_first.load(std::memory_order_relaxed)) {
        for (int line = 0; line < lines; ++line) {
            _mm_prefetch(at + line * 64, _MM_HINT_T0);
        }
    } else {
        for (int line = 0; line < lines; ++line) {
            _mm_prefetch(at + line * 64, _MM_HINT_T1);
        }
    }
}

#ifdef __AMX_BF16__

// Multiplies bfloat16 by its thread's tile registers, 32 rows at a time: 0 and 1 are sums of the first 16 rows, 2 and 3 of the others, 4 and 5
// rows, 6 and 7 weights.
class TileMultiplier {
public:
    ~TileMultiplier() {
        _tile_release();
    }

    // sums [rows, 32] = x [rows, depth] · panel. What follows the panel in memory is fetched where another one `follows`.
    void multiply(const Bfloat16* x, int rows, int depth, const char* panel, float* sums, bool follows) {
        const int blocks = (rows + PANEL - 1) / PANEL;
        const int each = (LINES + blocks - 1) / blocks;  // lines of the next panel that a block fetches for 32 inputs
        for (int block = 0; block < blocks; ++block) {
            const int begin = block * PANEL, count = std::min(PANEL, rows - begin);
            const char* ahead = panel + BYTES_AHEAD;
            int lines = block ? 0 : LINES;
            if (blocks > 2) {
                ahead = panel + size_t(PANEL) * depth * 2 + size_t(block) * each * depth * 2;
                lines = std::clamp(LINES - block * each, 0, each);
            }
            shape(count);
            const auto* from = x + size_t(begin) * depth;
            if (count > TILE) {
                multiply<true>(from, depth, panel, sums + begin * PANEL, ahead, follows ? lines : 0);
            } else {
                multiply<false>(from, depth, panel, sums + begin * PANEL, ahead, follows ? lines : 0);
            }
        }
    }

private:
    static constexpr int BYTES_AHEAD = 2048;

    void shape(int rows) {
        if (rows == m_rows) {
            return;
        }
        m_rows = rows;
        struct {
            uint8_t palette = 1, start = 0, reserved[14] = {};
            uint16_t bytes[16] = {};
            uint8_t rows[16] = {};
        } config;
        std::fill_n(config.bytes, 8, 64);
        std::fill_n(config.rows, 8, TILE);
        config.rows[0] = config.rows[1] = config.rows[4] = std::min(rows, TILE);
        config.rows[2] = config.rows[3] = config.rows[5] = std::max(rows - TILE, 1);
        _tile_loadconfig(&config);
    }

    template <bool MANY>  // more than 16 rows
    static void multiply(const Bfloat16* x, int depth, const char* panel, float* sums, const char* ahead, int lines) {
        const auto* others = x + TILE * depth;
        const size_t stride = depth * sizeof(Bfloat16);
        _tile_zero(0);
        _tile_zero(1);
        if (MANY) {
            _tile_zero(2);
            _tile_zero(3);
        }
        for (int i = 0; i < depth; i += PANEL) {
            _tile_loadd(6, panel, 64);
            _tile_loadd(4, x + i, stride);
            _tile_loadd(7, panel + TILE * 64, 64);
            fetch(ahead, lines);
            _tile_dpbf16ps(0, 4, 6);
            if (MANY) {
                _tile_loadd(5, others + i, stride);
                _tile_dpbf16ps(2, 5, 6);
            }
            _tile_dpbf16ps(1, 4, 7);
            if (MANY) {
                _tile_dpbf16ps(3, 5, 7);
            }
            panel += LINES * 64;
            ahead += lines * 64;
        }
        _tile_stored(0, sums, PANEL * sizeof(float));
        _tile_stored(1, sums + TILE, PANEL * sizeof(float));
        if (MANY) {
            _tile_stored(2, sums + TILE * PANEL, PANEL * sizeof(float));
            _tile_stored(3, sums + TILE * PANEL + TILE, PANEL * sizeof(float));
        }
    }

    int m_rows = 0;
};

#endif

#ifdef __AVX512BF16__

inline __m512 multiply_add(__m512 sum, const Bfloat16* inputs, __m512i weights) {
    int32_t both;
    std::memcpy(&both, inputs, sizeof(both));
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(_mm512_set1_epi32(both)), reinterpret_cast<__m512bh>(weights));
}

#endif

inline __m512 multiply_add(__m512 sum, const float* input, __m512i weights) {
    return _mm512_fmadd_ps(_mm512_set1_ps(*input), _mm512_castsi512_ps(weights), sum);
}

// Multiplies by vectors: 8 rows at a time, and of so many inputs that this piece of the panel stays in the first cache for all rows.
// Each time it fetches a share of the next piece, so that reading and multiplying go on together.
template <typename Value>
class VectorMultiplier {
public:
    // sums [rows, 32] = x [rows, depth] · panel. What follows the panel in memory is fetched where another one `follows`.
    void multiply(const Value* x, int rows, int depth, const char* panel, float* sums, bool follows) {
        const int times = (rows + TOGETHER - 1) / TOGETHER;
        const int each = (LINES + times - 1) / times;  // lines of the next piece that are fetched for a tile's inputs
        for (int i = 0; i < depth; i += PIECE) {
            const Piece piece{panel + i * BYTES, std::min(PIECE, depth - i), i == 0};
            const char* end = piece.panel + (PIECE + piece.inputs) * BYTES;  // of what is fetched
            const char* ahead = piece.panel + PIECE * BYTES;
            const bool fetches = follows || i + PIECE < depth;
            for (int row = 0; row < rows; row += TOGETHER, ahead += piece.inputs / DEEP<Value> * each * 64) {
                const auto* from = x + size_t(row) * depth + i;
                const int lines = fetches && ahead < end ? each : 0;
                add<TOGETHER>(std::min(TOGETHER, rows - row), from, depth, piece, sums + row * PANEL, ahead, lines);
            }
        }
    }

private:
    static constexpr int TOGETHER = 8, PIECE = 8 * DEEP<Value>;
    static constexpr int BYTES = PANEL * sizeof(Value);  // of a panel for one input

    struct Piece {
        const char* panel;
        int inputs;
        bool first;
    };

    // Not a part of what calls it, and its loops over rows unrolled early: else the sums do not all stay in registers.
    template <int ROWS>
    [[gnu::noinline]] static void add(int rows, const Value* x, int depth, const Piece& piece, float* sums, const char* ahead, int lines) {
        if constexpr (ROWS > 1) {
            if (rows < ROWS) {
                return add<ROWS - 1>(rows, x, depth, piece, sums, ahead, lines);
            }
        }
        __m512 low[ROWS], high[ROWS];
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; ++row) {
            low[row] = piece.first ? _mm512_setzero_ps() : _mm512_loadu_ps(sums + row * PANEL);
            high[row] = piece.first ? _mm512_setzero_ps() : _mm512_loadu_ps(sums + row * PANEL + TILE);
        }
        const char* tiles = piece.panel;
        for (int i = 0; i < piece.inputs; i += DEEP<Value>, tiles += LINES * 64, ahead += lines * 64) {
            fetch(ahead, lines);
            for (int line = 0; line < TILE; ++line) {
                const auto left = _mm512_loadu_si512(tiles + line * 64);
                const auto right = _mm512_loadu_si512(tiles + (TILE + line) * 64);
#pragma GCC unroll 8
                for (int row = 0; row < ROWS; ++row) {
                    const auto* inputs = x + size_t(row) * depth + i + line * WIDE<Value>;
                    low[row] = multiply_add(low[row], inputs, left);
                    high[row] = multiply_add(high[row], inputs, right);
                }
            }
        }
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; ++row) {
            _mm512_storeu_ps(sums + row * PANEL, low[row]);
            _mm512_storeu_ps(sums + row * PANEL + TILE, high[row]);
        }
    }
};

// What a thread multiplies with.
class Multiplier {
public:
    // sums [rows, 32] = x [rows, depth] · panel. What follows the panel in memory is fetched where another one `follows`.
    void multiply(const float* x, int rows, int depth, const char* panel, float* sums, bool follows) {
        m_floats.multiply(x, rows, depth, panel, sums, follows);
    }

#ifdef __AVX512BF16__
    void multiply(const Bfloat16* x, int rows, int depth, const char* panel, float* sums, bool follows) {
        m_halves.multiply(x, rows, depth, panel, sums, follows);
    }
#endif

private:
    VectorMultiplier<float> m_floats;
#ifdef __AMX_BF16__
    TileMultiplier m_halves;
#elif defined(__AVX512BF16__)
    VectorMultiplier<Bfloat16> m_halves;
#endif
};

}  // namespace gapless
