/* Implements rank 0's side of an engine over several ranks. */
#include "engine/lead.h"

#include "base/memory.h"
#include "engine/orders.h"
#include "format/codebook.h"
#include "kv/parts.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CODEBOOKS_MOST 64 /* that are remembered as sent; others are sent each time */

struct lead {
    struct collective *ranks;
    pthread_mutex_t mutex;         /* held while an order is sent and done, which nothing may come between */
    uint64_t numbers;              /* of caches, given so far */
    uint64_t sent[CODEBOOKS_MOST]; /* [n_sent] hashes */
    size_t n_sent;
    struct pass *whole; /* under way: its order is not done yet */
    bool alone;         /* a step has failed here and perhaps nowhere else: the others may wait for an exchange in it for ever */
};

/* ---- Orders */

static enum terse_status send(struct lead *lead, struct order order, const void *data, struct terse_error *error) {
    if (lead->alone)
        return status_fail(error, TERSE_E_IO, "a step has failed on rank 0 alone, and the other ranks wait in it: start all again");
    return order_send(lead->ranks, &order, data, error);
}

/* Sends an order of which the others' doing cannot fail alone, or ends them. */
static enum terse_status tell(struct lead *lead, struct order order, struct terse_error *error) {
    pthread_mutex_lock(&lead->mutex);
    enum terse_status status = send(lead, order, NULL, error);
    pthread_mutex_unlock(&lead->mutex);
    return status;
}

/* Sends an order for what was done here already, and agrees on what became of it. */
static enum terse_status tell_and_agree(struct lead *lead, struct order order, const void *data, struct terse_error *error) {
    pthread_mutex_lock(&lead->mutex);
    enum terse_status status = send(lead, order, data, error);
    if (!status) status = collective_agree(lead->ranks, TERSE_OK, error);
    pthread_mutex_unlock(&lead->mutex);
    return status;
}

static uint64_t number_of(const struct cache *cache) { return cache_base_of(cache)->number; }

static void give_number(struct lead *lead, struct cache *cache) { cache_base(cache)->number = ++lead->numbers; }

enum terse_status lead_new(struct collective *ranks, struct lead **lead, struct terse_error *error) {
    *lead = calloc(1, sizeof **lead);
    if (!*lead) return status_no_memory(error, sizeof **lead, "the other ranks' caches");
    (*lead)->ranks = ranks;
    pthread_mutex_init(&(*lead)->mutex, NULL);
    return TERSE_OK;
}

void lead_free(struct lead *lead) {
    if (!lead) return;
    (void)tell(lead, (struct order){.kind = ORDER_END}, NULL);
    pthread_mutex_destroy(&lead->mutex);
    free(lead);
}

/* ---- Caches */

static bool was_sent(const struct lead *lead, uint64_t hash) {
    for (size_t i = 0; i < lead->n_sent; i++)
        if (lead->sent[i] == hash) return true;
    return false;
}

static void note_sent(struct lead *lead, uint64_t hash) {
    if (lead->n_sent < CODEBOOKS_MOST) lead->sent[lead->n_sent++] = hash;
}

static void write_name(char text[ORDER_NAME], const char *name) { snprintf(text, ORDER_NAME, "%s", name ? name : ""); }

enum terse_status lead_create(struct lead *lead, const struct terse_session_options *options, const struct terse_codebook *codebook,
                              uint64_t hash, struct cache *cache, struct terse_error *error) {
    struct order_create create = {.options = options->cache, .codebook = hash, .context = options->context};
    if (!lead) return TERSE_OK;
    give_number(lead, cache);
    write_name(create.method, options->cache.method);
    write_name(create.key_type, options->cache.key_type);
    write_name(create.value_type, options->cache.value_type);
    write_name(create.evict, options->cache.evict);
    create.brings = codebook && !was_sent(lead, hash);
    size_t size = 0;
    void *file = create.brings ? codebook_build(codebook, &size) : NULL;
    uint8_t *data = memory_array(sizeof create + size, 1);
    enum terse_status status = TERSE_OK;
    if (!data || (create.brings && !file)) status = status_no_memory(error, sizeof create + size, "a codebook for the other ranks");
    if (!status && size > INT32_MAX - sizeof create) /* which MPI would refuse when the others already wait for it */
        status = status_fail(error, TERSE_E_UNSUPPORTED,
                             "the codebook has %zu bytes, ranks are sent less than 2 GiB: use a method with a smaller one", size);
    if (!status) {
        memcpy(data, &create, sizeof create);
        if (size) memcpy(data + sizeof create, file, size);
        const struct order order = {.kind = ORDER_CREATE, .bytes = (uint32_t)(sizeof create + size), .cache = number_of(cache)};
        status = tell_and_agree(lead, order, data, error);
        if (!status && create.brings) note_sent(lead, hash); /* now all ranks have it */
    }
    memory_free(file);
    memory_free(data);
    return status;
}

enum terse_status lead_renew(struct lead *lead, const struct cache *before, struct cache *cache, struct terse_error *error) {
    if (!lead) return TERSE_OK;
    cache_base(cache)->number = number_of(before);
    return tell(lead, (struct order){.kind = ORDER_RENEW, .cache = number_of(cache)}, error);
}

enum terse_status lead_fork(struct lead *lead, const struct cache *from, struct cache **copy, struct terse_error *error) {
    enum terse_status status = parts_fork(from, copy, error);
    if (status || !lead) return status;
    give_number(lead, *copy);
    const struct order order = {.kind = ORDER_FORK, .cache = number_of(from), .other = number_of(*copy)};
    if (!(status = tell_and_agree(lead, order, NULL, error))) return TERSE_OK;
    lead_destroy(lead, *copy);
    *copy = NULL;
    return status;
}

enum terse_status lead_truncate(struct lead *lead, struct cache *cache, uint64_t n, struct terse_error *error) {
    enum terse_status status = parts_truncate(cache, n, error);
    return status || !lead ? status : tell(lead, (struct order){.kind = ORDER_TRUNCATE, .cache = number_of(cache), .n = n}, error);
}

enum terse_status lead_fill(struct lead *lead, const struct kv_ops *kv, struct cache *cache, size_t n, uint64_t seed,
                            struct terse_error *error) {
    if (!lead) return kv->fill_random(cache, n, seed, error);
    const uint64_t before = cache_length(cache);
    pthread_mutex_lock(&lead->mutex);
    const struct order order = {.kind = ORDER_FILL, .cache = number_of(cache), .n = n, .seed = seed};
    enum terse_status status = send(lead, order, NULL, error);
    if (!status) status = collective_agree(lead->ranks, kv->fill_random(cache, n, seed, error), error);
    pthread_mutex_unlock(&lead->mutex);
    if (status) (void)lead_truncate(lead, cache, before, NULL);
    return status;
}

void lead_save(struct lead *lead, const struct cache *cache, struct state_writer *writer) {
    if (lead) pthread_mutex_lock(&lead->mutex);
    const bool told = !lead || !send(lead, (struct order){.kind = ORDER_SAVE, .cache = number_of(cache)}, NULL, NULL);
    if (told)
        parts_save(cache, writer);
    else
        state_writer_fail(writer, EIO);
    if (lead) pthread_mutex_unlock(&lead->mutex);
}

enum terse_status lead_load(struct lead *lead, struct cache *cache, struct state_file *file, struct terse_error *error) {
    const char *name = state_file_name(file);
    enum terse_status status = parts_load(cache, file, error);
    if (status || !lead) return status;
    const struct order order = {
        .kind = ORDER_LOAD, .bytes = (uint32_t)strlen(name) + 1, .cache = number_of(cache), .seed = state_file_checksum(file)};
    return tell_and_agree(lead, order, name, error);
}

void lead_reset(struct lead *lead, struct cache *cache) {
    parts_reset(cache);
    if (lead) (void)tell(lead, (struct order){.kind = ORDER_RESET, .cache = number_of(cache)}, NULL);
}

void lead_destroy(struct lead *lead, struct cache *cache) {
    if (lead && cache && number_of(cache)) (void)tell(lead, (struct order){.kind = ORDER_DESTROY, .cache = number_of(cache)}, NULL);
    parts_destroy(cache);
}

/* ---- Passes */

/* Writes what the others need of a step, and returns it with *bytes; NULL: memory is refused. */
static void *pack(const struct step *step, size_t *bytes) {
    size_t tokens = 0;
    for (size_t i = 0; i < step->n; i++) tokens += step->parts[i].n;
    *bytes = step->n * sizeof(struct order_part) + tokens * sizeof(int32_t);
    uint8_t *data = memory_array(*bytes, 1);
    if (!data) return NULL;
    uint8_t *at = data + step->n * sizeof(struct order_part);
    for (size_t i = 0; i < step->n; i++) {
        const struct step_part *part = &step->parts[i];
        const struct order_part own = {.cache = number_of(part->cache),
                                       .n = part->n,
                                       .first_row = part->first_row,
                                       .kind = (uint32_t)part->kind,
                                       .last_logits = part->last_logits != NULL,
                                       .rows = part->rows != NULL};
        memcpy(data + i * sizeof own, &own, sizeof own);
        memcpy(at, part->tokens, part->n * sizeof *part->tokens);
        at += part->n * sizeof *part->tokens;
    }
    return data;
}

static enum terse_status tell_step(struct lead *lead, const struct step *step, enum order_kind kind, struct terse_error *error) {
    size_t bytes;
    void *data = pack(step, &bytes);
    if (!data) return status_no_memory(error, bytes, "a step of the other ranks");
    const struct order order = {.kind = kind, .bytes = (uint32_t)bytes, .cache = number_of(step->parts[0].cache), .n = step->n};
    enum terse_status status = send(lead, order, data, error);
    memory_free(data);
    return status;
}

/* Begins a step that the others were told to begin, in which all may fit transforms together (kv/fit_records.h), and agrees on it. */
static enum terse_status begin_together(const struct led *led, const struct step *step, struct pass **pass, size_t *failed,
                                        struct terse_error *error) {
    struct collective *ranks = led->lead->ranks;
    const uint64_t refusals = ranks->refusals;
    enum terse_status status = led->ops->begin(led->executor, step, pass, failed, error);
    if (!status) *failed = step->n;
    status = collective_conclude(ranks, refusals, status, error);
    if (status && *pass) {
        led->ops->end(*pass);
        *pass = NULL;
    }
    return status;
}

enum terse_status lead_begin(const struct led *led, const struct step *step, bool whole, struct pass **pass, size_t *failed,
                             struct terse_error *error) {
    struct lead *lead = led->lead;
    if (!lead) return led->ops->begin(led->executor, step, pass, failed, error);
    *pass = NULL;
    *failed = step->n;
    pthread_mutex_lock(&lead->mutex);
    enum terse_status status = tell_step(lead, step, whole ? ORDER_STEP : ORDER_BEGIN, error);
    if (!status) status = begin_together(led, step, pass, failed, error);
    if (!status && whole)
        lead->whole = *pass;
    else
        pthread_mutex_unlock(&lead->mutex);
    return status;
}

/* Computes a piece. What fails for the model's numbers fails alike on all ranks (follow.c). */
static enum terse_status advance(const struct led *led, struct pass *pass, struct terse_error *error) {
    const enum terse_status status = led->ops->advance(pass, error);
    if (led->lead && status && status != TERSE_E_FORMAT) led->lead->alone = true;
    return status;
}

enum terse_status lead_advance(const struct led *led, const struct step *step, struct pass *pass, struct terse_error *error) {
    struct lead *lead = led->lead;
    if (!lead || lead->whole == pass) return advance(led, pass, error);
    pthread_mutex_lock(&lead->mutex);
    enum terse_status status =
        send(lead, (struct order){.kind = ORDER_ADVANCE, .cache = number_of(step->parts[0].cache)}, NULL, error);
    if (!status) status = advance(led, pass, error);
    pthread_mutex_unlock(&lead->mutex);
    return status;
}

void lead_end(const struct led *led, const struct step *step, struct pass *pass) {
    struct lead *lead = led->lead;
    const bool whole = lead && pass && lead->whole == pass;
    if (lead && pass && !whole)
        (void)tell(lead, (struct order){.kind = ORDER_STOP, .cache = number_of(step->parts[0].cache)}, NULL);
    led->ops->end(pass);
    if (!whole) return;
    lead->whole = NULL;
    pthread_mutex_unlock(&lead->mutex);
}
