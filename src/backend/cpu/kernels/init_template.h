/* This template makes the tables of one family of kernels, one for each instruction set, and chooses among them. FAMILY/init.c
 * includes it once and defines
 *
 *     OPS      the family's struct, say pq_ops: OPS() and OPS_at() come out
 *     SCALAR   functions void (struct OPS *) that fill every function pointer between them, as a comma-separated list
 *     AVX2, AVX512, NEON   those that overlay what their instruction set does better; AVX-512 overlays AVX2's table
 *     AVXVNNI              the same, where the family has them; overlays AVX2's table too */
#include "backend/cpu/kernels/compiler.h"
#include "backend/cpu/kernels/cpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

static struct OPS tables[CPU_ISAS];
static const struct OPS *_Atomic chosen; /* set last: a thread that sees it sees the tables */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void build(enum cpu_isa isa, enum cpu_isa base, void (*const *fills)(struct OPS *), size_t n_fills) {
    tables[isa] = tables[base];
    for (size_t i = 0; i < n_fills; i++) fills[i](&tables[isa]);
}

#define BUILD(isa, base, ...) \
    do { \
        void (*const fills[])(struct OPS *) = {__VA_ARGS__}; \
        if (cpu_has(isa)) build(isa, base, fills, sizeof fills / sizeof fills[0]); \
    } while (0)

static void build_all(void) {
    BUILD(CPU_SCALAR, CPU_SCALAR, SCALAR);
#if defined(__x86_64__)
    BUILD(CPU_AVX2, CPU_SCALAR, AVX2);
#ifdef AVXVNNI
    BUILD(CPU_AVXVNNI, CPU_AVX2, AVXVNNI);
#else
    if (cpu_has(CPU_AVXVNNI)) tables[CPU_AVXVNNI] = tables[CPU_AVX2];
#endif
    BUILD(CPU_AVX512, CPU_AVX2, AVX512);
#elif defined(__aarch64__)
    BUILD(CPU_NEON, CPU_SCALAR, NEON);
#endif
    atomic_store_explicit(&chosen, &tables[cpu_isa()], memory_order_release);
}

const struct OPS *OPS(void) {
    const struct OPS *ops = atomic_load_explicit(&chosen, memory_order_acquire);
    if (ops) return ops;
    pthread_once(&once, build_all);
    return &tables[cpu_isa()];
}

const struct OPS *PASTE(OPS, at)(enum cpu_isa isa) {
    pthread_once(&once, build_all);
    return cpu_has(isa) ? &tables[isa] : NULL;
}
