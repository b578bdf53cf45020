/* CommVQ's values as kernels see them (Li et al. 2025, section 4.1): a row is a sum of those rows of a codebook whose bit in the
 * row's code is set, s C with s in {0, 1}^codes. What the slots ..._additive of backend/cpu/kernels/kernels.h read by, and the search for a code
 * that learning and encoding share.
 *
 * With spins in {-1, 1}, s = (1 + spin) / 2, |x - s C|^2 is that of a spin glass, up to a constant: with D = C / 2 and m the sum of D's
 * rows,
 *
 *     |x - m - spin D|^2 = const - 2 <spin, p> + spin Q spin,   p = D (x - m),   Q = D D^T
 *
 * whose lowest state is hard to find (it is what binary quadratic programs ask for), and a low one is not: each spin feels the field
 * p_i - sum of Q_ik spin_k over the others that are set. At first none is set, each counting as the mean of both its values; the one
 * that feels most is set along its field, then the next by what is left, until all are; then, as long as a spin lies against its
 * field, the one that does most is turned, which lowers the error each time. Owns nothing but the search's tables. */
#ifndef TERSE_BACKEND_CPU_CODEC_BINARY_CODE_SEARCH_H
#define TERSE_BACKEND_CPU_CODEC_BINARY_CODE_SEARCH_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

#define ADDITIVE_STEP 32           /* codes are a multiple of so many bits */
#define ADDITIVE_MOST_CODES 512    /* bits of a code: 2 for each of 256 channels */
#define ADDITIVE_LEAST_FIELD 1e-5f /* against which a spin is turned: less is rounding, in rows whose numbers are about 1 */
/* Vector tiers tally weights as integers of which a block's magnitudes sum to at most ADDITIVE_WEIGHTS, rounding not counted; what
 * sums to no more than ADDITIVE_NOTHING is left out. */
#define ADDITIVE_WEIGHTS 32703 /* 2^15 - 1, less what 64 roundings may add, less a margin for those of the sum itself */
#define ADDITIVE_NOTHING 1e-30f
#define ADDITIVE_SET 1e30f /* more than any field: what keeps a set spin from being set again */

/* Fields are compared with the place in their lowest 9 bits, so that the least of them says where it is. */
static inline uint32_t additive_place(float tagged) {
    union {
        float number;
        uint32_t bits;
    } x = {tagged};
    return x.bits % ADDITIVE_MOST_CODES;
}

struct additive_search {
    size_t channels, codes;
    float *panel;     /* [channels][codes]: D, turned over */
    float *couplings; /* [codes][codes]: Q with zeros where a spin meets itself */
    float *offset;    /* [codes]: D m */
};

/* TERSE_E_ARGUMENT unless codes are a multiple of ADDITIVE_STEP up to ADDITIVE_MOST_CODES. */
enum terse_status additive_search_new(size_t channels, size_t codes, struct additive_search *search, struct terse_error *error);
/* Accepts a zeroed struct. */
void additive_search_free(struct additive_search *search);
size_t additive_search_bytes(const struct additive_search *search);
/* Takes over C[codes][channels], finite; may be called again. */
void additive_search_set(struct additive_search *search, const float *C);

/* bits[n][codes / 8], the lowest of a byte first, for rows[n][channels], `stride` floats apart. What a row gets depends on it and C
 * alone. Allocates nothing; any number of threads may search at once. */
void additive_search_find(const struct additive_search *search, const float *rows, size_t n, size_t stride, uint8_t *bits);

#endif
