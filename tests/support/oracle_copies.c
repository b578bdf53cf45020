/* Cuts, forks and saved states of oracles: a copy has rows of its own and what the oracle knows of its codebook in common. */
#include "support/oracle_copies.h"

#include "backend/backend.h"
#include "support/temporary.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

void oracle_cut(struct oracle *o, size_t n) {
    struct terse_error error;
    if (parts_truncate(o->cache, n, &error)) fail_msg("%s", error.message);
    assert_int_equal(cache_length(o->cache), n);
    const size_t tokens = o->setup.layers * o->capacity;
    for (size_t i = 0; i < tokens * o->setup.kv_heads; i++)
        if (i / o->setup.kv_heads % o->capacity >= n) o->dropped[i] = false;
    if (!n) o->n_dropped = 0;
    o->length = n;
    if (o->window > n) o->window = n;
}

static void *copy(const void *from, size_t bytes) { return memcpy(malloc(bytes + 1), from, bytes); }

static struct oracle *copy_oracle(const struct oracle *from, const struct kv_ops *kv, struct cache *cache, uint64_t seed) {
    struct oracle *o = copy(from, sizeof *from);
    const size_t rows = from->setup.layers * from->capacity * from->setup.kv_heads;
    assert_int_equal(cache_length(cache), from->length);
    o->kv = kv;
    o->cache = cache;
    o->random = seed;
    o->k = copy(from->k, rows * from->setup.head_dim * sizeof *from->k);
    o->v = copy(from->v, rows * from->setup.head_dim * sizeof *from->v);
    o->dropped = copy(from->dropped, rows * sizeof *from->dropped);
    return o;
}

struct oracle *oracle_fork(const struct oracle *from, uint64_t seed) {
    struct terse_error error;
    struct cache *cache;
    if (parts_fork(from->cache, &cache, &error)) fail_msg("%s", error.message);
    return copy_oracle(from, from->kv, cache, seed);
}

void oracle_free_copy(struct oracle *o) {
    parts_destroy(o->cache);
    free(o->k);
    free(o->v);
    free(o->dropped);
    free(o);
}

void cache_save_to(const struct cache *cache, const char *path) {
    struct state_writer *writer;
    struct terse_error error;
    if (state_writer_new(path, &writer, &error)) fail_msg("%s", error.message);
    for (int section = STATE_METHOD; section < STATE_CACHE; section++) state_writer_begin(writer, (enum state_section)section);
    parts_save(cache, writer);
    if (state_writer_finish(writer, &(struct state_identity){0}, &error)) fail_msg("%s", error.message);
}

void oracle_save(const struct oracle *o, const char *path) { cache_save_to(o->cache, path); }

struct oracle *oracle_load(const struct oracle *from, const struct kv_ops *kv, const char *path, uint64_t seed) {
    struct state_file *file;
    struct terse_error error;
    struct cache *cache;
    if (parts_create(kv->storage, &from->shape, &from->method, 2, &cache, &error)) fail_msg("%s", error.message);
    if (state_file_open(path, &file, &error)) fail_msg("%s", error.message);
    if (parts_load(cache, file, &error)) fail_msg("%s", error.message);
    state_file_close(file);
    return copy_oracle(from, kv, cache, seed);
}

char *state_contents(const char *path, size_t *n) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *n = (size_t)ftell(file);
    rewind(file);
    char *data = malloc(*n);
    assert_int_equal(fread(data, 1, *n, file), *n);
    fclose(file);
    return data;
}

int make_state_path(void **state) {
    char *path = malloc(TEMPORARY_PATH);
    if (!path) return -1;
    temporary_template("oracle", path);
    const int file = mkstemp(path);
    if (file >= 0) close(file);
    *state = path;
    return file >= 0 ? 0 : -1;
}

int remove_state_path(void **state) {
    const int status = unlink(*state);
    free(*state);
    return status;
}
