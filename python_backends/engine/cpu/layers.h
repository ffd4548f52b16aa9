// What the layers are asked for: a model once, then a step at a time. The tables are those of model.py, by the same names; numbers lie
// where Python has them, and stay there as long as the model is open.
//
// A step is a flat batch of tokens: spans of tokens that follow each other in their sequences, one span a sequence. Their keys and values
// are written to KV blocks of 32 tokens, and all before them is read from there. A block has, of each layer, keys [kv_heads, 32, head_dim]
// and values of the same shape, in the model's format.

#pragma once

#include <stdint.h>

enum {  // formats of numbers
    GAPLESS_FLOAT32 = 0,
    GAPLESS_BFLOAT16 = 1,
    GAPLESS_INT8 = 2,
    GAPLESS_INT4 = 3,
    GAPLESS_EIGHTS = 4,
    GAPLESS_SHIFTED_EIGHTS = 5,
    GAPLESS_FOURS = 6,
    GAPLESS_BYTES = 7,
};

// y = s·(x·Wᵀ) + b, W [outputs, depth] in panels of 32 outputs (weight_memory.py); what a last panel has more is zero.
struct GaplessWeight {
    const void* panels;
    const float* scales;  // s [outputs of whole panels]; null: 1
    const float* bias;    // b [outputs of whole panels]; null: none
    int32_t outputs, depth;
    // the model's, or int8 in the places that numbers of the model's have, or in those of bytes.h in a model of bfloat16 (BYTES), or 4 bits
    // by group (fours.h: INT4, in a model of bfloat16, has float16 there, FOURS float32), or 8 bits by group (eights.h)
    int32_t format;
};

enum { GAPLESS_SILU = 0, GAPLESS_GELU = 1, GAPLESS_GELU_TANH = 2, GAPLESS_RELU = 3, GAPLESS_RELU_SQUARED = 4 };

// y = x / rms(x) · w + b, of x less its mean where it is centred.
struct GaplessNorm {
    const float* weight;  // w [width]; null: there is no norm
    const float* bias;    // b [width]; null: 0
    int32_t width;
    int32_t centred;
    float eps;
};

struct GaplessLayer {
    GaplessWeight qkv, output;
    GaplessWeight up, down;  // up, where gated: in turn 16 outputs of the gate and 16 of what it gates
    GaplessNorm attention_norm, output_norm, feed_forward_norm, down_norm;
    GaplessNorm q_norm, k_norm;  // of each head, or of all heads at once, as wide as they are; not centred, without bias
    void *keys, *values;         // of the layer in block 0
    float residual_scale;
    float score_softcap;  // scores ← softcap · tanh(scores / softcap); 0: none
    int32_t window;       // tokens that one sees, with itself; 0: all before it
    int32_t rotary;       // which of the model's; −1: none
    int32_t activation;
    int32_t gated;
    int32_t parallel;  // the feed-forward part sees x as it is before attention is added
};

struct GaplessRotary {
    const float *cos, *sin;  // [positions, head_dim / 2]
};

struct GaplessModel {
    const GaplessLayer* layers;
    const GaplessRotary* rotaries;
    const void* embedding;  // [vocabulary, hidden] in the model's format; null: the head's weight is it
    const float* positions;  // [context, hidden] added to the embedding; null: none
    GaplessNorm norm;
    GaplessWeight head;    // outputs: the vocabulary
    int64_t block_stride;  // numbers from one KV block to the next
    int32_t format;        // of what is multiplied, of keys and of values; sums and the residual stream are float32
    int32_t num_layers, num_rotaries;
    int32_t state_layer;  // after so many layers the hidden states are given; 0: they are not
    int32_t hidden, query_heads, kv_heads, head_dim;
    float attention_scale, embedding_scale, logit_scale;
    float logit_softcap;  // 0: none
};

// What an adapter adds to a product, y += (x·Aᵀ)·Bᵀ, its scale in B. Both lie in panels of the model's format.
struct GaplessFactors {
    const void* a;  // A [rank, depth]; null: nothing is added
    const void* b;  // B [outputs, rank], in the order of the weight's outputs
    int32_t rank;   // a multiple of 32, with zeros
};

struct GaplessStep {
    const int32_t* tokens;        // [rows] all spans, one after the other
    const int32_t* past;          // [spans] tokens of the sequence before the span
    const int32_t* begins;        // [spans + 1] of the spans among the rows
    const int32_t* blocks;        // of all sequences, one after the other
    const int32_t* block_begins;  // [spans + 1]
    const int32_t* sampled;       // [num_sampled] rows whose logits are wanted
    float* logits;                // [num_sampled, vocabulary]
    float* states;                // [num_sampled, hidden] of the same rows; not written where the model gives none
    const GaplessFactors* const* adapters;  // of each adapter [layers, 4]: of qkv, output, up, down
    const int32_t* adapter_of;              // [rows] its number, −1: none; null: no row has one
    int32_t num_spans, num_sampled;
};

// Which tokens rows take that take the greatest logit.
struct GaplessChoice {
    const float* logits;     // [rows, vocabulary]
    const uint8_t* masks;    // [guided, mask_bytes] bit i of byte j: 8 · j + i may come
    const int32_t* mask_of;  // [rows] its number, −1: all may come; null: no row has one
    int64_t* tokens;         // [rows]
    uint8_t* are_good;       // [rows] 1: a token can be chosen by these logits (numbers.py), and is the row's
    int32_t rows, vocabulary, mask_bytes;
};

struct GaplessLayers;  // an open model, with its threads and what a step leaves in memory for the next one

extern "C" {

// Copies the tables, not the numbers. `threads`: with the one that calls `gapless_finish`. Null where the format is not multiplied here.
GaplessLayers* gapless_open(const GaplessModel* model, int32_t threads);

// Other threads begin with a step, one at a time; what it reads and writes stays where it is until it is finished.
void gapless_begin(GaplessLayers* layers, const GaplessStep* step);

// Computes it with them, and returns when all is computed.
void gapless_finish(GaplessLayers* layers);

// Between two steps, with the threads of these layers.
void gapless_choose(GaplessLayers* layers, const GaplessChoice* choice);

void gapless_close(GaplessLayers* layers);

// Into which cache of the processor weights are fetched, 1 or 2: fetch.py tries both.
void gapless_fetch_into(int32_t cache);

// sums [panels, rows, 32] = x [rows, depth] · panels, all in `format`.
void gapless_multiply(const void* x, int32_t rows, int32_t depth, const void* panels, int32_t count, float* sums, int32_t format);
}
