/* Makes the CPU's form of a codebook: each codec's form of its parameters, for every layer, KV head and side. It is made when the
 * first cache with the codebook is created, shared by all caches, kept with the codebook and freed with it. It is immutable once
 * made. */
#ifndef TERSE_BACKEND_CPU_CODEC_PREPARED_H
#define TERSE_BACKEND_CPU_CODEC_PREPARED_H

#include "backend/cpu/codec/codec.h"
#include "format/codebook.h"

struct cpu_codebook {
    const struct terse_codebook *codebook;
    bool shared; /* one set for all layers and KV heads */
    uint32_t kv_heads;
    size_t sets;
    void **learned[2]; /* [side][sets]; NULL: the side learns nothing */
};

/* Finds the codebook's form, or makes it if it is not there yet; it lives as long as the codebook. Thread-safe. TERSE_E_MEMORY
 * leaves all as it was. */
enum terse_status cpu_codebook_prepare(const struct terse_codebook *codebook, const struct cpu_codebook **prepared,
                                       struct terse_error *error);

/* Returns what codec_shape.learned needs; NULL where the side learns nothing or `prepared` is NULL. */
static inline const void *cpu_codebook_learned(const struct cpu_codebook *prepared, enum codec_side side, uint32_t layer,
                                               uint32_t head) {
    if (!prepared || !prepared->learned[side]) return NULL;
    return prepared->learned[side][prepared->shared ? 0 : (size_t)layer * prepared->kv_heads + head];
}

/* Returns the same for a KV head whose rows are cut into slices, each of which the codebook knows as a head: an array [slices]. */
static inline const void *cpu_codebook_learned_slices(const struct cpu_codebook *prepared, enum codec_side side, uint32_t layer,
                                                      uint32_t head, uint32_t slices) {
    if (!prepared || !prepared->learned[side]) return NULL;
    return prepared->learned[side] + (size_t)layer * prepared->kv_heads + (size_t)head * slices;
}

/* Returns the bytes of the codebook once it is prepared, whether it is or not. It allocates nothing. */
uint64_t cpu_codebook_bytes(const struct terse_codebook *codebook);

#endif
