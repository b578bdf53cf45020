/* Holds the prefixes of an engine, and chooses which leave. They are few, each as large as a cache, so they are looked through one after another:
 * comparing 32,768 tokens takes microseconds, reading them takes seconds. */
#include "engine/prefix_index.h"

#include "base/memory.h"

#include <string.h>

static void prefix_free(const struct prefix_index *index, const struct prefix *prefix) {
    lead_destroy(index->lead, prefix->cache);
    memory_free(prefix->tokens);
}

enum terse_status prefix_index_reserve(struct prefix_index *index, size_t most, struct terse_error *error) {
    const size_t room = 2 * most + 1; /* for those kept and those remembered, and one that comes before another leaves */
    if (index->prefixes) return TERSE_OK;
    if (!(index->prefixes = memory_array(room, sizeof *index->prefixes)))
        return status_no_memory(error, room * sizeof *index->prefixes, "prefixes");
    index->most = most;
    return TERSE_OK;
}

static bool same_kind(const struct prefix_kind *a, const struct prefix_kind *b) {
    const bool same_rates = !(a->least_rate < b->least_rate) && !(a->least_rate > b->least_rate);
    return same_rates && a->codebook == b->codebook && a->prefill == b->prefill && strcmp(a->method, b->method) == 0;
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
        size_t served = p->cache && same_kind(&p->kind, kind) ? serves(p, tokens, n) : 0;
        if (served <= *held) continue;
        *held = served;
        best = p;
    }
    if (best) best->used = ++index->uses;
    return best;
}

/* ---- Leaving */

uint64_t prefix_index_due(const struct prefix_index *index, const struct prefix *p) {
    const bool late = index->time - p->kept > 2 * p->gap;
    return p->gap && !late ? p->kept + p->gap : PREFIX_NEVER;
}

static bool leaves_before(const struct prefix_index *index, const struct prefix *a, const struct prefix *b) {
    const uint64_t due_a = prefix_index_due(index, a), due_b = prefix_index_due(index, b);
    if (a->passed != b->passed) return a->passed;
    if (!a->passed && due_a != due_b) return due_a > due_b;
    return a->used < b->used;
}

static void forget(struct prefix_index *index, size_t at) {
    prefix_free(index, &index->prefixes[at]);
    index->prefixes[at] = index->prefixes[--index->n];
}

/* Forgets the least recently used of those remembered where they are too many. */
static void forget_oldest(struct prefix_index *index) {
    size_t n = 0, oldest = 0;
    for (size_t i = 0; i < index->n; i++) {
        if (index->prefixes[i].cache) continue;
        if (!n++ || index->prefixes[i].used < index->prefixes[oldest].used) oldest = i;
    }
    if (n > index->most) forget(index, oldest);
}

bool prefix_index_drop_next(struct prefix_index *index, uint64_t due) {
    struct prefix *next = NULL;
    for (size_t i = 0; i < index->n; i++) {
        struct prefix *p = &index->prefixes[i];
        if (p->cache && (!next || leaves_before(index, p, next))) next = p;
    }
    const uint64_t own = next ? prefix_index_due(index, next) : 0;
    if (!next || (!next->passed && own <= due && own != PREFIX_NEVER)) return false;
    lead_destroy(index->lead, next->cache);
    next->cache = NULL;
    if (next->passed)
        forget(index, (size_t)(next - index->prefixes));
    else
        forget_oldest(index);
    return true;
}

bool prefix_index_expects(const struct prefix_index *index) {
    for (size_t i = 0; i < index->n; i++) {
        const struct prefix *p = &index->prefixes[i];
        if (p->cache && !p->passed && prefix_index_due(index, p) != PREFIX_NEVER) return true;
    }
    return false;
}

size_t prefix_index_drop(struct prefix_index *index, const int32_t *tokens, size_t n) {
    size_t longest = 0;
    for (size_t i = index->n; i-- > 0;) {
        const struct prefix *p = &index->prefixes[i];
        if (common(p->tokens, p->n, tokens, n) < p->n) continue;
        if (p->cache && p->n > longest) longest = p->n;
        forget(index, i);
    }
    return longest;
}

void prefix_index_clear(struct prefix_index *index) {
    for (size_t i = 0; i < index->n; i++) prefix_free(index, &index->prefixes[i]);
    memory_free(index->prefixes);
    *index = (struct prefix_index){.lead = index->lead};
}

/* ---- Keeping */

/* Returns whether so few of n tokens are left: to be read again, or for another turn. */
static bool are_few(size_t left, size_t n) { return left < n / 8 + 1; }

/* Returns how many tokens of p the prefix has, if it is of the same conversation: nearly all. 0: it is not. */
static size_t goes_on_from(const struct prefix *prefix, const struct prefix *p) {
    if (!same_kind(&p->kind, &prefix->kind)) return 0;
    const size_t alike = common(p->tokens, p->n, prefix->tokens, prefix->n);
    return are_few(p->n - alike, p->n) ? alike : 0;
}

/* Returns what the prefix goes on from with most tokens, the newest of such. NULL: it begins a conversation. */
static const struct prefix *before(const struct prefix_index *index, const struct prefix *prefix) {
    const struct prefix *best = NULL;
    size_t most = 0;
    for (size_t i = 0; i < index->n; i++) {
        const struct prefix *p = &index->prefixes[i];
        const size_t alike = goes_on_from(prefix, p);
        if (!alike || alike < most || (best && alike == most && p->kept < best->kept)) continue;
        best = p;
        most = alike;
    }
    return best;
}

/* Returns whether the prefix, of whose turn p is the beginning, serves nearly all that p does. */
static bool repeats(const struct prefix *prefix, const struct prefix *p) {
    return prefix->n > p->n && are_few(p->n - serves(prefix, p->tokens, p->n + 1), p->n);
}

void prefix_index_expect(struct prefix_index *index, struct prefix *prefix) {
    const struct prefix *from = before(index, prefix);
    prefix->kept = ++index->time;
    prefix->gap = !from ? 0 : from->session == prefix->session ? from->gap : prefix->kept - from->kept;
    for (size_t i = 0; i < index->n; i++) {
        struct prefix *p = &index->prefixes[i];
        if (goes_on_from(prefix, p) && (p->session != prefix->session || repeats(prefix, p))) p->passed = true;
    }
}

/* Forgets those of the prefix's conversation that have left, and the same one. */
static void replace(struct prefix_index *index, const struct prefix *prefix) {
    for (size_t i = index->n; i-- > 0;) {
        const struct prefix *p = &index->prefixes[i];
        const size_t alike = goes_on_from(prefix, p);
        if (alike && (!p->cache || (prefix->cache && alike == p->n && p->n == prefix->n))) forget(index, i);
    }
}

void prefix_index_keep(struct prefix_index *index, struct prefix *prefix) {
    size_t kept = 0;
    replace(index, prefix);
    prefix->used = ++index->uses;
    index->prefixes[index->n++] = *prefix;
    for (size_t i = 0; i < index->n; i++) kept += index->prefixes[i].cache != NULL;
    if (kept > index->most) (void)prefix_index_drop_next(index, PREFIX_NOW);
    forget_oldest(index);
}
