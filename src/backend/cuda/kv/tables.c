/* Keeps the tables that caches share in one list for the process, since engines may run on threads of their own. */
#include "backend/cuda/kv/tables.h"

#include "backend/cuda/device.h"
#include "backend/cuda/kv/attend_prefill.h"
#include "backend/cuda/kv/codec.h"
#include "backend/cuda/kv/pre_rope_fragments.h"
#include "backend/cuda/kv/transforms.h"
#include "base/memory.h"
#include "base/thread.h"
#include "format/codebook_layouts.h"
#include "kv/pre_rope.h"

#include <stdlib.h>
#include <string.h>

struct entry {
    struct kv_tables tables; /* first, since callers point to it */
    struct entry *next;
    size_t holders;
    struct cache_shape shape; /* of the caches */
    char identity[METHOD_IDENTITY];
    double least_rate;
    const struct terse_codebook *learned; /* their codebook */
    float *slopes, *sinks, *slots, *runs;
    uint32_t *fragments;
    size_t n_runs;
};

static struct entry *entries;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static size_t pairs(const struct entry *e) { return e->tables.rotary.n_rot / 2; }

static enum terse_status send(void *to, const void *from, size_t bytes, struct terse_error *error) {
    return device_check(device_send(to, from, bytes), "sending a KV cache's tables", error);
}

struct head_view kv_tables_heads(const struct cache_shape *shape) {
    return (struct head_view){.layers = shape->layers,
                              .query_heads = shape->query_heads,
                              .kv_heads = shape->kv_heads,
                              .head_dim = shape->head_dim,
                              .scale = shape->scale,
                              .cap = shape->cap,
                              .window = shape->window,
                              .n_rot = shape->rope ? shape->rope->n_rot : 0,
                              .magnitude = shape->rope ? shape->rope->magnitude : 1,
                              .pairing = shape->rope ? shape->rope->pairing : ROPE_ADJACENT};
}

/* ---- Angles */

/* Makes the angles of positions 0, step, ..., [n][pairs][cosine, sine]. */
static enum terse_status angles_new(const struct rope *rope, size_t n, int64_t step, float **angles, struct terse_error *error) {
    size_t pairs = rope->n_rot / 2, bytes = n * 2 * pairs * sizeof(float);
    float *host = malloc(bytes + 2 * pairs * sizeof(float)), *cosine = host ? host + n * 2 * pairs : NULL;
    if (!host) return status_no_memory(error, bytes, "rotation tables");
    for (size_t t = 0; t < n; t++) {
        rope_angles(rope, (int64_t)t * step, cosine, cosine + pairs);
        for (size_t i = 0; i < 2 * pairs; i++) host[(t * pairs + i % pairs) * 2 + i / pairs] = cosine[i];
    }
    *angles = device_alloc(NULL, bytes, "rotation tables", error);
    enum terse_status status = *angles ? send(*angles, host, bytes, error) : TERSE_E_MEMORY;
    free(host);
    return status;
}

static size_t fragment_bytes(const struct entry *e) { return pre_rope_fragment_words(e->tables.pre_rope.pairs) * sizeof(uint32_t); }

static void free_angles(float *angles, size_t n, size_t pairs) { device_free(NULL, angles, n * 2 * pairs * sizeof(float)); }

enum terse_status kv_tables_reserve(const struct kv_tables *tables, uint64_t tokens, struct terse_error *error) {
    struct entry *e = (struct entry *)(void *)tables;
    size_t wanted = (size_t)(tokens / ROPE_RUN_TOKENS) + 1, n = 2 * e->n_runs;
    float *runs = NULL;
    if (!pairs(e) || wanted <= e->n_runs) return TERSE_OK;
    if (n < wanted) n = wanted;
    enum terse_status status = angles_new(e->shape.rope, n, ROPE_RUN_TOKENS, &runs, error);
    if (status) {
        free_angles(runs, n, pairs(e));
        return status;
    }
    cudaDeviceSynchronize(); /* the old ones are no longer read */
    free_angles(e->runs, e->n_runs, pairs(e));
    e->tables.rotary.runs = e->runs = runs;
    e->n_runs = n;
    return TERSE_OK;
}

static enum terse_status set_pre_rope(struct entry *e, struct terse_error *error) {
    struct pre_rope_view *view = &e->tables.pre_rope;
    *view = (struct pre_rope_view){.pairs = (uint32_t)pre_rope_pairs(e->shape.rope), .offsets = e->slots};
    const size_t bytes = fragment_bytes(e);
    if (!bytes) return TERSE_OK;
    uint32_t *host = malloc(bytes);
    if (!host) return status_no_memory(error, bytes, "rotation tables");
    pre_rope_fragments(e->shape.rope, view->pairs, host);
    view->fragments = e->fragments = device_alloc(NULL, bytes, "rotation tables", error);
    const enum terse_status status = e->fragments ? send(e->fragments, host, bytes, error) : TERSE_E_MEMORY;
    free(host);
    return status;
}

static enum terse_status set_rotary(struct entry *e, struct terse_error *error) {
    const struct rope *rope = e->shape.rope;
    if (!rope || !rope->n_rot) return TERSE_OK;
    e->tables.rotary = (struct rotary_view){.n_rot = rope->n_rot, .pairing = rope->pairing, .magnitude = rope->magnitude};
    enum terse_status status = angles_new(rope, PRE_ROPE_OFFSETS, 1, &e->slots, error);
    e->tables.rotary.slots = e->slots;
    e->n_runs = 64;
    if (!status) status = angles_new(rope, e->n_runs, ROPE_RUN_TOKENS, &e->runs, error);
    e->tables.rotary.runs = e->runs;
    if (!status) status = set_pre_rope(e, error);
    return status;
}

/* ---- Places */

void place_views_set(const struct page_address *places, size_t n, struct place_view *views) {
    for (size_t i = 0; i < n; i++) {
        const struct page_address *place = &places[i];
        views[i] = (struct place_view){place->offset, {(uint32_t)place->bytes[CODEC_KEYS], (uint32_t)place->bytes[CODEC_VALUES]}};
    }
}

static enum terse_status set_places(struct entry *e, const struct method *method, struct terse_error *error) {
    double bits[METHOD_RATES];
    const size_t index = index_page_bytes_of(method, e->shape.head_dim);
    size_t n = cache_heads_of(&e->shape), bytes = n * sizeof *e->tables.place_views;
    struct place_view *views = malloc(bytes);
    e->tables.n_rates = method_rates(method, bits);
    e->tables.places = malloc(e->tables.n_rates * n * sizeof *e->tables.places);
    if (!views || !e->tables.places) {
        free(views);
        return status_no_memory(error, bytes, "the KV cache's page sizes");
    }
    e->tables.page_set_bytes = (size_t)page_set_bytes_of(&e->shape, method, index);
    page_addresses_set(&e->shape, method, index, e->tables.places);
    place_views_set(e->tables.places, n, views);
    e->tables.place_views = device_alloc(NULL, bytes, "the KV cache's page sizes", error);
    enum terse_status status = e->tables.place_views ? send(e->tables.place_views, views, bytes, error) : TERSE_E_MEMORY;
    free(views);
    return status;
}

static enum terse_status set_slopes(struct entry *e, struct terse_error *error) {
    size_t bytes = e->shape.query_heads * sizeof *e->slopes;
    if (!e->shape.slopes) return TERSE_OK;
    if (!(e->slopes = device_alloc(NULL, bytes, "ALiBi's slopes", error))) return TERSE_E_MEMORY;
    e->tables.heads.slopes = e->slopes;
    return send(e->slopes, e->shape.slopes, bytes, error);
}

static size_t sink_bytes(const struct entry *e) {
    return e->shape.sinks ? (size_t)e->shape.layers * e->shape.query_heads * sizeof *e->sinks : 0;
}

/* Puts the learned sinks of the caches' own layers one after another. */
static enum terse_status set_sinks(struct entry *e, struct terse_error *error) {
    const size_t bytes = sink_bytes(e), heads = e->shape.query_heads;
    if (!bytes) return TERSE_OK;
    float *host = malloc(bytes);
    if (!host) return status_no_memory(error, bytes, "attention sinks");
    for (uint32_t layer = 0; layer < e->shape.layers; layer++)
        memcpy(host + layer * heads, e->shape.sinks + cache_shape_number(&e->shape, layer) * heads, heads * sizeof *host);
    e->tables.heads.sinks = e->sinks = device_alloc(NULL, bytes, "attention sinks", error);
    enum terse_status status = e->sinks ? send(e->sinks, host, bytes, error) : TERSE_E_MEMORY;
    free(host);
    return status;
}

static enum terse_status set_learned(struct entry *e, const struct method *method, enum codec_side side,
                                     struct terse_error *error) {
    const struct coding *coding = side == CODEC_VALUES ? &method->value : &method->key;
    const struct cuda_codec *row = cuda_codec_of(coding->codec->id);
    return row->learned_new ? row->learned_new(&e->shape, method, side, &e->tables.learned[side], error) : TERSE_OK;
}

/* ---- Lower rates */

_Static_assert(RATE_VIEWS == METHOD_RATES, "views of all rates");

size_t place_views_bytes(const struct cache_shape *shape) {
    return memory_round_up(cache_heads_of(shape) * sizeof(struct place_view), 256);
}

size_t kv_rate_bytes(const struct cache_shape *shape) { return place_views_bytes(shape) + 2 * transforms_rate_bytes(shape); }

struct rate_view kv_rate_set(const struct cache_shape *shape, const struct method *at_rate,
                             const struct transform_view *const own[2], struct page_address *places, uint8_t *host,
                             uint8_t *device) {
    struct rate_view view = {.places = (const struct place_view *)(const void *)device};
    size_t at = place_views_bytes(shape);
    page_addresses_set(shape, at_rate, 0, places);
    place_views_set(places, cache_heads_of(shape), (struct place_view *)(void *)host);
    for (int side = CODEC_KEYS; side <= CODEC_VALUES; side++, at += transforms_rate_bytes(shape)) {
        transforms_rate_set(shape, at_rate, (enum codec_side)side, own[side], host + at, device + at);
        view.transforms[side] = (const struct transform_view *)(const void *)(device + at);
    }
    return view;
}

/* Makes the tables of a rate by the layouts of the profile. */
static enum terse_status set_rate(struct entry *e, const struct method *method, uint32_t rate, double bits,
                                  const struct transform_view *const own[2], uint8_t *host, struct terse_error *error) {
    const double both[2] = {bits, bits};
    const struct codebook_layouts *layouts;
    const size_t bytes = kv_rate_bytes(&e->shape);
    enum terse_status status = codebook_layouts(method->learned, both, &layouts, error);
    if (status) return status;
    const struct method at_rate = method_at_rate(method, bits, layouts);
    uint8_t *device = device_alloc(NULL, bytes, "a profile", error);
    if (!device) return TERSE_E_MEMORY;
    e->tables.rates[rate] =
        kv_rate_set(&e->shape, &at_rate, own, e->tables.places + rate * cache_heads_of(&e->shape), host, device);
    return send(device, host, bytes, error);
}

static enum terse_status set_rates(struct entry *e, const struct method *method, struct terse_error *error) {
    double bits[METHOD_RATES];
    const size_t n = cache_heads_of(&e->shape), rates = method_rates(method, bits);
    if (rates == 1) return TERSE_OK;
    struct transform_view *own = memory_array(2 * n, sizeof *own);
    uint8_t *host = memory_zeros(kv_rate_bytes(&e->shape), 1);
    const struct transform_view *const sides[2] = {own, own + n};
    enum terse_status status = own && host ? TERSE_OK : status_no_memory(error, kv_rate_bytes(&e->shape), "a profile");
    for (int side = 0; side < 2 && !status; side++)
        status = device_check(device_fetch(own + (size_t)side * n, e->tables.learned[side], n * sizeof *own), "reading a profile",
                              error);
    for (uint32_t rate = 1; rate < rates && !status; rate++) status = set_rate(e, method, rate, bits[rate], sides, host, error);
    memory_free(own);
    memory_free(host);
    return status;
}

static size_t part_bytes(const struct entry *e) { return attend_prefill_part_floats(&e->tables.heads) * sizeof(float); }

/* ---- Life */

static void entry_free(struct entry *e) {
    cudaDeviceSynchronize();
    for (int side = 0; side < 2; side++) device_free(NULL, e->tables.learned[side], 0);
    for (size_t rate = 1; rate < e->tables.n_rates; rate++)
        device_free(NULL, (void *)e->tables.rates[rate].places, kv_rate_bytes(&e->shape));
    device_free(NULL, e->tables.place_views, cache_heads_of(&e->shape) * sizeof *e->tables.place_views);
    device_free(NULL, e->tables.prefill_parts, part_bytes(e));
    device_free(NULL, e->slopes, e->shape.query_heads * sizeof *e->slopes);
    device_free(NULL, e->sinks, sink_bytes(e));
    free_angles(e->slots, PRE_ROPE_OFFSETS, pairs(e));
    device_free(NULL, e->fragments, fragment_bytes(e));
    free_angles(e->runs, e->n_runs, pairs(e));
    free(e->tables.places);
    free(e);
}

static enum terse_status entry_new(const struct cache_shape *shape, const struct method *method, struct entry **entry,
                                   struct terse_error *error) {
    struct entry *e = *entry = calloc(1, sizeof *e);
    if (!e) return status_no_memory(error, sizeof *e, "a KV cache's tables");
    e->shape = *shape;
    e->tables.heads = kv_tables_heads(shape);
    e->learned = method->learned;
    e->least_rate = method->least_rate;
    method_identity(method, e->identity);
    enum terse_status status = set_places(e, method, error);
    if (!status) status = set_slopes(e, error);
    if (!status) status = set_sinks(e, error);
    if (!status) status = set_rotary(e, error);
    if (!status && !(e->tables.prefill_parts = device_alloc(NULL, part_bytes(e), "a prompt's attention", error)))
        status = TERSE_E_MEMORY;
    for (int side = 0; side < 2 && !status; side++) status = set_learned(e, method, (enum codec_side)side, error);
    if (!status) status = set_rates(e, method, error);
    if (!status) return TERSE_OK;
    entry_free(e);
    *entry = NULL;
    return status;
}

/* Ranks that are threads of one process, as tests have them, have tables of their own, since these have scratch of steps. */
static bool serves(const struct entry *e, const struct cache_shape *shape, const struct method *method, const char *identity) {
    const struct cache_shape *own = &e->shape;
    return own->layers == shape->layers && own->query_heads == shape->query_heads && own->kv_heads == shape->kv_heads &&
           own->head_dim == shape->head_dim && own->rope == shape->rope && own->slopes == shape->slopes &&
           own->sinks == shape->sinks && own->order == shape->order && own->window == shape->window && own->ranks == shape->ranks &&
           !(own->cap < shape->cap) && !(own->cap > shape->cap) && e->learned == method->learned &&
           !(e->least_rate < method->least_rate) && !(e->least_rate > method->least_rate) && strcmp(e->identity, identity) == 0;
}

enum terse_status kv_tables_get(const struct cache_shape *shape, const struct method *method, const struct kv_tables **tables,
                                struct terse_error *error) {
    char identity[METHOD_IDENTITY];
    enum terse_status status = TERSE_OK;
    *tables = NULL;
    method_identity(method, identity);
    pthread_mutex_lock(&mutex);
    struct entry *e = entries;
    while (e && !serves(e, shape, method, identity)) e = e->next;
    if (!e && !(status = entry_new(shape, method, &e, error))) {
        static uint64_t made;
        e->tables.number = ++made;
        e->next = entries;
        entries = e;
    }
    if (e) {
        e->holders++;
        *tables = &e->tables;
    }
    pthread_mutex_unlock(&mutex);
    return status;
}

void kv_tables_release(const struct kv_tables *tables) {
    struct entry *e = (struct entry *)(void *)tables;
    if (!e) return;
    pthread_mutex_lock(&mutex);
    if (!--e->holders) {
        struct entry **link = &entries;
        while (*link != e) link = &(*link)->next;
        *link = e->next;
        entry_free(e);
    }
    pthread_mutex_unlock(&mutex);
}
