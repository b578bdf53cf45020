/* Computes the attention of a window and its gradients, in tiles. The GEMM library computes products, the vector kernels
 * exponentials. */
#include "train/backward_attention.h"

#include "backend/cpu/cap.h"
#include "backend/cpu/gemm.h"
#include "backend/cpu/partial.h"
#include "backend/cpu/vector.h"
#include "base/memory.h"
#include "base/size.h"
#include "train/backward_ops.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#define QUERY_ROWS 192 /* rows of a tile of queries (tokens times G), as the prefill's attention has them */
#define ITEMS 16       /* into which the gradients' work is split at least, so that threads have some; the sums depend on it */
#define KEY_ROWS 384   /* keys against which they go at a time: two such tiles of numbers fit the second-level cache */

static size_t group_of(const struct attention *a) { return a->query_heads / a->kv_heads; }
static size_t tile_tokens(const struct attention *a) { return size_max(QUERY_ROWS / group_of(a), 1); }
static size_t tile_count(const struct attention *a) { return (a->n + tile_tokens(a) - 1) / tile_tokens(a); }

/* ---- Tiles. Row m of a tile is query head m % G of the KV head's group, of token first + m / G. */

struct tile {
    uint32_t head; /* KV head */
    size_t first, count, rows;
};

static struct tile tile_at(const struct attention *a, size_t i, uint32_t head) {
    size_t first = i * tile_tokens(a), count = size_min(tile_tokens(a), a->n - first);
    return (struct tile){head, first, count, count * group_of(a)};
}

/* Returns where row m lies in an array [n][Hq][width]. */
static size_t row_offset(const struct attention *a, const struct tile *tile, size_t m, size_t width) {
    size_t group = group_of(a);
    return ((tile->first + m / group) * a->query_heads + tile->head * group + m % group) * width;
}

static void gather(const struct attention *a, const struct tile *tile, const float *from, float *to) {
    size_t hd = a->head_dim;
    for (size_t m = 0; m < tile->rows; m++) memcpy(to + m * hd, from + row_offset(a, tile, m, hd), hd * sizeof *to);
}

static void gather_queries(const struct attention *a, const struct tile *tile, float *to) {
    gather(a, tile, a->q, to);
    for (size_t i = 0; i < tile->rows * a->head_dim; i++) to[i] *= a->scale;
}

/* Returns how many of the keys [key, key + n) are no newer than row m's token; the row sees none of the others. */
static size_t visible_keys(const struct attention *a, const struct tile *tile, size_t m, size_t key, size_t n) {
    size_t seen = tile->first + m / group_of(a) + 1;
    return seen > key ? size_min(seen - key, n) : 0;
}

/* Returns how many keys from `key` on are older than row m's window, so that it does not see them. */
static size_t hidden_keys(const struct attention *a, const struct tile *tile, size_t m, size_t key, size_t n) {
    size_t end = tile->first + m / group_of(a) + 1, first = a->window && end > a->window ? end - a->window : 0;
    return first > key ? size_min(first - key, n) : 0;
}

/* Returns the first block of keys of which a tile sees some. */
static size_t first_key(const struct attention *a, const struct tile *tile) {
    size_t hidden = hidden_keys(a, tile, 0, 0, tile->first);
    return hidden / KEY_ROWS * KEY_ROWS;
}

/* Adds ALiBi, which depends on the positions of row m and of the n keys from `key` on. */
static void add_alibi(const struct attention *a, const struct tile *tile, size_t m, size_t key, size_t n, float *logits) {
    size_t group = group_of(a), token = tile->first + m / group;
    if (!a->slopes) return;
    float slope = a->slopes[tile->head * group + m % group], first = (float)key - (float)token;
    for (size_t j = 0; j < n; j++) logits[j] += slope * (first + (float)(int)j);
}

/* ---- Scratch: of each thread, and of all the gradients that will be summed */

static size_t thread_floats(const struct attention *a) {
    size_t rows = tile_tokens(a) * group_of(a), hd = a->head_dim;
    size_t forward = rows * (hd + KEY_ROWS) + partial_floats(rows, hd);
    size_t backward = rows * (3 * hd + 2 * KEY_ROWS + 1);
    return memory_round_up(size_max(forward, backward), MEMORY_ALIGN / sizeof(float));
}

/* Returns into how many parts the queries of a KV head are split. It does not depend on the threads, so that their number changes
 * no bit. */
static size_t part_count(const struct attention *a) { return size_min((ITEMS + a->kv_heads - 1) / a->kv_heads, tile_count(a)); }

static size_t side_floats(const struct attention *a) { return a->n * a->kv_heads * a->head_dim; }

size_t attention_scratch(const struct attention *a, uint32_t threads) {
    return threads * thread_floats(a) + 2 * (part_count(a) - 1) * side_floats(a);
}

/* ---- Forward */

static void forward_tile(const struct attention *a, const struct tile *tile, float *out, float *log_sum, float *scratch) {
    size_t hd = a->head_dim, stride = a->kv_heads * hd, end = tile->first + tile->count;
    float *queries = scratch, *logits = queries + tile->rows * hd;
    struct partial partial = partial_at(logits + tile->rows * KEY_ROWS, tile->rows, hd);
    partial_clear(&partial);
    gather_queries(a, tile, queries);
    for (size_t m = 0; m < tile->rows && a->sinks; m++) {
        float sink = a->sinks[tile->head * group_of(a) + m % group_of(a)];
        partial.sum[m] = expf(sink - partial_raise(&partial, m, sink));
    }
    for (size_t key = first_key(a, tile); key < end; key += KEY_ROWS) {
        size_t n = size_min(KEY_ROWS, end - key), at = key * stride + tile->head * hd;
        gemm(true, tile->rows, n, hd, queries, hd, a->k + at, stride, false, logits, KEY_ROWS);
        for (size_t m = 0; m < tile->rows; m++) {
            float *row = logits + m * KEY_ROWS;
            size_t visible = visible_keys(a, tile, m, key, n), hidden = size_min(hidden_keys(a, tile, m, key, n), visible);
            if (a->cap > 0) cap_row(row, a->cap, visible);
            add_alibi(a, tile, m, key, visible, row);
            float max = partial_raise(&partial, m, vector_max(row + hidden, visible - hidden));
            partial.sum[m] += vector_exp_sum(row + hidden, max, visible - hidden);
            memset(row, 0, hidden * sizeof *row);
            memset(row + visible, 0, (n - visible) * sizeof *row);
        }
        gemm(false, tile->rows, hd, n, logits, KEY_ROWS, a->v + at, stride, true, partial.acc, hd);
    }
    for (size_t m = 0; m < tile->rows; m++) {
        partial_finish(&partial, m, out + row_offset(a, tile, m, hd));
        log_sum[row_offset(a, tile, m, 1)] = partial.max[m] + logf(partial.sum[m]);
    }
}

void attention_forward(const struct attention *a, float *out, float *log_sum, uint32_t threads, float *scratch) {
    size_t tiles = tile_count(a), heads = a->kv_heads;
    /* The last queries attend to the most keys, so they are scheduled first. */
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (size_t item = 0; item < tiles * heads; item++) {
        struct tile tile = tile_at(a, tiles - 1 - item / heads, (uint32_t)(item % heads));
        forward_tile(a, &tile, out, log_sum, scratch + (size_t)omp_get_thread_num() * thread_floats(a));
    }
}

/* ---- Backward */

/* A part is a share of the work: the queries of a KV head in every parts-th tile, from the last on, which evens out the triangle.
 * It sums gradients of its own, dk and dv [n][Hk][hd] as far as its last tile sees; part 0 has the very last tile and writes them
 * all. */
struct part {
    size_t index, parts;
    uint32_t head;
    float *dk, *dv;
};

static size_t seen_by(const struct attention *a, size_t part) {
    struct tile last = tile_at(a, tile_count(a) - 1 - part, 0);
    return last.first + last.count;
}

/* Adds to dk and dv the part of one tile of queries, or, with `first`, overwrites them with it. With `queries` the queries' gradients take their
 * place. */
static void backward_tile(const struct attention *a, const struct tile *tile, const float *out, const float *log_sum,
                          const float *d_out, const struct part *to, bool first, bool queries, float *scratch) {
    size_t hd = a->head_dim, rows = tile->rows, stride = a->kv_heads * hd, end = tile->first + tile->count;
    float *q = scratch, *dq = q + rows * hd, *d_o = dq + rows * hd, *p = d_o + rows * hd, *ds = p + rows * KEY_ROWS;
    float *mean = ds + rows * KEY_ROWS; /* D of the header */
    gather_queries(a, tile, q);
    gather(a, tile, d_out, d_o);
    for (size_t m = 0; m < rows; m++) mean[m] = vector_dot(d_o + m * hd, out + row_offset(a, tile, m, hd), hd);
    size_t begin = first ? 0 : first_key(a, tile); /* what comes first is for all keys */
    for (size_t key = begin; key < end; key += KEY_ROWS) {
        size_t n = size_min(KEY_ROWS, end - key), at = key * stride + tile->head * hd;
        gemm(true, rows, n, hd, q, hd, a->k + at, stride, false, p, KEY_ROWS);
        gemm(true, rows, n, hd, d_o, hd, a->v + at, stride, false, ds, KEY_ROWS);
        for (size_t m = 0; m < rows; m++) {
            float *weights = p + m * KEY_ROWS, *d_logits = ds + m * KEY_ROWS;
            size_t visible = visible_keys(a, tile, m, key, n), hidden = size_min(hidden_keys(a, tile, m, key, n), visible);
            for (size_t j = 0; j < n; j++) d_logits[j] -= mean[m];
            if (a->cap > 0) {
                cap_row(weights, a->cap, visible);
                cap_backward(weights, a->cap, d_logits, 1, visible);
            }
            add_alibi(a, tile, m, key, visible, weights);
            vector_exp_sum(weights + hidden, log_sum[row_offset(a, tile, m, 1)], visible - hidden);
            memset(weights, 0, hidden * sizeof *weights);
            memset(weights + visible, 0, (n - visible) * sizeof *weights);
            for (size_t j = 0; j < n; j++) d_logits[j] *= weights[j];
        }
        gemm_outer(n, hd, rows, p, KEY_ROWS, d_o, hd, !first, to->dv + at, stride);
        gemm_outer(n, hd, rows, ds, KEY_ROWS, q, hd, !first, to->dk + at, stride);
        if (queries) gemm(false, rows, hd, n, ds, KEY_ROWS, a->k + at, stride, key > begin, dq, hd);
    }
    for (size_t m = 0; m < rows && queries; m++) {
        float *row = a->q + row_offset(a, tile, m, hd);
        for (size_t c = 0; c < hd; c++) row[c] = dq[m * hd + c] * a->scale;
    }
}

static void backward_part(const struct attention *a, const float *out, const float *log_sum, const float *d_out,
                          const struct part *part, bool queries, float *scratch) {
    for (size_t tiles = tile_count(a), i = part->index; i < tiles; i += part->parts) {
        struct tile tile = tile_at(a, tiles - 1 - i, part->head);
        backward_tile(a, &tile, out, log_sum, d_out, part, i == part->index, queries, scratch);
    }
}

void attention_backward(const struct attention *a, const float *out, const float *log_sum, const float *d_out, float *dk, float *dv,
                        bool queries, uint32_t threads, float *scratch) {
    size_t parts = part_count(a), heads = a->kv_heads, floats = side_floats(a), width = heads * a->head_dim;
    float *rest = scratch + threads * thread_floats(a); /* [parts - 1][2][n][Hk][hd] */
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (size_t item = 0; item < parts * heads; item++) {
        size_t index = item / heads;
        float *own = rest + 2 * (index - (index > 0)) * floats;
        struct part part = {index, parts, (uint32_t)(item % heads), index ? own : dk, index ? own + floats : dv};
        backward_part(a, out, log_sum, d_out, &part, queries, scratch + (size_t)omp_get_thread_num() * thread_floats(a));
    }
#pragma omp parallel for num_threads(threads)
    for (size_t t = 0; t < a->n; t++) {
        for (size_t part = 1; part < parts && t < seen_by(a, part); part++) {
            const float *own = rest + 2 * (part - 1) * floats + t * width;
            vector_axpy(1, own, dk + t * width, width);
            vector_axpy(1, own + floats, dv + t * width, width);
        }
    }
}
