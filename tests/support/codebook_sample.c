/* The sample codebook; test_codebook.c knows what its file must be. */
#include "support/codebook_sample.h"

#include "base/hash.h"
#include "base/memory.h"
#include "base/random.h"
#include "format/codebook_private.h"
#include "gguf/gguf.h"

#include <math.h>
#include <string.h>

struct codebook_info codebook_sample_info(void) {
    return (struct codebook_info){.method = "sample-0.2",
                                  .key = {.codec = &codec_vq, .width = 32, .bits = 4},
                                  .value = {.codec = &codec_pq, .width = 16, .bits = 4},
                                  .layers = 2,
                                  .kv_heads = 1,
                                  .head_dim = 32,
                                  .fingerprint = UINT64_C(0xfedcba9876543210),
                                  .model = "sample model",
                                  .corpus = "sample text",
                                  .tokens = UINT64_C(1) << 33,
                                  .seed = UINT64_MAX,
                                  .weighting = "gradient^2 per sub-vector",
                                  .effective_samples = 1234.56789};
}

void codebook_sample_fill(float *floats, size_t n, uint64_t seed) {
    /* Between 1/16 and 64 the halves are the 10240 numbers (1024 + fraction) 2^(exponent - 14): distinct until they are all taken.
     */
    for (size_t i = 0; i < n; i++) {
        uint32_t step = (uint32_t)((i * 7919 + seed * 131) % 10000), exponent = step / 1024, fraction = step % 1024;
        floats[i] =
            (float)(1024 + fraction + 0.001) * (float)(1u << exponent) * 0x1p-14f * (random_mix(i + seed) & 1 ? -1.0f : 1.0f);
    }
}

/* Frames hold sizes, which are positive. */
static void make_normalizations_positive(const struct codebook_info *info, enum codec_side side, float *floats) {
    size_t centroids = codebook_part_floats(info, side, CODEBOOK_CENTROIDS),
           normalization = codebook_part_floats(info, side, CODEBOOK_NORMALIZATION);
    for (size_t set = 0; set < codebook_sets(info); set++, floats += centroids + normalization)
        for (size_t i = 0; i < normalization; i++) floats[centroids + i] = fabsf(floats[centroids + i]);
}

enum terse_status codebook_sample_new(const struct codebook_info *info, struct terse_codebook **codebook,
                                      struct terse_error *error) {
    size_t n_keys = codebook_floats(info, CODEC_KEYS), n_values = codebook_floats(info, CODEC_VALUES);
    float *floats = memory_array(n_keys + n_values, sizeof *floats);
    *codebook = NULL;
    if (!floats) return TERSE_E_MEMORY;
    codebook_sample_fill(floats, n_keys, 1);
    codebook_sample_fill(floats + n_keys, n_values, 2);
    make_normalizations_positive(info, CODEC_KEYS, floats);
    make_normalizations_positive(info, CODEC_VALUES, floats + n_keys);
    enum terse_status status = codebook_new(info, floats, floats + n_keys, codebook, error);
    memory_free(floats);
    return status;
}

void *codebook_sample_build(const struct terse_codebook *codebook, size_t *size) {
    struct gguf_writer writer = {0};
    codebook_write(codebook, &writer);
    void *file = gguf_writer_build(&writer, size);
    gguf_writer_free(&writer);
    return file;
}

/* Finds the value by its key's bytes: the file need not be sound. */
bool codebook_sample_seal(void *file, size_t size) {
    static const char key[] = "codebook.checksum\x0a\0\0"; /* and the type u64, of 4 bytes with the literal's own zero */
    uint8_t *bytes = file;
    for (size_t at = 0; at + sizeof key + 8 <= size; at++) {
        if (memcmp(bytes + at, key, sizeof key) != 0) continue;
        XXH64_state_t hash;
        XXH64_reset(&hash, 0);
        memset(bytes + at + sizeof key, 0, 8);
        XXH64_update(&hash, bytes, size);
        uint64_t sum = XXH64_digest(&hash);
        memcpy(bytes + at + sizeof key, &sum, sizeof sum);
        return true;
    }
    return false;
}
