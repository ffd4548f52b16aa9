// Products of bfloat16, and of integers with weights of 4 bits or of a byte, by the processor's tiles (AMX).

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "bytes.h"
#include "fours.h"
#include "panels.h"
#include "vectors.h"

namespace gapless {

// Multiplies by its thread's tile registers, 32 rows at a time: 0 and 1 are sums of the first 16 rows, 2 and 3 of the others, 4 and 5
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

    // The same as multiply_grouped<FourKernel>, of `blocks` of 16 rows.
    void multiply_fours(GroupedRows rows, int blocks, int depth, const Fours<Float16>* panel, float* sums) {
        const int groups = depth / GROUP;
        auto* bytes = m_bytes.of(size_t(depth) * PANEL);
        for (int index = 0; index < groups; ++index) {
            fetch(panel + groups + index, sizeof(*panel) / 64);
            for (int tile = 0; tile < 2; ++tile) {
                auto* to = bytes + (index * 2 + tile) * GROUP * TILE;
                for (int word = 0; word < GROUP / WORD; ++word, to += WORD * TILE) {
                    const auto words = load_line(reinterpret_cast<const char*>(panel[index].codes[word][tile]));
                    store_line(reinterpret_cast<char*>(to), four_bytes(words, 0));
                    store_line(reinterpret_cast<char*>(to + WORD / 2 * TILE), four_bytes(words, 1));
                }
            }
        }
        shape(INTEGERS);
        keep_order();
        for (int block = 0; block < blocks; ++block) {
            multiply_fours(rows, groups, panel, bytes, 0, sums);
            multiply_fours(rows, groups, panel, bytes, 1, sums);
            rows = rows.from(TILE, depth);
            sums += TILE * PANEL;
        }
    }

    // The same as multiply_grouped<ByteKernel>, of `blocks` of 16 rows.
    void multiply_bytes(GroupedRows rows, int blocks, int depth, const int8_t* panel, float* sums) {
        shape(INTEGERS);
        keep_order();
        for (int block = 0; block < blocks; ++block) {
            multiply_bytes(rows, depth, panel, sums, block ? 0 : GROUP_BYTES / 64);
            rows = rows.from(TILE, depth);
            sums += TILE * PANEL;
        }
    }

private:
    static constexpr int BYTES_AHEAD = 2048;
    static constexpr int INTEGERS = -1;  // instead of a number of rows: tiles are those of bytes

    // What was written before is in memory when a tile is loaded: GCC 12 takes it that a configuration is 8 bytes, and that tiles are read
    // from nowhere.
    static void keep_order() {
        asm volatile("" : : : "memory");
    }

    struct Config {
        uint8_t palette = 1, start = 0, reserved[14] = {};
        uint16_t bytes[16] = {};
        uint8_t rows[16] = {};
    };

    void shape(int rows) {
        if (rows == m_rows) {
            return;
        }
        m_rows = rows;
        Config config;
        std::fill_n(config.bytes, 8, 64);
        std::fill_n(config.rows, 8, TILE);
        if (rows == INTEGERS) {
            config.bytes[4] = GROUP;
            config.rows[6] = config.rows[7] = GROUP / 4;
        } else {
            config.rows[0] = config.rows[1] = config.rows[4] = std::min(rows, TILE);
            config.rows[2] = config.rows[3] = config.rows[5] = std::max(rows - TILE, 1);
        }
        keep_order();
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
            keep_order();
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

    // With a tile's 16 outputs. `bytes` [groups, 2, 8, 16, 4]: the codes of the panel.
    static void multiply_fours(const GroupedRows& rows, int groups, const Fours<Float16>* panel, const int8_t* bytes, int tile, float* sums) {
        alignas(64) int32_t of[2][TILE][TILE];  // of two groups: the next one is multiplied while these are read
        Vector all[TILE];
#pragma GCC unroll 16
        for (int row = 0; row < TILE; ++row) {
            all[row] = spread(0.f);
        }
        for (int index = 0; index < groups; ++index) {
            auto& sums_of_group = of[index % 2];
            _tile_zero(0);
            _tile_loadd(4, rows.x + index * GROUP, groups * GROUP);
            _tile_loadd(6, bytes + (index * 2 + tile) * GROUP * TILE, 64);
            _tile_dpbssd(0, 4, 6);
            _tile_stored(0, sums_of_group, 64);
            const auto scale = load_halves(panel[index].scales[tile]), minimum = load_halves(panel[index].minima[tile]);
#pragma GCC unroll 16
            for (int row = 0; row < TILE; ++row) {
                const auto sum = byte_sums(load_line(reinterpret_cast<const char*>(sums_of_group[row])));
                const auto before = fused(minimum, spread(rows.totals[row * groups + index]), all[row]);
                all[row] = fused(sum * spread(rows.scales[row * groups + index]), scale, before);
            }
        }
#pragma GCC unroll 16
        for (int row = 0; row < TILE; ++row) {
            store(sums + row * PANEL + tile * TILE, all[row]);
        }
    }

    static void multiply_bytes(const GroupedRows& rows, int depth, const int8_t* panel, float* sums, int lines) {
        alignas(64) int32_t of[2][2][TILE][TILE];  // of two groups: the next one is multiplied while these are read
        const int groups = rows.groups(depth);
        for (int at = 0; at < TILE * PANEL; at += TILE) {
            store(sums + at, spread(0.f));
        }
        for (int index = 0; index <= groups; ++index) {
            if (index < groups) {
                _tile_zero(0);
                _tile_zero(1);
                const int end = std::min((index + 1) * BYTES_GROUP, depth);
                for (int input = index * BYTES_GROUP; input < end; input += GROUP) {
                    const auto* weights = panel + input * PANEL;
                    fetch(weights + ByteKernel::AHEAD, lines);
                    _tile_loadd(4, rows.x + input, depth);
                    _tile_loadd(6, weights, 64);
                    _tile_loadd(7, weights + GROUP * TILE, 64);
                    _tile_dpbssd(0, 4, 6);
                    _tile_dpbssd(1, 4, 7);
                }
                _tile_stored(0, of[index % 2][0], 64);
                _tile_stored(1, of[index % 2][1], 64);
            }
            if (index) {
                add_scaled(of[(index - 1) % 2], rows.scales + index - 1, groups, sums);
            }
        }
    }

    // sums [16, 32] += those `of` a group, by the scales [16] that lie `stride` apart.
    static void add_scaled(const int32_t (&of)[2][TILE][TILE], const float* scales, int stride, float* sums) {
#pragma GCC unroll 16
        for (int row = 0; row < TILE; ++row, sums += PANEL, scales += stride) {
            const auto scale = spread(*scales);
            for (int tile = 0; tile < 2; ++tile) {
                const auto sum = byte_sums(load_line(reinterpret_cast<const char*>(of[tile][row])));
                store(sums + tile * TILE, fused(sum, scale, load(sums + tile * TILE)));
            }
        }
    }

    Kept<int8_t> m_bytes;
    int m_rows = 0;
};

}  // namespace gapless
