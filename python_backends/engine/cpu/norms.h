// Norms of rows of floats.

#pragma once

#include <cmath>

#include "layers.h"
#include "vectors.h"

namespace gapless {

// What a row [width] is moved and multiplied by; of a row without a norm nothing.
struct Normed {
    Vector mean, factor;

    Normed(const float* x, const GaplessNorm& norm) : mean(spread(0.f)), factor(spread(1.f)) {
        if (norm.centred) {
            auto sum = spread(0.f);
            for (int i = 0; i < norm.width; i += TILE) {
                sum = sum + load(x + i);
            }
            mean = spread(total(sum) / norm.width);
        }
        if (norm.weight) {
            auto squares = spread(0.f);
            for (int i = 0; i < norm.width; i += TILE) {
                const auto values = load(x + i) - mean;
                squares = fused(values, values, squares);
            }
            factor = spread(1.f / std::sqrt(total(squares) / norm.width + norm.eps));
        }
    }

    // Of 16 values, the first of which is at `i` in the row.
    Vector operator()(Vector values, const GaplessNorm& norm, int i) const {
        const auto weighted = (values - mean) * factor * load(norm.weight + i);
        return norm.bias ? weighted + load(norm.bias + i) : weighted;
    }
};

// to [width] = the norm of x, or x itself where there is none.
template <typename Value>
void put_normed(const float* x, const GaplessNorm& norm, int width, Value* to) {
    const Normed normed(x, norm);
    for (int i = 0; i < width; i += TILE) {
        const auto values = load(x + i);
        store(to + i, norm.weight ? normed(values, norm, i) : values);
    }
}

// y [width] = x + scale · the norm of z.
inline void add_normed(const float* x, const float* z, const GaplessNorm& norm, float scale, float* y) {
    const Normed normed(z, norm);
    for (int i = 0; i < norm.width; i += TILE) {
        store(y + i, fused(normed(load(z + i), norm, i), spread(scale), load(x + i)));
    }
}

}  // namespace gapless
