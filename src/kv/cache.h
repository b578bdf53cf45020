/* This is the part of a KV cache that all backends share: its sequence's extent, its pages, and what can be done with it between
 * steps. A backend's struct cache begins with a cache_base; the backend keeps the bytes (kv_storage) and computes the steps.
 *
 * parts.h makes caches of whole models of it and has the contract of what is named alike there. One thread at a time calls the
 * functions below. */
#ifndef TERSE_KV_CACHE_H
#define TERSE_KV_CACHE_H

#include "kv/cache_base.h"
#include "kv/fitted.h"
#include "kv/rates.h"
#include "kv/recurrent.h"
#include "kv/state_file.h"
#include "kv/token_shares.h"

#define NO_LAYER UINT32_MAX

struct cache;

/* A cache_bytes counts the memory of a cache, in bytes. */
struct cache_bytes {
    uint64_t page_set; /* of all pages of a page set, those of an index included */
    uint64_t window;   /* the recent window, in half precision */
    uint64_t exact;    /* exact tokens outside it: the first ones, anchors */
    uint64_t tables;   /* what codecs learned of the sequence, and addresses, but for those of the block table */
    uint64_t codebook; /* shared by all caches of a codebook */
};

/* The pieces of a cache beside its pages, in the form in which they are saved (docs/state-format.md), the same on all backends. Where keys
 * end with the values (cache_shape.latents), there is nothing of values. */
enum cache_piece {
    CACHE_EXACT,        /* half [layers][Hk][keys, values][exact][hd], keys before rotation */
    CACHE_EXACT_LOGITS, /* float [layers][Hk][budget], where exact rows are replaced (plan.h) */
    CACHE_LEARNED,      /* [layers][Hk]: what codecs and an index learned of the sequence (cache_base.learned_bytes) */
    CACHE_ANCHORS,      /* [layers][Hk][keys, values]{uint32 token[n_anchors], half rows[n_anchors][hd]} */
    CACHE_WINDOW,       /* [cache_window_pages][layers][Hk]{page of keys, page of values}, f16 */
    CACHE_PIECES
};

/* A cache_sink takes bytes in order. */
struct cache_sink {
    void (*put)(void *user, const void *data, size_t bytes);
    void *user;
};

/* A kv_storage is a backend's memory of a cache, as functions, and what its steps can do. */
struct kv_storage {
    uint64_t most_tokens; /* of a sequence */
    const char *where;    /* for messages about what is not served: "on the GPU" */
    /* Checks what the backend requires of a shape and method beyond what every backend does. */
    enum terse_status (*supports)(const struct cache_shape *shape, const struct method *method, struct terse_error *error);
    /* `create` makes an empty cache of a shape and method that are served, which calls cache_base_init first; `destroy` accepts
     * NULL. */
    enum terse_status (*create)(const struct cache_shape *shape, const struct method *method, uint32_t threads,
                                struct cache **cache, struct terse_error *error);
    void (*destroy)(struct cache *cache);
    /* Waits until none of the window's pages is being encoded ahead of the step that seals it. */
    void (*wait_ahead)(struct cache *cache);
    /* Waits for all else that goes on beside the steps. NULL: nothing does. */
    void (*synchronize)(struct cache *cache);
    /* Tells the backend that page sets from `first` on are others, or hold fewer tokens. */
    void (*pages_changed)(struct cache *cache, size_t first);
    /* Does the part of cache_reset that concerns the backend alone; the sequence is empty. NULL: there is none. */
    void (*reset)(struct cache *cache);
    /* `bytes` writes what is allocated, bytes_after what will be after the first step of a new cache, a prefill. */
    void (*bytes)(const struct cache *cache, struct cache_bytes *bytes);
    void (*bytes_after)(const struct cache_shape *shape, const struct method *method, const struct plan *plan,
                        struct cache_bytes *bytes);
    /* Counts the anchors of tokens before `end`; returns false unless that is the same number in every layer, KV head and side. */
    bool (*anchors_before)(const struct cache *cache, uint64_t end, size_t *n);
    /* Writes the tokens[n_anchors] of a side's anchors, ascending; returns false where they cannot be had. */
    bool (*anchor_tokens)(const struct cache *cache, uint32_t layer, uint32_t head, enum codec_side side, uint32_t *tokens);
    /* Subtracts the tokens that the last step has skipped from the map's shares `read`. NULL: steps read everything. */
    void (*add_skipped)(const struct cache *cache, double weight, const struct token_map *map);
    /* Returns how many of the first tokens decide what the cache has learned of its sequence; 0: nothing was learned. */
    uint64_t (*fit_tokens)(const struct cache *cache);
    /* Tells the backend that the method's layouts are others: those of fitted transforms, or the profile's. No page is sealed, but
     * of a copy, and of a saved state that is being loaded. A change to the profile's layouts never fails. */
    enum terse_status (*layouts_changed)(struct cache *cache, struct terse_error *error);
    /* Decodes the pages of a page set of the cache's and encodes them into another one at its rate, of the same chunk's number (kv/lower.h).
     * NULL: pages cannot be lowered; else the backend's `create` calls rates_init. */
    enum terse_status (*lower)(struct cache *cache, const struct page_set *from, const struct page_set *to);
    /* Copies everything but the pages into a new cache of the same shape and method, which shares them already. */
    enum terse_status (*copy)(struct cache *cache, const struct cache *from, struct terse_error *error);
    /* These two are called between steps of the cache, on any thread, beside steps of others, and return an errno, or 0.
     * export_piece puts the bytes of a piece, cache_piece_bytes of them; export_pages copies bytes of pages to the host's memory
     * (NULL: they lie there). */
    int (*export_piece)(const struct cache *cache, enum cache_piece piece, const struct cache_sink *sink);
    int (*export_pages)(const struct cache *cache, void *to, const void *from, size_t bytes);
    /* Into a new cache whose extent and number of anchors are known, import_pages copies n page sets of rates[n], laid out as a chunk of
     * those of rate 0, then one of those of rate 1, and so on (NULL: pages may stay where they are, for as long as the cache has them);
     * pages that are dealt have their page sets then, and other ranks' are left out;
     * then import_pieces copies all pieces, each of cache_piece_bytes. */
    enum terse_status (*import_pages)(struct cache *cache, const uint8_t *pages, const uint8_t *rates, size_t n,
                                      struct terse_error *error);
    enum terse_status (*import_pieces)(struct cache *cache, const uint8_t *const pieces[CACHE_PIECES], struct terse_error *error);
};

static inline struct cache_base *cache_base(struct cache *cache) { return (struct cache_base *)(void *)cache; }
static inline const struct cache_base *cache_base_of(const struct cache *cache) {
    return (const struct cache_base *)(const void *)cache;
}

/* Initializes a cache_base of zeros, for an empty sequence. */
void cache_base_init(struct cache_base *base, const struct kv_storage *storage, const struct cache_shape *shape,
                     const struct method *method, uint32_t threads);
/* Releases the pages and lists, if there are any. */
void cache_base_free(struct cache_base *base);

/* Returns whether the cache still has to learn from the first pages that are sealed. */
static inline bool cache_fit_pending(const struct cache_base *base) { return base->learned_bytes && !base->fitted_ready; }

/* Return the bytes of the pieces CACHE_EXACT and CACHE_EXACT_LOGITS of a cache of a shape and method. */
uint64_t cache_exact_bytes(const struct cache_shape *shape, const struct method *method);
uint64_t cache_exact_logit_bytes(const struct cache_shape *shape, const struct method *method);
/* Returns the bytes of a piece of the sequence as it is. */
uint64_t cache_piece_bytes(const struct cache *cache, enum cache_piece piece);

enum terse_status cache_supports(const struct kv_storage *storage, const struct cache_shape *shape, const struct method *method,
                                 struct terse_error *error);
/* Returns TERSE_E_UNSUPPORTED: `why` is what the method needs that the backend cannot do. */
enum terse_status cache_refuse(const struct kv_storage *storage, const struct method *method, const char *why,
                               struct terse_error *error);
void cache_predict(const struct kv_storage *storage, const struct cache_shape *shape, const struct method *method, uint64_t tokens,
                   struct terse_cache_report *report);
/* Predicts the report for a prompt of which a step reads the first so many tokens and another, if there are more, the rest. */
void cache_predict_parts(const struct kv_storage *storage, const struct cache_shape *shape, const struct method *method,
                         uint64_t first, uint64_t tokens, struct terse_cache_report *report);
void cache_report(const struct cache *cache, struct terse_cache_report *report);
enum terse_status cache_limit(struct cache *cache, struct kv_budget *budget, struct terse_error *error);
/* Channels of random rows (kv_ops.fill_random) fall in size by so many octaves, so that transforms that are fitted to them share
 * bits as those of a model's rows do. */
#define RANDOM_OCTAVES 6
/* A fill_plan says by which steps random tokens are appended where encoding each of them would take minutes. */
struct fill_plan {
    size_t step;               /* tokens of one, but the last */
    enum cache_step_kind kind; /* of each but the last, which is a CACHE_STEP_PREFILL */
    size_t pages;              /* that a new sequence of so many tokens has sealed; 0: this is none, or it evicts */
    bool layers_alike;         /* layers whose pages are alike may be copies of one another */
    bool pages_alike;          /* pages may be copies of one another: no token is singled out */
};
/* Returns the plan for n tokens in steps of about `step`. */
struct fill_plan cache_plan_fill(const struct cache *cache, size_t n, size_t step);
void cache_reset(struct cache *cache);
uint64_t cache_length(const struct cache *cache);     /* tokens seen */
uint64_t cache_prompt_end(const struct cache *cache); /* tokens of them up to the end of the last prompt */
/* Returns how many of a prompt's next n tokens must be a step of their own (plan_part). */
size_t cache_prompt_part(const struct cache *cache, size_t n);
/* Returns the fewest that may be one where memory is short (plan_shortest_part). */
size_t cache_shortest_part(const struct cache *cache, size_t n);
/* Return, between steps, how many tokens have exact rows outside the window, which tokens lie in the window, [first, end), and how
 * many pages it has. */
uint64_t cache_exact_tokens(const struct cache *cache);
struct token_range {
    uint64_t first, end;
};
struct token_range cache_window(const struct cache *cache);
size_t cache_window_pages(const struct cache *cache);
void cache_counters(struct cache *cache, struct cache_counters *counters, bool clear);

/* Begins a step: plans it, reserves page sets for the pages that it seals and for those that may be encoded ahead after it, and
 * makes its read list. The backend sets in_step when it has all else that the step needs. */
enum terse_status cache_plan_step(struct cache *cache, enum cache_step_kind kind, size_t n, struct terse_error *error);
/* Returns how many pages of the window may be encoded ahead after the plan's step. */
size_t cache_pages_ahead(const struct cache_base *base, const struct plan *plan);
/* Waits for the pages that are being encoded ahead and forgets them. */
void cache_forget_ahead(struct cache *cache);
/* Returns, after a step, the next page set that a full page of the window is to be encoded into; n_ahead counts it from now on.
 * NULL: none. */
struct page_set *cache_next_ahead(struct cache *cache);
/* Checks that keys and values of the layer may come now. */
enum terse_status cache_check_layer(const struct cache *cache, uint32_t layer, struct terse_error *error);
/* Checks that attention of new tokens [first, first + count) may be computed now: the keys and values of the layer are there. */
enum terse_status cache_check_queries(const struct cache *cache, size_t first, size_t count, struct terse_error *error);
/* Checks that the step may end now. */
enum terse_status cache_check_commit(const struct cache *cache, struct terse_error *error);
/* Ends the plan's step, whose pages are sealed: its anchors and its extent are now the sequence's, and evicted pages are
 * dropped. */
void cache_advance(struct cache *cache);

/* Returns what cache_truncate would, without truncating. */
enum terse_status cache_check_truncate(const struct cache *cache, uint64_t n, struct terse_error *error);
enum terse_status cache_truncate(struct cache *cache, uint64_t n, struct terse_error *error);
uint64_t cache_common_prefix(const struct cache *cache, uint64_t n, uint64_t prompt);
enum terse_status cache_fork(const struct cache *cache, struct cache **copy, struct terse_error *error);

/* Begins a map of zeros for the cache's sequence; returns false where nothing is to be added to it. */
bool cache_map_begin(const struct cache *cache, struct terse_token_share *shares, size_t n, struct token_map *map);
/* Adds to a map, zeros at first, which shares of the tokens are exact and compressed in these layers, `weight` being their share of
 * the model's. */
void cache_map_add(const struct cache *cache, double weight, const struct token_map *map);
/* Ends a map to which all was added: computes the shares that were evicted and those that were read, without what the last step has
 * skipped of these layers' tokens. */
void cache_map_end(const struct cache *cache, double weight, const struct token_map *map);
void cache_map(const struct cache *cache, struct terse_token_share *shares, size_t n);

/* saved_cache.c defines these. */
void cache_save(const struct cache *cache, struct state_writer *writer);
void cache_save_share(const struct cache *cache);
enum terse_status cache_load(struct cache *cache, struct state_file *file, struct terse_error *error);

#endif
