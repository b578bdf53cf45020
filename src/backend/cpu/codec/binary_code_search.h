/* Searches for the binary code of a value of CommVQ (Li et al. 2025, section 4.1), for learning and encoding alike: a row is a sum
 * of those rows of a codebook C whose bit in the row's code is set, s C with s in {0, 1}^codes.
 *
 * With signs in {-1, 1}, s = (1 + signs) / 2, the squared error is a quadratic form of the signs. With D = C / 2 and m the sum of
 * D's rows,
 *
 *     |x - m - signs D|^2 = const - 2 <signs, p> + signs Q signs,   p = D (x - m),   Q = D D^T
 *
 * Its least value is hard to find (a binary quadratic program). A low one is found by local search: the field of a sign, p_i - sum
 * of Q_ik sign_k over the other signs that are set, says which value lowers the error, and by how much. At first no sign is set,
 * and each counts as the mean of both its values. The sign with the largest field is set along it, then the next by what is left,
 * until all are set; then, as long as a sign lies against its field, the one whose flip gains most is flipped, which lowers the
 * error each time. It owns nothing but the search's tables. */
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

/* Makes a search. TERSE_E_ARGUMENT unless codes are a multiple of ADDITIVE_STEP up to ADDITIVE_MOST_CODES. */
enum terse_status additive_search_new(size_t channels, size_t codes, struct additive_search *search, struct terse_error *error);
/* Accepts a zeroed struct. */
void additive_search_free(struct additive_search *search);
size_t additive_search_bytes(const struct additive_search *search);
/* Takes over C[codes][channels], finite; may be called again. */
void additive_search_set(struct additive_search *search, const float *C);

/* Writes bits[n][codes / 8], the lowest of a byte first, for rows[n][channels], `stride` floats apart. A row's code depends on it
 * and C alone. It allocates nothing; any number of threads may search at once. */
void additive_search_find(const struct additive_search *search, const float *rows, size_t n, size_t stride, uint8_t *bits);

#endif
