// What lies between two attentions of a decoder, as one operation of OpenVINO's graph, for a processor that multiplies bfloat16, by
// tiles (AMX) or by vectors (AVX512_BF16):
//
//     x ← x + attended·Oᵀ
//     x ← x + (silu(g)·u)·Dᵀ,  g, u = norm(x)·Uᵀ
//     q, k, v = norm(x)·Qᵀ of the attention that follows
//
// Each of the three parts may be missing: before the first attention there is only the last one, and so at the logits.
//
// A weight [out, in] lies in panels of 32 outputs, a panel in tiles as the processor takes them: [out / 32, in / 32, 2, 16, 16, 2], the
// last three being pairs of inputs, outputs, and the two of a pair; in U, 16 outputs of g and 16 of u take turns. A decode step reads
// every weight once, so what counts is that reading never stops: each thread goes through panels that lie one after the other and
// fetches ahead of itself, with many rows the next panel while it multiplies this one. Who is done with its own panels takes
// some of the others', so a thread that is interrupted is not waited for. A row's numbers don't depend on the rows beside it.
//
// Compiled by fused_layer.py when the engine starts, which asks Linux for the tiles as well.

#include <immintrin.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <openvino/core/extension.hpp>
#include <openvino/core/op_extension.hpp>
#include <openvino/op/op.hpp>

namespace gapless {

using Bfloat16 = uint16_t;

constexpr int TILE = 16;           // rows of a tile of x, outputs of a tile of a weight, floats of a vector
constexpr int PANEL = 2 * TILE;    // outputs of a panel, rows of a block, inputs of a tile
constexpr int LINES = 32;          // of weights that a panel has for 32 inputs, of 64 bytes
constexpr int TAKEN = 4;           // panels that a thread takes at a time
constexpr int SPINS = 2000;        // looks at what others still compute, before a thread lets others have its processor
constexpr int BYTES_AHEAD = 8192;  // how far a thread fetches ahead of itself

struct alignas(64) Line {
    Bfloat16 values[32];
};

// A memory [rows, width] that begins with a line, as tiles are loaded fastest; width is a multiple of 32.
class Rows {
public:
    Bfloat16* of(int rows, int width) {
        m_lines.resize(size_t(rows) * width / 32);
        return m_lines.data()->values;
    }

private:
    std::vector<Line> m_lines;
};

inline void fetch(const char* from, int lines) {  // into the second cache: a panel is larger than the first
    for (int line = 0; line < lines; ++line) {
        _mm_prefetch(from + line * 64, _MM_HINT_T0);
    }
}

#ifdef __AMX_BF16__

// Multiplies by its thread's tile registers: 0 and 1 are sums of the first 16 rows, 2 and 3 of the others, 4 and 5 rows, 6 and 7 weights.
class Multiplier {
public:
    ~Multiplier() {
        _tile_release();
    }

    // sums [rows, 32] = up to 32 rows of x · panel. Fetches `lines` lines from `ahead` on for each 32 inputs.
    void multiply(const Bfloat16* x, int rows, int depth, const char* panel, float* sums, const char* ahead, int lines) {
        shape(rows);
        if (rows > TILE) {
            multiply<true>(x, depth, panel, sums, ahead, lines);
        } else {
            multiply<false>(x, depth, panel, sums, ahead, lines);
        }
    }

private:
    void shape(int rows) {
        if (rows == m_rows) {
            return;
        }
        m_rows = rows;
        struct {
            uint8_t palette = 1, start = 0, reserved[14] = {};
            uint16_t bytes[16] = {};
            uint8_t rows[16] = {};
        } config;
        std::fill_n(config.bytes, 8, 64);
        std::fill_n(config.rows, 8, TILE);
        config.rows[0] = config.rows[1] = config.rows[4] = std::min(rows, TILE);
        config.rows[2] = config.rows[3] = config.rows[5] = std::max(rows - TILE, 1);
        _tile_loadconfig(&config);
    }

    template <bool MANY>  // more than 16 rows
    static void multiply(const Bfloat16* x, int depth, const char* panel, float* sums, const char* ahead, int lines) {
        const auto* others = x + TILE * depth;
        const size_t stride = depth * sizeof(Bfloat16);
        _tile_zero(0);
        _tile_zero(1);
        if (MANY) {
            _tile_zero(2);
            _tile_zero(3);
        }
        for (int i = 0; i < depth; i += PANEL) {
            _tile_loadd(6, panel, 64);
            _tile_loadd(4, x + i, stride);
            _tile_loadd(7, panel + TILE * 64, 64);
            fetch(ahead, lines);
            _tile_dpbf16ps(0, 4, 6);
            if (MANY) {
                _tile_loadd(5, others + i, stride);
                _tile_dpbf16ps(2, 5, 6);
            }
            _tile_dpbf16ps(1, 4, 7);
            if (MANY) {
                _tile_dpbf16ps(3, 5, 7);
            }
            panel += LINES * 64;
            ahead += lines * 64;
        }
        _tile_stored(0, sums, PANEL * sizeof(float));
        _tile_stored(1, sums + TILE, PANEL * sizeof(float));
        if (MANY) {
            _tile_stored(2, sums + TILE * PANEL, PANEL * sizeof(float));
            _tile_stored(3, sums + TILE * PANEL + TILE, PANEL * sizeof(float));
        }
    }

    int m_rows = 0;
};

#else

// Multiplies by vectors: 8 rows at a time, so many inputs that the piece of the panel stays in the nearest cache for the next 8.
class Multiplier {
public:
    // sums [rows, 32] = up to 32 rows of x · panel. Fetches `lines` lines from `ahead` on for each 32 inputs.
    void multiply(const Bfloat16* x, int rows, int depth, const char* panel, float* sums, const char* ahead, int lines) {
        for (int i = 0; i < depth; i += PIECE) {
            const Piece piece{panel + i * 64, std::min(PIECE, depth - i), i == 0};
            for (int row = 0; row < rows; row += TOGETHER) {
                const auto* from = x + size_t(row) * depth + i;
                const auto* next = ahead + i / PANEL * lines * 64;
                add<TOGETHER>(std::min(TOGETHER, rows - row), from, depth, piece, sums + row * PANEL, next, row ? 0 : lines);
            }
        }
    }

private:
    static constexpr int TOGETHER = 8, PIECE = 256;

    struct Piece {
        const char* panel;
        int inputs;
        bool first;
    };

    template <int ROWS>
    [[gnu::noinline]] static void add(int rows, const Bfloat16* x, int depth, const Piece& piece, float* sums, const char* ahead, int lines) {
        if constexpr (ROWS > 1) {
            if (rows < ROWS) {
                return add<ROWS - 1>(rows, x, depth, piece, sums, ahead, lines);
            }
        }
        __m512 low[ROWS], high[ROWS];
        for (int row = 0; row < ROWS; ++row) {
            low[row] = piece.first ? _mm512_setzero_ps() : _mm512_loadu_ps(sums + row * PANEL);
            high[row] = piece.first ? _mm512_setzero_ps() : _mm512_loadu_ps(sums + row * PANEL + TILE);
        }
        const char* tiles = piece.panel;
        for (int i = 0; i < piece.inputs; i += PANEL, tiles += LINES * 64, ahead += lines * 64) {
            fetch(ahead, lines);
            for (int pair = 0; pair < TILE; ++pair) {
                const auto left = reinterpret_cast<__m512bh>(_mm512_loadu_si512(tiles + pair * 64));
                const auto right = reinterpret_cast<__m512bh>(_mm512_loadu_si512(tiles + (TILE + pair) * 64));
                for (int row = 0; row < ROWS; ++row) {
                    int32_t both;
                    std::memcpy(&both, x + size_t(row) * depth + i + 2 * pair, sizeof(both));
                    const auto inputs = reinterpret_cast<__m512bh>(_mm512_set1_epi32(both));
                    low[row] = _mm512_dpbf16_ps(low[row], inputs, left);
                    high[row] = _mm512_dpbf16_ps(high[row], inputs, right);
                }
            }
        }
        for (int row = 0; row < ROWS; ++row) {
            _mm512_storeu_ps(sums + row * PANEL, low[row]);
            _mm512_storeu_ps(sums + row * PANEL + TILE, high[row]);
        }
    }
};

#endif

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

inline void store(float* to, __m512 values) {
    _mm512_storeu_ps(to, values);
}

inline void store(Bfloat16* to, __m512 values) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values)));
}

// to [width] = x / rms(x) · weight, for one row.
void norm(const float* x, const float* weight, float eps, int width, Bfloat16* to) {
    auto squares = _mm512_setzero_ps();
    for (int i = 0; i < width; i += TILE) {
        const auto values = _mm512_loadu_ps(x + i);
        squares = _mm512_fmadd_ps(values, values, squares);
    }
    const auto factor = _mm512_set1_ps(1.f / std::sqrt(_mm512_reduce_add_ps(squares) / width + eps));
    for (int i = 0; i < width; i += TILE) {
        store(to + i, _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(x + i), factor), _mm512_loadu_ps(weight + i)));
    }
}

struct Weight {
    const char* panels = nullptr;
    const float* bias = nullptr;
    int outputs = 0, depth = 0;
};

// Parts of an operation's work that follow each other, in one parallel region over all threads. An item of a part begins when all
// items of the part before have ended. Who is done with its own share takes some of the others': a thread that is interrupted is
// waited for only until its last items end, and one that never begins not at all.
class Parts {
public:
    void add(int items, std::function<void(Multiplier&, int, int)> run) {
        if (items > 0) {
            m_parts.emplace_back(items, std::move(run));
        }
    }

    void run() {
        const int threads = tbb::this_task_arena::max_concurrency();
        for (auto& part : m_parts) {
            part.shares = std::vector<Share>(threads);
            for (int i = 0; i < threads; ++i) {
                part.shares[i].next = part.items * i / threads;
                part.shares[i].end = part.items * (i + 1) / threads;
            }
        }
        tbb::parallel_for(0, threads, [&](int thread) { run(thread, threads); }, tbb::static_partitioner{});
    }

private:
    struct alignas(64) Share {
        std::atomic<int> next;
        int end;
    };

    struct Part {
        Part(int items, std::function<void(Multiplier&, int, int)> run) : items(items), run(std::move(run)), left(items) {}

        int items;
        std::function<void(Multiplier&, int, int)> run;
        std::vector<Share> shares;
        alignas(64) std::atomic<int> left;
    };

    void run(int thread, int threads) {
        Multiplier multiplier;
        const auto control = _mm_getcsr();
        _mm_setcsr(control | 0x8040);  // numbers too small to matter are zero instead of slow, as the tiles have it
        for (auto& part : m_parts) {
            for (int i = 0; i < threads; ++i) {
                auto& share = part.shares[(thread + i) % threads];
                for (int first; (first = share.next.fetch_add(TAKEN)) < share.end;) {
                    const int last = std::min(first + TAKEN, share.end);
                    part.run(multiplier, first, last);
                    part.left.fetch_sub(last - first);
                }
            }
            for (int looked = 0; part.left.load() > 0; ++looked) {
                looked < SPINS ? _mm_pause() : std::this_thread::yield();
            }
        }
        _mm_setcsr(control);
    }

    std::deque<Part> m_parts;
};

// y = x·Wᵀ + b; `finish(panel, row, y of its first 16 outputs, of the others)` gets each row of each panel.
template <typename Finish>
void add_product(Parts& parts, const Bfloat16* x, int rows, const Weight& weight, const Finish& finish) {
    const int panels = weight.outputs / PANEL, blocks = (rows + PANEL - 1) / PANEL, depth = weight.depth;
    const int each = (LINES + blocks - 1) / blocks;  // lines of the next panel that a block fetches for 32 inputs
    const size_t size = size_t(depth) * PANEL * sizeof(Bfloat16);
    parts.add(panels, [=](Multiplier& multiplier, int first, int last) {
        alignas(64) float sums[PANEL * PANEL];
        for (int panel = first; panel < last; ++panel) {
            const auto* from = weight.panels + panel * size;
            const auto* bias = weight.bias ? weight.bias + panel * PANEL : nullptr;
            const auto low = bias ? _mm512_loadu_ps(bias) : _mm512_setzero_ps();
            const auto high = bias ? _mm512_loadu_ps(bias + TILE) : _mm512_setzero_ps();
            for (int block = 0; block < blocks; ++block) {
                const int begin = block * PANEL, count = std::min(PANEL, rows - begin);
                const char* ahead = from + BYTES_AHEAD;
                int lines = block ? 0 : LINES;
                if (blocks > 2) {
                    ahead = from + size + size_t(block) * each * depth * 2;
                    lines = panel + 1 < last ? std::clamp(LINES - block * each, 0, each) : 0;
                }
                multiplier.multiply(x + size_t(begin) * depth, count, depth, from, sums, ahead, lines);
                for (int row = 0; row < count; ++row) {
                    const auto* sum = sums + row * PANEL;
                    const auto left = _mm512_add_ps(_mm512_load_ps(sum), low);
                    finish(panel, begin + row, left, _mm512_add_ps(_mm512_load_ps(sum + TILE), high));
                }
            }
        }
    });
}

// What follows x among an operation's inputs, by name.
class Inputs {
public:
    Inputs(const std::vector<std::string>& parts, const ov::TensorVector& tensors) : m_parts(parts), m_tensors(tensors) {}

    const ov::Tensor& operator[](const std::string& name) const {
        return *find(name);
    }

    const float* floats(const std::string& name) const {
        const auto* tensor = find(name);
        return tensor ? static_cast<const float*>(tensor->data()) : nullptr;
    }

    Weight weight(const std::string& name, size_t depth) const {
        const auto& packed = *find(name);
        const int outputs = packed.get_byte_size() / sizeof(Bfloat16) / depth;
        return {static_cast<const char*>(packed.data()), floats(name + "_bias"), outputs, static_cast<int>(depth)};
    }

private:
    const ov::Tensor* find(const std::string& name) const {
        const auto found = std::find(m_parts.begin(), m_parts.end(), name);
        return found == m_parts.end() ? nullptr : &m_tensors[1 + (found - m_parts.begin())];
    }

    const std::vector<std::string>& m_parts;
    const ov::TensorVector& m_tensors;
};

// Inputs: x [rows, 1, width] float32, then those that `parts` names. Outputs: x, if it changes, and the products of the last part in
// `widths`, bfloat16, or float32 where `logits`.
class FusedLayer : public ov::op::Op {
public:
    OPENVINO_OP("FusedLayer", "gapless");

    FusedLayer() = default;

    FusedLayer(const ov::OutputVector& inputs, const FusedLayer& other)
        : Op(inputs), m_parts(other.m_parts), m_widths(other.m_widths), m_logits(other.m_logits) {
        constructor_validate_and_infer_types();
    }

    void validate_and_infer_types() override {
        auto shape = get_input_partial_shape(0);
        size_t output = 0;
        if (changes()) {
            set_output_type(output++, ov::element::f32, shape);
        }
        for (const auto width : m_widths) {
            shape[shape.size() - 1] = width;
            set_output_type(output++, m_logits ? ov::element::f32 : ov::element::bf16, shape);
        }
    }

    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        return std::make_shared<FusedLayer>(inputs, *this);
    }

    bool visit_attributes(ov::AttributeVisitor& visitor) override {
        visitor.on_attribute("parts", m_parts);
        visitor.on_attribute("widths", m_widths);
        visitor.on_attribute("logits", m_logits);
        return true;
    }

    bool has_evaluate() const override {
        return true;
    }

    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
        const Inputs named{m_parts, inputs};
        const int width = inputs[0].get_shape().back(), rows = inputs[0].get_size() / width;
        const auto* x = static_cast<const float*>(inputs[0].data());
        if (rows == 0) {
            return true;
        }
        Parts parts;
        auto output = outputs.begin();
        if (changes()) {
            auto* y = static_cast<float*>((output++)->data());
            end_layer(parts, named, x, rows, width, y);
            x = y;
        }
        if (!m_widths.empty()) {
            lead_on(parts, named, x, rows, width, {output, outputs.end()});
        }
        parts.run();
        return true;
    }

private:
    bool changes() const {
        return !m_parts.empty() && m_parts[0] == "attended";
    }

    // y = x + attended·Oᵀ, and what the feed-forward part makes of it added.
    static void end_layer(Parts& parts, const Inputs& inputs, const float* x, int rows, int width, float* y) {
        const auto add_to = [=](const float* before) {
            return [=](int panel, int row, __m512 low, __m512 high) {
                const auto at = size_t(row) * width + panel * PANEL;
                store(y + at, _mm512_add_ps(_mm512_loadu_ps(before + at), low));
                store(y + at + TILE, _mm512_add_ps(_mm512_loadu_ps(before + at + TILE), high));
            };
        };
        const auto& attended = inputs["attended"];
        const auto* heads = static_cast<const Bfloat16*>(attended.data());
        add_product(parts, heads, rows, inputs.weight("output", attended.get_shape().back()), add_to(x));
        const auto up = inputs.weight("up", width);
        const int half = up.outputs / 2;
        thread_local Rows kept;
        auto* gated = kept.of(rows, half);
        const auto gate = [=](int panel, int row, __m512 gate, __m512 up) {
            store(gated + size_t(row) * half + panel * TILE, _mm512_mul_ps(silu(gate), up));
        };
        add_product(parts, add_norm(parts, inputs, "norm", y, rows, width), rows, up, gate);
        add_product(parts, gated, rows, inputs.weight("down", half), add_to(y));
    }

    // The products of what follows, each panel to the output that it belongs to.
    void lead_on(Parts& parts, const Inputs& inputs, const float* x, int rows, int width, ov::TensorVector outputs) const {
        struct Place {
            char* first_row;
            size_t stride;
        };
        std::vector<Place> places;
        const size_t size = m_logits ? sizeof(float) : sizeof(Bfloat16);
        for (auto& output : outputs) {
            const auto outputs_width = output.get_shape().back();
            for (size_t column = 0; column < outputs_width; column += PANEL) {
                places.push_back({static_cast<char*>(output.data()) + column * size, outputs_width * size});
            }
        }
        const auto* normed = add_norm(parts, inputs, "next_norm", x, rows, width);
        const auto put = [&](auto type) {
            using Value = decltype(type);
            const auto put_row = [places](int panel, int row, __m512 low, __m512 high) {
                auto* to = reinterpret_cast<Value*>(places[panel].first_row + row * places[panel].stride);
                store(to, low);
                store(to + TILE, high);
            };
            add_product(parts, normed, rows, inputs.weight("next", width), put_row);
        };
        m_logits ? put(float()) : put(Bfloat16());
    }

    // Where x [rows, width] will be, normed by the factors `name`: a memory that the next norm overwrites.
    static const Bfloat16* add_norm(Parts& parts, const Inputs& inputs, const std::string& name, const float* x, int rows, int width) {
        thread_local Rows kept;
        auto* to = kept.of(rows, width);
        const auto* factors = inputs.floats(name);
        const auto eps = *inputs.floats(name + "_eps");
        parts.add(rows, [=](Multiplier&, int first, int last) {
            for (int row = first; row < last; ++row) {
                const auto at = size_t(row) * width;
                norm(x + at, factors, eps, width, to + at);
            }
        });
        return to;
    }

    std::vector<std::string> m_parts;
    std::vector<int64_t> m_widths;
    bool m_logits = false;
};

}  // namespace gapless

OPENVINO_CREATE_EXTENSIONS(std::vector<ov::Extension::Ptr>({std::make_shared<ov::OpExtension<gapless::FusedLayer>>()}));
