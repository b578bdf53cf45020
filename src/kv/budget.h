/* What the caches of an engine may take together: one count for all of them, whichever backend keeps them. Counted is what reports call resident,
 * as it lies in memory: pages once, however many sessions read them, those in mapped files too; and what waits to be used again. Workspaces
 * of steps and tables of rotations are not. One thread at a time, as caches themselves. */
#ifndef TERSE_KV_BUDGET_H
#define TERSE_KV_BUDGET_H

#include "base/status.h"

#include <stddef.h>

struct kv_budget {
    uint64_t most; /* bytes; UINT64_MAX: no limit */
    uint64_t used;
};

/* What messages tell a budget's bytes in: MiB, of a small one KiB. */
struct budget_unit {
    double bytes;
    const char *name;
};
struct budget_unit budget_unit(const struct kv_budget *budget);

/* Memory for count * size bytes of `what`, aligned as memory_array has it; NULL, with *error of TERSE_E_MEMORY, where the budget or the system
 * refuses it. Given back by budget_free with as many bytes. `budget` NULL: no limit. */
void *budget_array(struct kv_budget *budget, size_t count, size_t size, const char *what, struct terse_error *error);
void budget_free(struct kv_budget *budget, void *memory, size_t bytes); /* accepts NULL */
/* The same of memory that is there already: counted, or refused. */
enum terse_status budget_take(struct kv_budget *budget, size_t bytes, const char *what, struct terse_error *error);
void budget_give(struct kv_budget *budget, size_t bytes);

#endif
