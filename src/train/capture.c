/* Capture owns the samples' memory, the choice of their tokens, and the norms. train/backward.h computes keys, values and
 * gradients; calibrate.c turns norms into weights.
 *
 * Samples lie in strips of a few channels: a fit reads one sub-vector, and other methods' sub-vectors may be narrower or wider. */
#include "train/capture.h"

#include "backend/cpu/rows.h"
#include "backend/cpu/vector.h"
#include "base/half.h"
#include "base/memory.h"
#include "kv/fitted.h"
#include "train/window_rope.h"
#include "train/windows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TILE 64 /* tokens of a head that are rotated, split into strips and rounded at a time */
#define STRIP 8 /* channels that lie together; divides every head_dim (codec_check_head_dim) */

struct samples {
    bool kept, rotated;
    uint32_t strips;     /* of a row */
    uint32_t norm_parts; /* norms of a row; 0 without gradients */
    uint16_t *rows;      /* [layers][Hk][strips][kept][STRIP] half */
    uint16_t *norms;     /* [layers][Hk][norm_parts][kept] bfloat16 */
    float *factors;      /* [layers][Hk][kept]; 1 until capture_normalize */
};

struct capture {
    const struct terse_model *model;
    uint64_t tokens;  /* of all windows */
    uint64_t samples; /* of them, but for those that are skipped */
    size_t kept;      /* of these, as samples of each layer and KV head */
    uint32_t window, skip;
    struct samples side[2];
    int64_t *residual; /* [layers] sums over all tokens, in units of RESIDUAL_UNIT, where they are wanted */
};

/* A passing is the state of the window that runs through the model. */
struct passing {
    struct capture *capture;
    const struct capture_options *options;
    size_t windows;          /* of the text */
    size_t first, count;     /* samples */
    size_t *offset;          /* [count] of its token in the window */
    struct window_rope rope; /* where something is rotated */
};

/* ---- Choice of the tokens that stay: evenly so many, the last of each samples / kept. */

static size_t kept_before(const struct capture *c, uint64_t sample) { return (size_t)(sample * c->kept / c->samples); }

/* Picks the ones to keep of a window's `count` samples. */
static void pick(struct passing *p, uint64_t first_sample, size_t count) {
    p->first = kept_before(p->capture, first_sample);
    p->count = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t sample = first_sample + i;
        if (kept_before(p->capture, sample + 1) > kept_before(p->capture, sample)) p->offset[p->count++] = p->options->skip + i;
    }
}

/* ---- A window's rows */

/* Rounds a finite number to the nearest bfloat16, ties to even; its range is that of a float. */
static uint16_t bfloat_from_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float norm(const float *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return (float)sqrt(sum);
}

static uint16_t *strip_of(const struct capture *c, const struct samples *s, size_t head, size_t strip) {
    return s->rows + (head * s->strips + strip) * c->kept * STRIP;
}

static uint16_t *norms_of(const struct capture *c, const struct samples *s, size_t head, size_t part) {
    return s->norms + (head * s->norm_parts + part) * c->kept;
}

/* These are a layer's rows or gradients of one side. */
struct layer_rows {
    const struct samples *samples;
    const struct window_turns *turns; /* NULL: they are wanted as they are */
    const float *rows, *gradients;    /* [n][Hk][hd] */
    size_t heads;                     /* that come before the layer's own */
};

/* Copies a KV head's rows, or gradients, of the samples at, at + 1, ... of the window to tile[count][hd], rotated where they are
 * wanted so. */
static void gather(const struct passing *p, const struct layer_rows *layer, enum window_turn turn, uint32_t head, size_t at,
                   size_t count, float *tile) {
    const struct terse_model *m = p->capture->model;
    const float *rows = turn == WINDOW_TURN_ROWS ? layer->rows : layer->gradients;
    size_t hd = m->head_dim;
    for (size_t i = 0; i < count; i++) {
        size_t t = p->offset[at + i];
        memcpy(tile + i * hd, rows + (t * m->kv_heads + head) * hd, hd * sizeof *tile);
        if (layer->turns) window_turn_rows(layer->turns, turn, t, tile + i * hd, 1);
    }
}

/* Stores rows[count][hd] as the samples of a KV head from `first` on; `heads` come before it in all layers. */
static void put_rows(const struct capture *c, const struct samples *s, size_t heads, size_t first, size_t count,
                     const float *rows) {
    float part[TILE * STRIP];
    size_t hd = c->model->head_dim;
    for (size_t k = 0; k < s->strips; k++) {
        for (size_t i = 0; i < count; i++) memcpy(part + i * STRIP, rows + i * hd + k * STRIP, STRIP * sizeof *part);
        vector_float_to_half(part, strip_of(c, s, heads, k) + first * STRIP, count * STRIP);
    }
}

/* Stores up to TILE samples of a KV head. */
static void keep_tile(const struct passing *p, const struct layer_rows *layer, uint32_t head, size_t at) {
    const struct capture *c = p->capture;
    const struct samples *s = layer->samples;
    size_t heads = layer->heads + head;
    float tile[TILE * CODEC_HEAD_DIM_MAX];
    size_t hd = c->model->head_dim, count = p->count - at < TILE ? p->count - at : TILE;
    gather(p, layer, WINDOW_TURN_ROWS, head, at, count, tile);
    put_rows(c, s, heads, p->first + at, count, tile);
    if (!s->norm_parts) return;
    gather(p, layer, WINDOW_TURN_GRADIENTS, head, at, count, tile);
    size_t n = hd / s->norm_parts;
    for (size_t k = 0; k < s->norm_parts; k++) {
        uint16_t *to = norms_of(c, s, heads, k) + p->first + at;
        for (size_t i = 0; i < count; i++) to[i] = bfloat_from_float(norm(tile + i * hd + k * n, n));
    }
}

static void keep_layer(void *user, uint32_t layer, const struct captured *captured) {
    const struct passing *p = user;
    uint32_t heads = p->capture->model->kv_heads;
    const float *rows[2] = {captured->k, captured->v}, *gradients[2] = {captured->dk, captured->dv};
    size_t tiles = (p->count + TILE - 1) / TILE;
    if (p->options->residual)
        p->capture->residual[layer] += sum_log_squares(captured->hidden, captured->n, p->capture->model->width, RESIDUAL_UNIT);
    for (int side = 0; side < 2; side++) {
        const struct samples *s = &p->capture->side[side];
        if (!s->kept) continue;
        const struct layer_rows own = {s, s->rotated ? window_turns_of(&p->rope, layer) : NULL, rows[side], gradients[side],
                                       (size_t)layer * heads};
#pragma omp parallel for schedule(static)
        for (size_t i = 0; i < heads * tiles; i++) keep_tile(p, &own, (uint32_t)(i / tiles), i % tiles * TILE);
    }
}

/* ---- All windows */

/* Returns the first position of the i-th of so many windows. */
static size_t first_position(const struct capture_options *o, size_t i, size_t windows) {
    return o->positions > o->window && windows > 1 ? i * (o->positions - o->window) / (windows - 1) : 0;
}

static void begin_window(void *user, size_t window) {
    struct passing *p = user;
    const struct capture_options *o = p->options;
    pick(p, (uint64_t)window * (o->window - o->skip), o->window - o->skip);
    if (p->capture->side[CODEC_KEYS].rotated) window_rope_set(&p->rope, o->run ? 0 : first_position(o, window, p->windows), o->run);
}

static enum terse_status run_windows(struct capture *c, const struct capture_options *o, const struct windows *windows,
                                     const int32_t *tokens, size_t n, struct terse_error *error) {
    struct passing p = {.capture = c, .options = o, .windows = windows_count(windows, n)};
    struct windows_sink sink = {begin_window, keep_layer, &p};
    p.offset = memory_array(o->window, sizeof *p.offset);
    enum terse_status status = p.offset ? TERSE_OK : status_no_memory(error, o->window * sizeof *p.offset, "a window");
    if (!status && c->side[CODEC_KEYS].rotated) status = window_rope_new(&p.rope, c->model, o->window, error);
    if (!status) status = windows_run(c->model, windows, tokens, n, &sink, error);
    memory_free(p.offset);
    window_rope_free(&p.rope);
    return status;
}

static enum terse_status allocate(struct capture *c, const struct capture_options *o, struct terse_error *error) {
    const struct terse_model *m = c->model;
    size_t heads = (size_t)model_kv_layers(m) * m->kv_heads, bytes = 0;
    for (int side = 0; side < 2; side++) {
        struct samples *s = &c->side[side];
        if (!o->side[side].kept) continue;
        s->kept = true;
        s->strips = m->head_dim / STRIP;
        s->rotated = side == CODEC_KEYS && o->side[side].rotated && m->rope.n_rot;
        s->norm_parts = o->side[side].norm_width ? m->head_dim / o->side[side].norm_width : 0;
        bytes += heads * ((m->head_dim + s->norm_parts) * sizeof(uint16_t) + sizeof *s->factors);
    }
    c->kept = bytes && o->budget / bytes < c->samples ? o->budget / bytes : c->samples;
    if (!c->kept) c->kept = 1;
    c->residual = memory_zeros(o->residual ? model_kv_layers(m) : 0, sizeof *c->residual);
    if (!c->residual) return status_no_memory(error, m->layers * sizeof *c->residual, "the residual stream");
    for (int side = 0; side < 2; side++) {
        struct samples *s = &c->side[side];
        s->rows = memory_array(c->kept, heads * s->strips * STRIP * sizeof *s->rows);
        s->norms = memory_array(c->kept, heads * s->norm_parts * sizeof *s->norms);
        s->factors = memory_array(c->kept, s->kept ? heads * sizeof *s->factors : 0);
        for (size_t i = 0; s->factors && s->kept && i < heads * c->kept; i++) s->factors[i] = 1;
        if (!s->rows || !s->norms || !s->factors)
            return status_no_memory(error, c->kept * bytes, "the keys and values to learn from");
    }
    return TERSE_OK;
}

enum terse_status capture_new(const struct terse_model *model, const struct capture_options *options, const int32_t *tokens,
                              size_t n, struct capture **capture, struct terse_error *error) {
    bool gradients = options->side[0].norm_width || options->side[1].norm_width;
    struct windows windows = {options->window, options->windows,  gradients,   options->drawn,
                              options->seed,   options->progress, options->ops};
    *capture = NULL;
    enum terse_status status = windows_check(model, &windows, n, error);
    if (!status && options->skip >= options->window)
        status = status_fail(error, TERSE_E_ARGUMENT, "windows of %u tokens, of which the first %u say nothing: make them longer",
                             options->window, options->skip);
    if (status) return status;
    struct capture *c = calloc(1, sizeof *c);
    if (!c) return status_no_memory(error, sizeof *c, "the keys and values to learn from");
    c->model = model;
    c->tokens = (uint64_t)windows_count(&windows, n) * options->window;
    c->samples = c->tokens / options->window * (options->window - options->skip);
    c->window = options->window;
    c->skip = options->skip;
    status = allocate(c, options, error);
    if (!status) status = run_windows(c, options, &windows, tokens, n, error);
    if (!status)
        *capture = c;
    else
        capture_free(c);
    return status;
}

void capture_free(struct capture *capture) {
    if (!capture) return;
    for (int side = 0; side < 2; side++) {
        memory_free(capture->side[side].rows);
        memory_free(capture->side[side].norms);
        memory_free(capture->side[side].factors);
    }
    memory_free(capture->residual);
    free(capture);
}

/* ---- Reading the samples */

uint64_t capture_tokens(const struct capture *capture) { return capture->tokens; }
size_t capture_samples(const struct capture *capture) { return capture->kept; }

size_t capture_place(const struct capture *capture, size_t i) {
    const uint64_t sample = (((uint64_t)i + 1) * capture->samples + capture->kept - 1) / capture->kept - 1; /* see kept_before */
    return capture->skip + (size_t)(sample % (capture->window - capture->skip));
}

static size_t head_of(const struct capture *c, const struct capture_reading *r) {
    return (size_t)r->layer * c->model->kv_heads + r->head;
}

/* Copies channels [from, from + n) of a strip to rows[count][width]. */
static void read_strip(const uint16_t *strip, const struct capture_reading *r, size_t from, size_t n, size_t width, float *rows) {
    float tile[TILE * STRIP];
    for (size_t i = 0; i < r->count; i += TILE) {
        size_t count = r->count - i < TILE ? r->count - i : TILE;
        const uint16_t *at = strip + (r->first + i * r->step) * STRIP;
        if (r->step == 1) vector_half_to_float(at, tile, count * STRIP);
        for (size_t k = 0; r->step != 1 && k < count; k++) vector_half_to_float(at + k * r->step * STRIP, tile + k * STRIP, STRIP);
        for (size_t k = 0; k < count; k++) memcpy(rows + (i + k) * width, tile + k * STRIP + from, n * sizeof *rows);
    }
}

void capture_rows(const struct capture *capture, const struct capture_reading *r, size_t channel, size_t width, float *rows) {
    const struct samples *s = &capture->side[r->side];
    for (size_t done = 0, n; done < width; done += n) {
        size_t from = (channel + done) % STRIP;
        n = STRIP - from < width - done ? STRIP - from : width - done;
        read_strip(strip_of(capture, s, head_of(capture, r), (channel + done) / STRIP), r, from, n, width, rows + done);
    }
}

float capture_residual(const struct capture *capture, uint32_t layer) {
    return (float)((double)capture->residual[layer] / (double)capture->tokens * RESIDUAL_UNIT);
}

void capture_norms(const struct capture *capture, const struct capture_reading *r, size_t channel, size_t width, float *norms) {
    const struct samples *s = &capture->side[r->side];
    size_t hd = capture->model->head_dim, first = channel * s->norm_parts / hd, parts = width * s->norm_parts / hd;
    for (size_t i = 0; i < r->count; i++) norms[i] = parts ? 0 : 1;
    for (size_t k = 0; k < parts; k++) {
        const uint16_t *from = norms_of(capture, s, head_of(capture, r), first + k) + r->first;
        for (size_t i = 0; i < r->count; i++) {
            float x = bfloat_to_float(from[i * r->step]);
            norms[i] = parts == 1 ? x : norms[i] + x * x;
        }
    }
    for (size_t i = 0; i < r->count && parts > 1; i++) norms[i] = sqrtf(norms[i]);
}

void capture_factors(const struct capture *capture, const struct capture_reading *r, float *factors) {
    const float *from = capture->side[r->side].factors + head_of(capture, r) * capture->kept + r->first;
    for (size_t i = 0; i < r->count; i++) factors[i] = from[i * r->step];
}

void capture_normalize(struct capture *capture, enum codec_side side, uint32_t layer, uint32_t head,
                       float (*enter)(const void *user, float *row), const void *user) {
    const struct samples *s = &capture->side[side];
    size_t heads = (size_t)layer * capture->model->kv_heads + head, hd = capture->model->head_dim;
#pragma omp parallel for schedule(static)
    for (size_t first = 0; first < capture->kept; first += TILE) {
        float rows[TILE * CODEC_HEAD_DIM_MAX];
        size_t count = capture->kept - first < TILE ? capture->kept - first : TILE;
        capture_rows(capture, &(struct capture_reading){side, layer, head, first, 1, count}, 0, hd, rows);
        for (size_t i = 0; i < count; i++) s->factors[heads * capture->kept + first + i] *= enter(user, rows + i * hd);
        put_rows(capture, s, heads, first, count, rows);
    }
}
