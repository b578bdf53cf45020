/* CommVQ's values as kernels see them (Li et al. 2025, section 4.1): a row is a sum of those rows of a codebook whose bit in the
 * row's code is set, s C with s in {0, 1}^codes. What the slots of backend/cpu/kernels/commvq/ops.h read by, and the search for a code
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
 * field, the one with the largest gain is flipped, which lowers the error each time. Owns nothing but the search's tables. */
#ifndef TERSE_BACKEND_CPU_CODEC_BINARY_CODE_SEARCH_H
#define TERSE_BACKEND_CPU_CODEC_BINARY_CODE_SEARCH_H

#include "backend/cpu/kernels/commvq/additive.h"
#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct additive_search {
    size_t channels, codes;
    float *panel;     /* [channels][codes]: D, transposed */
    float *couplings; /* [codes][codes]: Q with a zero diagonal */
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
