/* Implements prefix caching: an engine keeps forks of sequences' caches, found by their tokens, for sessions that begin alike.
 * session_prefix.c makes and uses them.
 *
 * Where there is room for too few, those leave first that are needed last. Time is counted in prefixes that were kept:
 *
 *     1. One that its conversation has passed, the least recently used first: a later turn goes on from it, or the same turn has been kept
 *        when more of it was there.
 *     2. One that is not expected, the least recently used first. Expected is the newest turn of a conversation that has come back:
 *        the next one when as much time has passed as since the one before, and no longer when twice as much has.
 *     3. Of those expected the one that is expected last.
 *
 * So conversations that take turns, and are more than there is room for, do not throw each other out before each comes back, as by
 * least recent use alone: those that are next stay, and the one that has just been there leaves. To know that a conversation comes
 * back although its prefix has left, the index remembers the tokens of those that have. */
#ifndef TERSE_ENGINE_PREFIX_INDEX_H
#define TERSE_ENGINE_PREFIX_INDEX_H

#include "engine/lead.h"
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
    struct cache *cache; /* of `tokens`, which the prefix owns as it owns them; NULL: it has left, and its tokens are remembered */
    int32_t *tokens;     /* [n] */
    size_t n;
    size_t first_prompt; /* tokens that one exact prefill has read */
    uint64_t session;    /* the number of the one that it was kept of */
    uint64_t used;       /* the number of its last use */
    uint64_t kept;       /* when */
    uint64_t gap;        /* the time in which its conversation came back; 0: it has not yet */
    bool passed;         /* by its conversation */
};

struct prefix_index {
    struct prefix *prefixes; /* [n], those that have left among them */
    size_t n, most;          /* most: that are kept, and that are remembered */
    uint64_t uses, time;     /* counts of uses, of prefixes kept */
    struct lead *lead;       /* of the engine */
};

/* When what is not expected comes back, and what is there already. */
#define PREFIX_NEVER UINT64_MAX
#define PREFIX_NOW 0

/* Reserves memory for `most` prefixes, unless the index has memory. */
enum terse_status prefix_index_reserve(struct prefix_index *index, size_t most, struct terse_error *error);

/* Makes a prefix to come, whose cache is the session's for this call, the one by which its conversation is expected: sets `kept` and `gap`
 * from what the index knows of that, and `passed` of the others. */
void prefix_index_expect(struct prefix_index *index, struct prefix *prefix);
/* Returns when such a prefix is expected. */
uint64_t prefix_index_due(const struct prefix_index *index, const struct prefix *prefix);
/* Adds `prefix`, of which prefix_index_expect was asked, as the one most recently used; where its cache is NULL, it is remembered. It replaces
 * one of the same tokens and kind; where there are too many then, one leaves, which may be the new one. */
void prefix_index_keep(struct prefix_index *index, struct prefix *prefix);

/* Returns the prefix of this kind that serves most of the prompt tokens[n], *held < n of them; NULL: none serves any. The index
 * owns it. */
const struct prefix *prefix_index_find(struct prefix_index *index, const struct prefix_kind *kind, const int32_t *tokens, size_t n,
                                       size_t *held);

/* Makes the prefix leave whose turn it is, of those expected only one that is expected after `due`: PREFIX_NEVER: none; PREFIX_NOW: any. Returns false when
 * there is none. */
bool prefix_index_drop_next(struct prefix_index *index, uint64_t due);
/* Returns whether any prefix that is kept is expected. */
bool prefix_index_expects(const struct prefix_index *index);
/* Forgets the prefixes that tokens[n] begin with. Returns how many tokens the longest of those kept had; 0: there was none. */
size_t prefix_index_drop(struct prefix_index *index, const int32_t *tokens, size_t n);
/* Forgets all prefixes, and frees the index's memory. */
void prefix_index_clear(struct prefix_index *index);

#endif
