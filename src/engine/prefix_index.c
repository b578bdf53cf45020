/* Holds the prefixes of an engine. They are few, each as large as a cache, so they are looked through one after another: comparing
 * 32,768 tokens takes microseconds, reading them takes seconds. */
#include "engine/prefix_index.h"

#include "base/memory.h"

#include <string.h>

void prefix_free(struct prefix *prefix) {
    parts_destroy(prefix->cache);
    memory_free(prefix->tokens);
}

/* ---- Keeping */

enum terse_status prefix_index_reserve(struct prefix_index *index, size_t most, struct terse_error *error) {
    if (index->prefixes) return TERSE_OK;
    if (!(index->prefixes = memory_array(most, sizeof *index->prefixes)))
        return status_no_memory(error, most * sizeof *index->prefixes, "prefixes");
    index->capacity = most;
    return TERSE_OK;
}

static bool same_kind(const struct prefix_kind *a, const struct prefix_kind *b) {
    const bool same_rates = !(a->least_rate < b->least_rate) && !(a->least_rate > b->least_rate);
    return same_rates && a->codebook == b->codebook && a->prefill == b->prefill && strcmp(a->method, b->method) == 0;
}

static bool same_sequence(const struct prefix *a, const struct prefix *b) {
    return a->n == b->n && same_kind(&a->kind, &b->kind) && memcmp(a->tokens, b->tokens, a->n * sizeof *a->tokens) == 0;
}

static size_t oldest(const struct prefix_index *index) {
    size_t at = 0;
    for (size_t i = 1; i < index->n; i++)
        if (index->prefixes[i].used < index->prefixes[at].used) at = i;
    return at;
}

static size_t place_for(const struct prefix_index *index, const struct prefix *prefix) {
    for (size_t i = 0; i < index->n; i++)
        if (same_sequence(&index->prefixes[i], prefix)) return i;
    return index->n < index->capacity ? index->n : oldest(index);
}

void prefix_index_keep(struct prefix_index *index, struct prefix *prefix) {
    size_t at = place_for(index, prefix);
    if (at < index->n)
        prefix_free(&index->prefixes[at]);
    else
        index->n++;
    prefix->used = ++index->clock;
    index->prefixes[at] = *prefix;
}

/* ---- Finding */

static size_t common(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b) {
    size_t n = 0;
    while (n < n_a && n < n_b && a[n] == b[n]) n++;
    return n;
}

/* Returns how many of the prompt tokens[n], but for the last one, the prefix serves. A whole sequence goes on whatever its method.
 * Of a part of it only the tokens of one exact prefill are what another prompt's would be: later tokens have read the cache, not
 * the rows. */
static size_t serves(const struct prefix *p, const int32_t *tokens, size_t n) {
    size_t alike = common(p->tokens, p->n, tokens, n - 1);
    if (alike == p->n) return alike;
    return (size_t)parts_common_prefix(p->cache, alike < p->first_prompt ? alike : p->first_prompt, n);
}

const struct prefix *prefix_index_find(struct prefix_index *index, const struct prefix_kind *kind, const int32_t *tokens, size_t n,
                                       size_t *held) {
    struct prefix *best = NULL;
    *held = 0;
    for (size_t i = 0; i < index->n; i++) {
        struct prefix *p = &index->prefixes[i];
        size_t served = same_kind(&p->kind, kind) ? serves(p, tokens, n) : 0;
        if (served <= *held) continue;
        *held = served;
        best = p;
    }
    if (best) best->used = ++index->clock;
    return best;
}

static void drop_at(struct prefix_index *index, size_t at) {
    prefix_free(&index->prefixes[at]);
    index->prefixes[at] = index->prefixes[--index->n];
}

bool prefix_index_drop_oldest(struct prefix_index *index) {
    if (!index->n) return false;
    drop_at(index, oldest(index));
    return true;
}

size_t prefix_index_drop(struct prefix_index *index, const int32_t *tokens, size_t n) {
    size_t longest = 0;
    for (size_t i = index->n; i-- > 0;) {
        const struct prefix *p = &index->prefixes[i];
        if (common(p->tokens, p->n, tokens, n) < p->n) continue;
        if (p->n > longest) longest = p->n;
        drop_at(index, i);
    }
    return longest;
}

void prefix_index_clear(struct prefix_index *index) {
    for (size_t i = 0; i < index->n; i++) prefix_free(&index->prefixes[i]);
    memory_free(index->prefixes);
    *index = (struct prefix_index){0};
}
