/* The codecs pq and vq: product quantization (Jegou et al. 2011). A head is cut into sub-vectors of `width` contiguous channels, each
 * coded by the nearest of its 2^bits centroids. pq takes keys after rotation, so that a query can meet the centroids once and each
 * key by look-up (MILLION); vq takes them before, where they cluster better (AnTKV, CQ), and then keys are decoded, turned and met.
 * Values are the same in both.
 *
 * Centroids are kept in half precision, as in a codebook's file: half the memory to stream through when there are 4096 of them.
 */
#include "codec/pq.h"
#include "base/half.h"
#include "base/memory.h"
#include "kernels/code_planes.h"
#include "kernels/nearest.h"

#include <math.h>
#include <string.h>

struct learned {
    struct product_code product; /* first: pq_product */
    uint16_t *rows;
    uint8_t *planes;
    struct nearest *nearest; /* [parts] */
};

const struct product_code *pq_product(struct codec_shape shape) { return shape.learned; }

static size_t parts_of(struct codec_shape shape) { return shape.head_dim / shape.width; }
static size_t centroids_of(struct codec_shape shape) { return (size_t)1 << shape.bits; }

static enum terse_status check(struct codec_shape shape, enum codec_side side, struct terse_error *error) {
    enum terse_status status = codec_check_head_dim(shape, side, error);
    if (status) return status;
    if (!shape.width || shape.width > PQ_MOST_WIDTH || shape.head_dim % shape.width) {
        return status_fail(error, TERSE_E_UNSUPPORTED,
                           "sub-vectors of %u channels do not divide the model's heads of %u: use a divisor of %u up to %d",
                           shape.width, shape.head_dim, shape.head_dim, PQ_MOST_WIDTH);
    }
    if (shape.bits < BLOCK_PQ_BITS_LEAST || shape.bits > BLOCK_PQ_BITS_MOST) {
        return status_fail(error, TERSE_E_UNSUPPORTED, "codes of %u bits: use %d to %d", shape.bits, BLOCK_PQ_BITS_LEAST,
                           BLOCK_PQ_BITS_MOST);
    }
    return TERSE_OK;
}

static size_t block_bytes(struct codec_shape shape, enum codec_side side) {
    (void)side;
    return BLOCK_BYTES_PQ(parts_of(shape), shape.bits);
}

/* ---- What is learned */

static size_t parameters(struct codec_shape shape, enum codec_side side) {
    (void)side;
    return centroids_of(shape) * shape.head_dim;
}

static void close_learned(void *opened) {
    struct learned *learned = opened;
    if (!learned) return;
    if (learned->nearest) {
        for (size_t m = 0; m < learned->product.parts; m++) nearest_free(&learned->nearest[m]);
    }
    memory_free(learned->nearest);
    memory_free(learned->rows);
    memory_free(learned->planes);
    memory_free(learned);
}

static size_t planes_bytes(const struct product_code *p) {
    return p->bits <= 8 ? p->parts * p->width * 2 * PRODUCT_PLANE(p->bits) : 0;
}

static size_t learned_bytes(const void *opened) {
    const struct learned *learned = opened;
    size_t parts = learned->product.parts, centroids = (size_t)1 << learned->product.bits;
    size_t bytes =
        sizeof *learned + parts * (centroids * learned->product.width * sizeof *learned->rows + sizeof *learned->nearest);
    bytes += planes_bytes(&learned->product);
    for (size_t m = 0; m < parts; m++) bytes += nearest_bytes(&learned->nearest[m]);
    return bytes;
}

/* floats[n] to half precision; TERSE_E_FORMAT where that is not finite. */
static enum terse_status round_centroids(const float *floats, size_t n, uint16_t *halves, struct terse_error *error) {
    for (size_t i = 0; i < n; i++) {
        halves[i] = half_from_float(floats[i]);
        if (!isfinite(half_to_float(halves[i]))) {
            return status_fail(
                error, TERSE_E_FORMAT,
                "number %zu of the codebook's centroids is %g, beyond half precision: the codebook is damaged, make it "
                "again with terse calibrate",
                i, (double)floats[i]);
        }
    }
    return TERSE_OK;
}

/* The halves of each channel in two planes of bytes. */
static void set_planes(const struct product_code *p, uint8_t *planes) {
    size_t k = (size_t)1 << p->bits, plane = PRODUCT_PLANE(p->bits);
    for (size_t c = 0; planes && c < p->parts * p->width; c++) {
        const uint16_t *from = p->rows + c / p->width * k * p->width + c % p->width;
        uint8_t *low = planes + c * 2 * plane, *high = low + plane;
        for (size_t j = 0; j < plane; j++) {
            low[j] = (uint8_t)(from[j % k * p->width] & 255);
            high[j] = (uint8_t)(from[j % k * p->width] >> 8);
        }
    }
}

/* One nearest-centroid search for each sub-vector, over the centroids as they were rounded. */
static enum terse_status open_searches(struct learned *learned, struct terse_error *error) {
    const struct product_code *p = &learned->product;
    size_t k = (size_t)1 << p->bits;
    float *floats = memory_array(k * p->width, sizeof *floats);
    enum terse_status status = floats ? TERSE_OK : status_no_memory(error, k * p->width * sizeof *floats, "centroids");
    for (size_t m = 0; !status && m < p->parts; m++) {
        status = nearest_new(k, p->width, &learned->nearest[m], error);
        if (status) break;
        kernels()->half_to_float(p->rows + m * k * p->width, floats, k * p->width);
        nearest_set(&learned->nearest[m], floats);
    }
    memory_free(floats);
    return status;
}

static enum terse_status open_learned(struct codec_shape shape, enum codec_side side, const float *floats, void **opened,
                                      struct terse_error *error) {
    size_t parts = parts_of(shape), n = parameters(shape, side);
    struct learned *learned = memory_zeros(1, sizeof *learned);
    enum terse_status status = TERSE_OK;
    *opened = NULL;
    if (!learned) return status_no_memory(error, sizeof *learned, "a codebook");
    struct product_code *p = &learned->product;
    *p = (struct product_code){.parts = parts, .width = shape.width, .bits = shape.bits};
    learned->rows = memory_array(n, sizeof *learned->rows);
    if (planes_bytes(p)) learned->planes = memory_zeros(planes_bytes(p), 1);
    learned->nearest = memory_zeros(parts, sizeof *learned->nearest);
    p->rows = learned->rows;
    p->planes = learned->planes;
    if (!learned->rows || !learned->nearest || (planes_bytes(p) && !learned->planes))
        status = status_no_memory(error, n * sizeof *learned->rows + planes_bytes(p), "a codebook");
    if (!status) status = round_centroids(floats, n, learned->rows, error);
    if (!status) set_planes(p, learned->planes);
    if (!status) status = open_searches(learned, error);
    if (status)
        close_learned(learned);
    else
        *opened = learned;
    return status;
}

/* ---- Blocks */

static void encode(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, void *block) {
    const struct learned *learned = shape.learned;
    uint8_t *bytes = block;
    size_t parts = parts_of(shape), used = parts * BLOCK_PQ_PART(shape.bits);
    for (size_t m = 0; m < parts; m++) {
        uint16_t codes[BLOCK_TOKENS] = {0};
        nearest_search(&learned->nearest[m], rows + m * shape.width, n, shape.head_dim, codes);
        code_planes_write(codes, shape.bits, bytes + m * BLOCK_PQ_PART(shape.bits));
    }
    memset(bytes + used, 0, block_bytes(shape, side) - used);
}

static void decode(struct codec_shape shape, enum codec_side side, const void *block, float *rows) {
    (void)side;
    kernels()->rows_pq(pq_product(shape), block, rows);
}

static void channels(struct codec_shape shape, const void *block, float *to) {
    kernels()->channels_pq(pq_product(shape), block, to);
}

/* ---- Keys */

static bool by_table(struct codec_shape shape) {
    (void)shape;
    return false;
}

static size_t prepared(struct codec_shape shape) { return by_table(shape) ? product_floats(pq_product(shape), shape.group) : 0; }

static void prepare(struct codec_shape shape, const float *q, float *tables) {
    kernels()->prepare_pq(pq_product(shape), q, shape.group, tables);
}

static void score(struct codec_shape shape, const float *q, const float *tables, const void *block, float *logits) {
    if (by_table(shape))
        kernels()->look_up_pq(pq_product(shape), tables, shape.group, block, logits);
    else
        kernels()->score_pq(pq_product(shape), q, shape.group, block, logits);
}

/* ---- Values */

static bool by_tally(struct codec_shape shape) {
    (void)shape;
    return false;
}

static void mix(struct codec_shape shape, const float *weights, const void *block, float *acc) {
    kernels()->mix_pq(pq_product(shape), weights, shape.group, block, acc);
}

static size_t tallies(struct codec_shape shape) { return by_tally(shape) ? product_floats(pq_product(shape), shape.group) : 0; }

static void tally(struct codec_shape shape, const float *weights, const void *block, float *to) {
    kernels()->tally_pq(pq_product(shape), weights, shape.group, block, to);
}

static void finish(struct codec_shape shape, const float *from, float *acc) {
    kernels()->finish_pq(pq_product(shape), from, shape.group, acc);
}

#define PQ_CODEC(name_, rope_) \
    { \
        .name = name_, .rope = rope_, .check = check, .block_bytes = block_bytes, .parameters = parameters, .open = open_learned, \
        .close = close_learned, .learned_bytes = learned_bytes, .encode = encode, .decode = decode, .prepared = prepared, \
        .prepare = prepare, .score = score, .channels = channels, .mix = mix, .tallies = tallies, .tally = tally, .finish = finish \
    }

const struct codec codec_pq = PQ_CODEC("pq", CODEC_ROPE_AFTER);
const struct codec codec_vq = PQ_CODEC("vq", CODEC_ROPE_BEFORE);
