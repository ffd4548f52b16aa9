// Decoder layers that follow each other, from tokens to logits. For each layer:
//
//     q, k, v = norm(x)·Qᵀ
//     x ← x + r·norm(attention(q, k, v)·Oᵀ)
//     x ← x + r·norm((activation(g)·u)·Dᵀ),  g, u = norm(x)·Uᵀ
//
// with the norms that the layer has, SiLU or GELU, and r = its residual scale;
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
#include <utility>
#include <vector>

#include "attention.h"
#include "multiplier.h"
#include "phases.h"
#include "threads.h"
#include "vectors.h"

namespace gapless {

constexpr int TAKEN = 4;  // rows that a thread takes at a time

// y = s·(x·Wᵀ) + b; `finish(panel, row, y of its first 16 outputs, of the others)` gets each row of each panel.
template <typename Value, typename Finish>
void add_product(Phases& phases, const Value* x, int rows, const GaplessWeight& weight, const Finish& finish) {
    const int panels = (weight.outputs + PANEL - 1) / PANEL, depth = weight.depth;
    const bool is_bytes = weight.format == GAPLESS_INT8;
    const size_t size = size_t(depth) * PANEL * (is_bytes ? 1 : sizeof(Value));
    const auto* from = static_cast<const char*>(weight.panels);
    const auto *scales = weight.scales, *biases = weight.bias;
    phases.add(rows ? panels : 0, 1, [=](Multiplier& multiplier, int first, int last) {
        thread_local Kept<float> kept;
        float* sums = kept.of(size_t(rows) * PANEL);
        for (int panel = first; panel < last; ++panel) {
            if (is_bytes) {
                multiplier.multiply(x, rows, depth, reinterpret_cast<const int8_t*>(from + panel * size), sums);
            } else {
                multiplier.multiply(x, rows, depth, from + panel * size, sums, panel + 1 < panels);
            }
            const auto of_outputs = [=](const float* numbers, int tile, float otherwise) {
                return numbers ? load(numbers + panel * PANEL + tile * TILE) : spread(otherwise);
            };
            const auto scale_low = of_outputs(scales, 0, 1), scale_high = of_outputs(scales, 1, 1);
            const auto low = of_outputs(biases, 0, 0), high = of_outputs(biases, 1, 0);
            for (int row = 0; row < rows; ++row) {
                const auto* sum = sums + row * PANEL;
                finish(panel, row, fused(load(sum), scale_low, low), fused(load(sum + TILE), scale_high, high));
            }
        }
    });
}

// to [rows, width] = x [rows, width], each row normed.
template <typename Value>
void add_norm(Phases& phases, const float* x, int rows, int width, const float* weight, Value* to) {
    phases.add(rows, TAKEN, [=](Multiplier&, int first, int last) {
        for (int row = first; row < last; ++row) {
            norm(x + size_t(row) * width, weight, width, to + size_t(row) * width);
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

inline float widened(float value) {
    return value;
}

inline float widened(Bfloat16 value) {
    const uint32_t bits = uint32_t(value) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof(wide));
    return wide;
}

// The memory of a step between its products, kept for the next one.
template <typename Value>
struct Memory {
    Kept<float> x, before_norm;
    Kept<Value> normed, qkv, queries, attended, sampled, gated;
};

// A model whose weights, keys and values are `Value`.
template <typename Value>
class Layers {
public:
    Layers(const GaplessModel& model, int threads)
        : m_model(model),
          m_layers(model.layers, model.layers + model.num_layers),
          m_rotaries(model.rotaries, model.rotaries + model.num_rotaries),
          m_heads{model.query_heads, model.kv_heads, model.head_dim, model.attention_scale, ptrdiff_t(model.block_stride)},
          m_threads(threads) {}

    void step(const GaplessStep& step) {
        const Batch batch(m_heads, step.num_spans, step.past, step.begins, step.blocks, step.block_begins);
        const int width = m_model.hidden, sampled = step.num_sampled, query_width = m_heads.query * m_heads.dim;
        int rows = batch.rows();
        auto* x = m_memory.x.of(size_t(rows + sampled) * width);
        Phases phases;
        add_embedding(phases, step.tokens, rows, x);
        for (int index = 0; index < m_model.num_layers; ++index) {
            const auto& layer = m_layers[index];
            auto* attended = m_memory.attended.of(size_t(rows) * query_width);
            add_attention(phases, layer, batch, x, attended);
            if (index + 1 == m_model.num_layers) {
                x = take_sampled(phases, x, width, step, x + size_t(rows) * width);
                attended = take_sampled(phases, attended, query_width, step, m_memory.sampled.of(size_t(sampled) * query_width));
                rows = sampled;
            }
            add_to(phases, layer, layer.output, layer.output_norm, attended, rows, x);
            add_feed_forward(phases, layer, rows, x);
            if (index + 1 == m_model.state_layer) {  // never the last one
                take_sampled(phases, x, width, step, step.states);
            }
        }
        auto* normed = m_memory.normed.of(size_t(rows) * width);
        add_norm(phases, x, rows, width, m_model.norm, normed);
        const int vocabulary = m_model.head.outputs;
        add_product(phases, normed, rows, m_model.head,
                    put_logits(step.logits, vocabulary, m_model.logit_scale, m_model.logit_softcap));
        phases.run(m_threads);
    }

private:
    // x [rows, hidden]
    void add_embedding(Phases& phases, const int* tokens, int rows, float* x) {
        const int width = m_model.hidden;
        const auto* embedding = static_cast<const Value*>(m_model.embedding ? m_model.embedding : m_model.head.panels);
        const bool is_packed = !m_model.embedding;
        const float scale = m_model.embedding_scale;
        phases.add(rows, TAKEN, [=](Multiplier&, int first, int last) {
            for (int row = first; row < last; ++row) {
                const int token = tokens[row];
                auto* to = x + size_t(row) * width;
                if (is_packed) {
                    const auto* panel = embedding + size_t(token / PANEL) * PANEL * width;
                    const auto* from = panel + token % PANEL / TILE * TILE * DEEP<Value> + token % TILE * WIDE<Value>;
                    for (int i = 0; i < width; ++i) {  // DEEP inputs of both tiles, WIDE of them together
                        const int place = i / DEEP<Value> * DEEP<Value> * PANEL + i % DEEP<Value> / WIDE<Value> * TILE * WIDE<Value>;
                        to[i] = widened(from[place + i % WIDE<Value>]) * scale;
                    }
                } else {
                    const auto* from = embedding + size_t(token) * width;
                    for (int i = 0; i < width; ++i) {
                        to[i] = widened(from[i]) * scale;
                    }
                }
            }
        });
    }

    // attended [rows, query heads · dim]
    void add_attention(Phases& phases, const GaplessLayer& layer, const Batch& batch, const float* x, Value* attended) {
        const Heads heads = m_heads;
        const int rows = batch.rows(), deep = heads.deep(), group = heads.group(), width = m_model.hidden;
        const int qkv_width = (heads.query + 2 * heads.kv) * heads.dim;
        auto* normed = m_memory.normed.of(size_t(rows) * width);
        auto* qkv = m_memory.qkv.of(size_t(rows) * qkv_width);
        add_norm(phases, x, rows, width, layer.attention_norm, normed);
        add_product(phases, normed, rows, layer.qkv, put(qkv, qkv_width));

        auto* queries = m_memory.queries.of(size_t(rows) * heads.query * deep);
        auto *keys = static_cast<Value*>(layer.keys), *values = static_cast<Value*>(layer.values);
        const auto rotary = layer.rotary < 0 ? GaplessRotary{nullptr, nullptr} : m_rotaries[layer.rotary];
        const Turn turn_query{layer.q_norm, rotary.cos, rotary.sin}, turn_key{layer.k_norm, rotary.cos, rotary.sin};
        phases.add(rows, TAKEN, [=, &batch](Multiplier&, int first, int last) {
            for (int row = first; row < last; ++row) {
                const auto place = batch.places()[row];
                const auto* from = qkv + size_t(row) * qkv_width;
                for (int head = 0; head < heads.query; ++head, from += heads.dim) {
                    auto* to = queries + ((size_t(head / group) * rows + row) * group + head % group) * deep;
                    turn_query(from, heads.dim, place.position, to);
                    std::fill(to + heads.dim, to + deep, Value(0));
                }
                const auto at = place.block * heads.block_stride + ptrdiff_t(place.position % BLOCK) * heads.dim;
                for (int head = 0; head < heads.kv; ++head, from += heads.dim) {
                    turn_key(from, heads.dim, place.position, keys + at + head * heads.head_size());
                }
                for (int head = 0; head < heads.kv; ++head, from += heads.dim) {
                    std::copy_n(from, heads.dim, values + at + head * heads.head_size());
                }
            }
        });
        const int window = layer.window;
        phases.add(batch.tiles().size() * heads.kv, 1, [=, &batch](Multiplier& multiplier, int first, int last) {
            for (int item = first; item < last; ++item) {
                const auto& tile = batch.tiles()[item / heads.kv];
                const int head = item % heads.kv;
                const auto of_head = head * heads.head_size();
                const auto* from = queries + (size_t(head) * rows + tile.row) * group * deep;
                auto* to = attended + size_t(tile.row) * heads.query * heads.dim + size_t(head) * group * heads.dim;
                const auto following = first_block(batch, heads, item + 1, window) - ptrdiff_t(of_head);
                attend(multiplier, heads, tile, from, keys + of_head, values + of_head, window, following, to);
            }
        });
    }

    // x [rows, hidden] ← x + feed-forward(norm(x))
    void add_feed_forward(Phases& phases, const GaplessLayer& layer, int rows, float* x) {
        const int half = layer.up.outputs / 2, width = m_model.hidden;
        auto* normed = m_memory.normed.of(size_t(rows) * width);
        auto* gated = m_memory.gated.of(size_t(rows) * half);
        add_norm(phases, x, rows, width, layer.feed_forward_norm, normed);
        const auto gate_by = [=](auto activation) {
            return [=](int panel, int row, Vector gate, Vector up) {
                store(gated + size_t(row) * half + panel * TILE, activation(gate) * up);
            };
        };
        if (layer.gelu) {
            add_product(phases, normed, rows, layer.up, gate_by([](Vector gate) { return gelu(gate); }));
        } else {
            add_product(phases, normed, rows, layer.up, gate_by([](Vector gate) { return silu(gate); }));
        }
        add_to(phases, layer, layer.down, layer.down_norm, gated, rows, x);
    }

    // x [rows, hidden] ← x + the product of `from` [rows, depth] and the weight, normed where there is a norm, times the residual scale
    void add_to(Phases& phases, const GaplessLayer& layer, const GaplessWeight& weight, const float* factors, const Value* from, int rows,
                float* x) {
        const int width = m_model.hidden;
        const float scale = layer.residual_scale;
        if (!factors) {
            add_product(phases, from, rows, weight, sum_with(x, scale, width, x));
            return;
        }
        auto* z = m_memory.before_norm.of(size_t(rows) * width);
        add_product(phases, from, rows, weight, put(z, width));
        phases.add(rows, TAKEN, [=](Multiplier&, int first, int last) {
            for (int row = first; row < last; ++row) {
                const auto at = size_t(row) * width;
                add_normed(x + at, z + at, factors, scale, width, x + at);
            }
        });
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
    Threads m_threads;
    Memory<Value> m_memory;
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

void gapless_step(GaplessLayers* layers, const GaplessStep* step) {
    if (layers->floats) {
        layers->floats->step(*step);
    }
    if (layers->halves) {
        layers->halves->step(*step);
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
