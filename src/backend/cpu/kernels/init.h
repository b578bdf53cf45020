/* Who fills which slots of struct kernels: one function per source file, called by dispatch.c alone. The scalar ones fill every
 * slot between them; the others overlay what they do better. */
#ifndef TERSE_BACKEND_CPU_KERNELS_INIT_H
#define TERSE_BACKEND_CPU_KERNELS_INIT_H

#include "backend/cpu/kernels/kernels.h"

void kernels_init_scalar_vector(struct kernels *k);
void kernels_init_scalar_cache(struct kernels *k);
void kernels_init_scalar_product(struct kernels *k);
void kernels_init_scalar_weights(struct kernels *k);
void kernels_init_scalar_nearest(struct kernels *k);

void kernels_init_avx2_vector(struct kernels *k);
void kernels_init_avx2_cache(struct kernels *k);
void kernels_init_avx2_product(struct kernels *k);
void kernels_init_avx2_weights(struct kernels *k);
void kernels_init_avx2_nearest(struct kernels *k);

void kernels_init_avx512_vector(struct kernels *k);
void kernels_init_avx512_cache(struct kernels *k);
void kernels_init_avx512_product(struct kernels *k);
void kernels_init_avx512_weights(struct kernels *k);
void kernels_init_avx512_weights_bytes(struct kernels *k);
void kernels_init_avx512_nearest(struct kernels *k);

void kernels_init_neon_vector(struct kernels *k);
void kernels_init_neon_cache(struct kernels *k);
void kernels_init_neon_product(struct kernels *k);
void kernels_init_neon_weights(struct kernels *k);
void kernels_init_neon_nearest(struct kernels *k);

void kernels_init_scalar_commvq(struct kernels *k);
void kernels_init_avx2_commvq(struct kernels *k);
void kernels_init_avx512_commvq(struct kernels *k);
void kernels_init_neon_commvq(struct kernels *k);

void kernels_init_avx2_codes(struct kernels *k);
void kernels_init_avx2_kivi(struct kernels *k);
void kernels_init_avx512_codes(struct kernels *k);
void kernels_init_avx512_kivi(struct kernels *k);
void kernels_init_neon_codes(struct kernels *k);

void kernels_init_scalar_sign(struct kernels *k);
void kernels_init_avx2_sign(struct kernels *k);
void kernels_init_avx512_sign(struct kernels *k);
void kernels_init_neon_sign(struct kernels *k);

void kernels_init_scalar_choose(struct kernels *k);
void kernels_init_avx2_choose(struct kernels *k);
void kernels_init_avx512_choose(struct kernels *k);
void kernels_init_neon_choose(struct kernels *k);

void kernels_init_scalar_additive(struct kernels *k);
void kernels_init_avx2_additive(struct kernels *k);
void kernels_init_avx512_additive(struct kernels *k);
void kernels_init_neon_additive(struct kernels *k);

#endif
