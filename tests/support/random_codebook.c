/* Random parameters with the frames, pairings and grids that codecs take for granted. */
#include "support/random_codebook.h"

#include "base/memory.h"
#include "base/random.h"
#include "codec/comm.h"

#include <stdio.h>
#include <string.h>

/* Sizes of rows are the last number of a frame. */
static float *random_parameters(const struct codebook_info *info, enum codec_side side, bool adjacent) {
    struct coding coding = side == CODEC_KEYS ? info->key : info->value;
    struct codec_shape shape = {info->head_dim, 1, coding.width, coding.bits, NULL};
    size_t n = codebook_floats(info, side), sets = (size_t)info->layers * info->kv_heads, each = n / sets;
    float *floats = memory_array(n, sizeof *floats);
    uint64_t seed = 1 + (uint64_t)side;
    for (size_t i = 0; floats && i < n; i++) floats[i] = (float)(random_next(&seed) >> 40) / (1 << 23) - 1;
    for (size_t set = 0; floats && set < sets && n; set++) {
        if (coding.codec == &codec_comm) comm_set_pairing(shape, floats + set * each, info->head_dim / 2, adjacent);
        if (coding.codec->learn_frame) floats[(set + 1) * each - 1] = 1;
        if (coding.codec->settle) coding.codec->settle(shape, side, floats + set * each);
    }
    return floats;
}

enum terse_status random_codebook(struct method *method, uint32_t layers, uint32_t kv_heads, uint32_t head_dim,
                                  uint64_t fingerprint, bool adjacent, struct terse_error *error) {
    if (!method->codebook[0]) return TERSE_OK;
    struct codebook_info info = {.key = method->key,
                                 .value = method->value,
                                 .layers = layers,
                                 .kv_heads = kv_heads,
                                 .head_dim = head_dim,
                                 .fingerprint = fingerprint};
    snprintf(info.method, sizeof info.method, "%s", method->codebook);
    float *keys = random_parameters(&info, CODEC_KEYS, adjacent), *values = random_parameters(&info, CODEC_VALUES, adjacent);
    struct terse_codebook *codebook = NULL;
    enum terse_status status =
        keys && values ? codebook_new(&info, keys, values, &codebook, error) : status_no_memory(error, 0, "a random codebook");
    method->learned = codebook;
    memory_free(keys);
    memory_free(values);
    return status;
}
