/* Names the instruction sets that kernels are written for, and the one that this process uses.
 *
 * Kernels come in families (the folders below), each a small struct of function pointers in FAMILY/ops.h. The scalar tier sets
 * every function of a family's struct and is the reference: compiled without fast-math and without auto-vectorisation. The other
 * tiers replace the functions for which they are faster. The choice is made at run time, at first use, from what the processor and
 * the operating system have; TERSE_CPU=scalar|avx2|avxvnni|avx512|neon lowers it, so that one binary tests every tier
 * (tests/kernels hold each function to the scalar one, and that to double precision).
 *
 * All functions may be called from any thread at any time. */
#ifndef TERSE_BACKEND_CPU_KERNELS_CPU_H
#define TERSE_BACKEND_CPU_KERNELS_CPU_H

#include "base/status.h"

#include <stdbool.h>

/* CPU_AVXVNNI is AVX2 with the products of AVX-VNNI, which many processors without AVX-512 have. */
enum cpu_isa { CPU_SCALAR, CPU_AVX2, CPU_AVXVNNI, CPU_AVX512, CPU_NEON };
#define CPU_ISAS 5

/* Returns the instruction set in use. */
enum cpu_isa cpu_isa(void);
/* Returns whether this processor and this build have the instruction set. */
bool cpu_has(enum cpu_isa isa);
/* Returns its name: "scalar", "avx2", "avxvnni", "avx512", "neon". */
const char *cpu_isa_name(enum cpu_isa isa);
/* Returns TERSE_E_ARGUMENT when TERSE_CPU is set and names no instruction set that this processor and build have (cpu_isa() is then
 * the best one): a misspelt value must not be taken for the default. Loading a model calls it. */
enum terse_status cpu_check(struct terse_error *error);

#endif
