/* A method's share of a random codebook: of the shape that a benchmark gives it. */
#include "support/random_codebook.h"

#include <stdio.h>

enum terse_status random_codebook(struct method *method, uint32_t layers, uint32_t kv_heads, uint32_t head_dim,
                                  uint64_t fingerprint, bool adjacent, struct terse_error *error) {
    if (!method->codebook[0]) return TERSE_OK;
    struct codebook_info info = {.key = method->key,
                                 .value = method->value,
                                 .layers = layers,
                                 .kv_heads = kv_heads,
                                 .head_dim = head_dim,
                                 .fingerprint = fingerprint};
    struct terse_codebook *codebook;
    snprintf(info.method, sizeof info.method, "%s", method->codebook);
    enum terse_status status = codebook_random(&info, head_dim / 2, adjacent, &codebook, error);
    method->learned = codebook;
    if (status) return status;
    const uint64_t fingerprints[CODEBOOK_FINGERPRINTS] = {fingerprint, fingerprint};
    return method_check_codebook(method, fingerprints, layers, kv_heads, head_dim, error);
}
