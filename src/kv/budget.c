/* Counts the bytes of a budget. */
#include "kv/budget.h"

#include "base/memory.h"

enum terse_status budget_refuse(const struct kv_budget *budget, uint64_t bytes, const char *what, struct terse_error *error) {
    bool small = budget->most < 1 << 20;
    double unit = small ? 0x1p10 : 0x1p20;
    return status_fail(error, TERSE_E_MEMORY,
                       "%.2f %s for %s do not fit the budget for KV caches: %.2f of its %.2f %s are taken; raise it "
                       "(--kv-budget), use a smaller --kv, or free another session",
                       (double)bytes / unit, small ? "KiB" : "MiB", what, (double)budget->used / unit, (double)budget->most / unit,
                       small ? "KiB" : "MiB");
}

enum terse_status budget_check(struct kv_budget *budget, uint64_t bytes, const char *what, struct terse_error *error) {
    if (!budget || bytes <= budget->most - budget->used) return TERSE_OK;
    budget->missing = bytes - (budget->most - budget->used);
    return budget_refuse(budget, bytes, what, error);
}

enum terse_status budget_take(struct kv_budget *budget, size_t bytes, const char *what, struct terse_error *error) {
    enum terse_status status = budget_check(budget, bytes, what, error);
    if (budget && !status) budget->used += bytes;
    return status;
}

void budget_give(struct kv_budget *budget, size_t bytes) {
    if (budget) budget->used -= bytes;
}

void *budget_array(struct kv_budget *budget, size_t count, size_t size, const char *what, struct terse_error *error) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        status_no_memory(error, UINT64_MAX, what);
        return NULL;
    }
    if (budget_take(budget, bytes, what, error)) return NULL;
    void *memory = memory_array(count, size);
    if (memory) return memory;
    budget_give(budget, bytes);
    status_no_memory(error, bytes, what);
    return NULL;
}

void budget_free(struct kv_budget *budget, void *memory, size_t bytes) {
    if (!memory) return;
    budget_give(budget, bytes);
    memory_free(memory);
}
