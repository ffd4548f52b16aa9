// Between the two products of the feed-forward part. What is no number stays none.

#pragma once

#include "layers.h"
#include "vectors.h"

namespace gapless {

inline Vector silu(Vector x) {
    return x / (spread(1.f) + exponential(spread(0.f) - x));
}

// By its approximation with tanh: x·(1 + tanh(z)) / 2 = x / (1 + exp(−2z)), z = √(2/π)·(x + 0.044715·x³).
inline Vector gelu_tanh(Vector x) {
    const auto cubic = (x * x) * (x * spread(0.044715f));
    return x / (spread(1.f) + exponential((x + cubic) * spread(-1.59576912f)));
}

// x·(1 + erf(x / √2)) / 2 = max(x, 0) − |x|·(1 − erf(|x| / √2)) / 2, the latter within 1.5e-7 (Abramowitz and Stegun, 7.1.26).
inline Vector gelu(Vector x) {
    const auto zero = spread(0.f), one = spread(1.f), size = greater(zero - x, x), z = size * spread(0.70710678f);
    const auto t = one / fused(z, spread(0.3275911f), one);
    auto sum = spread(1.061405429f);
    for (const float factor : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f, 0.f}) {
        sum = fused(sum, t, spread(factor));
    }
    return greater(zero, x) - size * spread(0.5f) * sum * exponential(zero - z * z);
}

inline Vector relu(Vector x) {
    return greater(spread(0.f), x);
}

// `then(activation)` with that of a number of layers.h.
template <typename Then>
void with_activation(int activation, const Then& then) {
    switch (activation) {
        case GAPLESS_GELU:
            return then([](Vector x) { return gelu(x); });
        case GAPLESS_GELU_TANH:
            return then([](Vector x) { return gelu_tanh(x); });
        case GAPLESS_RELU:
            return then([](Vector x) { return relu(x); });
        case GAPLESS_RELU_SQUARED:
            return then([](Vector x) { return relu(x) * relu(x); });
        default:
            return then([](Vector x) { return silu(x); });
    }
}

}  // namespace gapless
