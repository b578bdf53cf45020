/* Declares the binary codes of CommVQ's values (Li et al. 2025, section 4.1) as kernels see them: a row is a sum of those rows of a
 * codebook whose bit in the row's code is set. backend/cpu/codec/binary_code_search.h searches for a code, and says what signs,
 * fields and couplings are. */
#ifndef TERSE_BACKEND_CPU_KERNELS_COMMVQ_ADDITIVE_H
#define TERSE_BACKEND_CPU_KERNELS_COMMVQ_ADDITIVE_H

#include "format/commvq.h"

#define ADDITIVE_LEAST_FIELD 1e-5f /* against which a sign is flipped: less is rounding, in rows whose numbers are about 1 */
/* Vector tiers sum weights as integers: the magnitudes of a page's weights sum to at most ADDITIVE_WEIGHTS, rounding not counted. A
 * page whose weights sum to no more than ADDITIVE_NOTHING is left out. */
#define ADDITIVE_WEIGHTS 32703 /* 2^15 - 1, less what 64 roundings may add, less a margin for those of the sum itself */
#define ADDITIVE_NOTHING 1e-30f
#define ADDITIVE_SET 1e30f /* more than any field: what keeps a set sign from being set again */

/* Fields are compared with their index in the lowest 9 bits, so that the least of them says where it is. */
static inline uint32_t additive_place(float tagged) {
    union {
        float number;
        uint32_t bits;
    } x = {tagged};
    return x.bits % ADDITIVE_MOST_CODES;
}

#endif
