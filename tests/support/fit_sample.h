/* Caches of terse-2 over rows that a transform says much of, for tests of what they fit to their sequences. Where a step fails, the running cmocka test
 * fails with its message. */
#ifndef TESTS_FIT_SAMPLE_H
#define TESTS_FIT_SAMPLE_H

#include "format/transform.h"
#include "kv/parts.h"
#include "support/backend_under_test.h"

enum { HEADS = 2, HEAD_DIM_MOST = 64, LAYERS = 2, GROUP = 3, MOST = 4600, SETS = LAYERS * HEADS, FITTED = SINKS + FIT_TOKENS };
#define HEAD_DIM ((size_t)backend_under_test()->head_dim)
#define WIDTH (HEADS * HEAD_DIM)

extern float sample_frequency[HEAD_DIM_MOST / 2];
extern struct cache_shape sample_shape;
/* The keys, before rotation, and values of a sequence, [LAYERS][MOST][WIDTH]. */
extern float *sample_keys, *sample_values;
extern size_t sample_skipped; /* tokens of these that a sequence begins behind */

/* A group's set-up and tear-down. */
int make_rows(void **state);
int free_rows(void **state);

/* Makes the method with a random profile, learned or of the weights; release_method frees that, and a cache or NULL. */
struct method make_method(const char *key_type, const char *value_type, bool of_weights);
void release_method(struct method *method, struct cache *cache);
struct cache *make_cache(const struct method *method, uint32_t threads);

static inline const struct kv_ops *sample_kv(void) { return backend_under_test()->kv; }
static inline bool on_cpu(void) { return sample_kv() == backend_cpu.kv; }
/* Makes steps encode the pages that they seal, instead of a worker before them. */
void encode_in_steps(struct cache *cache);

/* Reads the next n tokens; outputs[LAYERS][GROUP * WIDTH] of the last, or NULL. */
void take_step(struct cache *cache, enum cache_step_kind kind, size_t n, float *outputs);
/* Reads a prompt of n tokens, in the steps that a session takes. */
void take_prompt(struct cache *cache, size_t n);
/* Reads the tokens up to `end`, at most n a step. */
void take_steps(struct cache *cache, enum cache_step_kind kind, size_t end, size_t n);

bool is_fitted(const struct cache *cache);
/* Returns a copy of a page, which lives until the next call; *bytes may be NULL. */
const uint8_t *page_copy(const struct cache *cache, const struct page_set *set, enum codec_side side, uint32_t layer, uint32_t head,
                         size_t *bytes);
/* Fails the test unless both have fitted the same to the values, and the first n of their pages; `first` CODEC_KEYS: to the keys too, as
 * check_same has it. */
void check_same_from(const struct cache *one, const struct cache *other, size_t n, enum codec_side first);
void check_same(const struct cache *one, const struct cache *other, size_t n);
/* Decodes n tokens in both, which must give the same, or what differs by no more than `bound`. */
void check_goes_on_near(struct cache *one, struct cache *other, size_t n, double bound);
void check_goes_on_alike(struct cache *one, struct cache *other, size_t n);

struct cache *fork_of(const struct cache *cache);
void save_cache(const struct cache *cache, const char *path);
/* Returns a new cache of the state; NULL with its message, where it is refused. */
struct cache *load_cache(const struct method *method, const char *path, struct terse_error *error);
/* A test's set-up and tear-down: its state is the path of a file. */
int make_path(void **state);
int remove_path(void **state);

#endif
