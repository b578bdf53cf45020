/* Caches of every policy and of the codecs that fit themselves or have an index. */
#include "support/state_sample.h"

#include "format/codebook_layouts.h"
#include "kv/cache.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HD = 32, QUERY_HEADS = 2, FITTED = SINKS + FIT_TOKENS };

static const char *const names[STATE_SAMPLES] = {"f16",    "q8_0",       "q4_0",        "kivi-2",   "streaming-64",
                                                 "mat-32", "snapkv-128", "selfindex-2", "quest-32", "terse-2"};

static void require(bool condition) {
    if (!condition) abort();
}

static struct method method_of(size_t i) {
    static struct terse_codebook *profile;
    static const struct codebook_layouts *layouts;
    struct terse_cache_options options = terse_cache_options_defaults();
    struct method method;
    options.method = names[i];
    options.tail_tokens = 0;
    if (strcmp(names[i], "q4_0") == 0) options.anchor_count = 3;
    require(method_resolve(&options, HD, &method, NULL) == TERSE_OK);
    if (strcmp(names[i], "terse-2") != 0) return method;
    if (!profile) {
        struct codebook_info info = {.key = method.key, .value = method.value, .layers = 1, .kv_heads = 1, .head_dim = HD};
        const double rate[2] = {method.key.rate, method.value.rate};
        strcpy(info.method, METHOD_PROFILE);
        require(codebook_random(&info, 0, false, &profile, NULL) == TERSE_OK);
        require(codebook_layouts(profile, rate, &layouts, NULL) == TERSE_OK);
    }
    method.learned = profile;
    method.layouts = layouts;
    method.of_weights = true; /* so that it is fitted to its sequence */
    return method;
}

struct cache *state_sample_cache(size_t i) {
    static const float frequency[] = {1, 0.1f};
    static const struct rope rope = {ROPE_ADJACENT, HD, 4, frequency, 1}; /* few pairs: tables are made for each cache */
    static const struct cache_shape shape = {1, QUERY_HEADS, 1, HD, 0.2f, &rope, .slopes = NULL};
    struct method method = method_of(i);
    struct cache *cache;
    require(cache_create(&shape, &method, 1, &cache, NULL) == TERSE_OK);
    cache_set_seal_ahead(cache, false);
    return cache;
}

static enum terse_status step(struct cache *cache, enum cache_step_kind kind, size_t n) {
    static float k[FITTED * HD], v[FITTED * HD], q[FITTED * QUERY_HEADS * HD];
    for (size_t i = 0; i < n * HD; i++) k[i] = v[i] = sinf((float)(7 * i));
    for (size_t i = 0; i < n * QUERY_HEADS * HD; i++) q[i] = cosf((float)(5 * i));
    enum terse_status status = cache_begin(cache, kind, n, NULL);
    if (status) return status;
    require(cache_append(cache, 0, k, v, NULL) == TERSE_OK && cache_attend(cache, q, 0, n, q, NULL) == TERSE_OK);
    require(cache_end_layer(cache, NULL) == TERSE_OK && cache_commit(cache, NULL) == TERSE_OK);
    return TERSE_OK;
}

enum terse_status state_sample_step(struct cache *cache, enum cache_step_kind kind, size_t n) {
    enum terse_status status = TERSE_OK;
    if (plan_step(&cache_base(cache)->method, &cache_base(cache)->extent, kind, n).waits)
        status = step(cache, CACHE_STEP_PREFILL, FITTED - (size_t)cache_length(cache));
    return status ? status : step(cache, kind, n);
}

enum terse_status state_sample_save(const struct cache *cache, size_t i, const char *path, struct terse_error *error) {
    static const uint32_t session[16];
    struct state_writer *writer;
    enum terse_status status = state_writer_new(path, &writer, error);
    if (status) return status;
    state_writer_begin(writer, STATE_METHOD);
    state_writer_put(writer, names[i], strlen(names[i]));
    state_writer_begin(writer, STATE_SESSION);
    state_writer_put(writer, session, sizeof session);
    state_writer_begin(writer, STATE_TOKENS);
    state_writer_begin(writer, STATE_LOGITS);
    cache_save(cache, writer);
    return state_writer_finish(writer, &(struct state_identity){.codebook = i}, error);
}
