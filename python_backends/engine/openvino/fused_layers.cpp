// Decoder layers that follow each other, as one operation of OpenVINO's graph. For each layer:
//
//     q, k, v = norm(x)·Qᵀ
//     x ← x + r·norm(attention(q, k, v)·Oᵀ)
//     x ← x + r·norm((activation(g)·u)·Dᵀ),  g, u = norm(x)·Uᵀ
//
// with the norms that the layer has, SiLU or GELU, and r = its residual scale;
// at the end, where the model ends, norm(x)·Hᵀ of the rows whose logits are wanted; of these rows alone the last layer computes
// what follows its attention. Hidden states of these rows are given as some of the layers leave them.
//
// A weight [out, in] lies in panels of 32 outputs; in U, 16 outputs of g and 16 of u take turns. A decode step reads every weight once,
// so what counts is that reading never stops: each thread goes through panels that lie one after the other and fetches ahead of itself.
//
// Compiled by fused_layer.py when the engine starts, which asks Linux for the tiles as well.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <openvino/core/except.hpp>
#include <openvino/core/extension.hpp>
#include <openvino/core/op_extension.hpp>
#include <openvino/op/op.hpp>

#include "fused_attention.h"
#include "fused_multiplier.h"
#include "fused_phases.h"
#include "fused_vectors.h"

namespace gapless {

constexpr int TAKEN = 4;  // rows that a thread takes at a time

struct Weight {
    const char* panels = nullptr;
    const float* bias = nullptr;
    int outputs = 0, depth = 0;
};

// y = x·Wᵀ + b; `finish(panel, row, y of its first 16 outputs, of the others)` gets each row of each panel.
template <typename Finish>
void add_product(Phases& phases, const Bfloat16* x, int rows, const Weight& weight, const Finish& finish) {
    const int panels = weight.outputs / PANEL, depth = weight.depth;
    const size_t size = size_t(depth) * PANEL * sizeof(Bfloat16);
    phases.add(panels, 1, [=](Multiplier& multiplier, int first, int last) {
        thread_local Kept<float> kept;
        float* sums = kept.of(size_t(rows) * PANEL);
        for (int panel = first; panel < last; ++panel) {
            multiplier.multiply(x, rows, depth, weight.panels + panel * size, sums, panel + 1 < panels);
            const auto* bias = weight.bias ? weight.bias + panel * PANEL : nullptr;
            const auto low = bias ? _mm512_loadu_ps(bias) : _mm512_setzero_ps();
            const auto high = bias ? _mm512_loadu_ps(bias + TILE) : _mm512_setzero_ps();
            for (int row = 0; row < rows; ++row) {
                const auto* sum = sums + row * PANEL;
                const auto left = _mm512_add_ps(_mm512_load_ps(sum), low);
                finish(panel, row, left, _mm512_add_ps(_mm512_load_ps(sum + TILE), high));
            }
        }
    });
}

// to [rows, width] = x [rows, width], each row normed.
inline void add_norm(Phases& phases, const float* x, int rows, int width, const float* weight, Bfloat16* to) {
    phases.add(rows, TAKEN, [=](Multiplier&, int first, int last) {
        for (int row = first; row < last; ++row) {
            norm(x + size_t(row) * width, weight, width, to + size_t(row) * width);
        }
    });
}

// y [rows, width] = x + scale · the product; y may be x.
inline auto sum_with(const float* x, float scale, int width, float* y) {
    const auto factor = _mm512_set1_ps(scale);
    return [=](int panel, int row, __m512 low, __m512 high) {
        const auto at = size_t(row) * width + panel * PANEL;
        store(y + at, _mm512_fmadd_ps(low, factor, _mm512_loadu_ps(x + at)));
        store(y + at + TILE, _mm512_fmadd_ps(high, factor, _mm512_loadu_ps(x + at + TILE)));
    };
}

// y [rows, width] = the product.
template <typename Value>
auto put(Value* y, int width) {
    return [=](int panel, int row, __m512 low, __m512 high) {
        auto* to = y + size_t(row) * width + panel * PANEL;
        store(to, low);
        store(to + TILE, high);
    };
}

// The memory of a step between its products, kept for the next one.
struct Memory {
    Kept<float> x, before_norm;
    Kept<Bfloat16> normed, qkv, queries, attended, sampled, gated;
};

// Inputs: x [tokens, 1, width] float32, what it reads of a step, then what `names` has. Outputs, float32: the logits [rows, 1, width] of
// the sampled rows where a head is among the inputs, else x of all rows; and, where `state_layer` is not 0, x [rows, 1, width of x] of the
// sampled rows after so many layers.
class FusedLayers : public ov::op::Op {
public:
    OPENVINO_OP("FusedLayers", "gapless");

    FusedLayers() = default;

    FusedLayers(const ov::OutputVector& inputs, const FusedLayers& other)
        : Op(inputs),
          m_names(other.m_names),
          m_windows(other.m_windows),
          m_rotaries(other.m_rotaries),
          m_gelus(other.m_gelus),
          m_residual_scales(other.m_residual_scales),
          m_heads(other.m_heads),
          m_scale(other.m_scale),
          m_state_layer(other.m_state_layer),
          m_width(other.m_width) {
        constructor_validate_and_infer_types();
    }

    void validate_and_infer_types() override {
        for (size_t i = 0; i < m_names.size(); ++i) {
            m_places[m_names[i]] = FIXED + i;
        }
        auto shape = get_input_partial_shape(X);
        if (to_logits()) {
            shape[0] = get_input_partial_shape(SAMPLED)[0];
        }
        shape[2] = m_width;
        set_output_size(m_state_layer ? 2 : 1);
        set_output_type(0, ov::element::f32, shape);
        if (m_state_layer) {
            auto states = get_input_partial_shape(X);
            states[0] = get_input_partial_shape(SAMPLED)[0];
            set_output_type(1, ov::element::f32, states);
        }
    }

    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        return std::make_shared<FusedLayers>(inputs, *this);
    }

    bool visit_attributes(ov::AttributeVisitor& visitor) override {
        visitor.on_attribute("names", m_names);
        visitor.on_attribute("windows", m_windows);
        visitor.on_attribute("rotaries", m_rotaries);
        visitor.on_attribute("gelus", m_gelus);
        visitor.on_attribute("residual_scales", m_residual_scales);
        visitor.on_attribute("heads", m_heads);
        visitor.on_attribute("scale", m_scale);
        visitor.on_attribute("width", m_width);
        visitor.on_attribute("state_layer", m_state_layer);
        return true;
    }

    bool has_evaluate() const override {
        return true;
    }

    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
        thread_local Memory memory;
        const Heads heads{int(m_heads[0]), int(m_heads[1]), int(m_heads[2]), float(m_scale)};
        const auto integers = [&](int input) { return static_cast<const int*>(inputs[input].data()); };
        const Batch batch(heads, inputs[PAST].get_size(), integers(PAST), integers(BEGINS), integers(BLOCKS), integers(BLOCK_BEGINS));
        const int width = inputs[X].get_shape().back(), sampled = inputs[SAMPLED].get_size();
        OPENVINO_ASSERT(sampled <= batch.rows(), "more rows are sampled than there are");
        auto* output = static_cast<float*>(outputs[0].data());
        int rows = batch.rows();
        const auto* x = static_cast<const float*>(inputs[X].data());
        auto* own = memory.x.of(size_t(rows + sampled) * width);
        auto* y = to_logits() ? own : output;
        Phases phases;
        const int layers = m_windows.size();
        for (int layer = 0; layer < layers; ++layer) {
            auto* attended = memory.attended.of(size_t(rows) * heads.query * heads.dim);
            add_attention(phases, inputs, layer, heads, batch, x, width, memory, attended);
            if (to_logits() && layer + 1 == layers) {
                y = own + size_t(rows) * width;
                x = take_sampled(phases, x, width, integers(SAMPLED), sampled, y);
                attended = take_sampled(phases, attended, heads.query * heads.dim, integers(SAMPLED), sampled,
                                        memory.sampled.of(size_t(sampled) * heads.query * heads.dim));
                rows = sampled;
            }
            add_to(phases, inputs, layer, "output", attended, heads.query * heads.dim, rows, width, memory, x, y);
            x = y;
            add_feed_forward(phases, inputs, layer, rows, width, memory, y);
            if (layer + 1 == m_state_layer) {  // never the last one before a head
                take_sampled(phases, x, width, integers(SAMPLED), sampled, static_cast<float*>(outputs[1].data()));
            }
        }
        if (to_logits()) {
            auto* normed = memory.normed.of(size_t(rows) * width);
            add_norm(phases, x, rows, width, floats(inputs, "norm"), normed);
            add_product(phases, normed, rows, weight(inputs, "head", width), put(output, m_width));
        }
        phases.run();
        return true;
    }

private:
    enum { X, PAST, BEGINS, BLOCKS, BLOCK_BEGINS, SAMPLED, FIXED };  // inputs, and their number

    bool to_logits() const {
        return m_places.count("head");
    }

    // attended [rows, query heads · dim]
    void add_attention(Phases& phases, const ov::TensorVector& inputs, int layer, const Heads& heads, const Batch& batch,
                       const float* x, int width, Memory& memory, Bfloat16* attended) const {
        const int rows = batch.rows(), deep = heads.deep(), group = heads.group();
        const int qkv_width = (heads.query + 2 * heads.kv) * heads.dim;
        auto* normed = memory.normed.of(size_t(rows) * width);
        auto* qkv = memory.qkv.of(size_t(rows) * qkv_width);
        add_norm(phases, x, rows, width, floats(inputs, of(layer, "attention_norm")), normed);
        add_product(phases, normed, rows, weight(inputs, of(layer, "qkv"), width), put(qkv, qkv_width));

        auto* queries = memory.queries.of(size_t(rows) * heads.query * deep);
        auto* keys = static_cast<Bfloat16*>(const_cast<void*>(find(inputs, of(layer, "keys"))->data()));
        auto* values = static_cast<Bfloat16*>(const_cast<void*>(find(inputs, of(layer, "values"))->data()));
        const auto rotary = m_rotaries[layer];
        const auto* cos = rotary < 0 ? nullptr : floats(inputs, "cos." + std::to_string(rotary));
        const auto* sin = rotary < 0 ? nullptr : floats(inputs, "sin." + std::to_string(rotary));
        const Turn turn_query{floats(inputs, of(layer, "q_norm")), cos, sin}, turn_key{floats(inputs, of(layer, "k_norm")), cos, sin};
        phases.add(rows, TAKEN, [=, &batch](Multiplier&, int first, int last) {
            for (int row = first; row < last; ++row) {
                const auto place = batch.places()[row];
                const auto* from = qkv + size_t(row) * qkv_width;
                for (int head = 0; head < heads.query; ++head, from += heads.dim) {
                    auto* to = queries + ((size_t(head / group) * rows + row) * group + head % group) * deep;
                    turn_query(from, heads.dim, place.position, to);
                    std::fill(to + heads.dim, to + deep, 0);
                }
                const size_t at = place.block * heads.block_size() + size_t(place.position % BLOCK) * heads.dim;
                for (int head = 0; head < heads.kv; ++head, from += heads.dim) {
                    turn_key(from, heads.dim, place.position, keys + at + size_t(head) * BLOCK * heads.dim);
                }
                for (int head = 0; head < heads.kv; ++head, from += heads.dim) {
                    std::copy_n(from, heads.dim, values + at + size_t(head) * BLOCK * heads.dim);
                }
            }
        });
        const int window = m_windows[layer];
        phases.add(batch.tiles().size() * heads.kv, 1, [=, &batch](Multiplier& multiplier, int first, int last) {
            for (int item = first; item < last; ++item) {
                const auto& tile = batch.tiles()[item / heads.kv];
                const int head = item % heads.kv;
                const auto of_head = size_t(head) * BLOCK * heads.dim;
                const auto* from = queries + (size_t(head) * rows + tile.row) * group * deep;
                auto* to = attended + size_t(tile.row) * heads.query * heads.dim + size_t(head) * group * heads.dim;
                const auto following = first_block(batch, heads, item + 1, window) - ptrdiff_t(of_head);
                attend(multiplier, heads, tile, from, keys + of_head, values + of_head, window, following, to);
            }
        });
    }

    // y [rows, width] ← y + feed-forward(norm(y))
    void add_feed_forward(Phases& phases, const ov::TensorVector& inputs, int layer, int rows, int width, Memory& memory,
                          float* y) const {
        const auto up = weight(inputs, of(layer, "up"), width);
        const int half = up.outputs / 2;
        auto* normed = memory.normed.of(size_t(rows) * width);
        auto* gated = memory.gated.of(size_t(rows) * half);
        add_norm(phases, y, rows, width, floats(inputs, of(layer, "feed_forward_norm")), normed);
        const auto gate_by = [=](auto activation) {
            return [=](int panel, int row, __m512 gate, __m512 up) {
                store(gated + size_t(row) * half + panel * TILE, _mm512_mul_ps(activation(gate), up));
            };
        };
        if (m_gelus[layer]) {
            add_product(phases, normed, rows, up, gate_by([](__m512 gate) { return gelu(gate); }));
        } else {
            add_product(phases, normed, rows, up, gate_by([](__m512 gate) { return silu(gate); }));
        }
        add_to(phases, inputs, layer, "down", gated, half, rows, width, memory, y, y);
    }

    // y [rows, width] = x + the product of `from` [rows, depth] and the weight `name`, normed where the layer norms it, times the
    // residual scale
    void add_to(Phases& phases, const ov::TensorVector& inputs, int layer, const std::string& name, const Bfloat16* from, int depth,
                int rows, int width, Memory& memory, const float* x, float* y) const {
        const auto product = weight(inputs, of(layer, name), depth);
        const auto* factors = floats(inputs, of(layer, name + "_norm"));
        const float scale = m_residual_scales[layer];
        if (!factors) {
            add_product(phases, from, rows, product, sum_with(x, scale, width, y));
            return;
        }
        auto* z = memory.before_norm.of(size_t(rows) * width);
        add_product(phases, from, rows, product, put(z, width));
        phases.add(rows, TAKEN, [=](Multiplier&, int first, int last) {
            for (int row = first; row < last; ++row) {
                const auto at = size_t(row) * width;
                add_normed(x + at, z + at, factors, scale, width, y + at);
            }
        });
    }

    template <typename Value>
    static Value* take_sampled(Phases& phases, const Value* from, int width, const int* sampled, int count, Value* to) {
        phases.add(count, TAKEN, [=](Multiplier&, int first, int last) {
            for (int row = first; row < last; ++row) {
                std::copy_n(from + size_t(sampled[row]) * width, width, to + size_t(row) * width);
            }
        });
        return to;
    }

    static std::string of(int layer, const std::string& name) {
        return std::to_string(layer) + "." + name;
    }

    const ov::Tensor* find(const ov::TensorVector& inputs, const std::string& name) const {
        const auto found = m_places.find(name);
        return found == m_places.end() ? nullptr : &inputs[found->second];
    }

    const float* floats(const ov::TensorVector& inputs, const std::string& name) const {
        const auto* tensor = find(inputs, name);
        return tensor ? static_cast<const float*>(tensor->data()) : nullptr;
    }

    Weight weight(const ov::TensorVector& inputs, const std::string& name, int depth) const {
        const auto& packed = *find(inputs, name);
        const int outputs = packed.get_byte_size() / sizeof(Bfloat16) / depth;
        return {static_cast<const char*>(packed.data()), floats(inputs, name + "_bias"), outputs, depth};
    }

    std::vector<std::string> m_names;
    std::vector<int64_t> m_windows, m_rotaries, m_gelus;  // of each layer
    std::vector<double> m_residual_scales;                // of each layer
    std::vector<int64_t> m_heads;                         // query, kv, dim
    double m_scale = 1;
    int64_t m_width = 0, m_state_layer = 0;
    std::unordered_map<std::string, size_t> m_places;
};

}  // namespace gapless

OPENVINO_CREATE_EXTENSIONS(std::vector<ov::Extension::Ptr>({std::make_shared<ov::OpExtension<gapless::FusedLayers>>()}));

// For fused_fetch.py, which tries both caches.
extern "C" void gapless_fetch_into(int cache) {
    gapless::fetches_into_first = cache == 1;
}

// sums [panels, rows, 32] = x [rows, depth] · panels.
extern "C" void gapless_multiply(const uint16_t* x, int rows, int depth, const char* panels, int count, float* sums) {
    gapless::Multiplier multiplier;
    for (int panel = 0; panel < count; ++panel) {
        multiplier.multiply(x, rows, depth, panels, sums, panel + 1 < count);
        panels += size_t(depth) * gapless::PANEL * sizeof(gapless::Bfloat16);
        sums += size_t(rows) * gapless::PANEL;
    }
}
