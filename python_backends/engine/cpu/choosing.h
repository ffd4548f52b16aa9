// Which token a row takes that takes the greatest logit.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "vectors.h"

namespace gapless {

constexpr float MOST = 1e30f;  // of a logit (numbers.py)

struct Chosen {
    int token;
    bool is_good;  // a token can be chosen by these logits, and it is this one
};

class Logits {
public:
    // Of `values` [count] those may be chosen whose bits are set in `mask`: bit i of byte j is that of 8 · j + i. Null: all may.
    Logits(const float* values, int count, const uint8_t* mask) : m_values(values), m_count(count), m_mask(mask) {}

    // The first one among equals; 0 where none may be chosen.
    Chosen best() const {
        auto all = least(), some = least();
        bool are_numbers = true;
        for (int first = 0; first < m_count; first += TILE) {
            const auto values = from(first);
            are_numbers = are_numbers && all_below(values, spread(MOST));
            all = greater(values, all);
            some = greater(where(allowed(first), values, least()), some);
        }
        const float most = greatest(all), chosen = greatest(some);
        const bool is_good = are_numbers && most > -MOST && has_below(most) && chosen > -MOST;
        return {is_good ? place(chosen) : 0, is_good};
    }

private:
    static Vector least() {
        return spread(-INFINITY);
    }

    Vector from(int first) const {
        const int left = m_count - first;
        return left >= TILE ? load(m_values + first) : where(bits(left), load(m_values + first, left), least());
    }

    uint32_t allowed(int first) const {
        uint16_t bits = 0xffff;
        if (m_mask) {
            std::memcpy(&bits, m_mask + first / 8, sizeof(bits));
        }
        return bits;
    }

    bool has_below(float value) const {
        return m_values[0] < value || std::any_of(m_values, m_values + m_count, [value](float each) { return each < value; });
    }

    // Of the first one that may be chosen and is no less.
    int place(float value) const {
        for (int first = 0; first < m_count; first += TILE) {
            if (all_below(from(first), spread(value))) {
                continue;
            }
            for (int i = first; i < std::min(first + TILE, m_count); ++i) {
                if (m_values[i] >= value && allowed(first) >> (i - first) & 1) {
                    return i;
                }
            }
        }
        return 0;
    }

    const float* m_values;
    int m_count;
    const uint8_t* m_mask;
};

}  // namespace gapless
