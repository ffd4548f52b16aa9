// The tile instructions of Intel's AMX, computed by other instructions: so that what is compiled for a processor with tiles can be
// tested on one without. Included before the source by the compiler's `-include`.
//
// Follows Intel's "64 and IA-32 Architectures Software Developer's Manual", volume 2: TDPBF16PS sums even and odd inputs apart, in float32,
// and adds both to the tile. What the processor refuses (#GP, #UD) ends the process with a line that says why.

#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace emulated {

struct Config {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
};
static_assert(sizeof(Config) == 64);

struct Tile {
    uint8_t rows[16][64];
};

inline thread_local Config config{};
inline thread_local Tile tiles[8];

inline void want(bool holds, const char* what) {
    if (!holds) {
        std::fprintf(stderr, "a processor with tiles refuses this: %s\n", what);
        std::abort();
    }
}

inline void load_config(const void* from) {
    std::memcpy(&config, from, sizeof(config));
    want(config.palette == 1 && config.start == 0, "palette or start row");
    for (const auto value : config.reserved) {
        want(value == 0, "reserved bytes");
    }
    for (int i = 0; i < 16; ++i) {
        want(i < 8 ? config.rows[i] <= 16 && config.bytes[i] <= 64 : !config.rows[i] && !config.bytes[i], "size of a tile");
        want(!config.rows[i] == !config.bytes[i], "a tile with rows or bytes alone");
    }
    std::memset(tiles, 0, sizeof(tiles));
}

inline void release() {
    config = Config{};
}

inline void want_configured(int number) {
    want(config.palette == 1 && config.rows[number] > 0, "a tile that is not configured");
}

inline void zero(int number) {
    want_configured(number);
    tiles[number] = Tile{};
}

inline void load(int number, const void* from, size_t stride) {
    want_configured(number);
    tiles[number] = Tile{};
    for (int row = 0; row < config.rows[number]; ++row) {
        std::memcpy(tiles[number].rows[row], static_cast<const char*>(from) + row * stride, config.bytes[number]);
    }
}

inline void store(int number, void* to, size_t stride) {
    want_configured(number);
    for (int row = 0; row < config.rows[number]; ++row) {
        std::memcpy(static_cast<char*>(to) + row * stride, tiles[number].rows[row], config.bytes[number]);
    }
}

// Small numbers are zero, as with DAZ and FTZ, whatever the control register says.
inline float flushed(float value) {
    return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value;
}

inline float float_of(const uint8_t* at) {
    uint16_t half;
    std::memcpy(&half, at, sizeof(half));
    const uint32_t bits = uint32_t(half) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return flushed(value);
}

// sums += x · weights, of pairs of bfloat16
inline void multiply(int sums, int x, int weights) {
    want(sums != x && sums != weights && x != weights, "the same tile twice");
    for (const int number : {sums, x, weights}) {
        want_configured(number);
        want(config.bytes[number] % 4 == 0, "bytes that are no pairs");
    }
    want(config.rows[sums] == config.rows[x], "rows of the sums and of x");
    want(config.bytes[sums] == config.bytes[weights], "columns of the sums and of the weights");
    want(config.bytes[x] / 4 == config.rows[weights], "inputs of x and of the weights");
    for (int row = 0; row < config.rows[sums]; ++row) {
        for (int column = 0; column < config.bytes[sums] / 4; ++column) {
            float even = 0, odd = 0;
            for (int pair = 0; pair < config.rows[weights]; ++pair) {
                const auto* left = tiles[x].rows[row] + 4 * pair;
                const auto* right = tiles[weights].rows[pair] + 4 * column;
                even = flushed(std::fma(float_of(left), float_of(right), even));
                odd = flushed(std::fma(float_of(left + 2), float_of(right + 2), odd));
            }
            float sum;
            auto* to = tiles[sums].rows[row] + 4 * column;
            std::memcpy(&sum, to, sizeof(sum));
            sum = flushed(flushed(sum) + flushed(even + odd));
            std::memcpy(to, &sum, sizeof(sum));
        }
    }
}

// sums += x · weights, of four signed bytes of each
inline void multiply_bytes(int sums, int x, int weights) {
    want(sums != x && sums != weights && x != weights, "the same tile twice");
    for (const int number : {sums, x, weights}) {
        want_configured(number);
        want(config.bytes[number] % 4 == 0, "bytes that are no fours");
    }
    want(config.rows[sums] == config.rows[x], "rows of the sums and of x");
    want(config.bytes[sums] == config.bytes[weights], "columns of the sums and of the weights");
    want(config.bytes[x] / 4 == config.rows[weights], "inputs of x and of the weights");
    for (int row = 0; row < config.rows[sums]; ++row) {
        for (int column = 0; column < config.bytes[sums] / 4; ++column) {
            int32_t sum;
            auto* to = tiles[sums].rows[row] + 4 * column;
            std::memcpy(&sum, to, sizeof(sum));
            for (int input = 0; input < config.bytes[x]; ++input) {
                sum += int8_t(tiles[x].rows[row][input]) * int8_t(tiles[weights].rows[input / 4][4 * column + input % 4]);
            }
            std::memcpy(to, &sum, sizeof(sum));
        }
    }
}

}  // namespace emulated

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#define _tile_loadconfig(from) emulated::load_config(from)
#define _tile_release() emulated::release()
#define _tile_zero(tile) emulated::zero(tile)
#define _tile_loadd(tile, from, stride) emulated::load(tile, from, stride)
#define _tile_stored(tile, to, stride) emulated::store(tile, to, stride)
#define _tile_dpbf16ps(sums, x, weights) emulated::multiply(sums, x, weights)
#define _tile_dpbssd(sums, x, weights) emulated::multiply_bytes(sums, x, weights)
