/* Makes random codebook parameters with the normalizations, pairings, bases and grids that codecs rely on. */
#include "base/memory.h"
#include "base/random.h"
#include "format/codebook.h"
#include "format/commvq.h"
#include "format/transform.h"
#include "train/codec_learning.h"

#include <math.h>

/* Makes rounds shrink as those of learned tables do, whose largest numbers are 1, 0.44, 0.45, 0.28, 0.23, 0.20, ... 0.13 in the eleventh
 * round: the kernel that reads keys depends on it. */
static void shrink_rounds(struct codec_shape shape, float *tables) {
    size_t round = (size_t)COMMVQ_ENTRIES * shape.width;
    for (size_t i = 0; i < commvq_table_numbers(shape); i++)
        tables[i] *= powf((float)(1 + i / round % commvq_rounds(shape)), -0.85f);
}

/* Makes a transform of random numbers: a reflection for a basis, sizes and importances that differ as those of the built-in model do, gains of
 * normally distributed rows. Values have no mean before rotation. */
static void shape_transform(enum codec_side side, size_t hd, float *floats) {
    float *size = floats + 2 * hd, *basis = size + hd, *rest = basis + hd * hd, *v = floats, sum = 0;
    for (size_t c = 0; c < hd; c++) sum += v[c] * v[c];
    for (size_t c = 0; c < hd; c++) {
        if (side == CODEC_VALUES) floats[hd + c] = 0;
        size[c] = 4 * exp2f(-6 * (float)c / (float)hd);
        for (size_t j = 0; j < hd; j++) basis[c * hd + j] = (float)(c == j) - 2 * v[c] * v[j] / sum;
    }
    rest[0] = 0.3f;
    rest[1] = 3;
    rest[2] = 1;
    rest[3] *= 4;
    rest[4] *= 4;
}

/* Makes random parameters of one side; the last number of a normalization is the size of rows. */
static float *random_parameters(const struct codebook_info *info, enum codec_side side, size_t pairs, bool adjacent) {
    struct coding coding = side == CODEC_KEYS ? info->key : info->value;
    struct codec_shape shape = {.head_dim = info->head_dim, .group = 1, .width = coding.width, .bits = coding.bits};
    size_t n = codebook_floats(info, side), sets = info->shared ? 1 : (size_t)info->layers * info->kv_heads, each = n / sets;
    float *floats = memory_array(n, sizeof *floats);
    uint64_t seed = 1 + (uint64_t)side;
    for (size_t i = 0; floats && i < n; i++) floats[i] = (float)(random_next(&seed) >> 40) / (1 << 23) - 1;
    for (size_t set = 0; floats && set < sets && n; set++) {
        if (coding.codec->learner == CODEC_LEARNS_EM) {
            shrink_rounds(shape, floats + set * each);
            commvq_set_pairing(shape, floats + set * each, pairs, adjacent);
        }
        if (coding.codec->learner == CODEC_LEARNS_TRANSFORM) shape_transform(side, info->head_dim, floats + set * each);
        if (coding.codec->normalized) floats[(set + 1) * each - 1] = 1;
        codec_snap_to_grid(coding.codec, shape, floats + set * each);
    }
    return floats;
}

enum terse_status codebook_random(const struct codebook_info *info, size_t pairs, bool adjacent, struct terse_codebook **codebook,
                                  struct terse_error *error) {
    float *keys = random_parameters(info, CODEC_KEYS, pairs, adjacent),
          *values = random_parameters(info, CODEC_VALUES, pairs, adjacent);
    enum terse_status status;
    *codebook = NULL;
    if (keys && values)
        status = codebook_new(info, keys, values, codebook, error);
    else
        status = status_no_memory(error, (codebook_floats(info, CODEC_KEYS) + codebook_floats(info, CODEC_VALUES)) * sizeof *keys,
                                  "a random codebook");
    memory_free(keys);
    memory_free(values);
    return status;
}
