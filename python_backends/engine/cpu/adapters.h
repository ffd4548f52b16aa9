// What LoRA adapters add to the products of a step: y += (x·Aᵀ)·Bᵀ, for neighbouring rows with one adapter together.

#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "layers.h"
#include "multiplier.h"
#include "phases.h"

namespace gapless {

enum Product { QKV, OUTPUT, UP, DOWN, NUM_PRODUCTS };  // of a layer

// Neighbouring rows with one adapter.
struct Run {
    int begin, count;
    const GaplessFactors* factors;  // [layers, NUM_PRODUCTS]
};

// Of the rows of a step, or of those whose numbers are `chosen`.
inline std::vector<Run> runs(const GaplessStep& step, int rows, const int* chosen = nullptr) {
    std::vector<Run> found;
    for (int row = 0; step.adapter_of && row < rows; ++row) {
        const int number = step.adapter_of[chosen ? chosen[row] : row];
        const auto* factors = number < 0 ? nullptr : step.adapters[number];
        if (factors && !found.empty() && found.back().factors == factors && found.back().begin + found.back().count == row) {
            ++found.back().count;
        } else if (factors) {
            found.push_back({row, 1, factors});
        }
    }
    return found;
}

// What is added to one product.
template <typename Value>
class Changes {
public:
    Changes() = default;

    // `low`: memory for [rows, most ranks] between both products.
    Changes(const std::vector<Run>& runs, int layer, Product product, Value* low, int most_ranks) : m_low(low), m_most_ranks(most_ranks) {
        for (const auto& run : runs) {
            const auto& factors = run.factors[layer * NUM_PRODUCTS + product];
            if (factors.a) {
                m_parts.push_back({run.begin, run.count, factors});
            }
        }
    }

    bool empty() const {
        return m_parts.empty();
    }

    // The first product, of x [rows, depth].
    void add_to(Phases& phases, const Value* x, int depth) const {
        std::vector<std::pair<Part, int>> items;  // with the number of a panel
        for (const auto& part : m_parts) {
            for (int panel = 0; panel < part.factors.rank / PANEL; ++panel) {
                items.emplace_back(part, panel);
            }
        }
        phases.add(items.size(), 1, [=, *this](Multiplier& multiplier, int first, int last) {
            thread_local Kept<float> kept;
            for (int item = first; item < last; ++item) {
                const auto& [part, panel] = items[item];
                const auto* a = static_cast<const char*>(part.factors.a) + size_t(panel) * PANEL * depth * sizeof(Value);
                float* sums = kept.of(size_t(part.count) * PANEL);
                multiplier.multiply(x + size_t(part.begin) * depth, part.count, depth, a, sums, false);
                for (int row = 0; row < part.count; ++row) {
                    auto* to = low(part) + size_t(row) * part.factors.rank + panel * PANEL;
                    store(to, load(sums + row * PANEL));
                    store(to + TILE, load(sums + row * PANEL + TILE));
                }
            }
        });
    }

    // sums [rows, 32] of a panel of the outputs: the second product, and 0 in rows without one.
    void multiply(Multiplier& multiplier, int panel, int rows, float* sums) const {
        std::fill_n(sums, size_t(rows) * PANEL, 0.f);
        for (const auto& part : m_parts) {
            const int rank = part.factors.rank;
            const auto* b = static_cast<const char*>(part.factors.b) + size_t(panel) * PANEL * rank * sizeof(Value);
            multiplier.multiply(low(part), part.count, rank, b, sums + size_t(part.begin) * PANEL, false);
        }
    }

private:
    struct Part {
        int begin, count;
        GaplessFactors factors;
    };

    Value* low(const Part& part) const {
        return m_low + size_t(part.begin) * m_most_ranks;
    }

    Value* m_low = nullptr;
    int m_most_ranks = 0;
    std::vector<Part> m_parts;
};

inline int most_ranks(const std::vector<Run>& runs, int layers) {
    int most = 0;
    for (const auto& run : runs) {
        for (int i = 0; i < layers * NUM_PRODUCTS; ++i) {
            most = std::max(most, run.factors[i].a ? run.factors[i].rank : 0);
        }
    }
    return most;
}

}  // namespace gapless
