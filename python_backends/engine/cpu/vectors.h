// What is done with vectors of 16 floats: exponential, activation, norm.

#pragma once

#include <cmath>
#include <cstdint>

#include "panels.h"
#ifdef __AVX512F__
#include "vectors512.h"
#else
#include "vectors256.h"
#endif

namespace gapless {

inline uint32_t bits(int count) {  // the first ones of 32
    return count >= 32 ? 0xffffffff : (1u << std::max(count, 0)) - 1;
}

inline Vector exponential(Vector x) {  // 2^(whole + rest), the latter by its Taylor series: within 3e-7
    const auto power = limited(x * spread(1.44269504f));
    const auto whole_power = whole(power);
    const auto rest = power - whole_power;
    auto sum = spread(1.5403530e-4f);
    for (const float factor : {1.3333558e-3f, 9.6181291e-3f, 5.5504109e-2f, 2.4022651e-1f, 6.9314718e-1f, 1.f}) {
        sum = fused(sum, rest, spread(factor));
    }
    return scaled(sum, whole_power);
}

inline Vector silu(Vector x) {
    return x / (spread(1.f) + exponential(spread(0.f) - x));
}

// By its approximation with tanh: x·(1 + tanh(z)) / 2 = x / (1 + exp(−2z)), z = √(2/π)·(x + 0.044715·x³).
inline Vector gelu(Vector x) {
    const auto cubic = (x * x) * (x * spread(0.044715f));
    return x / (spread(1.f) + exponential((x + cubic) * spread(-1.59576912f)));
}

// softcap · tanh(x / softcap), with tanh(z) = 1 − 2 / (1 + exp(2z)).
inline Vector capped(Vector x, float softcap) {
    const auto one = spread(1.f), two = spread(2.f);
    return (one - two / (one + exponential(x * spread(2.f / softcap)))) * spread(softcap);
}

// 1 / rms(x) of a row [width], in every place.
inline Vector inverse_rms(const float* x, int width, float eps) {
    auto squares = spread(0.f);
    for (int i = 0; i < width; i += TILE) {
        const auto values = load(x + i);
        squares = fused(values, values, squares);
    }
    return spread(1.f / std::sqrt(total(squares) / width + eps));
}

// to [width] = x / rms(x) · weight, for one row; weight [width], and then the eps. Without a weight x itself.
template <typename Value>
void norm(const float* x, const float* weight, int width, Value* to) {
    const auto factor = weight ? inverse_rms(x, width, weight[width]) : spread(1.f);
    for (int i = 0; i < width; i += TILE) {
        const auto values = load(x + i);
        store(to + i, weight ? values * factor * load(weight + i) : values);
    }
}

// y [width] = x + scale · the norm of z, for one row.
inline void add_normed(const float* x, const float* z, const float* weight, float scale, int width, float* y) {
    const auto factor = inverse_rms(z, width, weight[width]) * spread(scale);
    for (int i = 0; i < width; i += TILE) {
        store(y + i, load(x + i) + load(z + i) * factor * load(weight + i));
    }
}

}  // namespace gapless
