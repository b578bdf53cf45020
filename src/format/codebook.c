/* Codebooks in memory: checks parameters, keeps them and the backends' forms of them. codebook_file.c reads and writes the file. */
#include "base/half.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/text.h"
#include "format/codebook_private.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bounds that keep every product far from overflow, and a false shape from costing time: the widest of models. */
enum { MOST_LAYERS = 1024, MOST_KV_HEADS = 4096 };

#define CALIBRATE_AGAIN "make it again with terse calibrate"

static const char *const side_names[] = {[CODEC_KEYS] = "keys", [CODEC_VALUES] = "values"};

static bool learns(struct coding coding) { return coding.codec && codec_learns(coding.codec); }

static bool is_transform(struct coding coding) { return coding.codec && coding.codec->learner == CODEC_LEARNS_TRANSFORM; }

bool codebook_is_profile(const struct codebook_info *info) { return is_transform(info->key) || is_transform(info->value); }

/* Returns what messages call the codebook. */
static const char *noun_of(const struct codebook_info *info) { return codebook_is_profile(info) ? "profile" : "codebook"; }

struct coding codebook_coding(const struct codebook_info *info, enum codec_side side) {
    struct coding coding = side == CODEC_KEYS ? info->key : info->value;
    return learns(coding) ? coding : (struct coding){0};
}

struct codec_shape codebook_shape(const struct codebook_info *info, enum codec_side side) {
    struct coding coding = codebook_coding(info, side);
    return (struct codec_shape){.head_dim = info->head_dim, .group = 1, .width = coding.width, .bits = coding.bits};
}

size_t codebook_sets(const struct codebook_info *info) { return info->shared ? 1 : (size_t)info->layers * info->kv_heads; }

/* Returns the floats of one layer, KV head and side. */
static size_t floats_of(const struct codebook_info *info, enum codec_side side) {
    struct coding coding = codebook_coding(info, side);
    return coding.codec ? codec_parameters(coding.codec, codebook_shape(info, side)) : 0;
}

size_t codebook_part_floats(const struct codebook_info *info, enum codec_side side, enum codebook_part part) {
    struct coding coding = codebook_coding(info, side);
    if (!coding.codec) return 0;
    size_t normalization = codec_normalization_floats(coding.codec, codebook_shape(info, side));
    return part == CODEBOOK_CENTROIDS ? floats_of(info, side) - normalization : normalization;
}

size_t codebook_floats(const struct codebook_info *info, enum codec_side side) {
    return floats_of(info, side) * codebook_sets(info);
}

/* ---- Making one --------------------------------------------------------------------------------------------------------- */

static enum terse_status check_side(const struct codebook_info *info, enum codec_side side, struct terse_error *error) {
    struct coding coding = codebook_coding(info, side);
    if (!coding.codec) return TERSE_OK;
    return codec_check(coding.codec, codebook_shape(info, side), side, error); /* widths and bits */
}

static bool costs_are_possible(const struct terse_rate_cost *costs, size_t n) {
    for (size_t i = 0; i < n; i++) {
        bool falls = !i || costs[i].bits < costs[i - 1].bits;
        if (!falls || !(costs[i].bits > 0) || !(costs[i].divergence >= 0) || !(costs[i].error >= 0)) return false;
        if (!isfinite(costs[i].bits) || !isfinite(costs[i].divergence) || !isfinite(costs[i].error)) return false;
    }
    return n <= TERSE_RATE_COSTS;
}

enum terse_status codebook_check_info(const struct codebook_info *info, struct terse_error *error) {
    if (info->layers < 1 || info->layers > MOST_LAYERS || info->kv_heads < 1 || info->kv_heads > MOST_KV_HEADS ||
        info->head_dim < 1 || info->head_dim > CODEC_HEAD_DIM_MAX)
        return status_fail(error, TERSE_E_FORMAT,
                           "a codebook for %" PRIu32 " layers of %" PRIu32 " KV heads of %" PRIu32
                           " channels: at most %d, %d and %d are possible: " CALIBRATE_AGAIN,
                           info->layers, info->kv_heads, info->head_dim, MOST_LAYERS, MOST_KV_HEADS, CODEC_HEAD_DIM_MAX);
    if (!learns(info->key) && !learns(info->value))
        return status_fail(error, TERSE_E_FORMAT, "a codebook of neither keys nor values: " CALIBRATE_AGAIN);
    if (!costs_are_possible(info->costs, info->n_costs))
        return status_fail(
            error, TERSE_E_FORMAT,
            "a profile's costs of rates are not in falling order of bits, or one is negative or not finite: " CALIBRATE_AGAIN);
    enum terse_status status = check_side(info, CODEC_KEYS, error);
    return status ? status : check_side(info, CODEC_VALUES, error);
}

static void make_printable(char *text, size_t capacity) {
    char copy[sizeof((struct codebook_info *)0)->model];
    size_t size = strnlen(text, capacity - 1);
    memcpy(copy, text, size);
    struct text_line line = text_line_begin(text, capacity);
    text_line_string(&line, copy, size, false);
    text_line_end(&line);
}

static enum terse_status begin_side(struct terse_codebook *codebook, enum codec_side side, struct terse_error *error) {
    if (!codebook_coding(&codebook->info, side).codec) return TERSE_OK;
    for (int part = CODEBOOK_CENTROIDS; part <= CODEBOOK_NORMALIZATION; part++) {
        size_t n = codebook->sets * codebook_part_floats(&codebook->info, side, (enum codebook_part)part);
        if (!n) continue;
        codebook->halves[side][part] = memory_array(n, sizeof(uint16_t));
        if (!codebook->halves[side][part]) return status_no_memory(error, n * sizeof(uint16_t), "the codebook");
    }
    return TERSE_OK;
}

enum terse_status codebook_begin(const struct codebook_info *info, struct terse_codebook **result, struct terse_error *error) {
    *result = NULL;
    enum terse_status status = codebook_check_info(info, error);
    if (status) return status;
    struct terse_codebook *codebook = memory_zeros(1, sizeof *codebook);
    if (!codebook) return status_no_memory(error, sizeof *codebook, "the codebook");
    pthread_mutex_init(&codebook->mutex, NULL);
    codebook->info = *info;
    codebook->info.key = codebook_coding(info, CODEC_KEYS);
    codebook->info.value = codebook_coding(info, CODEC_VALUES);
    make_printable(codebook->info.method, sizeof codebook->info.method);
    make_printable(codebook->info.model, sizeof codebook->info.model);
    make_printable(codebook->info.corpus, sizeof codebook->info.corpus);
    make_printable(codebook->info.weighting, sizeof codebook->info.weighting);
    make_printable(codebook->info.costs_corpus, sizeof codebook->info.costs_corpus);
    codebook->sets = codebook_sets(info);
    for (int side = CODEC_KEYS; !status && side <= CODEC_VALUES; side++)
        status = begin_side(codebook, (enum codec_side)side, error);
    if (status)
        terse_codebook_free(codebook);
    else
        *result = codebook;
    return status;
}

/* Checks that one part of one set is finite in half precision. */
static enum terse_status check_part(const struct terse_codebook *codebook, enum codec_side side, enum codebook_part part,
                                    size_t set, struct terse_error *error) {
    size_t n = codebook_part_floats(&codebook->info, side, part);
    const uint16_t *halves = codebook_halves(codebook, side, part, set);
    for (size_t i = 0; i < n; i++) {
        if ((halves[i] & 0x7c00) != 0x7c00) continue;
        return status_fail(
            error, TERSE_E_FORMAT,
            "number %zu of the %s of layer %zu, KV head %zu in the codebook's %s is not finite in half precision: " CALIBRATE_AGAIN,
            i, part == CODEBOOK_NORMALIZATION ? "frame" : "centroids", set / codebook->info.kv_heads, set % codebook->info.kv_heads,
            side_names[side]);
    }
    return TERSE_OK;
}

/* Checks the parts and the parameters of a side. `floats` is scratch for the parameters of one set. */
static enum terse_status check_side_halves(const struct terse_codebook *codebook, enum codec_side side, float *floats,
                                           struct terse_error *error) {
    const struct codebook_info *info = &codebook->info;
    enum terse_status status = TERSE_OK;
    for (size_t set = 0; !status && set < codebook->sets; set++) {
        status = check_part(codebook, side, CODEBOOK_CENTROIDS, set, error);
        if (!status) status = check_part(codebook, side, CODEBOOK_NORMALIZATION, set, error);
        if (status) break;
        codebook_parameters(codebook, side, set, floats);
        status = codec_check_parameters(codebook_coding(info, side).codec, codebook_shape(info, side), floats, error);
    }
    return status;
}

enum terse_status codebook_check_halves(const struct terse_codebook *codebook, struct terse_error *error) {
    enum terse_status status = TERSE_OK;
    for (int side = CODEC_KEYS; !status && side <= CODEC_VALUES; side++) {
        size_t n = floats_of(&codebook->info, (enum codec_side)side);
        if (!n) continue;
        float *floats = memory_array(n, sizeof *floats);
        if (!floats) return status_no_memory(error, n * sizeof *floats, "the codebook");
        status = check_side_halves(codebook, (enum codec_side)side, floats, error);
        memory_free(floats);
    }
    return status;
}

/* Rounds parameters[sets][floats_of] and puts their parts where they belong. */
static void fill_side(struct terse_codebook *codebook, enum codec_side side, const float *parameters) {
    for (size_t set = 0; set < codebook->sets; set++) {
        for (int part = CODEBOOK_CENTROIDS; part <= CODEBOOK_NORMALIZATION; part++) {
            size_t n = codebook_part_floats(&codebook->info, side, (enum codebook_part)part);
            uint16_t *halves = n ? codebook->halves[side][part] + set * n : NULL;
            for (size_t i = 0; i < n; i++) halves[i] = half_from_float(parameters[i]);
            parameters += n;
        }
    }
}

enum terse_status codebook_new(const struct codebook_info *info, const float *keys, const float *values,
                               struct terse_codebook **result, struct terse_error *error) {
    struct terse_codebook *codebook;
    *result = NULL;
    enum terse_status status = codebook_begin(info, &codebook, error);
    if (status) return status;
    if (codebook_coding(info, CODEC_KEYS).codec) fill_side(codebook, CODEC_KEYS, keys);
    if (codebook_coding(info, CODEC_VALUES).codec) fill_side(codebook, CODEC_VALUES, values);
    status = codebook_check_halves(codebook, error);
    if (status)
        terse_codebook_free(codebook);
    else
        *result = codebook;
    return status;
}

void terse_codebook_free(struct terse_codebook *codebook) {
    if (!codebook) return;
    for (size_t i = 0; i < CODEBOOK_MOST_FORMS && codebook->forms[i].ops; i++)
        codebook->forms[i].ops->free(codebook->forms[i].form);
    pthread_mutex_destroy(&codebook->mutex);
    for (int side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
        memory_free(codebook->halves[side][CODEBOOK_CENTROIDS]);
        memory_free(codebook->halves[side][CODEBOOK_NORMALIZATION]);
    }
    memory_free(codebook);
}

/* ---- Questions ---------------------------------------------------------------------------------------------------------- */

const struct codebook_info *codebook_info(const struct terse_codebook *codebook) { return &codebook->info; }

const uint16_t *codebook_halves(const struct terse_codebook *codebook, enum codec_side side, enum codebook_part part, size_t set) {
    const uint16_t *halves = codebook->halves[side][part];
    return halves ? halves + set * codebook_part_floats(&codebook->info, side, part) : NULL;
}

void codebook_parameters_from(const struct terse_codebook *codebook, enum codec_side side, size_t set, size_t first,
                              float *floats) {
    for (int part = CODEBOOK_CENTROIDS; part <= CODEBOOK_NORMALIZATION; part++) {
        const uint16_t *halves = codebook_halves(codebook, side, (enum codebook_part)part, set);
        size_t n = codebook_part_floats(&codebook->info, side, (enum codebook_part)part);
        for (size_t i = first; i < n; i++) floats[i] = half_to_float(halves[i]);
        first -= first < n ? first : n;
        floats += n;
    }
}

void codebook_parameters(const struct terse_codebook *codebook, enum codec_side side, size_t set, float *floats) {
    codebook_parameters_from(codebook, side, set, 0, floats);
}

uint64_t codebook_hash(const struct terse_codebook *codebook) {
    const struct codebook_info *info = &codebook->info;
    XXH64_state_t hash;
    XXH64_reset(&hash, 0);
    XXH64_update(&hash, info->method, strlen(info->method));
    for (int side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
        struct coding coding = codebook_coding(info, (enum codec_side)side);
        const uint32_t shape[] = {coding.width, coding.bits, info->shared, info->layers, info->kv_heads, info->head_dim};
        XXH64_update(&hash, shape, sizeof shape);
        if (coding.codec) XXH64_update(&hash, coding.codec->name, strlen(coding.codec->name));
        for (int part = CODEBOOK_CENTROIDS; part <= CODEBOOK_NORMALIZATION; part++) {
            size_t n = codebook_part_floats(info, (enum codec_side)side, (enum codebook_part)part);
            if (n) XXH64_update(&hash, codebook->halves[side][part], codebook->sets * n * sizeof(uint16_t));
        }
    }
    return XXH64_digest(&hash);
}

/* ---- Backends' forms: they alone change in a codebook that is else immutable. The object itself was not made const. */

/* Returns the place where the form is or would be, CODEBOOK_MOST_FORMS when all places are taken; the caller holds the mutex. */
static size_t form_place(const struct terse_codebook *codebook, const struct codebook_form_ops *ops) {
    size_t i = 0;
    while (i < CODEBOOK_MOST_FORMS && codebook->forms[i].ops && codebook->forms[i].ops != ops) i++;
    return i;
}

enum terse_status codebook_form(const struct terse_codebook *immutable, const struct codebook_form_ops *ops, const void **form,
                                struct terse_error *error) {
    struct terse_codebook *codebook = (struct terse_codebook *)immutable;
    enum terse_status status = TERSE_OK;
    *form = NULL;
    pthread_mutex_lock(&codebook->mutex);
    size_t i = form_place(codebook, ops);
    if (i == CODEBOOK_MOST_FORMS) {
        status = status_fail(error, TERSE_E_UNSUPPORTED, "more than %d backends use one codebook", CODEBOOK_MOST_FORMS);
    } else if (!codebook->forms[i].ops) {
        status = ops->make(codebook, &codebook->forms[i].form, error);
        if (!status) codebook->forms[i].ops = ops;
    }
    if (!status) *form = codebook->forms[i].form;
    pthread_mutex_unlock(&codebook->mutex);
    return status;
}

const void *codebook_form_made(const struct terse_codebook *immutable, const struct codebook_form_ops *ops) {
    struct terse_codebook *codebook = (struct terse_codebook *)immutable;
    pthread_mutex_lock(&codebook->mutex);
    size_t i = form_place(codebook, ops);
    const void *form = i < CODEBOOK_MOST_FORMS && codebook->forms[i].ops ? codebook->forms[i].form : NULL;
    pthread_mutex_unlock(&codebook->mutex);
    return form;
}

uint64_t codebook_bytes(const struct terse_codebook *immutable) {
    struct terse_codebook *codebook = (struct terse_codebook *)immutable;
    uint64_t bytes = sizeof *codebook;
    for (int side = CODEC_KEYS; side <= CODEC_VALUES; side++)
        bytes += codebook_floats(&codebook->info, (enum codec_side)side) * sizeof(uint16_t);
    pthread_mutex_lock(&codebook->mutex);
    for (size_t i = 0; i < CODEBOOK_MOST_FORMS && codebook->forms[i].ops; i++)
        bytes += codebook->forms[i].ops->bytes(codebook->forms[i].form);
    pthread_mutex_unlock(&codebook->mutex);
    return bytes;
}

static enum terse_status check_coding(const struct codebook_info *info, enum codec_side side, struct coding wanted,
                                      struct terse_error *error) {
    struct coding have = codebook_coding(info, side);
    if (!learns(wanted)) return TERSE_OK; /* the side needs nothing, whatever the codebook holds */
    if (have.codec == wanted.codec && have.width == wanted.width && have.bits == wanted.bits) return TERSE_OK;
    return status_fail(error, TERSE_E_ARGUMENT,
                       "the codebook holds %s as %s of %" PRIu32 " channels and %" PRIu32 " bits, method %s takes %s of %" PRIu32
                       " and %" PRIu32 ": " CALIBRATE_AGAIN,
                       side_names[side], have.codec ? have.codec->name : "nothing", have.width, have.bits, info->method,
                       wanted.codec->name, wanted.width, wanted.bits);
}

enum terse_status codebook_check(const struct terse_codebook *codebook, const char *method, struct coding key, struct coding value,
                                 const uint64_t fingerprints[CODEBOOK_FINGERPRINTS], uint32_t layers, uint32_t kv_heads,
                                 uint32_t head_dim, struct terse_error *error) {
    const struct codebook_info *info = &codebook->info;
    uint64_t fingerprint = fingerprints[info->fingerprint_of];
    if (info->fingerprint != fingerprint)
        return status_fail(error, TERSE_E_ARGUMENT,
                           "the %s was learned from the model '%s' (fingerprint %016" PRIx64 "), this is another one (%016" PRIx64
                           "): give this model's, or make it with terse calibrate",
                           noun_of(info), info->model, info->fingerprint, fingerprint);
    if (strcmp(info->method, method) != 0)
        return status_fail(error, TERSE_E_ARGUMENT,
                           "the %s was learned for the method %s, not for %s: give that one's, or make it with "
                           "terse calibrate --kv %s",
                           noun_of(info), info->method, method, is_transform(key) || is_transform(value) ? "terse-N" : method);
    if (info->layers != layers || info->kv_heads != kv_heads || info->head_dim != head_dim)
        return status_fail(error, TERSE_E_ARGUMENT,
                           "the %s is for %" PRIu32 " layers of %" PRIu32 " KV heads of %" PRIu32
                           " channels, the model has %" PRIu32 ", %" PRIu32 " and %" PRIu32 ": " CALIBRATE_AGAIN,
                           noun_of(info), info->layers, info->kv_heads, info->head_dim, layers, kv_heads, head_dim);
    enum terse_status status = check_coding(info, CODEC_KEYS, key, error);
    return status ? status : check_coding(info, CODEC_VALUES, value, error);
}

void terse_codebook_describe(const struct terse_codebook *codebook, struct terse_codebook_info *info) {
    const struct codebook_info *from = &codebook->info;
    *info = (struct terse_codebook_info){.method = from->method,
                                         .model = from->model,
                                         .corpus = from->corpus,
                                         .weighting = from->weighting,
                                         .fingerprint = from->fingerprint,
                                         .of_norms = from->fingerprint_of == CODEBOOK_OF_NORMS,
                                         .profile = codebook_is_profile(from),
                                         .tokens = from->tokens,
                                         .seed = from->seed,
                                         .shared = from->shared,
                                         .effective_samples = from->effective_samples,
                                         .bytes = codebook_bytes(codebook),
                                         .costs = from->costs,
                                         .n_costs = from->n_costs,
                                         .costs_corpus = from->costs_corpus,
                                         .costs_positions = from->costs_positions};
}

enum terse_status terse_codebook_set_rate_costs(struct terse_codebook *codebook, const struct terse_rate_cost *costs, size_t n,
                                                const char *corpus, uint64_t positions, struct terse_error *error) {
    struct codebook_info *info = &codebook->info;
    if (!codebook_is_profile(info))
        return status_fail(error, TERSE_E_ARGUMENT, "costs of rates are for a profile of terse-N, and this codebook is for %s",
                           info->method);
    if (!costs_are_possible(costs, n))
        return status_fail(error, TERSE_E_ARGUMENT,
                           "%zu costs of rates: give at most %d, in falling order of bits, finite and not negative", n,
                           TERSE_RATE_COSTS);
    if (n) memcpy(info->costs, costs, n * sizeof *costs);
    info->n_costs = n;
    info->costs_positions = positions;
    snprintf(info->costs_corpus, sizeof info->costs_corpus, "%s", corpus);
    make_printable(info->costs_corpus, sizeof info->costs_corpus);
    return TERSE_OK;
}
