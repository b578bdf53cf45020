/* Implements the codecs pq and vq: product quantization (Jegou et al. 2011). A head is cut into sub-vectors of `width` contiguous
 * channels, each coded by the nearest of its 2^bits centroids. pq codes keys after rotation, so that a table of a query's inner
 * products with all centroids scores every key by look-up (MILLION); vq codes them in rope runs, where they cluster better (AnTKV
 * and CQ: before rotation), and makes no tables, which would be new for every run. Values are the same in both.
 *
 * Centroids are kept in half precision, as in a codebook's file: half the memory to stream through when there are 4096 of them. */
#include "backend/cpu/codec/pq.h"
#include "backend/cpu/codec/nearest.h"
#include "backend/cpu/kernels/pq/code_planes.h"
#include "backend/cpu/kernels/pq/ops.h"
#include "backend/cpu/kernels/select/ops.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "base/divisor.h"
#include "base/half.h"
#include "base/memory.h"

#include <math.h>
#include <string.h>

#define TABLE_BYTES ((size_t)320 << 10) /* of look-up tables of a KV head, at most: with more, the second-level cache is theirs */

struct learned {
    struct pq_codebook codebook; /* first: pq_codebook_of; its arrays are these */
    uint16_t *rows;
    uint8_t *byte_planes, *centroids_u8; /* one of them or rows_i16, or none where the processor's kernels do not read it */
    int16_t *rows_i16;
    float *scales;           /* low, step and from, [hd] each, beside centroids_u8 and rows_i16 */
    struct nearest *nearest; /* [parts] */
};

const struct pq_codebook *pq_codebook_of(struct codec_shape shape) { return shape.learned; }

static size_t parts_of(struct codec_shape shape) { return shape.head_dim / shape.width; }
static size_t centroids_of(struct codec_shape shape) { return (size_t)1 << shape.bits; }

/* ---- What is learned */

static void learned_free(void *opened) {
    struct learned *learned = opened;
    if (!learned) return;
    if (learned->nearest) {
        for (size_t m = 0; m < learned->codebook.parts; m++) nearest_free(&learned->nearest[m]);
    }
    memory_free(learned->nearest);
    memory_free(learned->rows);
    memory_free(learned->byte_planes);
    memory_free(learned->centroids_u8);
    memory_free(learned->rows_i16);
    memory_free(learned->scales);
    memory_free(learned);
}

/* Splits the halves of each channel into two planes of bytes. */
static void set_planes(const struct pq_codebook *p, uint8_t *planes) {
    size_t k = (size_t)1 << p->bits, plane = PQ_CHANNEL_ENTRIES(p->bits);
    for (size_t c = 0; c < p->parts * p->width; c++) {
        const uint16_t *from = p->rows + c / p->width * k * p->width + c % p->width;
        uint8_t *low = planes + c * 2 * plane, *high = low + plane;
        for (size_t j = 0; j < plane; j++) {
            low[j] = (uint8_t)(from[j % k * p->width] & 255);
            high[j] = (uint8_t)(from[j % k * p->width] >> 8);
        }
    }
}

/* ---- The grid: half floats are multiples of 2^-24. */

static int64_t as_integer(uint16_t half) { return (int64_t)ldexpf(half_to_float(half), 24); }

#define FROM 131072 /* steps that kernels/pq/pq.h's `from` lies below `low` */

struct grid {
    int64_t least, step;
};

/* Finds the grid of at most 256 steps on which a channel's centroids rows[k], `width` halves apart, lie as codec_snap_to_grid
 * leaves them: the step is the greatest of which all are multiples. Returns false where there is none. */
static bool find_grid(const uint16_t *rows, size_t k, size_t width, struct grid *grid) {
    int64_t least = INT64_MAX, most = INT64_MIN, step = 0;
    for (size_t j = 0; j < k; j++) {
        int64_t x = as_integer(rows[j * width]);
        least = x < least ? x : least;
        most = x > most ? x : most;
        step = common_divisor(x, step);
    }
    *grid = (struct grid){least, least == most ? 0 : step < 0 ? -step : step};
    int64_t from = least - FROM * grid->step;
    return most - least <= 255 * grid->step && (int64_t)ldexpf(ldexpf((float)from, -24), 24) == from;
}

/* Returns where channel c's centroids begin. */
static size_t channel_at(size_t c, size_t k, size_t width) { return c / width * k * width + c % width; }

/* Returns the byte of a half that is low + step * byte. */
static uint8_t byte_of(uint16_t half, struct grid grid) {
    return grid.step ? (uint8_t)((as_integer(half) - grid.least) / grid.step) : 0;
}

/* Writes channel c's centroids as bytes. */
static void set_channel(struct learned *learned, size_t c, struct grid grid) {
    const struct pq_codebook *p = &learned->codebook;
    size_t k = (size_t)1 << p->bits, plane = PQ_CHANNEL_ENTRIES(p->bits), hd = p->parts * p->width, at = channel_at(c, k, p->width);
    bool by_row = p->bits > PQ_CHANNEL_BITS;
    const uint16_t *rows = p->rows + at;
    float *low = learned->scales + c;
    low[0] = ldexpf((float)grid.least, -24);
    low[hd] = ldexpf((float)grid.step, -24);
    low[2 * hd] = ldexpf((float)(grid.least - FROM * grid.step), -24);
    for (size_t j = 0; learned->rows_i16 && j < k; j++) learned->rows_i16[at + j * p->width] = byte_of(rows[j * p->width], grid);
    uint8_t *bytes = learned->centroids_u8 ? learned->centroids_u8 + (by_row ? at : c * plane) : NULL;
    for (size_t j = 0; bytes && j < plane; j++) bytes[by_row ? j * p->width : j] = byte_of(rows[j % k * p->width], grid);
}

/* Makes one nearest-centroid search for each sub-vector, over the centroids as they were rounded. */
static enum terse_status make_searches(struct learned *learned, struct terse_error *error) {
    const struct pq_codebook *p = &learned->codebook;
    size_t k = (size_t)1 << p->bits;
    float *floats = memory_array(k * p->width, sizeof *floats);
    enum terse_status status = floats ? TERSE_OK : status_no_memory(error, k * p->width * sizeof *floats, "centroids");
    for (size_t m = 0; !status && m < p->parts; m++) {
        status = nearest_new(k, p->width, &learned->nearest[m], error);
        if (status) break;
        vector_ops()->half_to_float(p->rows + m * k * p->width, floats, k * p->width);
        nearest_set(&learned->nearest[m], floats);
    }
    memory_free(floats);
    return status;
}

/* The processor's kernels read centroids in these forms, besides half floats. */
enum channel_form { BY_ROW_ALONE, BY_BYTE_PLANES, BY_BYTES, BY_WORDS };

/* Chooses the form: bytes, or words of keys, where the centroids of every channel lie on a grid, which is then written to
 * grids[head_dim]; else byte planes of keys; none where kernels read no more. */
static enum channel_form choose_form(struct codec_shape shape, enum codec_side side, const uint16_t *halves, struct grid *grids) {
    bool words = pq_ops()->reads_rows_i16 && side == CODEC_KEYS && shape.bits <= PQ_CHANNEL_BITS && shape.width % 2 == 0;
    if (!pq_may_read_u8(shape.width, shape.bits) || !(pq_ops()->has_register_lut || words)) return BY_ROW_ALONE;
    size_t k = centroids_of(shape);
    for (size_t c = 0; c < shape.head_dim; c++) {
        if (!find_grid(halves + channel_at(c, k, shape.width), k, shape.width, &grids[c]))
            return words || side == CODEC_VALUES || shape.bits > PQ_CHANNEL_BITS ? BY_ROW_ALONE : BY_BYTE_PLANES;
    }
    return words ? BY_WORDS : BY_BYTES;
}

static size_t form_bytes(enum channel_form form, size_t hd, unsigned bits) {
    size_t channels = hd * PQ_CHANNEL_ENTRIES(bits);
    switch (form) {
    case BY_BYTES: return channels + 3 * hd * sizeof(float);
    case BY_WORDS: return (hd << bits) * sizeof(int16_t) + 3 * hd * sizeof(float);
    case BY_BYTE_PLANES: return 2 * channels;
    default: return 0;
    }
}

static enum terse_status set_channels(struct learned *learned, enum channel_form form, const struct grid *grids,
                                      struct terse_error *error) {
    struct pq_codebook *p = &learned->codebook;
    size_t hd = p->parts * p->width, bytes = hd * PQ_CHANNEL_ENTRIES(p->bits);
    if (form == BY_BYTE_PLANES) {
        p->byte_planes = learned->byte_planes = memory_array(2 * bytes, 1);
        if (!learned->byte_planes) return status_no_memory(error, 2 * bytes, "a codebook");
        set_planes(p, learned->byte_planes);
    }
    if (form != BY_BYTES && form != BY_WORDS) return TERSE_OK;
    if (form == BY_BYTES)
        learned->centroids_u8 = memory_array(bytes, 1);
    else
        p->rows_i16 = learned->rows_i16 = memory_array(hd << p->bits, sizeof *learned->rows_i16);
    learned->scales = memory_array(3 * hd, sizeof *learned->scales);
    if (!(learned->centroids_u8 || learned->rows_i16) || !learned->scales)
        return status_no_memory(error, form_bytes(form, hd, p->bits), "a codebook");
    for (size_t c = 0; c < hd; c++) set_channel(learned, c, grids[c]);
    *(p->bits > PQ_CHANNEL_BITS ? &p->centroid_rows_u8 : &p->centroids_u8) = learned->centroids_u8;
    p->low = learned->scales;
    p->step = learned->scales + hd;
    p->from = learned->scales + 2 * hd;
    return TERSE_OK;
}

static size_t learned_bytes(const void *opened) {
    const struct learned *learned = opened;
    const struct pq_codebook *p = &learned->codebook;
    size_t hd = p->parts * p->width, bytes = sizeof *learned + ((size_t)1 << p->bits) * hd * sizeof *learned->rows;
    enum channel_form form = learned->centroids_u8  ? BY_BYTES
                             : learned->rows_i16    ? BY_WORDS
                             : learned->byte_planes ? BY_BYTE_PLANES
                                                    : BY_ROW_ALONE;
    bytes += form_bytes(form, hd, p->bits);
    for (size_t m = 0; m < p->parts; m++) bytes += sizeof *learned->nearest + nearest_bytes(&learned->nearest[m]);
    return bytes;
}

static size_t predict_learned_bytes(struct codec_shape shape, enum codec_side side, const uint16_t *halves) {
    struct grid grids[CODEC_HEAD_DIM_MAX];
    size_t centroids = centroids_of(shape) * shape.head_dim * sizeof(uint16_t);
    size_t searches = parts_of(shape) * (sizeof(struct nearest) + nearest_bytes_of(centroids_of(shape), shape.width));
    return sizeof(struct learned) + centroids + searches +
           form_bytes(choose_form(shape, side, halves, grids), shape.head_dim, shape.bits);
}

static enum terse_status learned_new(struct codec_shape shape, enum codec_side side, const float *floats, void **opened,
                                     struct terse_error *error) {
    struct grid grids[CODEC_HEAD_DIM_MAX];
    size_t parts = parts_of(shape), numbers = centroids_of(shape) * shape.head_dim;
    struct learned *learned = memory_zeros(1, sizeof *learned);
    *opened = NULL;
    if (!learned) return status_no_memory(error, sizeof *learned, "a codebook");
    enum terse_status status = TERSE_OK;
    learned->codebook = (struct pq_codebook){.parts = parts, .width = shape.width, .bits = shape.bits};
    learned->codebook.rows = learned->rows = memory_array(numbers, sizeof *learned->rows);
    learned->nearest = memory_zeros(parts, sizeof *learned->nearest);
    if (!learned->rows || !learned->nearest) status = status_no_memory(error, numbers * sizeof *learned->rows, "a codebook");
    if (!status) {
        vector_ops()->float_to_half(floats, learned->rows, numbers);
        status = set_channels(learned, choose_form(shape, side, learned->rows, grids), grids, error);
    }
    if (!status) status = make_searches(learned, error);
    if (status)
        learned_free(learned);
    else
        *opened = learned;
    return status;
}

/* ---- Pages */

static void encode(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, void *page) {
    const struct learned *learned = shape.learned;
    uint8_t *bytes = page;
    size_t parts = parts_of(shape), used = parts * PAGE_PQ_PART(shape.bits);
    for (size_t m = 0; m < parts; m++) {
        uint16_t codes[PAGE_TOKENS] = {0};
        nearest_search(&learned->nearest[m], rows + m * shape.width, n, shape.head_dim, codes);
        code_planes_write(codes, shape.bits, bytes + m * PAGE_PQ_PART(shape.bits));
    }
    memset(bytes + used, 0, codec_page_bytes(&codec_pq, shape, side) - used);
}

static void decode(struct codec_shape shape, enum codec_side side, const void *page, float *rows) {
    (void)side;
    pq_ops()->decode_rows(pq_codebook_of(shape), page, rows);
}

static void gather_tokens(struct codec_shape shape, enum codec_side side, const void *from, const uint8_t *slots, size_t n,
                          void *to, size_t at) {
    (void)side;
    select_ops()->gather_codes(from, parts_of(shape), shape.bits, slots, n, to, at);
}

static void channels(struct codec_shape shape, const void *page, float *to) {
    pq_ops()->decode_channels(pq_codebook_of(shape), page, to);
}

/* ---- Choice of algorithm
 *
 * Keys are scored by look-up tables, by 8-bit centroids or by decoding half floats; values are accumulated by decoding or by code.
 * The choice follows bench/micro/bench_pq.c (8192 tokens, 4 queries, ns per token and KV head of 128 channels; f16 takes 25 ns with
 * AVX2, and 10 with AVX-512 on one thread alone):
 *
 *     width x bits                       2 x 8   4 x 8   8 x 8   16 x 8   4 x 12   16 x 12   32 x 12
 *     AVX-512  score by look-up           23      12      5       3        -        -         -
 *              score by 8-bit centroids    8       8      7       7       27       14        12
 *              score by decoding          17      17      16      15       95       40        30
 *              accumulate by decoding     12      12      12      12       24        8         7
 *              accumulate by code        101      63      22      14       -        -         -
 *     AVX2     score by look-up           39      23      12      7        -        -         -
 *              score by decoding          48      32      26      -        66       35        31
 *              accumulate by decoding     50      34      17      16       68       50        24
 *              accumulate by code         68      40      19      13       -        -         -
 *
 * The time of look-up is proportional to the number of queries, and the tables cost extra: at 2048 tokens the whole takes twice as
 * long per token. With 8-bit centroids one query takes 5 ns, three take 6 and eight 13. AVX-512 keeps both kinds of centroids in
 * registers and looks them up there, at the same cost for any width; other tiers load a row for each code. With 4096 centroids the
 * codebook's own memory bounds every algorithm: 1 MB for a head is half of what f16 reads of 8192 tokens. The AVX-512 figures of 12
 * bits, 8-bit centroids and accumulating, are of one thread of a Zen 4 with the codebook in its second-level cache, f16 taking 13:
 * each line from there, one per code, takes half a nanosecond.
 *
 * AVX2 reads keys of up to eight bits by 16-bit centroids instead of decoding them to halves: from the cache, where f16 takes 15,
 * 23 instead of 36 for 2 x 8, 15 instead of 26 for 4 x 8, 14 instead of 23 for 8 x 8. */

/* Returns whether keys are read by look-up: wherever tables stay small, except that in registers narrow codes are read faster. */
static bool by_table(struct codec_shape shape) {
    const struct pq_codebook *p = pq_codebook_of(shape);
    if (shape.bits > PQ_CHANNEL_BITS) return false;
    if (p->centroids_u8 && shape.width < (shape.group > 1 ? 8 : 4)) return false;
    if (p->byte_planes && shape.width < 4 && shape.group > shape.width) return false;
    if (p->rows_i16 && shape.width < 8) return false;
    return pq_table_floats(p, shape.group) * sizeof(float) <= TABLE_BYTES;
}

/* Returns whether values are summed by code: only where a token has so few codes that this is less work than decoding. */
static bool sums_by_code(struct codec_shape shape) {
    return shape.bits <= PQ_CHANNEL_BITS && shape.width >= (pq_ops()->has_register_lut ? 32 : 16);
}

#define LINE 64

/* Prefetches tables of more than 256 centroids, where as many codes are looked up as a table has cache lines. It loads one line
 * after the other, which the processor runs ahead of: a Zen 4 drops most of so many prefetches. */
static void prefetch_codebook(struct codec_shape shape, enum codec_side side, size_t pages) {
    const struct pq_codebook *p = pq_codebook_of(shape);
    (void)side;
    size_t numbers = centroids_of(shape) * shape.head_dim, bytes = p->centroid_rows_u8 ? numbers : numbers * sizeof *p->rows;
    const uint8_t *from = p->centroid_rows_u8 ? p->centroid_rows_u8 : (const uint8_t *)p->rows;
    uint32_t sum = 0;
    if (p->bits <= PQ_CHANNEL_BITS || pages * PAGE_TOKENS * p->parts < bytes / LINE) return;
    for (size_t at = 0; at < bytes; at += LINE) sum += from[at];
    __asm__ volatile("" : : "r"(sum)); /* as if it were used */
}

/* ---- Keys */

/* Returns how many floats queries take in fixed point, which takes hardly any time to compute; 0 if centroids are read as
 * halves. */
static size_t fixed_floats(struct codec_shape shape) {
    const struct pq_codebook *p = pq_codebook_of(shape);
    return pq_reads_u8(p) || p->rows_i16 ? shape.group * pq_i16_floats(p) : 0;
}

static void prepare_fixed(struct codec_shape shape, const float *q, float *tables) {
    pq_ops()->quantize_query(pq_codebook_of(shape), q, shape.group, tables);
}

static void score_fixed(struct codec_shape shape, const float *q, const float *tables, const void *page, float *logits) {
    const struct pq_codebook *p = pq_codebook_of(shape);
    if (tables)
        pq_ops()->score_i16(p, tables, shape.group, page, logits);
    else
        pq_ops()->score(p, q, shape.group, page, logits);
}

static size_t query_floats(struct codec_shape shape) {
    return by_table(shape) ? pq_table_floats(pq_codebook_of(shape), shape.group) : fixed_floats(shape);
}

static void prepare_queries(struct codec_shape shape, const float *q, float *tables) {
    if (by_table(shape))
        pq_ops()->prepare(pq_codebook_of(shape), q, shape.group, tables);
    else
        prepare_fixed(shape, q, tables);
}

static void score(struct codec_shape shape, const float *q, const float *tables, const void *page, float *logits) {
    if (tables && by_table(shape))
        pq_ops()->look_up(pq_codebook_of(shape), tables, shape.group, page, logits);
    else
        score_fixed(shape, q, tables, page, logits);
}

/* ---- Values */

static void accumulate_values(struct codec_shape shape, const float *weights, const void *page, float *acc) {
    pq_ops()->accumulate(pq_codebook_of(shape), weights, shape.group, page, acc);
}

static void accumulate_values_int8(struct codec_shape shape, const float *weights, const void *page, float *acc) {
    pq_ops()->accumulate_int8(pq_codebook_of(shape), weights, shape.group, page, acc);
}

static size_t code_sum_floats(struct codec_shape shape) {
    return sums_by_code(shape) ? pq_table_floats(pq_codebook_of(shape), shape.group) : 0;
}

static void accumulate_by_code(struct codec_shape shape, const float *weights, const void *page, float *to) {
    pq_ops()->accumulate_by_code(pq_codebook_of(shape), weights, shape.group, page, to);
}

static void finish_code_sums(struct codec_shape shape, const float *from, float *acc) {
    pq_ops()->finish_code_sums(pq_codebook_of(shape), from, shape.group, acc);
}

/* ---- The rows of the table. Tables of queries would serve vq for four pages only. */

static const struct codec_learned codebooks = {.make = learned_new,
                                               .free = learned_free,
                                               .bytes = learned_bytes,
                                               .predict_bytes = predict_learned_bytes,
                                               .prefetch = prefetch_codebook};
static const struct codec_code_sums sums_by_centroid = {
    .floats = code_sum_floats, .add = accumulate_by_code, .finish = finish_code_sums};

const struct cpu_codec cpu_codec_pq = {.format = &codec_pq,
                                       .encode = encode,
                                       .decode = decode,
                                       .score = score,
                                       .channels = channels,
                                       .accumulate_values = accumulate_values,
                                       .gather_tokens = gather_tokens,
                                       .learned = &codebooks,
                                       .queries = &(const struct codec_queries){.floats = query_floats, .prepare = prepare_queries},
                                       .code_sums = &sums_by_centroid,
                                       .accumulate_values_int8 = accumulate_values_int8};

const struct cpu_codec cpu_codec_vq = {.format = &codec_vq,
                                       .encode = encode,
                                       .decode = decode,
                                       .score = score_fixed,
                                       .channels = channels,
                                       .accumulate_values = accumulate_values,
                                       .gather_tokens = gather_tokens,
                                       .learned = &codebooks,
                                       .queries = &(const struct codec_queries){.floats = fixed_floats, .prepare = prepare_fixed},
                                       .code_sums = &sums_by_centroid,
                                       .accumulate_values_int8 = accumulate_values_int8};
