// What is done with vectors of 16 floats: exponential, activation, norm.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "multiplier.h"

namespace gapless {

inline __m512 exponential(__m512 x) {  // 2^(whole + rest), the latter by its Taylor series: within 3e-7
    const auto power = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504f));
    const auto whole = _mm512_roundscale_ps(power, _MM_FROUND_TO_NEAREST_INT);
    const auto rest = _mm512_sub_ps(power, whole);
    auto sum = _mm512_set1_ps(1.5403530e-4f);
    for (const float factor : {1.3333558e-3f, 9.6181291e-3f, 5.5504109e-2f, 2.4022651e-1f, 6.9314718e-1f, 1.f}) {
        sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(factor));
    }
    return _mm512_scalef_ps(sum, whole);
}

inline __m512 silu(__m512 x) {
    return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.f), exponential(_mm512_sub_ps(_mm512_setzero_ps(), x))));
}

// By its approximation with tanh: x·(1 + tanh(z)) / 2 = x / (1 + exp(−2z)), z = √(2/π)·(x + 0.044715·x³).
inline __m512 gelu(__m512 x) {
    const auto cubic = _mm512_mul_ps(_mm512_mul_ps(x, x), _mm512_mul_ps(x, _mm512_set1_ps(0.044715f)));
    const auto power = _mm512_mul_ps(_mm512_add_ps(x, cubic), _mm512_set1_ps(-1.59576912f));
    return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.f), exponential(power)));
}

// softcap · tanh(x / softcap), with tanh(z) = 1 − 2 / (1 + exp(2z)).
inline __m512 capped(__m512 x, float softcap) {
    const auto one = _mm512_set1_ps(1.f), two = _mm512_set1_ps(2.f);
    const auto power = exponential(_mm512_mul_ps(x, _mm512_set1_ps(2.f / softcap)));
    return _mm512_mul_ps(_mm512_sub_ps(one, _mm512_div_ps(two, _mm512_add_ps(one, power))), _mm512_set1_ps(softcap));
}

inline void store(float* to, __m512 values) {
    _mm512_storeu_ps(to, values);
}

inline __mmask16 mask(int values) {
    return values >= TILE ? 0xffff : (1u << std::max(values, 0)) - 1;
}

inline __mmask32 half_mask(int values) {  // of bfloat16
    return values >= 2 * TILE ? 0xffffffff : (1u << std::max(values, 0)) - 1;
}

inline uint32_t bits(int count) {  // the first ones of 32
    return half_mask(count);
}

inline __m512 load(const Bfloat16* from, __mmask16 some) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, from)), 16));
}

inline __m512 load(const float* from, __mmask16 some) {
    return _mm512_maskz_loadu_ps(some, from);
}

inline void store(float* to, __m512 values, __mmask16 some) {
    _mm512_mask_storeu_ps(to, some, values);
}

#ifdef __AVX512BF16__

inline void store(Bfloat16* to, __m512 values) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values)));
}

inline void store(Bfloat16* to, __m512 values, __mmask16 some) {
    _mm256_mask_storeu_epi16(to, some, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values)));
}

#endif

// 64 bytes of values, of which there are `values`; the others are zero.
inline __m512i load_line(const float* from, int values) {
    return _mm512_castps_si512(load(from, mask(values)));
}

inline __m512i load_line(const Bfloat16* from, int values) {
    return _mm512_maskz_loadu_epi16(half_mask(values), from);
}

// 16 rows of 16 values of 32 bits.
inline void transpose(__m512i (&rows)[TILE]) {
    __m512i other[TILE];
    for (int i = 0; i < TILE; i += 2) {
        other[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        other[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < TILE; i += 4) {
        rows[i] = _mm512_unpacklo_epi64(other[i], other[i + 2]);
        rows[i + 1] = _mm512_unpackhi_epi64(other[i], other[i + 2]);
        rows[i + 2] = _mm512_unpacklo_epi64(other[i + 1], other[i + 3]);
        rows[i + 3] = _mm512_unpackhi_epi64(other[i + 1], other[i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
        other[i] = _mm512_shuffle_i32x4(rows[i], rows[4 + i], 0x88);
        other[4 + i] = _mm512_shuffle_i32x4(rows[i], rows[4 + i], 0xdd);
        other[8 + i] = _mm512_shuffle_i32x4(rows[8 + i], rows[12 + i], 0x88);
        other[12 + i] = _mm512_shuffle_i32x4(rows[8 + i], rows[12 + i], 0xdd);
    }
    for (int i = 0; i < 4; ++i) {
        rows[i] = _mm512_shuffle_i32x4(other[i], other[8 + i], 0x88);
        rows[8 + i] = _mm512_shuffle_i32x4(other[i], other[8 + i], 0xdd);
        rows[4 + i] = _mm512_shuffle_i32x4(other[4 + i], other[12 + i], 0x88);
        rows[12 + i] = _mm512_shuffle_i32x4(other[4 + i], other[12 + i], 0xdd);
    }
}

// 1 / rms(x) of a row [width], in every place.
inline __m512 inverse_rms(const float* x, int width, float eps) {
    auto squares = _mm512_setzero_ps();
    for (int i = 0; i < width; i += TILE) {
        const auto values = _mm512_loadu_ps(x + i);
        squares = _mm512_fmadd_ps(values, values, squares);
    }
    return _mm512_set1_ps(1.f / std::sqrt(_mm512_reduce_add_ps(squares) / width + eps));
}

// to [width] = x / rms(x) · weight, for one row; weight [width], and then the eps. Without a weight x itself.
template <typename Value>
void norm(const float* x, const float* weight, int width, Value* to) {
    const auto factor = weight ? inverse_rms(x, width, weight[width]) : _mm512_set1_ps(1.f);
    for (int i = 0; i < width; i += TILE) {
        const auto values = _mm512_loadu_ps(x + i);
        store(to + i, weight ? _mm512_mul_ps(_mm512_mul_ps(values, factor), _mm512_loadu_ps(weight + i)) : values);
    }
}

// y [width] = x + scale · the norm of z, for one row.
inline void add_normed(const float* x, const float* z, const float* weight, float scale, int width, float* y) {
    const auto factor = _mm512_mul_ps(inverse_rms(z, width, weight[width]), _mm512_set1_ps(scale));
    for (int i = 0; i < width; i += TILE) {
        const auto values = _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(z + i), factor), _mm512_loadu_ps(weight + i));
        store(y + i, _mm512_add_ps(_mm512_loadu_ps(x + i), values));
    }
}

}  // namespace gapless
