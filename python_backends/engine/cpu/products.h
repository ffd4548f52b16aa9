// Products and norms as phases of a step, and what becomes of a product.

#pragma once

#include <type_traits>
#include <utility>

#include "adapters.h"
#include "fours.h"
#include "layers.h"
#include "multiplier.h"
#include "norms.h"
#include "phases.h"
#include "vectors.h"

namespace gapless {

constexpr int TAKEN = 4;  // rows that a thread takes at a time

// Memory for the rows of one product for which they are rounded.
struct GroupedMemory {
    int8_t* rounded = nullptr;                   // [rows, depth]
    float *scales = nullptr, *totals = nullptr;  // [rows, groups]
    int32_t* offsets = nullptr;                  // the same
};

inline bool rounds_rows(int format) {
    return format == GAPLESS_INT4 || format == GAPLESS_BYTES;
}

// x [rows, depth] as such weights take it, in groups of `each` inputs.
inline GroupedRows add_grouping(Phases& phases, const Bfloat16* x, int rows, int depth, int each, const GroupedMemory& memory) {
    const GroupedRows made{each, memory.rounded, memory.scales, memory.totals, memory.offsets};
    phases.add(rows, TAKEN, [=](Multiplier&, int first, int last) {
        for (int row = first; row < last; ++row) {
            const size_t at = size_t(row) * depth, group = size_t(row) * made.groups(depth);
            put_grouped(x + at, depth, each, memory.rounded + at, memory.scales + group, memory.totals + group, memory.offsets + group);
        }
    });
    return made;
}

template <typename Value>
size_t panel_bytes(const GaplessWeight& weight) {
    const size_t depth = weight.depth;
    switch (weight.format) {
        case GAPLESS_INT4:
            return depth / GROUP * sizeof(Fours<Float16>);
        case GAPLESS_FOURS:
            return depth / GROUP * sizeof(Fours<float>);
        case GAPLESS_EIGHTS:
            return depth / Eights::INPUTS * sizeof(Eights);
        case GAPLESS_SHIFTED_EIGHTS:
            return depth / Eights::INPUTS * sizeof(ShiftedEights);
        case GAPLESS_INT8:
        case GAPLESS_BYTES:
            return depth * PANEL;
        default:
            return depth * PANEL * sizeof(Value);
    }
}

// y = s·(x·Wᵀ) + b + what adapters change; `finish(panel, row, y of its first 16 outputs, of the others)` gets each row of each panel.
template <typename Value, typename Finish>
void add_product(Phases& phases, const Value* x, int rows, const GaplessWeight& weight, const GroupedMemory& memory,
                 const Changes<Value>& changes, const Finish& finish) {
    const int panels = (weight.outputs + PANEL - 1) / PANEL, depth = weight.depth, format = weight.format;
    const size_t size = panel_bytes<Value>(weight);
    const auto* from = static_cast<const char*>(weight.panels);
    const auto *scales = weight.scales, *biases = weight.bias;
    if (!changes.empty()) {
        changes.add_to(phases, x, depth);
    }
    GroupedRows grouped{};
    if constexpr (std::is_same_v<Value, Bfloat16>) {
        if (rounds_rows(format)) {
            grouped = add_grouping(phases, x, rows, depth, format == GAPLESS_BYTES ? BYTES_GROUP : GROUP, memory);
        }
    }
    phases.add(rows ? panels : 0, 1, [=](Multiplier& multiplier, int first, int last) {
        thread_local Kept<float> kept, kept_change;
        float* sums = kept.of(size_t(rows) * PANEL);
        for (int panel = first; panel < last; ++panel) {
            const auto* weights = from + panel * size;
            switch (format) {
                case GAPLESS_INT4:
                    multiplier.multiply_fours(grouped, rows, depth, reinterpret_cast<const Fours<Float16>*>(weights), sums);
                    break;
                case GAPLESS_FOURS:
                    multiplier.multiply_groups(x, rows, depth, reinterpret_cast<const Fours<float>*>(weights), sums);
                    break;
                case GAPLESS_EIGHTS:
                    multiplier.multiply_groups(x, rows, depth, reinterpret_cast<const Eights*>(weights), sums);
                    break;
                case GAPLESS_SHIFTED_EIGHTS:
                    multiplier.multiply_groups(x, rows, depth, reinterpret_cast<const ShiftedEights*>(weights), sums);
                    break;
                case GAPLESS_BYTES:
                    multiplier.multiply_bytes(grouped, rows, depth, reinterpret_cast<const int8_t*>(weights), sums);
                    break;
                case GAPLESS_INT8:
                    multiplier.multiply(x, rows, depth, reinterpret_cast<const int8_t*>(weights), sums);
                    break;
                default:
                    multiplier.multiply(x, rows, depth, weights, sums, panel + 1 < panels);
            }
            const auto of_outputs = [=](const float* numbers, int tile, float otherwise) {
                return numbers ? load(numbers + panel * PANEL + tile * TILE) : spread(otherwise);
            };
            const auto scale_low = of_outputs(scales, 0, 1), scale_high = of_outputs(scales, 1, 1);
            const auto low = of_outputs(biases, 0, 0), high = of_outputs(biases, 1, 0);
            float* change = changes.empty() ? nullptr : kept_change.of(size_t(rows) * PANEL);
            if (change) {
                changes.multiply(multiplier, panel, rows, change);
            }
            for (int row = 0; row < rows; ++row) {
                const auto* sum = sums + row * PANEL;
                auto left = fused(load(sum), scale_low, low), right = fused(load(sum + TILE), scale_high, high);
                if (change) {
                    left = left + load(change + row * PANEL);
                    right = right + load(change + row * PANEL + TILE);
                }
                finish(panel, row, left, right);
            }
        }
    });
}

// to [rows, width] = x [rows, width], each row normed.
template <typename Value>
void add_norm(Phases& phases, const float* x, int rows, int width, const GaplessNorm& norm, Value* to) {
    phases.add(rows, TAKEN, [=](Multiplier&, int first, int last) {
        for (int row = first; row < last; ++row) {
            put_normed(x + size_t(row) * width, norm, width, to + size_t(row) * width);
        }
    });
}

// y [rows, width] = x + scale · the product; y may be x.
inline auto sum_with(const float* x, float scale, int width, float* y) {
    const auto factor = spread(scale);
    return [=](int panel, int row, Vector low, Vector high) {
        const auto at = size_t(row) * width + panel * PANEL;
        store(y + at, fused(low, factor, load(x + at)));
        store(y + at + TILE, fused(high, factor, load(x + at + TILE)));
    };
}

// y [rows, width] = the product.
template <typename Value>
auto put(Value* y, int width) {
    return [=](int panel, int row, Vector low, Vector high) {
        auto* to = y + size_t(row) * width + panel * PANEL;
        store(to, low);
        store(to + TILE, high);
    };
}

// y [rows, width] = the product, scaled and capped; width need not be that of whole panels.
inline auto put_logits(float* y, int width, float scale, float softcap) {
    const auto factor = spread(scale);
    return [=](int panel, int row, Vector low, Vector high) {
        auto* to = y + size_t(row) * width + panel * PANEL;
        for (const auto& [sums, first] : {std::pair(low, 0), std::pair(high, TILE)}) {
            const auto logits = sums * factor;
            store(to + first, softcap ? capped(logits, softcap) : logits, width - panel * PANEL - first);
        }
    };
}

}  // namespace gapless
