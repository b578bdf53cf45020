/* This is the part of a KV cache that all backends share: its sequence's extent, its pages, and what can be done with it between
 * steps. A backend's struct cache begins with a cache_base; the backend keeps the bytes (kv_storage) and computes the steps.
 *
 * parts.h makes caches of whole models of it and has the contract of what is named alike there. One thread at a time calls the
 * functions below. */
#ifndef TERSE_KV_CACHE_H
#define TERSE_KV_CACHE_H

#include "kv/cache_base.h"
#include "kv/fitted.h"
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

/* A kv_storage is a backend's memory of a cache, as functions. */
struct kv_storage {
    uint64_t most_tokens; /* of a sequence */
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
    /* Copies everything but the pages into a new cache of the same shape and method, which shares them already. */
    enum terse_status (*copy)(struct cache *cache, const struct cache *from, struct terse_error *error);
    /* Writes the sections from STATE_EXACT on. */
    void (*save)(const struct cache *cache, struct state_writer *writer);
    /* load_pages gives n page sets to a new cache whose extent is known, `pages` being laid out as a chunk of them; then `load`
     * reads the sections STATE_EXACT to STATE_WINDOW, with as many anchors as cache_base says. */
    enum terse_status (*load_pages)(struct cache *cache, struct state_file *file, const uint8_t *pages, size_t n,
                                    struct terse_error *error);
    enum terse_status (*load)(struct cache *cache, struct state_file *file, struct terse_error *error);
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
static inline bool cache_fit_pending(const struct cache_base *base) { return base->learns && !base->fitted_ready; }

enum terse_status cache_supports(const struct kv_storage *storage, const struct cache_shape *shape, const struct method *method,
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
void cache_reset(struct cache *cache);
uint64_t cache_length(const struct cache *cache); /* tokens seen */
/* Returns how many of a prompt's next n tokens must be a step of their own (plan_part). */
size_t cache_prompt_part(const struct cache *cache, size_t n);
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
enum terse_status cache_load(struct cache *cache, struct state_file *file, struct terse_error *error);
/* Writes the pages as one chunk of all sealed page sets, for a backend's `save`; `chunk` says where the host finds a page set's
 * chunk. */
void cache_save_pages(const struct cache *cache, struct state_writer *writer,
                      const uint8_t *(*chunk)(const void *user, const struct page_set *set), const void *user);
/* Returns the section's bytes for a backend's `load`; NULL with TERSE_E_FORMAT unless there are as many as `bytes`. */
const uint8_t *cache_saved_section(const struct state_file *file, enum state_section section, uint64_t bytes,
                                   struct terse_error *error);

#endif
