// What is done with vectors of 16 floats, whatever the processor.

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

// softcap · tanh(x / softcap), with tanh(z) = 1 − 2 / (1 + exp(2z)).
inline Vector capped(Vector x, float softcap) {
    const auto one = spread(1.f), two = spread(2.f);
    return (one - two / (one + exponential(x * spread(2.f / softcap)))) * spread(softcap);
}

}  // namespace gapless
