/* The functions for product quantization and score_rotated_channels, every tier against sums in double precision, over every width and number of
 * bits of code, any number of queries, with extreme numbers, between inaccessible pages. */
#include "format/page_layout.h"
#include "support/kernel_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define EPSILON 0x1p-24
#define MOST_G 19 /* three passes of the widest tier */
#define MOST_HD 256
#define PAGE 64                     /* tokens of a page */
#define MOST_CENTROIDS (128 * 4096) /* numbers */
#define MOST_DRAWN 8191             /* of them, a prime: repeated, they give no two codes of a sub-vector the same centroid */

static struct random randomness = {11};

/* ---- A page with its centroids, and what they mean ------------------------------------------------------------------------ */

struct sample {
    struct pq_codebook p;
    size_t hd, page_bytes;
    unsigned char *page;
    double value[PAGE][MOST_HD]; /* token by token */
    float centroids[MOST_CENTROIDS];
};

/* Stores a code as format/page_layout.h says, bit by bit. */
static void put_code(unsigned char *planes, unsigned bits, size_t t, unsigned code) {
    for (unsigned part = 8; part; part /= 2) {
        if (!(bits & part)) continue;
        for (unsigned i = 0; i < part; i++) {
            size_t at = t * part + i;
            planes[at / 8] = (unsigned char)((planes[at / 8] & ~(1u << at % 8)) | (code >> i & 1u) << at % 8);
        }
        planes += 8 * part;
        code >>= part;
    }
}

static double half_value(uint16_t half) {
    float x;
    vector_ops_at(CPU_SCALAR)->half_to_float(&half, &x, 1);
    return (double)x;
}

static const unsigned char *make_planes(const struct pq_codebook *p, enum guard_side side) {
    size_t plane = PQ_CHANNEL_ENTRIES(p->bits), k = (size_t)1 << p->bits;
    unsigned char *planes = guard_bytes(p->parts * p->width * 2 * plane, side);
    for (size_t m = 0; m < p->parts; m++) {
        for (size_t i = 0; i < p->width; i++) {
            for (size_t j = 0; j < plane; j++) {
                uint16_t half = p->rows[(m * k + j % k) * p->width + i];
                planes[(m * p->width + i) * 2 * plane + j] = (unsigned char)half;
                planes[((m * p->width + i) * 2 + 1) * plane + j] = (unsigned char)(half >> 8);
            }
        }
    }
    return planes;
}

/* Centroids of 8 bits, by channel and as words by row or, where codes have more than eight bits, by row; all are halves. */
static void make_levels(struct pq_codebook *p, uint16_t *rows, enum fill fill, enum guard_side side) {
    size_t hd = p->parts * p->width, k = (size_t)1 << p->bits, plane = PQ_CHANNEL_ENTRIES(p->bits);
    float *low = guard_floats(hd, side), *step = guard_floats(hd, side), *from = guard_floats(hd, side);
    unsigned char *u8 = guard_bytes(hd * plane, side);
    for (size_t c = 0; c < hd; c++) {
        int exponent = fill == FILL_TINY ? -24 : fill == FILL_LARGE ? 5 : fill == FILL_SPREAD ? -20 + (int)(c % 24) : -7;
        step[c] = fill == FILL_ZERO ? 0 : ldexpf(1 + (float)(c % 3), exponent);
        low[c] = step[c] * (float)((int)(random_bits(&randomness) % 300) - 300);
        from[c] = low[c] - 0x1p17f * step[c];
        for (size_t j = 0; j < plane; j++) {
            size_t at = p->bits > PQ_CHANNEL_BITS ? (c / p->width * k + j) * p->width + c % p->width : c * plane + j;
            u8[at] = j < k ? (unsigned char)random_bits(&randomness) : u8[c * plane + j % k];
            float x = low[c] + step[c] * (float)u8[at];
            if (j < k) vector_ops_at(CPU_SCALAR)->float_to_half(&x, &rows[(c / p->width * k + j) * p->width + c % p->width], 1);
        }
    }
    *(p->bits > PQ_CHANNEL_BITS ? &p->centroid_rows_u8 : &p->centroids_u8) = u8;
    if (p->bits <= PQ_CHANNEL_BITS && p->width % 2 == 0) {
        int16_t *words = guard_bytes(hd * k * sizeof *words, side);
        for (size_t i = 0; i < hd * k; i++)
            words[i] = u8[(i / (k * p->width) * p->width + i % p->width) * plane + i / p->width % k];
        p->rows_i16 = words;
    }
    p->low = low;
    p->step = step;
    p->from = from;
}

static void make_sample(struct sample *s, size_t hd, size_t width, unsigned bits, bool u8, enum fill fill, enum guard_side side) {
    size_t k = (size_t)1 << bits;
    uint16_t *rows = guard_bytes(hd * k * sizeof *rows, side);
    s->p = (struct pq_codebook){.parts = hd / width, .width = width, .bits = bits, .rows = rows};
    s->hd = hd;
    fill_halves(&randomness, fill, rows, hd * k < MOST_DRAWN ? hd * k : MOST_DRAWN);
    for (size_t i = MOST_DRAWN; i < hd * k; i++) rows[i] = rows[i - MOST_DRAWN];
    if (u8 && (bits <= PQ_CHANNEL_BITS || width % 4 == 0))
        make_levels(&s->p, rows, fill, side);
    else if (bits <= PQ_CHANNEL_BITS)
        s->p.byte_planes = make_planes(&s->p, side);
    vector_ops_at(CPU_SCALAR)->half_to_float(rows, s->centroids, hd * k);
    s->page_bytes = PAGE_BYTES_PQ(s->p.parts, bits);
    s->page = guard_bytes(s->page_bytes, side);
    memset(s->page, 0, s->page_bytes);
    for (size_t m = 0; m < s->p.parts; m++) {
        for (size_t t = 0; t < PAGE; t++) {
            unsigned code = (unsigned)(random_bits(&randomness) % k);
            if (t == 5) code = 0;
            if (t == 6) code = (unsigned)k - 1;
            put_code(s->page + m * 8 * bits, bits, t, code);
            for (size_t i = 0; i < width; i++) s->value[t][m * width + i] = (double)s->centroids[(m * k + code) * width + i];
        }
    }
}

static const struct {
    size_t hd, width;
    unsigned bits;
} shapes[] = {{32, 1, 4},   {32, 2, 8},    {64, 2, 8},    {128, 2, 8},  {128, 4, 8},   {64, 8, 8},   {128, 8, 8}, {96, 3, 5},
              {96, 12, 6},  {96, 48, 7},   {96, 24, 9},   {64, 16, 10}, {64, 4, 12},   {128, 4, 12}, {96, 6, 11}, {96, 3, 9},
              {128, 16, 8}, {128, 16, 12}, {128, 32, 12}, {256, 64, 8}, {256, 64, 10}, {256, 1, 8},  {256, 2, 4}, {160, 20, 8},
              {192, 32, 6}, {224, 28, 7},  {64, 64, 12},  {64, 2, 12},  {64, 1, 12}};
#define N_SHAPES (sizeof shapes / sizeof *shapes)

typedef void check_sample(struct sample *s, enum fill fill, size_t G, enum guard_side side);

/* Checks every shape with a sample of its own and with each of these G, whose buffers end or begin at a guard by turns. In an emulator other fills than the
 * normal one have a third of the shapes each, so that each shape has two of them. */
static void for_shapes(check_sample *check, bool u8, enum fill fill, const size_t *groups, size_t n) {
    static struct sample s;
    for (size_t i = 0; i < N_SHAPES; i++) {
        if (fill != FILL_NORMAL && leaves_out(i + (size_t)fill)) continue;
        make_sample(&s, shapes[i].hd, shapes[i].width, shapes[i].bits, u8, fill, (i + groups[0]) % 2 ? GUARD_END : GUARD_START);
        for (size_t g = 0; g < n; g++)
            if (n == 1 || !leaves_out(i + g)) check(&s, fill, groups[g], (i + groups[g]) % 2 ? GUARD_END : GUARD_START);
        guard_release();
    }
}

static void for_groups(check_sample *check, bool u8) {
    static const size_t groups[] = {1, 2, 3, 4, 5, 8, 9, MOST_G};
    for_shapes(check, u8, FILL_NORMAL, groups, sizeof groups / sizeof *groups);
    for (int fill = FILL_NORMAL + 1; fill < FILLS; fill++) for_shapes(check, u8, (enum fill)fill, &groups[fill % 2 ? 2 : 3], 1);
}

/* ---- Decoding ---------------------------------------------------------------------------------------------------------------- */

static void check_decoding(struct sample *s, enum fill fill, size_t G, enum guard_side side) {
    (void)fill, (void)G;
    float *channels = guard_floats(PAGE * s->hd, side), *rows = guard_floats(PAGE * s->hd, side);
    const struct tier *k;
    for (size_t tier = 0; (k = tier_at(tier)); tier++) {
        memset(channels, 0xff, PAGE * s->hd * sizeof *channels);
        memset(rows, 0xff, PAGE * s->hd * sizeof *rows);
        k->pq->decode_channels(&s->p, s->page, channels);
        k->pq->decode_rows(&s->p, s->page, rows);
        for (size_t t = 0; t < PAGE; t++) {
            for (size_t c = 0; c < s->hd; c++) {
                if ((double)channels[c * PAGE + t] != s->value[t][c] || (double)rows[t * s->hd + c] != s->value[t][c]) {
                    fail_msg("%s hd %zu width %zu bits %u token %zu channel %zu: channels %g, rows %g, not %g", k->name, s->hd,
                             s->p.width, s->p.bits, t, c, (double)channels[c * PAGE + t], (double)rows[t * s->hd + c],
                             s->value[t][c]);
                }
            }
        }
    }
}

static void decoding_gives_the_centroids(void **state) {
    (void)state;
    for (int u8 = 0; u8 < 2; u8++) {
        for_shapes(check_decoding, u8, FILL_SPREAD, (const size_t[]){0}, 1);
        for_shapes(check_decoding, u8, FILL_NORMAL, (const size_t[]){1}, 1);
    }
}

/* Every number of bits and every code, at every slot of a page. */
static void every_code_is_found(void **state) {
    (void)state;
    const struct tier *k;
    for (unsigned bits = PQ_BITS_MIN; bits <= PQ_BITS_MAX; bits++) {
        size_t n = (size_t)1 << bits;
        uint16_t *rows = guard_bytes(32 * n * sizeof *rows, GUARD_END);
        for (size_t m = 0; m < 32; m++)
            for (size_t j = 0; j < n; j++) rows[m * n + j] = (uint16_t)((m * 331 + j) % 31744); /* all different, finite */
        struct pq_codebook p = {.parts = 32, .width = 1, .bits = bits, .rows = rows};
        if (bits <= 8) p.byte_planes = make_planes(&p, GUARD_END);
        unsigned char *page = guard_bytes(PAGE_BYTES_PQ(32, bits), GUARD_END);
        float *channels = guard_floats(32 * PAGE, GUARD_END);
        for (size_t first = 0; first < n; first += 97) {
            memset(page, 0xa5, PAGE_BYTES_PQ(32, bits));
            for (size_t m = 0; m < 32; m++)
                for (size_t t = 0; t < PAGE; t++)
                    put_code(page + m * 8 * bits, bits, t, (unsigned)((first + m * PAGE + t * 3) % n));
            for (size_t tier = 0; (k = tier_at(tier)); tier++) {
                k->pq->decode_channels(&p, page, channels);
                for (size_t m = 0; m < 32; m++) {
                    for (size_t t = 0; t < PAGE; t++) {
                        double want = half_value(rows[m * n + (first + m * PAGE + t * 3) % n]);
                        if ((double)channels[m * PAGE + t] != want)
                            fail_msg("%s bits %u sub-vector %zu token %zu", k->name, bits, m, t);
                    }
                }
            }
        }
        guard_release();
    }
}

/* ---- Keys -------------------------------------------------------------------------------------------------------------------- */

/* want[PAGE] and terms[PAGE], the sums of absolute products, of one query. */
static void dots(const struct sample *s, const float *q, double *want, double *terms) {
    for (size_t t = 0; t < PAGE; t++) {
        want[t] = terms[t] = 0;
        for (size_t c = 0; c < s->hd; c++) {
            want[t] += (double)q[c] * s->value[t][c];
            terms[t] += fabs((double)q[c] * s->value[t][c]);
        }
    }
}

/* The widest range of a sub-vector's products with one query: what fixed-point tables are relative to. */
static double widest_range(const struct sample *s, const float *q) {
    size_t k = (size_t)1 << s->p.bits;
    double widest = 0;
    for (size_t m = 0; m < s->p.parts; m++) {
        double least = INFINITY, most = -INFINITY;
        for (size_t j = 0; j < k; j++) {
            double sum = 0;
            for (size_t i = 0; i < s->p.width; i++)
                sum += (double)q[m * s->p.width + i] * (double)s->centroids[(m * k + j) * s->p.width + i];
            least = fmin(least, sum);
            most = fmax(most, sum);
        }
        widest = fmax(widest, most - least);
    }
    return widest;
}

/* Returns the error that a tier that reads centroids as bytes may make in a score, for one query and token: its query is fixed point, and the terms
 * of lows and steps cancel. */
static double fixed_error(const struct sample *s, const float *q, size_t t) {
    if (!pq_reads_u8(&s->p)) return 0;
    double largest = 0, codes = 0, terms = 0;
    for (size_t c = 0; c < s->hd; c++) {
        double step = (double)s->p.step[c], low = (double)s->p.low[c];
        largest = fmax(largest, fabs((double)q[c]) * step);
        codes += step > 0 ? (s->value[t][c] - low) / step : 0;
        terms += fabs((double)q[c]) * (fabs(low) + 255 * step);
    }
    return largest / 65278 * 1.001 * codes + EPSILON * (double)(s->hd + 4) * terms + 1e-30 * codes;
}

/* Returns whether a tier takes queries as fixed point. */
static bool reads_fixed(const struct sample *s, const struct tier *k) {
    return (k->pq->has_register_lut && pq_reads_u8(&s->p)) || (k->pq->reads_rows_i16 && s->p.rows_i16);
}

/* Queries quantized once, then scored: as the function that does both. */
static void check_fixed(const struct sample *s, const struct tier *k, const float *q, size_t G, const float *logits,
                        enum guard_side side) {
    float *fixed = guard_floats(G * pq_i16_floats(&s->p), side), *again = guard_floats(G * PAGE, side);
    k->pq->quantize_query(&s->p, q, G, fixed);
    k->pq->score_i16(&s->p, fixed, G, s->page, again);
    assert_memory_equal(again, logits, G * PAGE * sizeof *again);
}

static void check_scores(struct sample *s, enum fill fill, size_t G, enum guard_side side) {
    if (G > 4 && pq_table_floats(&s->p, G) > 1 << 17) return; /* seconds matter */
    float *q = guard_floats(G * s->hd, side), *logits = guard_floats(G * PAGE, side);
    float *tables = guard_floats(pq_table_floats(&s->p, G), side), *looked_up = guard_floats(G * PAGE, side);
    double want[MOST_G][PAGE], terms[MOST_G][PAGE], range[MOST_G];
    fill_floats(&randomness, fill == FILL_LARGE ? FILL_OUTLIER : fill, q, G * s->hd);
    if (G > 2) memset(q + s->hd, 0, s->hd * sizeof *q);
    for (size_t g = 0; g < G; g++) {
        dots(s, q + g * s->hd, want[g], terms[g]);
        range[g] = widest_range(s, q + g * s->hd);
    }
    const struct tier *k;
    for (size_t tier = 0; (k = tier_at(tier)); tier++) {
        k->pq->score(&s->p, q, G, s->page, logits);
        k->pq->prepare(&s->p, q, G, tables);
        k->pq->look_up(&s->p, tables, G, s->page, looked_up);
        if (reads_fixed(s, k)) check_fixed(s, k, q, G, logits, side);
        for (size_t g = 0; g < G; g++) {
            double step = range[g] * 0x1p-17 * (double)s->p.parts;
            for (size_t t = 0; t < PAGE; t++) {
                double error = EPSILON * (double)(s->hd + 4), off = reads_fixed(s, k) ? fixed_error(s, q + g * s->hd, t) : 0;
                check_close((double)logits[g * PAGE + t], want[g][t], terms[g][t], error, off + 1e-42,
                            "%s score_pq G %zu hd %zu width %zu bits %u %s, query %zu token %zu", k->name, G, s->hd, s->p.width,
                            s->p.bits, fill_name(fill), g, t);
                check_close((double)looked_up[g * PAGE + t], want[g][t], terms[g][t] + range[g], error, step + 1e-30,
                            "%s look_up_pq G %zu hd %zu width %zu bits %u %s, query %zu token %zu", k->name, G, s->hd, s->p.width,
                            s->p.bits, fill_name(fill), g, t);
            }
        }
    }
}

static void scores_equal_sums_over_centroids(void **state) {
    (void)state;
    for (int u8 = 0; u8 < 2; u8++) for_groups(check_scores, u8);
}

/* ---- Values ------------------------------------------------------------------------------------------------------------------ */

/* Returns the error that a tier that reads centroids as bytes may make in a value, for one query and channel: its weights are fixed point, off by one
 * part in `parts` of the largest, and the terms of lows and steps cancel. */
static double u8_error(const struct sample *s, const float *weights, size_t c, double parts) {
    if (!pq_reads_u8(&s->p)) return 0;
    double step = (double)s->p.step[c], sum = 0, largest = 0, codes = 0;
    for (size_t t = 0; t < PAGE; t++) {
        sum += fabs((double)weights[t]);
        largest = fmax(largest, fabs((double)weights[t]));
        codes += s->value[t][c] - (double)s->p.low[c];
    }
    return largest / parts * 1.001 * codes + EPSILON * (PAGE + 4) * sum * (fabs((double)s->p.low[c]) + 255 * step) + 1e-30 * PAGE;
}

static void check_accumulates(struct sample *s, enum fill fill, size_t G, enum guard_side side) {
    if (G > 4 && pq_table_floats(&s->p, G) > 1 << 17) return;
    float *weights = guard_floats(G * PAGE, side), *before = guard_floats(G * s->hd, side);
    float *accumulated = guard_floats(G * s->hd, side), *int8 = guard_floats(G * s->hd, side),
          *finished = guard_floats(G * s->hd, side);
    float *code_sums = guard_floats(pq_table_floats(&s->p, G), side);
    fill_floats(&randomness, fill == FILL_LARGE ? FILL_OUTLIER : fill, weights, G * PAGE);
    if (G > 2) memset(weights + PAGE, 0, PAGE * sizeof *weights);
    fill_floats(&randomness, FILL_NORMAL, before, G * s->hd);
    const struct tier *k;
    for (size_t tier = 0; (k = tier_at(tier)); tier++) {
        memcpy(accumulated, before, G * s->hd * sizeof *accumulated);
        memcpy(int8, before, G * s->hd * sizeof *accumulated);
        memcpy(finished, before, G * s->hd * sizeof *accumulated);
        memset(code_sums, 0, pq_table_floats(&s->p, G) * sizeof *code_sums);
        k->pq->accumulate(&s->p, weights, G, s->page, accumulated);
        k->pq->accumulate_int8(&s->p, weights, G, s->page, int8);
        for (int twice = 0; twice < 2; twice++)
            k->pq->accumulate_by_code(&s->p, weights, G, s->page, code_sums); /* they add up over pages */
        k->pq->finish_code_sums(&s->p, code_sums, G, finished);
        for (size_t g = 0; g < G; g++) {
            for (size_t c = 0; c < s->hd; c++) {
                double start = (double)before[g * s->hd + c], want = 0, terms = 0;
                for (size_t t = 0; t < PAGE; t++) {
                    want += (double)weights[g * PAGE + t] * s->value[t][c];
                    terms += fabs((double)weights[g * PAGE + t] * s->value[t][c]);
                }
                double off = k->pq->has_register_lut ? u8_error(s, weights + g * PAGE, c, 65278) : 0;
                double int8_off = k->pq->has_register_lut ? u8_error(s, weights + g * PAGE, c, 253) : 0;
                check_close((double)accumulated[g * s->hd + c], start + want, terms + fabs(start), EPSILON * (PAGE + 4),
                            off + 1e-42, "%s accumulate G %zu hd %zu width %zu bits %u %s, query %zu channel %zu", k->name, G,
                            s->hd, s->p.width, s->p.bits, fill_name(fill), g, c);
                check_close((double)int8[g * s->hd + c], start + want, terms + fabs(start), EPSILON * (PAGE + 4), int8_off + 1e-42,
                            "%s accumulate_int8 G %zu hd %zu width %zu bits %u %s, query %zu channel %zu", k->name, G, s->hd,
                            s->p.width, s->p.bits, fill_name(fill), g, c);
                check_close((double)finished[g * s->hd + c], start + 2 * want, 2 * terms + fabs(start), EPSILON * (3 * PAGE + 4),
                            1e-36, "%s finish_pq G %zu hd %zu width %zu bits %u %s, query %zu channel %zu", k->name, G, s->hd,
                            s->p.width, s->p.bits, fill_name(fill), g, c);
            }
        }
    }
}

static void accumulates_equal_sums_over_centroids(void **state) {
    (void)state;
    for_groups(check_accumulates, true);
}

/* ---- Keys stored before RoPE ---------------------------------------------------------------------------------------------- */

static void fill_angles(float *cosine, float *sine, size_t n) {
    for (size_t i = 0; i < n; i++) {
        double angle = 100 * random_unit(&randomness);
        cosine[i] = (float)cos(angle);
        sine[i] = (float)sin(angle);
    }
}

/* want and terms of one query and the key `key`[hd] of token t. */
static void rotated_dot(const float *q, const double *key, const struct key_rotation *rotation, size_t hd, size_t t, double *want,
                        double *terms) {
    *want = *terms = 0;
    for (size_t c = 0; c < hd; c++) {
        double other = 0, by = 1, across = 0;
        if (c < 2 * rotation->pairs) { /* channel c rotated: own cos -/+ other sin */
            bool second = rotation->adjacent ? c % 2 == 1 : c >= rotation->pairs;
            size_t pair = rotation->adjacent ? c / 2 : c % rotation->pairs, apart = rotation->adjacent ? 1 : rotation->pairs;
            other = key[second ? c - apart : c + apart];
            by = (double)rotation->cosine[pair * PAGE + t];
            across = (second ? 1 : -1) * (double)rotation->sine[pair * PAGE + t];
        }
        *want += (double)q[c] * (key[c] * by + other * across);
        *terms += fabs((double)q[c]) * (fabs(key[c] * by) + fabs(other * across));
    }
}

static void check_rotated(size_t G, size_t hd, size_t pairs, bool adjacent, enum fill fill, enum guard_side side) {
    float *q = guard_floats(G * hd, side), *keys = guard_floats(hd * PAGE, side), *logits = guard_floats(G * PAGE, side);
    float *cosine = guard_floats(pairs * PAGE, side), *sine = guard_floats(pairs * PAGE, side);
    struct key_rotation rotation = {.cosine = cosine, .sine = sine, .pairs = pairs, .adjacent = adjacent};
    fill_floats(&randomness, fill == FILL_LARGE ? FILL_OUTLIER : fill, q, G * hd);
    fill_floats(&randomness, fill, keys, hd * PAGE);
    fill_angles(cosine, sine, pairs * PAGE);
    const struct tier *k;
    for (size_t tier = 0; (k = tier_at(tier)); tier++) {
        k->pq->score_rotated_channels(&rotation, q, G, hd, keys, logits);
        for (size_t t = 0; t < PAGE; t++) {
            double key[MOST_HD], want, terms;
            for (size_t c = 0; c < hd; c++) key[c] = (double)keys[c * PAGE + t];
            for (size_t g = 0; g < G; g++) {
                rotated_dot(q + g * hd, key, &rotation, hd, t, &want, &terms);
                check_close((double)logits[g * PAGE + t], want, terms, EPSILON * (double)(2 * hd + 4), 1e-42,
                            "%s score_rotated_channels G %zu hd %zu pairs %zu %s %s, query %zu token %zu", k->name, G, hd, pairs,
                            adjacent ? "adjacent" : "split", fill_name(fill), g, t);
            }
        }
    }
    guard_release();
}

static void rotated_scores_equal_sums(void **state) {
    (void)state;
    for (size_t hd = 32; hd <= MOST_HD; hd += 32) {
        size_t pairs[] = {hd / 2, hd / 4, hd / 2 - 3, 1, 0};
        for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
            for (int adjacent = 0; adjacent < 2; adjacent++)
                check_rotated(1 + (hd / 32 + i) % 9, hd, pairs[i], adjacent, FILL_NORMAL, i % 2 ? GUARD_END : GUARD_START);
    }
    for (size_t G = 1; G <= MOST_G; G++) check_rotated(G, 96, 24, G % 2, FILL_NORMAL, GUARD_END);
    for (int fill = 0; fill < FILLS; fill++) check_rotated(4, 64, 32, fill % 2, (enum fill)fill, GUARD_END);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoding_gives_the_centroids),     cmocka_unit_test(every_code_is_found),
        cmocka_unit_test(scores_equal_sums_over_centroids), cmocka_unit_test(accumulates_equal_sums_over_centroids),
        cmocka_unit_test(rotated_scores_equal_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
