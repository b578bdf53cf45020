/* Keeps records of transforms, and their layouts. */
#include "kv/fitted.h"

#include "base/memory.h"
#include "format/codebook_layouts.h"
#include "kv/rates.h"

#include <math.h>
#include <string.h>

static const char what[] = "what the KV cache learns";

enum { STEP, BEFORE };       /* of sums */
#define RESIDUAL_MOST 300.0f /* above the magnitude of log2 of any float's square */

/* Returns how many KV heads of all layers, or slices of their rows, have transforms; each has one for each side. */
static size_t heads_of(const struct cache_shape *shape, const struct method *method) {
    return cache_heads_of(shape) * method_slices(method);
}
static uint32_t heads_of_layer(const struct cache_base *base) { return base->shape.kv_heads * method_slices(&base->method); }
static uint32_t width_of(const struct cache_base *base) { return method_slice_width(&base->method, base->shape.head_dim); }

static size_t n_records(const struct cache_shape *shape, const struct method *method) {
    return heads_of(shape, method) * cache_sides_of(shape);
}
size_t fitted_records(const struct cache_base *base) { return n_records(&base->shape, &base->method); }

static uint64_t records_bytes(const struct cache_shape *shape, const struct method *method) {
    return n_records(shape, method) * TRANSFORM_RECORD_STRIDE(method_slice_width(method, shape->head_dim));
}

static const struct coding *coding_of(const struct method *method, enum codec_side side) {
    return side == CODEC_KEYS ? &method->key : &method->value;
}

static bool fits(const struct cache_base *base, enum codec_side side) {
    return coding_of(&base->method, side)->codec->id == CODEC_TRANSFORM;
}

uint64_t fitted_all_bytes(const struct cache_shape *shape, const struct method *method) {
    const uint64_t sides = (method->key.codec->id == CODEC_TRANSFORM) + (method->value.codec->id == CODEC_TRANSFORM);
    double bits[METHOD_RATES];
    if (!method_fits_transforms(method)) return 0;
    return records_bytes(shape, method) +
           method_rates(method, bits) *
               (sizeof(struct codebook_layouts) + sides * heads_of(shape, method) * sizeof(struct transform_layout));
}

uint64_t fitted_sums_bytes(const struct cache_shape *shape, const struct method *method) {
    return method_fits_transforms(method) ? 2 * (uint64_t)shape->layers * sizeof(int64_t) : 0;
}

/* Returns whether transforms may still be fitted: once pages are sealed by the profile, all are. */
static bool is_open(const struct cache_base *base) { return !base->fitted.layouts && !base->pages.n_sealed; }

bool fitted_waits(const struct cache_base *base) { return is_open(base) && base->plan.waits; }
bool fitted_due(const struct cache_base *base) { return is_open(base) && base->plan.fits; }

bool fitted_would_wait(const struct cache_base *base) {
    return plan_step(&base->method, &base->extent, CACHE_STEP_DECODE, 1).waits;
}

size_t fitted_tokens(const struct cache_base *base) { return plan_fit_tokens(base->plan.before.length - base->plan.grid); }

static uint8_t *record_at(const struct cache_base *base, uint32_t layer, uint32_t head, enum codec_side side) {
    return base->fitted.records +
           (((size_t)layer * heads_of_layer(base) + head) * cache_sides_of(&base->shape) + side) * base->fitted.record_bytes;
}

void *fitted_record(const struct cache_base *base, uint32_t layer, uint32_t head, enum codec_side side) {
    return base->fitted.records && fits(base, side) ? record_at(base, layer, head, side) : NULL;
}

enum terse_status fitted_begin(struct cache_base *base, struct terse_error *error) {
    fitted_drop(base);
    base->fitted.record_bytes = TRANSFORM_RECORD_STRIDE(width_of(base));
    base->fitted.records =
        budget_array(base->budget, n_records(&base->shape, &base->method), base->fitted.record_bytes, what, error);
    if (!base->fitted.records) return TERSE_E_MEMORY;
    memset(base->fitted.records, 0, (size_t)records_bytes(&base->shape, &base->method));
    return TERSE_OK;
}

/* Returns log2 of the mean square of a hidden state as it enters a layer; 0: nothing was noted. */
static float residual_of(const struct cache_base *base, uint32_t layer) {
    const uint64_t tokens = base->fitted.residual_tokens[BEFORE];
    if (!tokens) return 0;
    return (float)((double)base->fitted.residual[BEFORE * base->shape.layers + layer] / (double)tokens * RESIDUAL_UNIT);
}

/* Lists what a side's records say, by the numbers of layers in the model. */
static void list_rows(const struct cache_base *base, enum codec_side side, struct codebook_rows *rows) {
    const struct cache_shape *shape = &base->shape;
    for (uint32_t layer = 0; layer < shape->layers; layer++)
        for (uint32_t head = 0; head < heads_of_layer(base); head++) {
            const struct transform_fitted own = transform_fitted_at(record_at(base, layer, head, side), width_of(base));
            rows[(size_t)cache_shape_number(shape, layer) * heads_of_layer(base) + head] =
                (struct codebook_rows){own.size, own.gain, residual_of(base, layer)};
        }
}

/* Shares bits by rows[2][sets] at the method's rates, or at one to which pages are lowered. */
static enum terse_status make_layouts(struct cache_base *base, const struct codebook_rows *rows, size_t sets, uint32_t lower,
                                      struct codebook_layouts **layouts, struct terse_error *error) {
    const struct method method = rates_method(base, lower);
    const double rate[2] = {method.key.rate, method.value.rate};
    struct codebook_layouts *made;
    enum terse_status status = codebook_layouts_of_rows(method.learned, rate, (const struct codebook_rows *[2]){rows, rows + sets},
                                                        base->shape.normalized, &made, error);
    if (!status) status = budget_take(base->budget, (size_t)codebook_layouts_bytes(made), what, error);
    if (status)
        codebook_layouts_free(made);
    else
        *layouts = made;
    return status;
}

enum terse_status fitted_end(struct cache_base *base, struct terse_error *error) {
    struct fitted *fitted = &base->fitted;
    const size_t sets = codebook_sets(codebook_info(base->method.learned));
    struct codebook_rows *rows = memory_zeros(2 * sets, sizeof *rows);
    enum terse_status status = rows ? TERSE_OK : status_no_memory(error, 2 * sets * sizeof *rows, what);
    for (int side = CODEC_KEYS; side <= CODEC_VALUES && !status; side++)
        if (fits(base, (enum codec_side)side)) list_rows(base, (enum codec_side)side, rows + (size_t)side * sets);
    if (!status) status = make_layouts(base, rows, sets, 0, &fitted->layouts, error);
    if (!status) {
        fitted->profile_layouts = base->method.layouts;
        base->method.layouts = fitted->layouts;
    }
    for (uint32_t rate = 1; rate < rates_of(base) && !status; rate++)
        status = make_layouts(base, rows, sets, rate, &base->rates.fitted[rate], error);
    memory_free(rows);
    if (status) fitted_drop(base);
    return status;
}

static void free_layouts(struct cache_base *base, struct codebook_layouts **layouts) {
    if (!*layouts) return;
    budget_give(base->budget, (size_t)codebook_layouts_bytes(*layouts));
    codebook_layouts_free(*layouts);
    *layouts = NULL;
}

void fitted_drop(struct cache_base *base) {
    struct fitted *fitted = &base->fitted;
    budget_free(base->budget, fitted->records, (size_t)records_bytes(&base->shape, &base->method));
    if (fitted->layouts) {
        base->method.layouts = fitted->profile_layouts;
        free_layouts(base, &fitted->layouts);
    }
    for (uint32_t rate = 1; rate < rates_of(base); rate++) free_layouts(base, &base->rates.fitted[rate]);
    fitted->records = NULL;
    fitted->profile_layouts = NULL;
}

/* ---- The residual stream */

static enum terse_status reserve_sums(struct cache_base *base, struct terse_error *error) {
    const size_t bytes = (size_t)fitted_sums_bytes(&base->shape, &base->method);
    if (base->fitted.residual) return TERSE_OK;
    base->fitted.residual = budget_array(base->budget, bytes, 1, what, error);
    if (!base->fitted.residual) return TERSE_E_MEMORY;
    memset(base->fitted.residual, 0, bytes);
    return TERSE_OK;
}

bool fitted_wants_residual(const struct cache_base *base) { return fitted_waits(base) && base->plan.kind == CACHE_STEP_PREFILL; }

enum terse_status fitted_begin_step(struct cache_base *base, struct terse_error *error) {
    base->fitted.residual_tokens[STEP] = 0;
    if (!fitted_waits(base)) return TERSE_OK;
    enum terse_status status = reserve_sums(base, error);
    if (!status) memset(base->fitted.residual + STEP * base->shape.layers, 0, base->shape.layers * sizeof *base->fitted.residual);
    return status;
}

void fitted_note_residual(struct cache_base *base, uint32_t layer, int64_t sum, size_t tokens) {
    if (!fitted_wants_residual(base)) return;
    base->fitted.residual[STEP * base->shape.layers + layer] += sum;
    if (!layer) base->fitted.residual_tokens[STEP] += tokens;
}

void fitted_end_step(struct cache_base *base) {
    const size_t layers = base->shape.layers;
    uint64_t *tokens = base->fitted.residual_tokens;
    for (size_t i = 0; i < layers && tokens[STEP]; i++)
        base->fitted.residual[BEFORE * layers + i] += base->fitted.residual[STEP * layers + i];
    tokens[BEFORE] += tokens[STEP];
    tokens[STEP] = 0;
}

void fitted_forget_residual(struct cache_base *base) {
    budget_free(base->budget, base->fitted.residual, (size_t)fitted_sums_bytes(&base->shape, &base->method));
    base->fitted.residual = NULL;
    base->fitted.residual_tokens[STEP] = base->fitted.residual_tokens[BEFORE] = 0;
}

/* ---- Copies */

struct method fitted_method_without(const struct cache_base *base) {
    struct method method = base->method;
    if (base->fitted.layouts) method.layouts = base->fitted.profile_layouts;
    return method;
}

enum terse_status fitted_copy(struct cache_base *base, const struct cache_base *from, struct terse_error *error) {
    enum terse_status status = TERSE_OK;
    if (from->fitted.residual && !(status = reserve_sums(base, error))) {
        memcpy(base->fitted.residual, from->fitted.residual, 2 * from->shape.layers * sizeof *base->fitted.residual);
        base->fitted.residual_tokens[BEFORE] = from->fitted.residual_tokens[BEFORE];
    }
    if (status || !from->fitted.layouts || (status = fitted_begin(base, error))) return status;
    memcpy(base->fitted.records, from->fitted.records, (size_t)records_bytes(&base->shape, &base->method));
    return fitted_end(base, error);
}

/* ---- Saved states */

enum fitted_saved fitted_saved(const struct cache_base *base) {
    if (base->fitted.layouts) return FITTED_RECORDS;
    return base->fitted.residual_tokens[BEFORE] ? FITTED_SUMS : FITTED_NOTHING;
}

static uint64_t sums_bytes(const struct cache_base *base) { return (1 + (uint64_t)base->shape.layers) * sizeof(int64_t); }

static uint64_t saved_bytes(const struct cache_base *base, enum fitted_saved saved) {
    if (saved == FITTED_NOTHING) return 0;
    return sums_bytes(base) + (saved == FITTED_RECORDS ? records_bytes(&base->shape, &base->method) : 0);
}

uint64_t fitted_saved_bytes(const struct cache_base *base) { return saved_bytes(base, fitted_saved(base)); }

void fitted_save(const struct cache_base *base, struct state_writer *writer) {
    const struct fitted *fitted = &base->fitted;
    const enum fitted_saved saved = fitted_saved(base);
    if (saved == FITTED_NOTHING) return;
    state_writer_put(writer, &fitted->residual_tokens[BEFORE], sizeof(uint64_t));
    for (uint32_t layer = 0; layer < base->shape.layers; layer++) {
        const int64_t sum = fitted->residual ? fitted->residual[BEFORE * base->shape.layers + layer] : 0;
        state_writer_put(writer, &sum, sizeof sum);
    }
    if (saved == FITTED_RECORDS) state_writer_put(writer, fitted->records, (size_t)records_bytes(&base->shape, &base->method));
}

/* Returns whether a record's numbers are such as a fit leaves. */
static bool is_sound(const void *record, uint32_t head_dim) {
    const struct transform_fitted fitted = transform_fitted_at(record, head_dim);
    const float *floats = record;
    for (size_t i = 0; i < 4 * (size_t)head_dim + 3; i++)
        if (!isfinite(floats[i])) return false;
    for (uint32_t c = 0; c < head_dim; c++)
        if (fitted.size[c] < 0 || (c && fitted.size[c] > fitted.size[c - 1])) return false;
    return fitted.gain_least >= 0 && fitted.gain_most >= fitted.gain_least && fitted.gain >= 0;
}

static enum terse_status load_records(struct cache_base *base, const uint8_t *data, const struct state_file *file,
                                      struct terse_error *error) {
    enum terse_status status = fitted_begin(base, error);
    if (status) return status;
    memcpy(base->fitted.records, data, (size_t)records_bytes(&base->shape, &base->method));
    for (size_t i = 0; i < n_records(&base->shape, &base->method); i++) {
        if (is_sound(base->fitted.records + i * base->fitted.record_bytes, width_of(base))) continue;
        fitted_drop(base);
        return state_file_refuse(file, STATE_FITTED, "a transform's numbers contradict one another", error);
    }
    return fitted_end(base, error);
}

static enum terse_status load_sums(struct cache_base *base, const uint8_t *data, const struct state_file *file,
                                   struct terse_error *error) {
    const uint32_t layers = base->shape.layers;
    uint64_t tokens;
    enum terse_status status = reserve_sums(base, error);
    if (status) return status;
    memcpy(&tokens, data, sizeof tokens);
    memcpy(base->fitted.residual + BEFORE * layers, data + sizeof tokens, layers * sizeof(int64_t));
    base->fitted.residual_tokens[BEFORE] = tokens;
    for (uint32_t layer = 0; layer < layers; layer++)
        if (!(fabsf(residual_of(base, layer)) <= RESIDUAL_MOST))
            return state_file_refuse(file, STATE_FITTED, "sums that no tokens have", error);
    return TERSE_OK;
}

enum terse_status fitted_load(struct cache_base *base, enum fitted_saved saved, const struct state_file *file,
                              struct terse_error *error) {
    const uint64_t bytes = saved_bytes(base, saved);
    size_t there;
    const uint8_t *data = state_file_section(file, STATE_FITTED, &there);
    if (!bytes) return TERSE_OK;
    if (there < bytes || !method_fits_transforms(&base->method))
        return state_file_refuse(file, STATE_FITTED, "it is of another size", error);
    data += there - bytes;
    enum terse_status status = load_sums(base, data, file, error);
    return status || saved != FITTED_RECORDS ? status : load_records(base, data + sums_bytes(base), file, error);
}
