// How numbers lie in memory for products, and how they are fetched into the processor's caches.
//
// A panel [32 outputs, depth] lies in tiles as the processor takes them: of bfloat16 [depth / 32, 2, 16, 16, 2], the last three being pairs
// of inputs, outputs, and the two of a pair; of float32 [depth / 16, 2, 16, 16], the last two being inputs and outputs. Depth is a multiple
// of 32.

#pragma once

#include <immintrin.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
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

}  // namespace gapless
