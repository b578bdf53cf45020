/* Finds segments: the addresses of what a step reads, by a KV head's read list (kv/read_list.h). A segment is up to 64 tokens that
 * lie together, wherever they lie; attention walks over segments and never asks what they are.
 *
 * The segments of a step are, in order: tokens chosen from pages, exact rows, rows that a prompt was reduced to, sealed pages, the
 * window, and the step's new tokens in full precision. In a step that is sealed before it is read (CACHE_STEP_PAPER) the new tokens
 * are among the exact rows and sealed pages instead. All KV heads have as many segments of each kind: of a page that a head does
 * not read no slot is live. Rows, window and new tokens are the same for all. segment_read.h reads segments. */
#ifndef TERSE_BACKEND_CPU_KV_SEGMENT_H
#define TERSE_BACKEND_CPU_KV_SEGMENT_H

#include "backend/cpu/kv/state.h"

enum segment_kind {
    SEGMENT_EXACT,    /* exact rows */
    SEGMENT_ANCHORS,  /* rows of anchors, all that was kept of a prompt; the tokens lie apart */
    SEGMENT_SEALED,   /* a sealed page */
    SEGMENT_WINDOW,   /* a page of the window */
    SEGMENT_NEW,      /* new tokens */
    SEGMENT_GATHERED, /* tokens chosen from sealed pages, fewer than 64 or none in the last of a head: gather.h reads these */
};

struct segment {
    enum segment_kind kind;
    size_t base;                    /* rotary.h: of slot 0's position; of a sealed page of keys in runs, of its run's */
    uint64_t first;                 /* token of slot 0; of SEGMENT_ANCHORS the first row */
    uint32_t begin, end;            /* the first live slot, and the one behind the last; both 0 where none is live */
    uint64_t live;                  /* bit t: slot t is live */
    bool holes;                     /* not all of [begin, end) are */
    const struct page_set *set;     /* of SEGMENT_SEALED */
    const struct read_exact *exact; /* of SEGMENT_SEALED: its tokens whose rows are exact; NULL: none are */
    const uint8_t *window_set;      /* of SEGMENT_WINDOW */
    const struct read_page *chosen; /* of SEGMENT_GATHERED: it begins with slot `slot` of this page of the head's list */
    uint32_t slot;
    bool as_logits;    /* of sealed ones: all slots are live, and codec_integer_sums.add_logits takes what they score */
    bool int8_weights; /* of sealed and gathered ones: accumulate_int8 (codec.h) may take its weights */
};

/* Return the numbers of segments of the step in progress: all of them; those without the new tokens; those of chosen tokens, which
 * come first; and those behind them that are rows and not pages. */
size_t segment_count(const struct cache *cache);
size_t segment_count_stored(const struct cache *cache);
size_t segment_count_chosen(const struct cache *cache);
size_t segment_count_rows(const struct cache *cache);
/* Returns how many segments, from the first on, begin with a token which the step's i-th new token sees. */
size_t segment_count_seen(const struct cache *cache, size_t i);
/* Returns the i-th segment of a KV head. */
struct segment segment_at(const struct cache *cache, uint32_t head, size_t i);
/* Does the same in place, for callers that ask once for each page: a segment that is returned is copied. It does not write members
 * that only other kinds have. */
void segment_find(const struct cache *cache, uint32_t head, size_t i, struct segment *segment);
/* Returns the page, or the new tokens, in which a stored or new token lies that is not in exact rows, whether the step reads it or
 * not. */
struct segment segment_of_token(const struct cache *cache, uint64_t token);

/* Returns how many stored bytes one reading of the step's shared list visits in a layer, over all KV heads. */
uint64_t segment_bytes(const struct cache *cache);

/* Returns the first token that the step's i-th new token sees, where its layer slides; 0 where not. */
static inline uint64_t segment_first_seen(const struct cache *cache, size_t i) {
    return plan_first_seen(&cache->base.plan, cache->base.shape.window, i);
}

/* Returns the first slot that the step's i-th new token sees: it sees slots [this, visible). */
static inline uint32_t segment_hidden(const struct cache *cache, const struct segment *segment, size_t i) {
    uint64_t seen = segment_first_seen(cache, i);
    if (seen <= segment->first + segment->begin) return segment->begin;
    return seen < segment->first + segment->end ? (uint32_t)(seen - segment->first) : segment->end;
}

/* Returns the end of the slots that the step's i-th new token sees: it sees slots [begin, this), except for those before
 * segment_hidden(). */
static inline uint32_t segment_visible(const struct cache *cache, const struct segment *segment, size_t i) {
    uint64_t seen = cache->base.plan.before.length + i + 1;
    if (seen >= segment->first + segment->end) return segment->end;
    return seen > segment->first + segment->begin ? (uint32_t)(seen - segment->first) : segment->begin;
}

/* ---- Positions
 *
 * Where sealed pages hold rotated keys, queries are rotated to their own positions, and keys stand at theirs. Where they do not,
 * positions are relative to the step's first new token: a key is rotated as it is read, by its position less that token's, and so
 * are queries. */

/* Sets the angles of the step's new tokens and segments, for which rotary_reserve has reserved segment_bases() entries. */
size_t segment_bases(const struct cache *cache);
void segment_set_bases(struct cache *cache);

/* Returns the position of slot 0 less that of the step's first new token; the other slots follow. */
int64_t segment_position(const struct cache *cache, const struct segment *segment);

/* Rotates n rows of the step's i-th new token as segment_read.h expects queries. */
void segment_rotate_query(const struct cache *cache, size_t i, float *rows, uint32_t n);
/* These serve keys that are rotated as they are read: segment_rotate_key rotates the key in a slot of the block table's i-th page
 * as these queries expect it, and segment_rotate_to_own rotates a rotated query of the step further, as if all keys were rotated to
 * their own positions. */
void segment_rotate_key(const struct cache *cache, size_t i, size_t slot, float *row);
/* These serve pages that hold keys in rope runs. segment_page_base returns the base of the block table's i-th page, which is that
 * of its run. segment_rotate_from_run rotates keys rows[n][hd] of a page with this base to their own positions.
 * segment_rotate_to_run rotates keys at their own positions to their run; `first` is the token of the first of them, which is the
 * first of a page. */
size_t segment_page_base(const struct cache *cache, size_t i);
void segment_rotate_from_run(const struct cache *cache, size_t base, size_t n, float *rows);
void segment_rotate_to_run(const struct cache *cache, uint64_t first, size_t n, float *rows);
void segment_rotate_to_own(const struct cache *cache, float *query);

#endif
