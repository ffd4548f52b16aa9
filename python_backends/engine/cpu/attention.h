// Causal attention of a flat batch of tokens over KV blocks [blocks, kv_heads, 32, dim], with rotary embedding.
//
// A tile is up to 32 queries of one KV head: tokens of one span that follow each other, each with the query heads of its group. The
// tokens of a block are what a panel has as outputs when scores are computed, and what it has as inputs when values are added up; so
// keys and values of a block are put into panels first. Softmax goes from block to block with the greatest score so far (Milakov and
// Gimelshein, Online normalizer calculation for softmax, 2018).

#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "multiplier.h"
#include "vectors.h"

namespace gapless {

constexpr int BLOCK = 32;  // tokens of a KV block
constexpr float NO_SCORE = -1e30f;

struct Heads {
    int query = 0, kv = 0, dim = 0;
    float scale = 0;
    ptrdiff_t block_stride = 0;  // values from one KV block to the next

    int group() const {
        return query / kv;
    }

    int deep() const {  // dim with what makes it a depth of panels, which is zero
        return (dim + PANEL - 1) / PANEL * PANEL;
    }

    size_t head_size() const {  // of keys or values of a KV block
        return size_t(BLOCK) * dim;
    }
};

// Where the tokens of the flat batch are in their sequences and in KV blocks, and the tiles of their queries.
class Batch {
public:
    struct Tile {
        int row, tokens;    // the first one in the flat batch
        int position;       // of the first one
        const int* blocks;  // of the sequence

        int first_block(int window) const {  // that its queries see, of the sequence's; 0: no window
            return window ? std::max(position - window + 1, 0) / BLOCK : 0;
        }
    };

    Batch(const Heads& heads, int spans, const int* past, const int* begins, const int* blocks, const int* block_begins)
        : m_rows(begins[spans]) {
        const int most = std::max(PANEL / heads.group(), 1);
        m_places.reserve(m_rows);
        for (int span = 0; span < spans; ++span) {
            const int* of_span = blocks + block_begins[span];
            const int tokens = begins[span + 1] - begins[span];
            for (int token = 0; token < tokens; ++token) {
                const int position = past[span] + token;
                m_places.push_back({position, of_span[position / BLOCK]});
            }
            for (int token = 0; token < tokens; token += most) {
                m_tiles.push_back({begins[span] + token, std::min(most, tokens - token), past[span] + token, of_span});
            }
        }
    }

    struct Place {
        int position, block;
    };

    int rows() const {
        return m_rows;
    }
    const std::vector<Place>& places() const {
        return m_places;
    }
    const std::vector<Tile>& tiles() const {
        return m_tiles;
    }

private:
    int m_rows;
    std::vector<Place> m_places;
    std::vector<Tile> m_tiles;
};

// Where in the cache the first block begins that an item of attention reads, of tiles and KV heads; 0 after the last one.
inline ptrdiff_t first_block(const Batch& batch, const Heads& heads, int item, int window) {
    if (item >= int(batch.tiles().size()) * heads.kv) {
        return 0;
    }
    const auto& tile = batch.tiles()[item / heads.kv];
    return tile.blocks[tile.first_block(window)] * heads.block_stride + size_t(item % heads.kv) * heads.head_size();
}

// The panel [32 tokens, deep] of the keys [32, dim] of a block.
template <typename Value>
void pack_keys(const Value* keys, const Heads& heads, char* panel) {
    for (int chunk = 0; chunk < heads.deep(); chunk += DEEP<Value>) {
        for (int half = 0; half < 2; ++half, panel += TILE * 64) {
            Line rows[TILE];
            for (int token = 0; token < TILE; ++token) {
                rows[token] = load_line(keys + size_t(half * TILE + token) * heads.dim + chunk, heads.dim - chunk);
            }
            transpose(rows);
            for (int line = 0; line < TILE; ++line) {
                store_line(panel + line * 64, rows[line]);
            }
        }
    }
}

// The panels [deep, 32 tokens] of the values [32, dim] of a block. Tokens from `count` on are zero, whatever their memory has.
inline void pack_values(const float* values, const Heads& heads, int count, char* panels) {
    for (int chunk = 0; chunk < heads.deep(); chunk += PANEL) {
        for (int token = 0; token < BLOCK; ++token) {
            auto* line = panels + (chunk + token / TILE * TILE) * PANEL * sizeof(float) + token % TILE * 64;
            for (int half = 0; half < 2; ++half) {
                const int first = chunk + half * TILE;
                const auto some = token < count ? heads.dim - first : 0;
                store_line(line + half * TILE * 64, load_line(values + size_t(token) * heads.dim + first, some));
            }
        }
    }
}

inline void pack_values(const Bfloat16* values, const Heads& heads, int count, char* panels) {
    for (int chunk = 0; chunk < heads.deep(); chunk += PANEL, panels += LINES * 64) {
        const auto some = heads.dim - chunk;
        for (int pair = 0; pair < TILE; ++pair) {
            const auto* from = values + size_t(2 * pair) * heads.dim + chunk;
            const auto even = load_line(from, 2 * pair < count ? some : 0);
            const auto odd = load_line(from + heads.dim, 2 * pair + 1 < count ? some : 0);
            store_line(panels + pair * 64, paired(even, odd, 0));
            store_line(panels + (TILE + pair) * 64, paired(even, odd, 1));
        }
    }
}

// to [tokens, query_heads · dim], of the heads of a group = softmax(queries · keysᵀ · scale) · values, with scores capped where `softcap`
// is not 0. Queries [tokens · group, deep]; keys and values are those of the KV head in the first block of the cache. A token sees itself
// and the window − 1 before it; all before it where the window is 0. Fetches the block `following` values further on while it computes the
// last one.
template <typename Value>
void attend(Multiplier& multiplier, const Heads& heads, const Batch::Tile& tile, const Value* queries, const Value* keys,
            const Value* values, int window, float softcap, ptrdiff_t following, Value* to) {
    const int deep = heads.deep(), group = heads.group(), rows = tile.tokens * group;
    alignas(64) float scores[PANEL * PANEL], most[PANEL], total_of[PANEL], kept[PANEL];
    alignas(64) Value shares[PANEL * PANEL];
    const int lines = heads.dim * sizeof(Value) / 2;  // of 64 bytes that keys or values of a block have
    thread_local Kept<char> kept_panel;
    thread_local Kept<float> kept_sums;
    char* panel = kept_panel.of(size_t(deep) * PANEL * sizeof(Value));
    float* sums = kept_sums.of(size_t(PANEL) * deep);
    std::fill_n(sums, size_t(rows) * deep, 0.f);
    std::fill_n(most, rows, NO_SCORE);
    std::fill_n(total_of, rows, 0.f);
    const int last = tile.position + tile.tokens - 1;  // position
    const auto scale = spread(heads.scale), none = spread(NO_SCORE), zero = spread(0.f);
    for (int block = tile.first_block(window); block <= last / BLOCK; ++block) {
        const size_t at = tile.blocks[block] * heads.block_stride;
        const ptrdiff_t next = block < last / BLOCK ? tile.blocks[block + 1] * heads.block_stride : following;
        fetch(keys + next, lines);
        pack_keys(keys + at, heads, panel);
        multiplier.multiply(queries, rows, deep, panel, scores, false);
        for (int row = 0; row < rows; ++row) {
            const int end = tile.position + row / group + 1 - block * BLOCK;
            const uint32_t seen = bits(end) & ~(window ? bits(end - window) : 0);
            auto low = load(scores + row * PANEL) * scale, high = load(scores + row * PANEL + TILE) * scale;
            if (softcap) {
                low = capped(low, softcap);
                high = capped(high, softcap);
            }
            low = where(seen, low, none);
            high = where(seen >> TILE, high, none);
            const float now = std::max(greatest(greater(low, high)), most[row]);
            low = where(seen, exponential(low - spread(now)), zero);
            high = where(seen >> TILE, exponential(high - spread(now)), zero);
            kept[row] = now > most[row] ? std::exp(most[row] - now) : 1.f;
            most[row] = now;
            total_of[row] = total_of[row] * kept[row] + total(low + high);
            store(shares + row * PANEL, low);
            store(shares + row * PANEL + TILE, high);
        }
        fetch(values + next, lines);
        pack_values(values + at, heads, std::min(last + 1 - block * BLOCK, BLOCK), panel);
        for (int chunk = 0; chunk < deep; chunk += PANEL) {
            multiplier.multiply(shares, rows, PANEL, panel + size_t(chunk) * PANEL * sizeof(Value), scores, false);
            for (int row = 0; row < rows; ++row) {
                auto* sum = sums + row * deep + chunk;
                const auto factor = spread(kept[row]);
                store(sum, fused(load(sum), factor, load(scores + row * PANEL)));
                store(sum + TILE, fused(load(sum + TILE), factor, load(scores + row * PANEL + TILE)));
            }
        }
    }
    for (int row = 0; row < rows; ++row) {
        const auto factor = spread(1.f / total_of[row]);
        auto* head = to + size_t(row / group) * heads.query * heads.dim + row % group * heads.dim;
        for (int i = 0; i < heads.dim; i += TILE) {
            store(head + i, load(sums + row * deep + i) * factor, heads.dim - i);
        }
    }
}

}  // namespace gapless
