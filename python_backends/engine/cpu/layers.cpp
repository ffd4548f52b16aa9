// Decoder layers that follow each other, from tokens to logits. For each layer:
//
//     q, k, v = norm(x)·Qᵀ
//     x ← x + r·norm(attention(q, k, v)·Oᵀ)
//     x ← x + r·norm((activation(g)·u)·Dᵀ),  g, u = norm(x)·Uᵀ
//
// with the norms that the layer has, and r = its residual scale; without a gate activation(u), and where both halves are parallel, the second
// one begins with x as it was before the first one;
// at the end norm(x)·Hᵀ of the rows whose logits are wanted; of these rows alone the last layer computes what follows its attention.
// Hidden states of these rows are given as some of the layers leave them.
//
// A weight [out, in] lies in panels of 32 outputs; in U, 16 outputs of g and 16 of u take turns. A decode step reads every weight once,
// so what counts is that reading never stops: each thread goes through panels that lie one after the other and fetches ahead of itself.
//
// Compiled by library.py when the engine starts, which asks Linux for the tiles as well.

#include "layers.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include "activations.h"
#include "attention.h"
#include "choosing.h"
#include "products.h"
#include "threads.h"
#include "turns.h"

namespace gapless {

inline float widened(float value) {
    return value;
}

inline float widened(int8_t value) {
    return value;
}

inline float widened(Bfloat16 value) {
    const uint32_t bits = uint32_t(value) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof(wide));
    return wide;
}

// A weight as the model's type has it.
template <typename Value>
float as(float weight) {
    if constexpr (std::is_same_v<Value, float>) {
        return weight;
    } else {
        Value rounded;
        store(&rounded, spread(weight), 1);
        return widened(rounded);
    }
}

// The memory of a step between its products, kept for the next one.
template <typename Value>
struct Memory {
    Kept<float> x, before_norm;
    Kept<Value> normed, qkv, queries, attended, sampled, activated, low;
    Kept<int8_t> rounded;
    Kept<float> scales, totals;
    Kept<int32_t> offsets;
};

inline int most_grouped(const std::vector<GaplessLayer>& layers, const GaplessWeight& head) {
    int most = rounds_rows(head.format) ? head.depth : 0;
    for (const auto& layer : layers) {
        for (const auto* weight : {&layer.qkv, &layer.output, &layer.up, &layer.down}) {
            most = std::max(most, rounds_rows(weight->format) ? weight->depth : 0);
        }
    }
    return most;
}

// A model whose weights, keys and values are `Value`.
template <typename Value>
class Layers {
public:
    Layers(const GaplessModel& model, int threads)
        : m_model(model),
          m_layers(model.layers, model.layers + model.num_layers),
          m_rotaries(model.rotaries, model.rotaries + model.num_rotaries),
          m_heads{model.query_heads, model.kv_heads, model.head_dim, model.attention_scale, ptrdiff_t(model.block_stride)},
          m_most_grouped(most_grouped(m_layers, model.head)),
          m_threads(threads) {}

    void begin(const GaplessStep& step) {
        const auto& batch = m_batch.emplace(m_heads, step.num_spans, step.past, step.begins, step.blocks, step.block_begins);
        const int width = m_model.hidden, sampled = step.num_sampled, query_width = m_heads.query * m_heads.dim;
        int rows = batch.rows();
        auto* x = m_memory.x.of(size_t(rows + sampled) * width);
        m_runs = runs(step, rows);
        m_most_ranks = most_ranks(m_runs, m_model.num_layers);
        m_low = m_memory.low.of(size_t(rows) * m_most_ranks);
        const size_t grouped = std::is_same_v<Value, float> ? 0 : size_t(rows) * m_most_grouped;
        const size_t groups = grouped / GROUP;
        m_grouped = {m_memory.rounded.of(grouped), m_memory.scales.of(groups), m_memory.totals.of(groups), m_memory.offsets.of(groups)};
        auto& phases = m_phases.emplace();
        add_embedding(phases, step.tokens, batch, x);
        for (int index = 0; index < m_model.num_layers; ++index) {
            const auto& layer = m_layers[index];
            auto* attended = m_memory.attended.of(size_t(rows) * query_width);
            add_attention(phases, index, batch, x, attended);
            if (index + 1 == m_model.num_layers) {
                x = take_sampled(phases, x, width, step, x + size_t(rows) * width);
                attended = take_sampled(phases, attended, query_width, step, m_memory.sampled.of(size_t(sampled) * query_width));
                rows = sampled;
                m_runs = runs(step, rows, step.sampled);
            }
            const auto add_attended = [&] { add_to(phases, index, OUTPUT, attended, rows, x); };
            if (!layer.parallel) {
                add_attended();
            }
            const auto* activated = add_up(phases, index, rows, x);
            if (layer.parallel) {
                add_attended();
            }
            add_to(phases, index, DOWN, activated, rows, x);
            if (index + 1 == m_model.state_layer) {  // never the last one
                take_sampled(phases, x, width, step, step.states);
            }
        }
        auto* normed = m_memory.normed.of(size_t(rows) * width);
        add_norm(phases, x, rows, width, m_model.norm, normed);
        const int vocabulary = m_model.head.outputs;
        add_product(phases, normed, rows, m_model.head, m_grouped, {},
                    put_logits(step.logits, vocabulary, m_model.logit_scale, m_model.logit_softcap));
        phases.begin(m_threads);
    }

    void finish() {
        m_threads.finish();
    }

    void choose(const GaplessChoice& choice) {
        Phases phases;
        phases.add(choice.rows, 1, [&](Multiplier&, int first, int last) {
            for (int row = first; row < last; ++row) {
                const int mask = choice.mask_of ? choice.mask_of[row] : -1;
                const auto* bits = mask < 0 ? nullptr : choice.masks + size_t(mask) * choice.mask_bytes;
                const auto best = Logits(choice.logits + size_t(row) * choice.vocabulary, choice.vocabulary, bits).best();
                choice.tokens[row] = best.token;
                choice.are_good[row] = best.is_good;
            }
        });
        phases.begin(m_threads);
        finish();
    }

private:
    // x [rows, hidden]
    void add_embedding(Phases& phases, const int* tokens, const Batch& batch, float* x) {
        const int width = m_model.hidden;
        const auto* embedding = static_cast<const Value*>(m_model.embedding);
        const auto head = m_model.head;
        const float scale = m_model.embedding_scale;
        const float* positions = m_model.positions;
        phases.add(batch.rows(), TAKEN, [=, &batch](Multiplier&, int first, int last) {
            for (int row = first; row < last; ++row) {
                const int token = tokens[row];
                auto* to = x + size_t(row) * width;
                if (!embedding && head.format == GAPLESS_INT8) {
                    put_of_panels(static_cast<const int8_t*>(head.panels), token, width, head.scales[token] * scale, to);
                } else if (!embedding && head.format == GAPLESS_BYTES) {
                    put_of_bytes(static_cast<const int8_t*>(head.panels), token, width, head.scales[token] * scale, to);
                } else if (!embedding && head.format == GAPLESS_EIGHTS) {
                    put_of_groups(static_cast<const Eights*>(head.panels), token, width, scale, to);
                } else if (!embedding && head.format == GAPLESS_SHIFTED_EIGHTS) {
                    put_of_groups(static_cast<const ShiftedEights*>(head.panels), token, width, scale, to);
                } else if (!embedding) {
                    put_of_panels(static_cast<const Value*>(head.panels), token, width, scale, to);
                } else {
                    const auto* from = embedding + size_t(token) * width;
                    for (int i = 0; i < width; ++i) {
                        to[i] = widened(from[i]) * scale;
                    }
                }
                if (positions) {
                    const auto* add = positions + size_t(batch.places()[row].position) * width;
                    for (int i = 0; i < width; ++i) {
                        to[i] += add[i];
                    }
                }
            }
        });
    }

    // to [width] = scale · the weights of an output.
    static void put_of_bytes(const int8_t* panels, int output, int width, float scale, float* to) {
        const auto* from = panels + size_t(output / PANEL) * PANEL * width + output % PANEL / TILE * GROUP * TILE + output % TILE * 4;
        for (int i = 0; i < width; ++i) {
            to[i] = float(from[i / GROUP * GROUP_BYTES + place_of(i % GROUP)]) * scale;
        }
    }

    // The same of weights by group.
    template <typename Of>
    static void put_of_groups(const Of* panels, int output, int width, float scale, float* to) {
        const auto* panel = panels + size_t(output / PANEL) * (width / Of::INPUTS);
        for (int i = 0; i < width; ++i) {
            to[i] = as<Value>(weight_of(panel[i / Of::INPUTS], output % PANEL / TILE, i % Of::INPUTS, output % TILE)) * scale;
        }
    }

    // The same of those that lie in the places of `Value`.
    template <typename Of>
    static void put_of_panels(const Of* panels, int output, int width, float scale, float* to) {
        const auto* panel = panels + size_t(output / PANEL) * PANEL * width;
        const auto* from = panel + output % PANEL / TILE * TILE * DEEP<Value> + output % TILE * WIDE<Value>;
        for (int i = 0; i < width; ++i) {  // DEEP inputs of both tiles, WIDE of them together
            const int place = i / DEEP<Value> * DEEP<Value> * PANEL + i % DEEP<Value> / WIDE<Value> * TILE * WIDE<Value>;
            to[i] = widened(from[place + i % WIDE<Value>]) * scale;
        }
    }

    // attended [rows, query heads · dim]
    void add_attention(Phases& phases, int index, const Batch& batch, const float* x, Value* attended) {
        const auto& layer = m_layers[index];
        const Heads heads = m_heads;
        const int rows = batch.rows(), deep = heads.deep(), group = heads.group(), width = m_model.hidden;
        const int qkv_width = (heads.query + 2 * heads.kv) * heads.dim;
        auto* normed = m_memory.normed.of(size_t(rows) * width);
        auto* qkv = m_memory.qkv.of(size_t(rows) * qkv_width);
        add_norm(phases, x, rows, width, layer.attention_norm, normed);
        add_product(phases, normed, rows, layer.qkv, m_grouped, changes(index, QKV), put(qkv, qkv_width));

        auto* queries = m_memory.queries.of(size_t(rows) * heads.query * deep);
        auto *keys = static_cast<Value*>(layer.keys), *values = static_cast<Value*>(layer.values);
        const auto rotary = layer.rotary < 0 ? GaplessRotary{nullptr, nullptr} : m_rotaries[layer.rotary];
        const Turn turn_queries{layer.q_norm, rotary, heads.dim}, turn_keys{layer.k_norm, rotary, heads.dim};
        phases.add(rows, TAKEN, [=, &batch](Multiplier&, int first, int last) {
            for (int row = first; row < last; ++row) {
                const auto place = batch.places()[row];
                const auto* from = qkv + size_t(row) * qkv_width;
                turn_queries(from, heads.query, place.position, [=](int head) {
                    auto* to = queries + ((size_t(head / group) * rows + row) * group + head % group) * deep;
                    std::fill(to + heads.dim, to + deep, Value(0));
                    return to;
                });
                from += heads.query * heads.dim;
                const auto at = place.block * heads.block_stride + ptrdiff_t(place.position % BLOCK) * heads.dim;
                turn_keys(from, heads.kv, place.position, [=](int head) { return keys + at + head * heads.head_size(); });
                from += heads.kv * heads.dim;
                for (int head = 0; head < heads.kv; ++head, from += heads.dim) {
                    std::copy_n(from, heads.dim, values + at + head * heads.head_size());
                }
            }
        });
        const int window = layer.window;
        const float softcap = layer.score_softcap;
        phases.add(batch.tiles().size() * heads.kv, 1, [=, &batch](Multiplier& multiplier, int first, int last) {
            for (int item = first; item < last; ++item) {
                const auto& tile = batch.tiles()[item / heads.kv];
                const int head = item % heads.kv;
                const auto of_head = head * heads.head_size();
                const auto* from = queries + (size_t(head) * rows + tile.row) * group * deep;
                auto* to = attended + size_t(tile.row) * heads.query * heads.dim + size_t(head) * group * heads.dim;
                const auto following = first_block(batch, heads, item + 1, window) - ptrdiff_t(of_head);
                attend(multiplier, heads, tile, from, keys + of_head, values + of_head, window, softcap, following, to);
            }
        });
    }

    // [rows, depth of `down`] = the feed-forward part of x [rows, hidden] up to its second product.
    const Value* add_up(Phases& phases, int index, int rows, const float* x) {
        const auto& layer = m_layers[index];
        const int width = m_model.hidden, inner = layer.down.depth;
        auto* normed = m_memory.normed.of(size_t(rows) * width);
        auto* activated = m_memory.activated.of(size_t(rows) * inner);
        add_norm(phases, x, rows, width, layer.feed_forward_norm, normed);
        with_activation(layer.activation, [&](auto activate) {
            if (layer.gated) {
                add_product(phases, normed, rows, layer.up, m_grouped, changes(index, UP), [=](int panel, int row, Vector gate, Vector up) {
                    store(activated + size_t(row) * inner + panel * TILE, activate(gate) * up);
                });
            } else {
                add_product(phases, normed, rows, layer.up, m_grouped, changes(index, UP), [=](int panel, int row, Vector low, Vector high) {
                    auto* to = activated + size_t(row) * inner + panel * PANEL;
                    store(to, activate(low));
                    store(to + TILE, activate(high));
                });
            }
        });
        return activated;
    }

    // x [rows, hidden] ← x + a product of `from` [rows, depth], of attention's output or down, normed where there is a norm, times the residual
    // scale
    void add_to(Phases& phases, int index, Product product, const Value* from, int rows, float* x) {
        const auto& layer = m_layers[index];
        const auto& weight = product == DOWN ? layer.down : layer.output;
        const auto norm = product == DOWN ? layer.down_norm : layer.output_norm;
        const int width = m_model.hidden;
        const float scale = layer.residual_scale;
        if (!norm.weight) {
            add_product(phases, from, rows, weight, m_grouped, changes(index, product), sum_with(x, scale, width, x));
            return;
        }
        auto* z = m_memory.before_norm.of(size_t(rows) * width);
        add_product(phases, from, rows, weight, m_grouped, changes(index, product), put(z, width));
        phases.add(rows, TAKEN, [=](Multiplier&, int first, int last) {
            for (int row = first; row < last; ++row) {
                const auto at = size_t(row) * width;
                add_normed(x + at, z + at, norm, scale, x + at);
            }
        });
    }

    Changes<Value> changes(int layer, Product product) const {
        return Changes<Value>(m_runs, layer, product, m_low, m_most_ranks);
    }

    template <typename Any>
    static Any* take_sampled(Phases& phases, const Any* from, int width, const GaplessStep& step, Any* to) {
        const auto* sampled = step.sampled;
        phases.add(step.num_sampled, TAKEN, [=](Multiplier&, int first, int last) {
            for (int row = first; row < last; ++row) {
                std::copy_n(from + size_t(sampled[row]) * width, width, to + size_t(row) * width);
            }
        });
        return to;
    }

    GaplessModel m_model;
    std::vector<GaplessLayer> m_layers;
    std::vector<GaplessRotary> m_rotaries;
    Heads m_heads;
    int m_most_grouped;  // the greatest depth of weights for which rows are rounded
    Threads m_threads;
    Memory<Value> m_memory;
    // of the step: neighbouring rows with one adapter, and memory for what its factors give
    std::vector<Run> m_runs;
    Value* m_low = nullptr;
    int m_most_ranks = 0;
    GroupedMemory m_grouped;
    std::optional<Batch> m_batch;
    std::optional<Phases> m_phases;
};

}  // namespace gapless

// Of one of the formats.
struct GaplessLayers {
    std::unique_ptr<gapless::Layers<float>> floats;
    std::unique_ptr<gapless::Layers<gapless::Bfloat16>> halves;
};

GaplessLayers* gapless_open(const GaplessModel* model, int32_t threads) {
    auto layers = std::make_unique<GaplessLayers>();
    if (model->format == GAPLESS_FLOAT32) {
        layers->floats = std::make_unique<gapless::Layers<float>>(*model, threads);
        return layers.release();
    }
    if (model->format == GAPLESS_BFLOAT16) {
        layers->halves = std::make_unique<gapless::Layers<gapless::Bfloat16>>(*model, threads);
        return layers.release();
    }
    return nullptr;
}

void gapless_begin(GaplessLayers* layers, const GaplessStep* step) {
    if (layers->floats) {
        layers->floats->begin(*step);
    }
    if (layers->halves) {
        layers->halves->begin(*step);
    }
}

void gapless_finish(GaplessLayers* layers) {
    if (layers->floats) {
        layers->floats->finish();
    }
    if (layers->halves) {
        layers->halves->finish();
    }
}

void gapless_choose(GaplessLayers* layers, const GaplessChoice* choice) {
    if (layers->floats) {
        layers->floats->choose(*choice);
    }
    if (layers->halves) {
        layers->halves->choose(*choice);
    }
}

void gapless_close(GaplessLayers* layers) {
    delete layers;
}

void gapless_fetch_into(int32_t cache) {
    gapless::fetches_into_first = cache == 1;
}

template <typename Value>
static void multiply(const void* x, int rows, int depth, const void* panels, int count, float* sums) {
    gapless::Multiplier multiplier;
    const auto* panel = static_cast<const char*>(panels);
    for (int index = 0; index < count; ++index) {
        multiplier.multiply(static_cast<const Value*>(x), rows, depth, panel, sums, index + 1 < count);
        panel += size_t(depth) * gapless::PANEL * sizeof(Value);
        sums += size_t(rows) * gapless::PANEL;
    }
}

void gapless_multiply(const void* x, int32_t rows, int32_t depth, const void* panels, int32_t count, float* sums, int32_t format) {
    if (format == GAPLESS_FLOAT32) {
        multiply<float>(x, rows, depth, panels, count, sums);
    }
    if (format == GAPLESS_BFLOAT16) {
        multiply<gapless::Bfloat16>(x, rows, depth, panels, count, sums);
    }
}
