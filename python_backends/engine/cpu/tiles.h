// Products of bfloat16 by the processor's tiles (AMX).

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "panels.h"

namespace gapless {

// Multiplies bfloat16 by its thread's tile registers, 32 rows at a time: 0 and 1 are sums of the first 16 rows, 2 and 3 of the others, 4 and 5
// rows, 6 and 7 weights.
class TileMultiplier {
public:
    ~TileMultiplier() {
        _tile_release();
    }

    // sums [rows, 32] = x [rows, depth] · a panel of weights. What follows it in memory is fetched where another one `follows`.
    void multiply(const Bfloat16* x, int rows, int depth, const Bfloat16* weights, float* sums, bool follows) {
        const auto* panel = reinterpret_cast<const char*>(weights);
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
            lines = follows ? lines : 0;
            multiply_block(x + size_t(begin) * depth, count, depth, sums + begin * PANEL, [=](int input) {
                fetch(ahead + input / PANEL * lines * 64, lines);
                return panel + input * LINES * 2;
            });
        }
    }

    // sums [rows, 32] = x [rows, depth] · weights, of which `tiles_of` an input gives 32 inputs; up to 32 rows.
    template <typename TilesOf>
    void multiply_block(const Bfloat16* x, int rows, int depth, float* sums, const TilesOf& tiles_of) {
        shape(rows);
        if (rows > TILE) {
            multiply<true>(x, depth, sums, tiles_of);
        } else {
            multiply<false>(x, depth, sums, tiles_of);
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
        asm volatile("" : : "m"(config));  // GCC 12 takes it that the next line reads 8 bytes only, and may not write the others
        _tile_loadconfig(&config);
    }

    template <bool MANY, typename TilesOf>  // more than 16 rows
    static void multiply(const Bfloat16* x, int depth, float* sums, const TilesOf& tiles_of) {
        const auto* others = x + TILE * depth;
        const size_t stride = depth * sizeof(Bfloat16);
        _tile_zero(0);
        _tile_zero(1);
        if (MANY) {
            _tile_zero(2);
            _tile_zero(3);
        }
        for (int i = 0; i < depth; i += PANEL) {
            const char* tiles = tiles_of(i);
            _tile_loadd(6, tiles, 64);
            _tile_loadd(4, x + i, stride);
            _tile_loadd(7, tiles + TILE * 64, 64);
            _tile_dpbf16ps(0, 4, 6);
            if (MANY) {
                _tile_loadd(5, others + i, stride);
                _tile_dpbf16ps(2, 5, 6);
            }
            _tile_dpbf16ps(1, 4, 7);
            if (MANY) {
                _tile_dpbf16ps(3, 5, 7);
            }
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

}  // namespace gapless
