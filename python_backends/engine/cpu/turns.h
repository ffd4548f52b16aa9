// What happens to queries and keys before scores are computed: a norm and the rotary embedding.

#pragma once

#include <cmath>

#include "layers.h"
#include "vectors.h"

namespace gapless {

// 1 / rms of a row [width].
template <typename Value>
float inverse_rms(const Value* x, int width, float eps) {
    auto squares = spread(0.f);
    for (int i = 0; i < width; i += TILE) {
        const auto values = load(x + i, width - i);
        squares = fused(values, values, squares);
    }
    return 1.f / std::sqrt(total(squares) / width + eps);
}

// Of the heads [dim] of a row, all queries or all keys.
struct Turn {
    GaplessNorm norm;
    GaplessRotary rotary;  // without cos: none
    int dim;

    bool has_one_norm() const {  // of all heads together
        return norm.weight && norm.width > dim;
    }

    // `put(head)` says where [dim] of a head go.
    template <typename Value, typename Put>
    void operator()(const Value* from, int heads, int position, const Put& put) const {
        const float of_all = has_one_norm() ? inverse_rms(from, norm.width, norm.eps) : 1.f;
        for (int head = 0; head < heads; ++head, from += dim) {
            const auto* weight = has_one_norm() ? norm.weight + head * dim : norm.weight;
            const float factor = norm.weight && !has_one_norm() ? inverse_rms(from, dim, norm.eps) : of_all;
            turn(from, position, weight, spread(factor), put(head));
        }
    }

private:
    template <typename Value>
    void turn(const Value* from, int position, const float* weight, Vector factor, Value* to) const {
        const int half = dim / 2;
        for (int i = 0; i < half; i += TILE) {
            const int some = half - i;
            auto first = load(from + i, some), second = load(from + half + i, some);
            if (weight) {
                first = first * factor * load(weight + i, some);
                second = second * factor * load(weight + half + i, some);
            }
            if (rotary.cos) {
                const auto c = load(rotary.cos + size_t(position) * half + i, some);
                const auto s = load(rotary.sin + size_t(position) * half + i, some);
                const auto turned = fused(first, c, spread(0.f) - second * s);
                second = fused(second, c, first * s);
                first = turned;
            }
            store(to + i, first, some);
            store(to + half + i, second, some);
        }
    }
};

}  // namespace gapless
