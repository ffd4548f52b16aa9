// A vector of 16 floats in two registers of AVX2, with FMA: what vectors512.h has, by the same names.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "panels.h"

namespace gapless {

struct Vector {
    __m256 low, high;
};

struct Line {  // 64 bytes of any numbers
    __m256i low, high;
};

inline Vector operator+(Vector a, Vector b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}

inline Vector operator-(Vector a, Vector b) {
    return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}

inline Vector operator*(Vector a, Vector b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}

inline Vector operator/(Vector a, Vector b) {
    return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}

inline Vector spread(float value) {
    return {_mm256_set1_ps(value), _mm256_set1_ps(value)};
}

inline Vector load(const float* from) {
    return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + TILE / 2)};
}

inline Line load_line(const char* from) {
    const auto* at = reinterpret_cast<const __m256i*>(from);
    return {_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
}

inline void store_line(char* to, Line line) {
    auto* at = reinterpret_cast<__m256i*>(to);
    _mm256_storeu_si256(at, line.low);
    _mm256_storeu_si256(at + 1, line.high);
}

// 64 bytes of values, of which there are `values`; the others are zero.
template <typename Value>
Line load_line(const Value* from, int values) {
    constexpr int all = 64 / sizeof(Value);
    if (values >= all) {
        return load_line(reinterpret_cast<const char*>(from));
    }
    alignas(64) char bytes[64] = {};
    std::memcpy(bytes, from, std::max(values, 0) * sizeof(Value));
    return load_line(bytes);
}

inline Vector floats(Line line) {
    return {_mm256_castsi256_ps(line.low), _mm256_castsi256_ps(line.high)};
}

inline Vector load(const float* from, int count) {
    return floats(load_line(from, count));
}

inline Vector load(const Bfloat16* from, int count) {
    alignas(32) Bfloat16 some[TILE] = {};
    if (count < TILE) {
        std::memcpy(some, from, std::max(count, 0) * sizeof(Bfloat16));
        from = some;
    }
    const auto* at = reinterpret_cast<const __m128i*>(from);
    const auto wide = [at](int half) { return _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(at + half)), 16); };
    return {_mm256_castsi256_ps(wide(0)), _mm256_castsi256_ps(wide(1))};
}

inline Vector load(const int8_t* from) {
    const auto wide = [from](int half) {
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + half * 8))));
    };
    return {wide(0), wide(1)};
}

// 16 pairs of bytes, and of those the first ones and the second ones.
inline Line load_words(const int8_t* from) {
    const auto* at = reinterpret_cast<const __m128i*>(from);
    return {_mm256_cvtepi16_epi32(_mm_loadu_si128(at)), _mm256_cvtepi16_epi32(_mm_loadu_si128(at + 1))};
}

inline Vector first_bytes(Line words) {
    const auto of = [](__m256i some) { return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(some, 24), 24)); };
    return {of(words.low), of(words.high)};
}

inline Vector second_bytes(Line words) {
    return {_mm256_cvtepi32_ps(_mm256_srai_epi32(words.low, 8)), _mm256_cvtepi32_ps(_mm256_srai_epi32(words.high, 8))};
}

inline Vector load_halves(const uint16_t* from) {  // of float16
    const auto* at = reinterpret_cast<const __m128i*>(from);
    return {_mm256_cvtph_ps(_mm_loadu_si128(at)), _mm256_cvtph_ps(_mm_loadu_si128(at + 1))};
}

inline void store(float* to, Vector values) {
    _mm256_storeu_ps(to, values.low);
    _mm256_storeu_ps(to + TILE / 2, values.high);
}

inline __m256i rounded(__m256 values) {  // to bfloat16, in 32 bits; a NaN stays one
    const auto bits = _mm256_castps_si256(values);
    const auto last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const auto whole = _mm256_add_epi32(bits, _mm256_add_epi32(last, _mm256_set1_epi32(0x7fff)));
    const auto is_number = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_ORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(_mm256_set1_epi32(0x7fc00000), whole, is_number), 16);
}

// 16 pairs of bfloat16.
inline Line rounded_pairs(Vector firsts, Vector seconds) {
    const auto of = [](__m256 first, __m256 second) { return _mm256_or_si256(rounded(first), _mm256_slli_epi32(rounded(second), 16)); };
    return {of(firsts.low, seconds.low), of(firsts.high, seconds.high)};
}

inline void store(Bfloat16* to, Vector values) {
    const auto halves = _mm256_packus_epi32(rounded(values.low), rounded(values.high));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(halves, 0xd8));
}

template <typename Value>
void store(Value* to, Vector values, int count) {
    if (count >= TILE) {
        store(to, values);
        return;
    }
    Value all[TILE];
    store(all, values);
    std::memcpy(to, all, std::max(count, 0) * sizeof(Value));
}

// Whole numbers as bytes, of 8 numbers 0, 4, 1, 5, 2, 6, 3, 7: in the order of `four_bytes`.
inline void store_bytes(int8_t* to, Vector values) {
    const auto order = _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    const auto words = [](__m256 some) {
        const auto wide = _mm256_cvtps_epi32(some);
        return _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    };
    const auto bytes = _mm_packs_epi16(words(values.low), words(values.high));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_shuffle_epi8(bytes, order));
}

inline Vector absolute(Vector x) {
    const auto sign = _mm256_set1_ps(-0.f);
    return {_mm256_andnot_ps(sign, x.low), _mm256_andnot_ps(sign, x.high)};
}

// a · b + c
inline Vector fused(Vector a, Vector b, Vector c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}

inline Vector greater(Vector a, Vector b) {
    return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}

inline bool all_below(Vector a, Vector b) {  // a NaN is not
    const auto low = _mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ), high = _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ);
    return _mm256_movemask_ps(_mm256_and_ps(low, high)) == 0xff;
}

// a where the bit of its place is set, else b.
inline Vector where(uint32_t bits, Vector a, Vector b) {
    const auto places = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const auto chosen = [places](uint32_t some, __m256 x, __m256 y) {
        const auto is_set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(some), places), places);
        return _mm256_blendv_ps(y, x, _mm256_castsi256_ps(is_set));
    };
    return {chosen(bits, a.low, b.low), chosen(bits >> TILE / 2, a.high, b.high)};
}

// Of 8 values: `of` two vectors of 4, then of 2, then of 1.
template <typename Of>
float joined(__m256 x, const Of& of) {
    auto four = of(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    four = of(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(of(four, _mm_movehdup_ps(four)));
}

inline float total(Vector x) {
    return joined(_mm256_add_ps(x.low, x.high), [](__m128 a, __m128 b) { return _mm_add_ps(a, b); });
}

inline float greatest(Vector x) {
    return joined(_mm256_max_ps(x.low, x.high), [](__m128 a, __m128 b) { return _mm_max_ps(a, b); });
}

inline Vector whole(Vector x) {  // the nearest integer
    return {_mm256_round_ps(x.low, _MM_FROUND_TO_NEAREST_INT), _mm256_round_ps(x.high, _MM_FROUND_TO_NEAREST_INT)};
}

// x where two to the power of it is neither 0 nor infinite; others may be nearer to zero as long as their power is that.
inline Vector limited(Vector x) {
    const auto most = _mm256_set1_ps(254.f), least = _mm256_set1_ps(-254.f);
    const auto between = [=](__m256 y) { return _mm256_max_ps(least, _mm256_min_ps(most, y)); };  // a NaN stays one
    return {between(x.low), between(x.high)};
}

// x · 2^power, a whole number that `limited` leaves as it is: in two steps, as half of it is an exponent.
inline Vector scaled(Vector x, Vector power) {
    const auto by = [](__m256i exponent) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(exponent, _mm256_set1_epi32(127)), 23));
    };
    const auto times = [&by](__m256 y, __m256 of) {
        const auto all = _mm256_cvtps_epi32(of), half = _mm256_srai_epi32(all, 1);
        return _mm256_mul_ps(_mm256_mul_ps(y, by(half)), by(_mm256_sub_epi32(all, half)));
    };
    return {times(x.low, power.low), times(x.high, power.high)};
}

// Of 16 pairs of bfloat16 the first ones and the second ones.
inline Vector firsts(Line pairs) {
    return floats({_mm256_slli_epi32(pairs.low, 16), _mm256_slli_epi32(pairs.high, 16)});
}

inline Vector seconds(Line pairs) {
    const auto upper = _mm256_set1_epi32(0xffff0000);
    return floats({_mm256_and_si256(pairs.low, upper), _mm256_and_si256(pairs.high, upper)});
}

inline Line spread_pair(const Bfloat16* from) {
    int32_t both;
    std::memcpy(&both, from, sizeof(both));
    return {_mm256_set1_epi32(both), _mm256_set1_epi32(both)};
}

// 16 pairs of a number of `even` and one of `odd`, of the first half of them or of the second.
inline Line paired(Line even, Line odd, int half) {
    const auto a = half ? even.high : even.low, b = half ? odd.high : odd.low;
    const auto low = _mm256_unpacklo_epi16(a, b), high = _mm256_unpackhi_epi16(a, b);
    return {_mm256_permute2x128_si256(low, high, 0x20), _mm256_permute2x128_si256(low, high, 0x31)};
}

// 8 rows of 8 values of 32 bits.
inline void transpose_eight(__m256i (&rows)[8]) {
    __m256i other[8];
    for (int i = 0; i < 8; i += 2) {
        other[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
        other[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        rows[i] = _mm256_unpacklo_epi64(other[i], other[i + 2]);
        rows[i + 1] = _mm256_unpackhi_epi64(other[i], other[i + 2]);
        rows[i + 2] = _mm256_unpacklo_epi64(other[i + 1], other[i + 3]);
        rows[i + 3] = _mm256_unpackhi_epi64(other[i + 1], other[i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
        other[i] = _mm256_permute2x128_si256(rows[i], rows[4 + i], 0x20);
        other[4 + i] = _mm256_permute2x128_si256(rows[i], rows[4 + i], 0x31);
    }
    std::copy_n(other, 8, rows);
}

// 16 rows of 16 values of 32 bits.
inline void transpose(Line (&rows)[TILE]) {
    __m256i parts[2][2][8];  // of the rows and of the columns
    for (int row = 0; row < TILE; ++row) {
        parts[row / 8][0][row % 8] = rows[row].low;
        parts[row / 8][1][row % 8] = rows[row].high;
    }
    for (auto& half : parts) {
        transpose_eight(half[0]);
        transpose_eight(half[1]);
    }
    for (int row = 0; row < TILE; ++row) {
        rows[row] = {parts[0][row / 8][row % 8], parts[1][row / 8][row % 8]};
    }
}

// Of 16 words the numbers of 4 bits at a place from 0 to 7.
inline Vector fours(Line words, int place) {
    const auto bits = _mm256_set1_epi32(15);
    const auto of = [=](__m256i some) { return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(some, 4 * place), bits)); };
    return {of(words.low), of(words.high)};
}

// Of each word's numbers of 4 bits as bytes those at even places, or at odd ones.
inline Line four_bytes(Line words, int odd) {
    const auto of = [odd](__m256i some) {
        return _mm256_and_si256(odd ? _mm256_srli_epi32(some, 4) : some, _mm256_set1_epi8(15));
    };
    return {of(words.low), of(words.high)};
}

// 4 bytes, 16 times.
inline Line spread_word(const int8_t* from) {
    int32_t word;
    std::memcpy(&word, from, sizeof(word));
    return {_mm256_set1_epi32(word), _mm256_set1_epi32(word)};
}

inline Line no_bytes() {
    return {_mm256_setzero_si256(), _mm256_setzero_si256()};
}

// `sum` and the products of bytes, where `codes` are from 0 to 15; `byte_sums` has the sums of 4 neighbouring bytes, of up to 32 numbers.
inline Line add_bytes(Line sum, Line codes, Line bytes) {
    return {_mm256_add_epi16(sum.low, _mm256_maddubs_epi16(codes.low, bytes.low)),
            _mm256_add_epi16(sum.high, _mm256_maddubs_epi16(codes.high, bytes.high))};
}

inline Vector byte_sums(Line sum) {
    const auto of = [](__m256i some) { return _mm256_cvtepi32_ps(_mm256_madd_epi16(some, _mm256_set1_epi16(1))); };
    return {of(sum.low), of(sum.high)};
}

}  // namespace gapless
