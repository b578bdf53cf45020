/* The dense double-precision attention that tests hold the cache to. */
#include "support/cache_oracle.h"

#include "backend/backend.h"
#include "backend/cpu/codec/codec.h"
#include "format/transform.h"
#include "kv/anchor_random.h"
#include "support/backend_under_test.h"
#include "support/one_cache.h"
#include "support/oracle_codebook.h"
#include "support/oracle_rows.h"
#include "support/prepared.h"

#include "backend/cpu/kernels/cpu.h"
#include "base/half.h"

#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Sums of three uniform numbers, standard deviation 1. */
float oracle_random(struct oracle *o) {
    double sum = 0;
    for (int i = 0; i < 3; i++) {
        o->random = o->random * 6364136223846793005u + 1442695040888963407u;
        sum += (double)(o->random >> 11) * 0x1p-52 - 1;
    }
    return (float)sum;
}

/* Writes what the setup says of attention, and the method. Returns TERSE_E_UNSUPPORTED where no backend has such a method. */
static enum terse_status describe(struct oracle *o, const struct oracle_setup *given, struct terse_error *error) {
    struct oracle_setup *setup = &o->setup;
    const struct backend_under_test *under_test = backend_under_test();
    *setup = *given;
    if (!setup->kv) setup->kv = under_test->kv;
    if (!setup->head_dim) setup->head_dim = under_test->head_dim;
    if (!setup->fetch) setup->fetch = under_test->fetch;
    if (setup->kv == under_test->kv) setup->allowed = fmax(setup->allowed, under_test->allowed);
    o->kv = setup->kv;
    const uint32_t hd = setup->head_dim;
    o->rope = (struct rope){setup->pairing, hd, setup->n_rot ? setup->n_rot : hd, o->frequency,
                            setup->magnitude != 0 ? setup->magnitude : 1};
    for (uint32_t i = 0; i < o->rope.n_rot / 2; i++) o->frequency[i] = (float)pow(10000.0, -2.0 * i / o->rope.n_rot);
    if (setup->alibi) o->rope.n_rot = 0;
    for (uint32_t h = 0; h < setup->query_heads; h++) o->slopes[h] = (float)pow(2.0, -8.0 * (h + 1) / setup->query_heads);
    assert_true(setup->layers * setup->query_heads <= sizeof o->sinks / sizeof o->sinks[0]);
    for (uint32_t i = 0; i < setup->layers * setup->query_heads; i++) o->sinks[i] = (float)(i * 7 % 5) - 1; /* -1 to 3 */
    o->shape = (struct cache_shape){.layers = setup->layers,
                                    .query_heads = setup->query_heads,
                                    .kv_heads = setup->kv_heads,
                                    .head_dim = hd,
                                    .scale = 1 / sqrtf((float)hd),
                                    .rope = &o->rope,
                                    .latents = setup->latents,
                                    .slopes = setup->alibi ? o->slopes : NULL,
                                    .sinks = setup->learned_sinks ? o->sinks : NULL,
                                    .cap = setup->cap,
                                    .window = setup->window,
                                    .sliding = setup->window ? setup->layers : 0,
                                    .sliding_rope = &o->rope};
    struct terse_cache_options options = {.method = setup->method,
                                          .key_type = setup->key,
                                          .value_type = setup->value,
                                          .evict = setup->evict,
                                          .tail_tokens = setup->tail,
                                          .anchor_percent = setup->anchor_percent,
                                          .read_percent = setup->read_percent,
                                          .anchor_count = setup->anchor_count,
                                          .anchor_score = setup->anchor_score,
                                          .first_tokens = setup->first_tokens};
    enum terse_status status = method_resolve(&options, hd, &o->method, error);
    if (!status && setup->latents) status = method_for_latents(&o->method, setup->n_rot, hd - setup->n_rot, error);
    if (!status && setup->window) o->method = method_of_window(&o->method, setup->window);
    return status;
}

bool oracle_served(const struct oracle_setup *setup) {
    struct oracle o = {.setup = {0}};
    struct terse_error error;
    if (describe(&o, setup, &error)) fail_msg("%s", error.message);
    return parts_supports(o.kv->storage, &o.shape, &o.method, &error) == TERSE_OK;
}

struct oracle *oracle_new(const struct oracle_setup *given, size_t capacity) {
    struct oracle *o = calloc(1, sizeof *o);
    const struct oracle_setup *setup = &o->setup;
    struct terse_error error;
    if (describe(o, given, &error)) fail_msg("%s", error.message);
    o->random = setup->seed + 1;
    o->capacity = capacity;
    if (o->method.codebook[0]) oracle_make_codebook(o);
    if (parts_create(o->kv->storage, &o->shape, &o->method, (uint32_t)omp_get_max_threads(), &o->cache, &error))
        fail_msg("%s", error.message);
    size_t floats = setup->layers * capacity * setup->kv_heads * setup->head_dim;
    o->k = calloc(floats, sizeof *o->k);
    o->v = calloc(floats, sizeof *o->v);
    o->dropped = calloc(floats / setup->head_dim + 1, sizeof *o->dropped);
    return o;
}

static void check_spread(const struct oracle *o);

void oracle_free(struct oracle *o) {
    check_spread(o);
    parts_destroy(o->cache);
    terse_codebook_free(o->codebook);
    free(o->centroids[0]);
    free(o->centroids[1]);
    free(o->k);
    free(o->v);
    free(o->dropped);
    free(o);
}

/* ---- Which tokens are where */

static bool streaming(const struct oracle *o) { return o->method.policy == &policy_streaming; }

size_t oracle_sinks(const struct oracle *o) {
    bool all_exact = o->method.key.codec == &codec_f16 && o->method.value.codec == &codec_f16;
    const size_t first = o->setup.first_tokens == TERSE_FIRST_NONE ? 0 : o->setup.first_tokens ? o->setup.first_tokens : 4;
    if (all_exact && !streaming(o)) return 0;
    return o->length < first ? o->length : first;
}

size_t oracle_first(const struct oracle *o) {
    size_t recent = o->method.parameters.budget - 4, sinks = oracle_sinks(o);
    if (o->setup.window && o->length + 1 > sinks + o->setup.window) return o->length + 1 - o->setup.window;
    return streaming(o) && o->length > sinks + recent ? o->length - recent : sinks;
}

/* A move describes how a step of the oracle changes where tokens lie. */
struct move {
    enum cache_step_kind kind;
    size_t before, n, window_before, window, sinks, anchors;
    bool alone;    /* the anchors are all that stays of tokens [window_before, window) */
    double *ranks; /* [layers][Hk][window - window_before] of these, where `alone` */
    /* Where the cache's choice of anchors is checked and taken (takes_anchors): Anchor Scores [layers][Hk][2][window - window_before], and the rows
     * [layers][2][window - window_before][Hk][hd] as they are before they are sealed. */
    double *scores;
    float *rows;
    /* Where the step reads its own anchors, too: its queries and outputs [layers][n][Hq][hd], which are compared when these are known. */
    float *q, *out;
};

/* ---- Attention */

static void rotate(const struct oracle *o, const float *x, double position, double *out) {
    for (uint32_t c = 0; c < o->setup.head_dim; c++) out[c] = (double)x[c] * (c < o->rope.n_rot ? (double)o->rope.magnitude : 1);
    oracle_rotate_by(o, position, out);
}

/* Keys are stored as they were before rotation. */
static bool unrotated(const struct oracle *o) { return o->method.key.codec->rope == CODEC_ROPE_BEFORE; }

/* Logits, as doubles, of query head h at the token `at` over the tokens that it sees; returns their number. Where the method
 * streams, position = number of kept tokens before, and so the same distances as if sinks had moved up to what follows them. */
static size_t see(const struct oracle *o, uint32_t layer, const float *q, size_t at, uint32_t h, double *logits, size_t *tokens) {
    uint32_t hd = o->setup.head_dim, head = h / (o->setup.query_heads / o->setup.kv_heads);
    size_t sinks = oracle_sinks(o), first = oracle_first(o), n = 0; /* of the tokens before the step */
    double rotated_q[CODEC_ROW_MAX], rotated_k[CODEC_ROW_MAX];
    for (size_t t = 0; t <= at; t++) {
        if (*oracle_dropped(o, layer, head, t)) continue;
        if ((t < sinks || t >= first) && (!o->setup.window || at - t < o->setup.window)) tokens[n++] = t;
    }
    rotate(o, q, (double)at, rotated_q);
    for (size_t i = 0; i < n; i++) {
        const float *k = oracle_stored(o, o->k, layer, tokens[i]) + head * hd;
        size_t position = streaming(o) ? at - (n - 1) + i : tokens[i]; /* sinks close up to what follows them */
        double product = 0;
        if (unrotated(o) || position != tokens[i]) {
            for (uint32_t c = 0; c < hd; c++) rotated_k[c] = (double)k[c];
            if (unrotated(o)) rotate(o, k, (double)position, rotated_k);
            if (!unrotated(o)) oracle_rotate_by(o, (double)(position - tokens[i]), rotated_k);
#pragma omp simd reduction(+ : product)
            for (uint32_t c = 0; c < hd; c++) product += rotated_q[c] * rotated_k[c];
        } else {
#pragma omp simd reduction(+ : product)
            for (uint32_t c = 0; c < hd; c++) product += rotated_q[c] * (double)k[c];
        }
        logits[i] = product * (double)o->shape.scale;
        if (o->setup.cap > 0) logits[i] = (double)o->setup.cap * tanh(logits[i] / (double)o->setup.cap);
        if (o->setup.alibi) logits[i] += (double)o->slopes[h] * ((double)i - (double)(n - 1));
    }
    return n;
}

/* logits[n] become a softmax, that of a query head which may see a learned sink besides. */
static void normalise(const struct oracle *o, uint32_t layer, uint32_t h, double *logits, size_t n) {
    double sink = o->shape.sinks ? (double)o->sinks[layer * o->setup.query_heads + h] : -INFINITY, max = sink, sum = 0;
    for (size_t i = 0; i < n; i++) max = fmax(max, logits[i]);
    for (size_t i = 0; i < n; i++) sum += logits[i] = exp(logits[i] - max);
    sum += exp(sink - max);
    for (size_t i = 0; i < n; i++) logits[i] /= sum;
}

/* out[hd] of query head h at the token `at`. */
static void attend_dense(const struct oracle *o, uint32_t layer, const float *q, size_t at, uint32_t h, double *out) {
    uint32_t hd = o->setup.head_dim, head = h / (o->setup.query_heads / o->setup.kv_heads);
    double *weights = malloc((at + 1) * sizeof *weights);
    size_t *tokens = malloc((at + 1) * sizeof *tokens), n = see(o, layer, q, at, h, weights, tokens);
    normalise(o, layer, h, weights, n);
    memset(out, 0, hd * sizeof *out);
    for (size_t i = 0; i < n; i++) {
        const float *v = oracle_stored(o, o->v, layer, tokens[i]) + head * hd;
        for (uint32_t c = 0; c < hd; c++) out[c] += weights[i] * (double)v[c];
    }
    free(weights);
    free(tokens);
}

/* Anchor Scores [Hk][2][last - first] of tokens first to last - 1 by their definition, over the step's n queries. */
static double *anchor_scores(const struct oracle *o, uint32_t layer, const float *q, size_t before, size_t n, size_t first,
                             size_t last) {
    uint32_t hd = o->setup.head_dim, G = o->setup.query_heads / o->setup.kv_heads;
    double *scores = calloc((size_t)o->setup.kv_heads * 2 * (last - first) + 1, sizeof *scores);
    double *weights = malloc((before + n) * sizeof *weights), rotated[CODEC_ROW_MAX], total = 0;
    size_t *tokens = malloc((before + n) * sizeof *tokens);
    for (size_t i = 0; i < n; i++) {
        for (uint32_t h = 0; h < o->setup.query_heads; h++) {
            const float *query = q + (i * o->setup.query_heads + h) * hd;
            size_t seen = see(o, layer, query, before + i, h, weights, tokens);
            double norm = 0;
            normalise(o, layer, h, weights, seen);
            rotate(o, query, 0, rotated);
            for (uint32_t c = 0; c < hd; c++) norm += rotated[c] * rotated[c];
            for (size_t t = 0; t < seen; t++) {
                double *score = scores + (size_t)(h / G) * 2 * (last - first) + (t - first), a = weights[t];
                total += a;
                if (t < first || t >= last) continue;
                score[0] += a * (1 - a) * sqrt(norm);
                score[last - first] += a;
            }
        }
    }
    /* Every query spends an attention of 1, of which a learned sink may have a part. */
    assert_true(o->shape.sinks || fabs(total - (double)n * o->setup.query_heads) < 1e-6 * total);
    free(weights);
    free(tokens);
    return scores;
}

#define RANKING_QUERIES 32 /* of a prompt, its last ones */
/* Keys and queries are halves on a GPU: weights, and so ranks, differ by as much from those of floats. */
#define RANK_NEAR(o) ((o)->kv == backend_cpu.kv ? 1e-5 : 4e-3)

/* ranks[Hk][sealed] of a prompt's tokens from move->window_before on: the attention that the last of the step's queries q pay to each, over the heads of
 * a group, averaged with its four neighbours. */
static void rank_tokens(const struct oracle *o, uint32_t layer, const float *q, const struct move *move, double *ranks) {
    const size_t sealed = move->window - move->window_before, end = move->before + move->n, hd = o->setup.head_dim;
    double *paid = calloc(sealed, sizeof *paid), *weights = malloc(end * sizeof *weights);
    size_t *tokens = malloc(end * sizeof *tokens);
    for (uint32_t head = 0; head < o->setup.kv_heads; head++, ranks += sealed) {
        const uint32_t G = o->setup.query_heads / o->setup.kv_heads;
        memset(paid, 0, sealed * sizeof *paid);
        for (size_t i = move->n - RANKING_QUERIES; i < move->n; i++)
            for (uint32_t h = head * G; h < (head + 1) * G; h++) {
                const size_t n = see(o, layer, q + (i * o->setup.query_heads + h) * hd, move->before + i, h, weights, tokens);
                normalise(o, layer, h, weights, n);
                for (size_t t = 0; t < n; t++)
                    if (tokens[t] >= move->window_before && tokens[t] < move->window)
                        paid[tokens[t] - move->window_before] += weights[t];
            }
        for (size_t t = 0; t < sealed; t++) {
            const size_t first = t < 2 ? 0 : t - 2, last = t + 2 < sealed ? t + 2 : sealed - 1;
            ranks[t] = 0;
            for (size_t j = first; j <= last; j++) ranks[t] += paid[j] / (double)(last - first + 1);
        }
    }
    free(paid);
    free(weights);
    free(tokens);
}

static bool queries_are_bytes(const struct codec *key) {
    return key == &codec_q4_0 || key == &codec_kivi_4 || key == &codec_kivi_2 || key == &codec_sign;
}

/* Returns the largest difference of an output that is allowed. */
static double allowed_difference(const struct oracle *o) {
    /* All but f16 may be read in fixed point of 16 bits; kivi's zeros are as large as its values, and so are the rotations of
     * gain-shape's and commvq's keys. AVX-512 rounds small weights to 8 bits, and queries too where keys have at most four bits; AVX2 those of q4_0. */
    bool exact = o->method.key.codec == &codec_f16 && o->method.value.codec == &codec_f16;
    bool coarser =
        o->method.value.codec == &codec_kivi_2 || o->method.key.codec == &codec_gain_shape || o->method.key.codec == &codec_commvq;
    bool all = cpu_isa() == CPU_AVX512, some = all || cpu_isa() == CPU_AVX2 || cpu_isa() == CPU_AVXVNNI;
    double allowed = coarser ? 1e-3 : exact ? 1e-4 : 5e-4;
    if (o->setup.allowed > 0) return o->setup.allowed;
    if (cpu_codec_of(o->method.value.codec)->accumulate_values_int8 && (o->method.value.codec == &codec_q4_0 ? some : all))
        allowed = 4e-3;
    if (queries_are_bytes(o->method.key.codec) && (o->method.key.codec == &codec_q4_0 ? some : all)) allowed = 3e-2;
    if (all && (o->method.key.codec == &codec_kivi_4 || o->method.key.codec == &codec_kivi_2)) allowed = 4e-2;
    /* Transform's weights and queries are bytes in every tier, weights of any size: 63 of a page are off by up to a 510th of the largest each.
     * They are times rows' gains, of which one may be twice another of rows of one size. A logit of these random keys, about 5 in size, is off by
     * up to 0.1; by more where they have many levels, and it weighs more where few tokens are kept. */
    if (o->method.value.codec == &codec_transform) allowed = fmax(allowed, 2.5e-2);
    if (o->method.key.codec != &codec_transform) return allowed;
    return o->method.key.rate > 3 || policy_evicts(o->method.policy) ? 0.25 : 0.15;
}

/* Most differences are much smaller than that, whatever is rounded: the bound on their root mean square finds what a few large ones would hide. */
static void check_spread(const struct oracle *o) {
    const double spread = sqrt(o->squares / (double)o->compared), allowed = fmin(allowed_difference(o) / 4, 2e-2);
    if (o->compared && !(spread <= allowed))
        fail_msg("%s: outputs differ by %g, not at most %g, root mean square", o->method.name, spread, allowed);
}

static void compare(struct oracle *o, uint32_t layer, const float *q, const float *out, size_t first, size_t n) {
    const size_t hd = o->setup.head_dim, heads = o->setup.query_heads;
    const double allowed = allowed_difference(o);
    for (size_t i = 0; i < n; i++) {
        for (uint32_t h = 0; h < heads; h++) {
            double expected[CODEC_ROW_MAX];
            attend_dense(o, layer, q + (i * heads + h) * hd, first + i, h, expected);
            for (size_t c = o->setup.latents ? o->rope.n_rot : 0; c < hd; c++) { /* rotated channels mean nothing as values */
                double difference = fabs((double)out[(i * heads + h) * hd + c] - expected[c]);
                if (!(difference <= allowed))
                    fail_msg("%s layer %u token %zu head %u channel %zu: %g, not %g", o->method.name, layer, first + i, h, c,
                             (double)out[(i * heads + h) * hd + c], expected[c]);
                o->worst = fmax(o->worst, difference);
                o->squares += difference * difference;
                o->compared++;
            }
        }
    }
}

/* ---- Steps */

static struct move move_of(const struct oracle *o, enum cache_step_kind kind, size_t n) {
    struct move move = {.kind = kind, .before = o->length, .n = n};
    struct oracle end = *o;
    end.length += n;
    move.sinks = oracle_sinks(&end);
    move.window = move.window_before = o->window > move.sinks ? o->window : move.sinks;
    if (kind == CACHE_STEP_PAPER)
        move.window = end.length;
    else
        while (end.length - move.window >= (size_t)o->method.tail_tokens + 64 || oracle_first(&end) >= move.window + 64)
            move.window += 64;
    if (o->method.policy == &policy_anchors && (kind == CACHE_STEP_PREFILL || kind == CACHE_STEP_PAPER)) {
        double share = o->setup.anchor_count ? o->setup.anchor_count : floor((double)n * o->setup.anchor_percent / 100 + 0.5);
        move.anchors = (size_t)fmin(share, (double)(move.window - move.window_before));
    }
    if (o->method.policy == &policy_snapkv && kind == CACHE_STEP_PREFILL) {
        const size_t sealed = move.window - move.window_before, others = n > sealed ? n - sealed : 0,
                     budget = o->method.parameters.budget;
        if (n > budget && others < budget) move.anchors = budget - others < sealed ? budget - others : sealed;
        move.alone = move.anchors > 0;
    }
    return move;
}

/* The first tokens are exact, with keys before rotation. */
static void round_sink(const struct oracle *o, uint32_t layer, const float *raw, size_t token, size_t i) {
    size_t hd = o->setup.head_dim, width = o->setup.kv_heads * hd;
    float *keys = oracle_stored(o, o->k, layer, token);
    memcpy(keys, raw + i * width, width * sizeof *keys);
    oracle_round_tokens(o, layer, token, token + 1);
    for (uint32_t head = 0; !unrotated(o) && head < o->setup.kv_heads; head++) {
        double rotated[CODEC_ROW_MAX];
        rotate(o, keys + head * hd, (double)token, rotated);
        for (size_t c = 0; c < hd; c++) keys[head * hd + c] = (float)rotated[c];
    }
}

/* Returns whether the oracle takes the choice of anchors from the cache, after the step: rounding may decide between tokens. */
static bool takes_anchors(const struct oracle *o, const struct move *move) {
    return move->anchors && !move->alone && o->setup.fetch && o->kv != backend_cpu.kv;
}

/* Notes what take_anchors needs of a layer before its tokens are sealed. */
static void note_for_anchors(const struct oracle *o, uint32_t layer, const double *scores, const struct move *move) {
    const size_t sealed = move->window - move->window_before, heads = o->setup.kv_heads, width = heads * o->setup.head_dim;
    memcpy(move->scores + layer * heads * 2 * sealed, scores, heads * 2 * sealed * sizeof *scores);
    for (int side = 0; side < 2; side++)
        memcpy(move->rows + (2 * layer + (uint32_t)side) * sealed * width,
               oracle_stored(o, side ? o->v : o->k, layer, move->window_before), sealed * width * sizeof *move->rows);
}

/* Brings a layer's stored numbers to what they are after the step, whose queries are q. */
static void store_step(struct oracle *o, uint32_t layer, const float *raw, const float *q, const struct move *move) {
    struct oracle step = *o; /* tokens before the step decide what is kept during it */
    step.length = move->before;
    double *scores = NULL;
    if (move->alone) {
        rank_tokens(&step, layer, q, move, move->ranks + (move->window - move->window_before) * o->setup.kv_heads * layer);
        oracle_round_tokens(o, layer, move->window_before, move->window);
    } else if (move->anchors) {
        scores = anchor_scores(&step, layer, q, move->before, move->n, move->window_before, move->window);
    }
    const bool takes = takes_anchors(o, move);
    if (takes) note_for_anchors(o, layer, scores, move);
    if (!move->alone)
        oracle_seal_tokens(o, layer, move->window_before, move->window, takes ? NULL : scores, takes ? 0 : move->anchors);
    for (size_t t = move->before; t < move->sinks; t++) round_sink(o, layer, raw, t, t - move->before);
    oracle_round_tokens(o, layer, move->window > move->before ? move->window : move->before, move->before + move->n);
    free(scores);
}

static void check_rotation(const struct oracle *o, const float *raw, const float *k, size_t token) {
    double expected[CODEC_ROW_MAX];
    size_t hd = o->setup.head_dim;
    for (uint32_t head = 0; head < o->setup.kv_heads; head++) {
        rotate(o, raw + head * hd, (double)token, expected);
        for (size_t c = 0; c < hd; c++) assert_true(fabs((double)k[head * hd + c] - expected[c]) <= 2e-6);
    }
}

/* Rotates the keys as a backend does that does not give its rotated keys back. */
static void rotate_keys(const struct oracle *o, const float *raw, float *k, size_t token) {
    double rotated[CODEC_ROW_MAX];
    size_t hd = o->setup.head_dim;
    for (uint32_t head = 0; head < o->setup.kv_heads; head++) {
        rotate(o, raw + head * hd, (double)token, rotated);
        for (size_t c = 0; c < hd; c++) k[head * hd + c] = (float)rotated[c];
    }
}

/* Rounds keys of n tokens from `first` on to halves as they are after rotation, whether they are rotated or not. */
static void round_rotated(const struct oracle *o, float *k, size_t n, size_t first) {
    struct oracle back = *o;
    back.rope.magnitude = 1 / o->rope.magnitude;
    for (uint32_t c = 0; c < o->rope.n_rot / 2; c++) back.frequency[c] = -o->frequency[c];
    for (size_t i = 0; i < n; i++) {
        float *row = k + i * o->setup.kv_heads * o->setup.head_dim;
        if (unrotated(o)) rotate_keys(o, row, row, first + i);
        oracle_round_row(row, o->setup.kv_heads * o->setup.head_dim);
        if (unrotated(o)) rotate_keys(&back, row, row, first + i);
    }
}

static void run_layer(struct oracle *o, uint32_t layer, const struct move *move, size_t piece, bool ask) {
    size_t hd = o->setup.head_dim, n = move->n, k_width = o->setup.kv_heads * hd, q_width = o->setup.query_heads * hd;
    size_t each = piece ? piece : n;
    float *raw = malloc(n * k_width * sizeof *raw), *k = malloc(n * k_width * sizeof *k),
          *v_given = malloc(n * k_width * sizeof *k);
    float *q = malloc(n * q_width * sizeof *q), *out = malloc(n * q_width * sizeof *out),
          *v = oracle_stored(o, o->v, layer, move->before);
    for (size_t i = 0; i < n * k_width; i++) raw[i] = k[i] = oracle_random(o);
    for (size_t i = 0; i < n * k_width; i++) v_given[i] = v[i] = o->setup.latents ? raw[i] : oracle_random(o);
    for (size_t i = 0; i < n * q_width; i++) q[i] = 2 * oracle_random(o);
    assert_int_equal(one_append(o->kv, o->cache, layer, k, o->setup.latents ? k : v_given, NULL), TERSE_OK);
    for (size_t i = 0; !unrotated(o) && i < n; i++) {
        if (o->kv == backend_cpu.kv)
            check_rotation(o, raw + i * k_width, k + i * k_width, move->before + i);
        else
            rotate_keys(o, raw + i * k_width, k + i * k_width, move->before + i);
    }
    if (o->kv != backend_cpu.kv) { /* a GPU's pages are encoded from halves */
        round_rotated(o, k, n, move->before);
        oracle_round_row(v, n * k_width);
    }
    memcpy(oracle_stored(o, o->k, layer, move->before), k, n * k_width * sizeof *k);
    /* The first half's outputs of a prefill in pieces are not computed, as in a model's last layer; where anchors are chosen, that half's queries are
     * observed all the same. Queries that rank tokens may be observed alone, too. */
    size_t needed = move->kind == CACHE_STEP_PREFILL && piece ? n / 2 : 0;
    if (needed && move->alone && layer + 1 == o->setup.layers) needed = n - 1;
    size_t observed = one_queries_to_observe(o->kv, o->cache, needed);
    assert_int_equal(observed, !move->anchors ? 0 : move->kind == CACHE_STEP_PAPER ? n : needed);
    for (size_t first = 0; first < observed; first += each)
        assert_int_equal(one_observe(o->kv, o->cache, layer, q + first * q_width, first,
                                     observed - first < each ? observed - first : each, NULL),
                         TERSE_OK);
    if (move->kind == CACHE_STEP_PAPER) store_step(o, layer, raw, q, move);
    for (size_t first = needed; ask && first < n; first += each)
        assert_int_equal(one_attend(o->kv, o->cache, layer, q + first * q_width, first, n - first < each ? n - first : each,
                                    out + first * q_width, NULL),
                         TERSE_OK);
    if (move->q) { /* compared when the step's anchors are known, which it reads */
        memcpy(move->q + layer * n * q_width, q, n * q_width * sizeof *q);
        memcpy(move->out + layer * n * q_width, out, n * q_width * sizeof *out);
    } else if (ask)
        compare(o, layer, q + needed * q_width, out + needed * q_width, move->before + needed, n - needed);
    assert_int_equal(one_seal(o->kv, o->cache, layer, NULL), TERSE_OK);
    if (move->kind != CACHE_STEP_PAPER) store_step(o, layer, raw, q, move);
    free(raw);
    free(k);
    free(v_given);
    free(q);
    free(out);
}

/* The rows of pages that hold tokens from `first` on, as they are in the cache. */
static void take_pages(struct oracle *o, size_t first) {
    const struct cache_base *base = cache_base_of(o->cache);
    const size_t hd = o->setup.head_dim;
    float *rows = malloc(PAGE_TOKENS * hd * sizeof *rows);
    for (size_t i = 0; i < 2 * cache_heads_of(&base->shape) * base->pages.n_sealed; i++) {
        const struct page_set *set = &base->pages.sets[i / (2 * cache_heads_of(&base->shape))];
        const int side = (int)(i % 2);
        const size_t at = i / 2 % cache_heads_of(&base->shape);
        const uint32_t layer = (uint32_t)(at / o->setup.kv_heads), head = (uint32_t)(at % o->setup.kv_heads);
        const enum codec_side of = side ? CODEC_VALUES : CODEC_KEYS;
        const struct coding *coding = oracle_coding(o, side);
        if (set->first < first || coding->codec == &codec_f16) continue;
        struct codec_shape shape = method_shape(&o->method, of, layer, head, (uint32_t)hd, 1);
        uint8_t *page = malloc(base->places[at].bytes[of]);
        o->setup.fetch(page, page_set_page(set, &base->places[at], of), base->places[at].bytes[of]);
        shape.learned = prepared_learned(o->codebook, of, layer, head);
        cpu_codec_of(coding->codec)->decode(shape, of, page, rows);
        for (size_t t = 0; t < set->count; t++) {
            float *row = oracle_stored(o, side ? o->v : o->k, layer, set->first + t) + head * hd;
            memcpy(row, rows + t * hd, hd * sizeof *row);
            if (of == CODEC_VALUES || coding->codec->rope != CODEC_ROPE_IN_RUN) continue;
            const uint64_t run = set->first / ROPE_RUN_TOKENS * ROPE_RUN_TOKENS;
            double rotated[CODEC_ROW_MAX];
            oracle_rotate_mean(o, layer, head, (double)(set->first + t - run), rotated);
            for (size_t c = 0; c < hd; c++) row[c] = (float)((double)row[c] + rotated[c]);
            oracle_rotate_floats(o, (double)run, row);
        }
        free(page);
    }
    free(rows);
}

/* Takes from the cache which of a prompt's tokens it has kept: as many as it should, none worse than one that it has not. */
static void take_kept(struct oracle *o, const struct move *move) {
    const struct cache_base *base = cache_base_of(o->cache);
    const size_t sealed = move->window - move->window_before;
    uint32_t *tokens = malloc(base->n_anchors * sizeof *tokens), *of_values = malloc(base->n_anchors * sizeof *tokens);
    for (uint32_t layer = 0; layer < o->setup.layers; layer++) {
        for (uint32_t head = 0; head < o->setup.kv_heads; head++) {
            const double *ranks = move->ranks + (layer * o->setup.kv_heads + head) * sealed;
            double least = INFINITY, most = 0;
            assert_true(base->storage->anchor_tokens(o->cache, layer, head, CODEC_KEYS, tokens));
            assert_true(base->storage->anchor_tokens(o->cache, layer, head, CODEC_VALUES, of_values));
            assert_memory_equal(tokens, of_values, base->n_anchors * sizeof *tokens);
            for (size_t t = move->window_before; t < move->window; t++) *oracle_dropped(o, layer, head, t) = true;
            for (size_t i = base->n_anchors - move->anchors; i < base->n_anchors; i++) {
                assert_in_range(tokens[i], move->window_before, move->window - 1);
                assert_true(*oracle_dropped(o, layer, head, tokens[i])); /* each once */
                *oracle_dropped(o, layer, head, tokens[i]) = false;
            }
            for (size_t t = 0; t < sealed; t++) {
                if (*oracle_dropped(o, layer, head, move->window_before + t))
                    most = fmax(most, ranks[t]);
                else
                    least = fmin(least, ranks[t]);
            }
            if (!(least >= most * (1 - RANK_NEAR(o))))
                fail_msg("%s layer %u KV head %u: a token of rank %g was kept, one of %g was not", o->method.name, layer, head,
                         least, most);
        }
    }
    o->n_dropped += sealed - move->anchors;
    free(tokens);
    free(of_values);
}

/* Keys and queries are halves on a GPU, and so are the decoded rows whose errors count: their rounding is a thirtieth of what q8_0 errs. */
static double anchors_near(const struct codec *codec) { return codec == &codec_q8_0 ? 6e-2 : 2e-2; }

/* Takes from the cache which of a step's tokens are anchors: as many as should be, none for which score times error is less than for one that is
 * none. Their rows are exact again. */
static void take_anchors(struct oracle *o, const struct move *move) {
    const struct cache_base *base = cache_base_of(o->cache);
    const size_t sealed = move->window - move->window_before, heads = o->setup.kv_heads, hd = o->setup.head_dim;
    uint32_t *tokens = malloc(base->n_anchors * sizeof *tokens);
    bool *chosen = malloc(sealed * sizeof *chosen);
    for (size_t at = 0; at < 2 * o->setup.layers * heads; at++) {
        const uint32_t layer = (uint32_t)(at / heads / 2), head = (uint32_t)(at / 2 % heads);
        const int side = (int)(at % 2);
        const double near = anchors_near(oracle_coding(o, side)->codec);
        double least = INFINITY, most = 0;
        assert_true(base->storage->anchor_tokens(o->cache, layer, head, side ? CODEC_VALUES : CODEC_KEYS, tokens));
        memset(chosen, 0, sealed * sizeof *chosen);
        for (size_t i = base->n_anchors - move->anchors; i < base->n_anchors; i++) {
            assert_in_range(tokens[i], move->window_before, move->window - 1);
            assert_true(i == base->n_anchors - move->anchors || tokens[i] > tokens[i - 1]);
            chosen[tokens[i] - move->window_before] = true;
        }
        for (size_t t = 0; t < sealed; t++) {
            const float *row = move->rows + (((2 * layer + (uint32_t)side) * sealed + t) * heads + head) * hd;
            float *now = oracle_stored(o, side ? o->v : o->k, layer, move->window_before + t) + head * hd;
            double error = 0;
            for (size_t c = 0; c < hd; c++)
                error += pow(fabs((double)row[c] - (double)now[c]), o->setup.anchor_score == TERSE_ANCHORS_L1 ? 1 : 2);
            double rank = move->scores[((layer * heads + head) * 2 + (uint32_t)side) * sealed + t] * error;
            if (o->setup.anchor_score == TERSE_ANCHORS_RANDOM)
                rank = anchor_random_score(layer * heads + head, side, move->window_before + t);
            if (chosen[t]) memcpy(now, row, hd * sizeof *now);
            if (chosen[t]) oracle_round_row(now, hd);
            if (chosen[t])
                least = fmin(least, rank);
            else
                most = fmax(most, rank);
        }
        o->worst_choice = fmax(o->worst_choice, 1 - least / most);
        if (!(least >= most * (1 - near)))
            fail_msg("%s layer %u KV head %u side %d: a token of %g is an anchor, one of %g is not", o->method.name, layer, head,
                     side, least, most);
        o->anchors += move->anchors;
    }
    free(tokens);
    free(chosen);
}

static void run_step(struct oracle *o, enum cache_step_kind kind, size_t n, size_t piece, bool ask) {
    struct terse_error error;
    struct move move = move_of(o, kind, n);
    assert_true(o->length + n <= o->capacity);
    assert_true(ask || !move.anchors); /* scores need queries */
    if (takes_anchors(o, &move)) {
        const size_t numbers = (move.window - move.window_before) * cache_heads_of(&o->shape) * 2;
        move.scores = calloc(numbers, sizeof *move.scores);
        move.rows = calloc(numbers * o->setup.head_dim, sizeof *move.rows);
    }
    const size_t asked = n * o->setup.query_heads * o->setup.head_dim;
    if (move.scores && kind == CACHE_STEP_PAPER) {
        move.q = calloc(o->setup.layers * asked, sizeof *move.q);
        move.out = calloc(o->setup.layers * asked, sizeof *move.out);
    }
    if (move.alone) move.ranks = calloc((move.window - move.window_before) * cache_heads_of(&o->shape), sizeof *move.ranks);
    if (one_begin(o->kv, o->cache, kind, n, &error)) fail_msg("%s", error.message);
    for (uint32_t layer = 0; layer < o->setup.layers; layer++) run_layer(o, layer, &move, piece, ask);
    assert_int_equal(o->kv->commit(o->cache, NULL), TERSE_OK);
    if (o->setup.fetch && o->kv != backend_cpu.kv) take_pages(o, o->window); /* a setup may serve caches of both backends */
    if (move.alone) take_kept(o, &move);
    if (move.scores) take_anchors(o, &move);
    for (uint32_t layer = 0; move.q && layer < o->setup.layers; layer++)
        compare(o, layer, move.q + layer * asked, move.out + layer * asked, move.before, n);
    free(move.q);
    free(move.out);
    free(move.ranks);
    free(move.scores);
    free(move.rows);
    o->length += n;
    o->window = move.window;
    assert_int_equal(cache_length(o->cache), o->length);
    struct terse_cache_report report;
    parts_report(o->cache, &report);
    assert_int_equal(report.kept, oracle_sinks(o) + o->length - oracle_first(o) - o->n_dropped);
}

void oracle_step(struct oracle *o, enum cache_step_kind kind, size_t n, size_t piece) { run_step(o, kind, n, piece, true); }
void oracle_skip(struct oracle *o, enum cache_step_kind kind, size_t n) { run_step(o, kind, n, 0, false); }
