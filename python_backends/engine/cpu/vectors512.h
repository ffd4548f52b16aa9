// A vector of 16 floats in a register of AVX512. vectors256.h has the same names for processors without it.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "panels.h"

namespace gapless {

using Vector = __m512;
using Line = __m512i;  // 64 bytes of any numbers

inline __mmask16 mask(int values) {
    return values >= TILE ? 0xffff : (1u << std::max(values, 0)) - 1;
}

inline __mmask32 half_mask(int values) {  // of bfloat16
    return values >= 2 * TILE ? 0xffffffff : (1u << std::max(values, 0)) - 1;
}

inline Vector spread(float value) {
    return _mm512_set1_ps(value);
}

inline Vector load(const float* from) {
    return _mm512_loadu_ps(from);
}

inline Vector load(const float* from, int count) {
    return _mm512_maskz_loadu_ps(mask(count), from);
}

inline Vector load(const Bfloat16* from, int count) {
    const auto values = _mm256_maskz_loadu_epi16(mask(count), from);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16));
}

inline Vector load(const int8_t* from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}

// 16 pairs of bytes, and of those the first ones and the second ones.
inline Line load_words(const int8_t* from) {
    return _mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

inline Vector first_bytes(Line words) {
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(words, 24), 24));
}

inline Vector second_bytes(Line words) {
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(words, 8));
}

inline Vector load_halves(const uint16_t* from) {  // of float16
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

inline void store(float* to, Vector values) {
    _mm512_storeu_ps(to, values);
}

inline void store(float* to, Vector values, int count) {
    _mm512_mask_storeu_ps(to, mask(count), values);
}

inline __m256i rounded(Vector values) {  // to bfloat16; a NaN stays one
#ifdef __AVX512BF16__
    return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values));
#else
    const auto bits = _mm512_castps_si512(values), one = _mm512_set1_epi32(1);
    const auto half = _mm512_add_epi32(_mm512_and_si512(_mm512_srli_epi32(bits, 16), one), _mm512_set1_epi32(0x7fff));
    const auto is_number = _mm512_cmp_ps_mask(values, values, _CMP_ORD_Q);
    const auto whole = _mm512_mask_add_epi32(_mm512_set1_epi32(0x7fc00000), is_number, bits, half);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(whole, 16));
#endif
}

// 16 pairs of bfloat16.
inline Line rounded_pairs(Vector firsts, Vector seconds) {
#ifdef __AVX512BF16__
    alignas(64) static constexpr auto ORDER = [] {
        std::array<uint16_t, 32> places{};
        for (int i = 0; i < 32; ++i) {
            places[i] = i / 2 + i % 2 * 16;
        }
        return places;
    }();
    const auto halves = reinterpret_cast<Line>(_mm512_cvtne2ps_pbh(seconds, firsts));
    return _mm512_permutexvar_epi16(_mm512_load_si512(ORDER.data()), halves);
#else
    const auto low = _mm512_cvtepu16_epi32(rounded(firsts)), high = _mm512_cvtepu16_epi32(rounded(seconds));
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
#endif
}

inline void store(Bfloat16* to, Vector values) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), rounded(values));
}

inline void store(Bfloat16* to, Vector values, int count) {
    _mm256_mask_storeu_epi16(to, mask(count), rounded(values));
}

// Whole numbers as bytes, of 8 numbers 0, 4, 1, 5, 2, 6, 3, 7: in the order of `four_bytes`.
inline void store_bytes(int8_t* to, Vector values) {
    const auto order = _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    const auto bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(values));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_shuffle_epi8(bytes, order));
}

inline Vector absolute(Vector x) {
    return _mm512_abs_ps(x);
}

// a · b + c
inline Vector fused(Vector a, Vector b, Vector c) {
    return _mm512_fmadd_ps(a, b, c);
}

inline Vector greater(Vector a, Vector b) {
    return _mm512_max_ps(a, b);
}

inline bool all_below(Vector a, Vector b) {  // a NaN is not
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ) == 0xffff;
}

// a where the bit of its place is set, else b.
inline Vector where(uint32_t bits, Vector a, Vector b) {
    return _mm512_mask_blend_ps(bits, b, a);
}

inline float total(Vector x) {
    return _mm512_reduce_add_ps(x);
}

inline float greatest(Vector x) {
    return _mm512_reduce_max_ps(x);
}

inline Vector whole(Vector x) {  // the nearest integer
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT);
}

// x where two to the power of it is neither 0 nor infinite; others may be nearer to zero as long as their power is that.
inline Vector limited(Vector x) {
    return x;  // `scaled` takes any
}

// x · 2^power, a whole number
inline Vector scaled(Vector x, Vector power) {
    return _mm512_scalef_ps(x, power);
}

inline Line load_line(const char* from) {
    return _mm512_loadu_si512(from);
}

// 64 bytes of values, of which there are `values`; the others are zero.
inline Line load_line(const float* from, int values) {
    return _mm512_castps_si512(load(from, values));
}

inline Line load_line(const Bfloat16* from, int values) {
    return _mm512_maskz_loadu_epi16(half_mask(values), from);
}

inline void store_line(char* to, Line line) {
    _mm512_storeu_si512(to, line);
}

inline Vector floats(Line line) {
    return _mm512_castsi512_ps(line);
}

// Of 16 pairs of bfloat16 the first ones and the second ones.
inline Vector firsts(Line pairs) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}

inline Vector seconds(Line pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(0xffff0000)));
}

inline Line spread_pair(const Bfloat16* from) {
    int32_t both;
    std::memcpy(&both, from, sizeof(both));
    return _mm512_set1_epi32(both);
}

// 16 pairs of a number of `even` and one of `odd`, of the first half of them or of the second.
inline Line paired(Line even, Line odd, int half) {
    alignas(64) static constexpr auto ORDERS = [] {
        std::array<std::array<uint16_t, 32>, 2> orders{};
        for (int i = 0; i < 32; ++i) {
            orders[0][i] = i / 2 + (i % 2) * 32;
            orders[1][i] = orders[0][i] + 16;
        }
        return orders;
    }();
    return _mm512_permutex2var_epi16(even, _mm512_loadu_si512(ORDERS[half].data()), odd);
}

// 16 rows of 16 values of 32 bits.
inline void transpose(Line (&rows)[TILE]) {
    Line other[TILE];
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

// Of 16 words the numbers of 4 bits at a place from 0 to 7.
inline Vector fours(Line words, int place) {
    const auto table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_permutexvar_ps(_mm512_srli_epi32(words, 4 * place), table);  // which looks at 4 bits only
}

// Of each word's numbers of 4 bits as bytes those at even places, or at odd ones.
inline Line four_bytes(Line words, int odd) {
    return _mm512_and_si512(odd ? _mm512_srli_epi32(words, 4) : words, _mm512_set1_epi8(15));
}

// 4 bytes, 16 times.
inline Line spread_word(const int8_t* from) {
    int32_t word;
    std::memcpy(&word, from, sizeof(word));
    return _mm512_set1_epi32(word);
}

#ifdef __AVX512VNNI__
inline Line spread_number(int32_t number) {
    return _mm512_set1_epi32(number);
}

// Bytes from −128 to 127 as those from 0 to 255.
inline Line without_sign(Line bytes) {
    return _mm512_xor_si512(bytes, _mm512_set1_epi8(-128));
}
#endif

inline Line no_bytes() {
    return _mm512_setzero_si512();
}

// `sum` and the products of bytes, where `codes` are from 0 to 15, or to 255 with VNNI; `byte_sums` has the sums of 4 neighbouring bytes, of
// up to 32 numbers.
inline Line add_bytes(Line sum, Line codes, Line bytes) {
#ifdef __AVX512VNNI__
    return _mm512_dpbusd_epi32(sum, codes, bytes);
#else
    return _mm512_add_epi16(sum, _mm512_maddubs_epi16(codes, bytes));
#endif
}

inline Vector byte_sums(Line sum) {
#ifdef __AVX512VNNI__
    return _mm512_cvtepi32_ps(sum);
#else
    return _mm512_cvtepi32_ps(_mm512_madd_epi16(sum, _mm512_set1_epi16(1)));
#endif
}

}  // namespace gapless
