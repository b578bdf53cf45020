/* A cache of terse-N fits to its own sequence a transform for each layer, KV head and side, and from their sizes the layouts by
 * which its bits are shared, the same on all backends. Backends find the transforms at the beginning of the first step that seals
 * pages, from the tokens in the window. Where pages are sealed before there are enough tokens, by a learned profile or, in the
 * papers' protocol, by that of the model's weights, all later pages go by that profile too. */
#ifndef TERSE_KV_FITTED_H
#define TERSE_KV_FITTED_H

#include "kv/cache_base.h"
#include "kv/state_file.h"

/* Returns the bytes of all records and layouts of a method and shape, and of what is noted of the residual stream; 0: nothing is
 * ever fitted. */
uint64_t fitted_all_bytes(const struct cache_shape *shape, const struct method *method);
uint64_t fitted_sums_bytes(const struct cache_shape *shape, const struct method *method);

/* Return, for the step that is planned, whether the cache waits in it, to fit transforms in a later one, and whether it fits them
 * now. */
bool fitted_waits(const struct cache_base *base);
bool fitted_due(const struct cache_base *base);
/* Returns whether the cache would wait in a decoding step that came now. */
bool fitted_would_wait(const struct cache_base *base);
/* Returns to how many tokens the transforms are fitted in the step that is planned: those of the window from plan.grid on. */
size_t fitted_tokens(const struct cache_base *base);

/* Returns the record of a side of a layer and KV head; NULL: nothing is fitted, or the side's codec is another. Where rows are cut into
 * slices (method_slices), here and below a head is a slice of one, as wide as that. */
void *fitted_record(const struct cache_base *base, uint32_t layer, uint32_t head, enum codec_side side);

/* Makes records of zeros, of fitted_records() in all, in the order of layers, heads and sides; to be filled (kv/fit_records.h) before fitted_end makes
 * their layouts the method's, and those of its rates. After a failure of either, or fitted_drop, nothing is fitted. */
enum terse_status fitted_begin(struct cache_base *base, struct terse_error *error);
size_t fitted_records(const struct cache_base *base);
enum terse_status fitted_end(struct cache_base *base, struct terse_error *error);
void fitted_drop(struct cache_base *base);

/* Returns the cache's method as it is while nothing is fitted. A copy of the cache is made by it, as the layouts that are fitted
 * are freed with the cache. */
struct method fitted_method_without(const struct cache_base *base);
/* ---- The residual stream, by which the bits are shared: the smaller it is, the more an error matters
 *
 * Executors note its size as prompts pass through the model. */

#define RESIDUAL_UNIT 0x1p-16

/* Begins a step that is planned. A failure is TERSE_E_MEMORY. */
enum terse_status fitted_begin_step(struct cache_base *base, struct terse_error *error);
/* These are parts_wants_residual and, for a layer of the cache, parts_note_residual of one part. */
bool fitted_wants_residual(const struct cache_base *base);
void fitted_note_residual(struct cache_base *base, uint32_t layer, int64_t sum, size_t tokens);
/* Adds the step's sums to those before it. */
void fitted_end_step(struct cache_base *base);
/* Forgets all sums. */
void fitted_forget_residual(struct cache_base *base);

/* ---- Copies, saved states */

/* Copies the sums, and the records to a cache of fitted_method_without, and finds their layouts again. */
enum terse_status fitted_copy(struct cache_base *base, const struct cache_base *from, struct terse_error *error);
/* The section STATE_FITTED holds, behind the backend's own bytes, one of three: nothing; the number of tokens of the sums and the
 * sums; or, once there are records, these as well. `load` reads the section's last bytes. */
enum fitted_saved { FITTED_NOTHING, FITTED_RECORDS, FITTED_SUMS };
enum fitted_saved fitted_saved(const struct cache_base *base);
void fitted_save(const struct cache_base *base, struct state_writer *writer);
uint64_t fitted_saved_bytes(const struct cache_base *base); /* of the section */
enum terse_status fitted_load(struct cache_base *base, enum fitted_saved saved, const struct state_file *file,
                              struct terse_error *error);

#endif
