/* A budget limits the memory of all caches of an engine together, whichever backend keeps them. It counts what reports call
 * resident, as it lies in memory: pages once, however many sessions read them, those in mapped files too; and memory that waits to
 * be used again. It does not count workspaces of steps and tables of rotations. One thread at a time uses it, as caches
 * themselves. */
#ifndef TERSE_KV_BUDGET_H
#define TERSE_KV_BUDGET_H

#include "base/status.h"

#include <stddef.h>

struct cache_base; /* kv/cache_base.h */

struct kv_budget {
    uint64_t most; /* bytes; UINT64_MAX: no limit */
    uint64_t used;
    uint64_t missing;          /* bytes that it lacked when it refused last; 0: it has not since lower_make_room */
    double least_bits;         /* while lower_make_room is called: its argument */
    struct cache_base *caches; /* those that take of it, linked by next_of_budget */
};

/* Returns memory for count * size bytes of `what`, aligned as memory_array has it; NULL, with *error of TERSE_E_MEMORY, where the
 * budget or the system refuses it. budget_free with as many bytes gives it back. `budget` NULL: no limit. */
void *budget_array(struct kv_budget *budget, size_t count, size_t size, const char *what, struct terse_error *error);
void budget_free(struct kv_budget *budget, void *memory, size_t bytes); /* accepts NULL */
/* Counts memory that is there already, or refuses it in the same way. */
enum terse_status budget_take(struct kv_budget *budget, size_t bytes, const char *what, struct terse_error *error);
/* Refuses as many bytes if they are not left, and counts nothing. */
enum terse_status budget_check(struct kv_budget *budget, uint64_t bytes, const char *what, struct terse_error *error);
/* Writes the refusal alone: TERSE_E_MEMORY, with how much of the budget is taken. */
enum terse_status budget_refuse(const struct kv_budget *budget, uint64_t bytes, const char *what, struct terse_error *error);
void budget_give(struct kv_budget *budget, size_t bytes);

#endif
