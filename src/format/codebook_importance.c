/* Corrects a codebook's importance by the sizes of rows and of the residual stream. */
#include "format/codebook_importance.h"

#include "base/memory.h"
#include "format/transform.h"

#include <math.h>

/* A codebook knows these numbers of a set, out of struct transform_parameters. */
struct known {
    float gain, residual, importance;
};

struct work {
    const struct codebook_rows *rows[2]; /* NULL: of the side there are none */
    bool normalized;
    uint32_t heads, head_dim;
    size_t sets;
    struct known *known; /* [2 sets], keys' first; of a side that is not of codec transform zeros */
    float *floats;       /* of one set's parameters, the last of which are read */
};

static void read_known(const struct terse_codebook *codebook, const struct work *work) {
    const size_t first = transform_parameter_floats(work->head_dim) - TRANSFORM_SINGLE_FLOATS;
    for (size_t i = 0; i < 2 * work->sets; i++) {
        const enum codec_side side = i < work->sets ? CODEC_KEYS : CODEC_VALUES;
        if (!codebook_coding(codebook_info(codebook), side).codec) continue;
        codebook_parameters_from(codebook, side, i % work->sets, first, work->floats);
        const struct transform_parameters own = transform_parameters_at(work->floats, work->head_dim);
        work->known[i] = (struct known){own.gain, own.residual, own.importance};
    }
}

static const struct known *known_of(const struct work *work, enum codec_side side, size_t set) {
    return &work->known[(side == CODEC_KEYS ? 0 : work->sets) + set];
}

/* Returns the rows of a set; NULL: there are none. */
static const struct codebook_rows *rows_of(const struct work *work, enum codec_side side, size_t set) {
    return work->rows[side] && work->rows[side][set].size ? &work->rows[side][set] : NULL;
}

/* Returns log2 of how many times the squares of a set's rows are those of the codebook's; 0 where one of them is nothing. */
static float growth(const struct work *work, enum codec_side side, size_t set) {
    const struct codebook_rows *rows = rows_of(work, side, set);
    const float gain = known_of(work, side, set)->gain;
    return rows && rows->gain > 0 && gain > 0 ? 2 * log2f(rows->gain / gain) : 0;
}

/* Returns the same for all values of a set's layer, where the codebook's importance says how much of the layer each head is. */
static float growth_of_layer(const struct work *work, size_t set) {
    double before = 0, after = 0;
    for (size_t own = set - set % work->heads, end = own + work->heads; own < end; own++) {
        const double part = exp2((double)known_of(work, CODEC_VALUES, own)->importance);
        before += part;
        after += part * exp2((double)growth(work, CODEC_VALUES, own));
    }
    return (float)log2(after / before);
}

static float importance_of(const struct work *work, enum codec_side side, size_t set) {
    const struct codebook_rows *rows = rows_of(work, side, set);
    const struct known *known = known_of(work, side, set);
    if (!rows) return known->importance;
    float grown = growth(work, CODEC_VALUES, set);
    if (work->normalized) grown -= growth_of_layer(work, set);
    if (side == CODEC_KEYS) grown += growth(work, CODEC_KEYS, set);
    if (known->residual != 0 && rows->residual != 0) grown -= rows->residual - known->residual;
    return known->importance + grown;
}

enum terse_status codebook_importance(const struct terse_codebook *codebook, const struct codebook_rows *const rows[2],
                                      bool normalized, float *const importance[2], struct terse_error *error) {
    const struct codebook_info *info = codebook_info(codebook);
    struct work work = {.rows = {rows[CODEC_KEYS], rows[CODEC_VALUES]},
                        .normalized = normalized,
                        .heads = info->kv_heads,
                        .head_dim = info->head_dim,
                        .sets = codebook_sets(info)};
    const size_t floats = transform_parameter_floats(info->head_dim);
    work.known = memory_zeros(2 * work.sets, sizeof *work.known);
    work.floats = memory_array(floats, sizeof *work.floats);
    const bool enough = work.known && work.floats;
    if (enough) read_known(codebook, &work);
    for (size_t i = 0; i < 2 * work.sets && enough; i++) {
        const enum codec_side side = i < work.sets ? CODEC_KEYS : CODEC_VALUES;
        importance[side][i % work.sets] = importance_of(&work, side, i % work.sets);
    }
    memory_free(work.known);
    memory_free(work.floats);
    return enough ? TERSE_OK
                  : status_no_memory(error, 2 * work.sets * sizeof *work.known + floats * sizeof *work.floats, "importance");
}
