/* Lays out a step's scratch. */
#include "backend/cpu/kv/scratch.h"

#include "base/memory.h"
#include "base/parallel.h"

enum terse_status scratch_reserve(struct cache *cache, size_t shared, size_t of_thread, size_t new_keys,
                                  struct terse_error *error) {
    struct scratch *scratch = &cache->scratch;
    scratch->shared = memory_round_up(shared, MEMORY_ALIGN / sizeof(float));
    scratch->of_thread = memory_round_up(of_thread, MEMORY_ALIGN / sizeof(float));
    size_t floats = scratch->shared + cache->base.threads * scratch->of_thread + new_keys;
    if (floats <= scratch->floats) return TERSE_OK;
    memory_free(scratch->memory);
    scratch->floats = 0;
    scratch->memory = memory_array(floats, sizeof *scratch->memory);
    if (!scratch->memory) return status_no_memory(error, floats * sizeof *scratch->memory, "attention");
    scratch->floats = floats;
    return TERSE_OK;
}

void scratch_free(struct cache *cache) { memory_free(cache->scratch.memory); }

float *scratch_of_thread(const struct cache *cache) {
    const struct scratch *scratch = &cache->scratch;
    return scratch->memory + scratch->shared + parallel_thread() * scratch->of_thread;
}

float *scratch_new_keys(const struct cache *cache) {
    const struct scratch *scratch = &cache->scratch;
    return scratch->memory + scratch->shared + cache->base.threads * scratch->of_thread;
}
