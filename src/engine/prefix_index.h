/* Implements prefix caching: an engine keeps forks of sequences' caches, found by their tokens, for sessions that begin alike.
 * session_prefix.c makes and uses them. */
#ifndef TERSE_ENGINE_PREFIX_INDEX_H
#define TERSE_ENGINE_PREFIX_INDEX_H

#include "kv/parts.h"

/* Caches share pages only where these are equal. */
struct prefix_kind {
    char method[METHOD_IDENTITY];
    uint64_t codebook; /* its hash; 0: none */
    double least_rate; /* of the method */
    enum terse_prefill prefill;
};

struct prefix {
    struct prefix_kind kind;
    struct cache *cache; /* of `tokens`, which the prefix owns as it owns them */
    int32_t *tokens;     /* [n] */
    size_t n;
    size_t first_prompt; /* tokens that one exact prefill has read */
    uint64_t used;       /* the index's clock when it was last */
};

struct prefix_index {
    struct prefix *prefixes; /* [n], of `capacity` */
    size_t n, capacity;
    uint64_t clock; /* counts uses */
};

/* Reserves memory for `most` prefixes, unless the index has memory. */
enum terse_status prefix_index_reserve(struct prefix_index *index, size_t most, struct terse_error *error);

/* Adds `prefix` as the one most recently used. It replaces one of the same tokens and kind, or the least recently used one where
 * there is no room for more. */
void prefix_index_keep(struct prefix_index *index, struct prefix *prefix);

/* Returns the prefix of this kind that serves most of the prompt tokens[n], *held < n of them; NULL: none serves any. The index
 * owns it. */
const struct prefix *prefix_index_find(struct prefix_index *index, const struct prefix_kind *kind, const int32_t *tokens, size_t n,
                                       size_t *held);

/* Forgets the least recently used prefix; returns false when there is none. */
bool prefix_index_drop_oldest(struct prefix_index *index);
/* Forgets the prefixes that tokens[n] begin with. Returns how many tokens the longest of them had; 0: there was none. */
size_t prefix_index_drop(struct prefix_index *index, const int32_t *tokens, size_t n);
void prefix_free(struct prefix *prefix);
/* Forgets all prefixes, and frees the index's memory. */
void prefix_index_clear(struct prefix_index *index);

#endif
