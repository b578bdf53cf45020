/* Has the reference of the functions for product quantization and of score_rotated, one number at a time in the layout of
 * format/page_layout.h. The other tiers are tested against this file, and this file against double precision. */
#include "backend/cpu/kernels/limits.h"
#include "backend/cpu/kernels/pq/code_planes.h"
#include "backend/cpu/kernels/pq/init.h"
#include "base/half.h"

static size_t centroids(const struct pq_codebook *p) { return (size_t)1 << p->bits; }

/* Read the codes of sub-vector m, and return its centroids. */
static void read_codes(const struct pq_codebook *p, const void *page, size_t m, uint16_t *codes) {
    code_planes_read((const uint8_t *)page + m * PAGE_PQ_PART(p->bits), p->bits, codes);
}

static const uint16_t *rows_of(const struct pq_codebook *p, size_t m) { return p->rows + m * centroids(p) * p->width; }

/* Decodes channel i of sub-vector m. */
static void decode_channel(const struct pq_codebook *p, size_t m, const uint16_t *codes, size_t i, float channel[PAGE_TOKENS]) {
    for (size_t t = 0; t < PAGE_TOKENS; t++) channel[t] = half_to_float(rows_of(p, m)[codes[t] * p->width + i]);
}

static void channels_pq_scalar(const struct pq_codebook *p, const void *page, float *channels) {
    for (size_t m = 0; m < p->parts; m++) {
        uint16_t codes[PAGE_TOKENS];
        read_codes(p, page, m, codes);
        for (size_t i = 0; i < p->width; i++) decode_channel(p, m, codes, i, channels + (m * p->width + i) * PAGE_TOKENS);
    }
}

static void rows_pq_scalar(const struct pq_codebook *p, const void *page, float *rows) {
    for (size_t m = 0; m < p->parts; m++) {
        uint16_t codes[PAGE_TOKENS];
        read_codes(p, page, m, codes);
        for (size_t t = 0; t < PAGE_TOKENS; t++) {
            float *to = rows + (t * p->parts + m) * p->width;
            for (size_t i = 0; i < p->width; i++) to[i] = half_to_float(rows_of(p, m)[codes[t] * p->width + i]);
        }
    }
}

/* Each number of the page is decoded once for all G query heads. */
static void score_pq_scalar(const struct pq_codebook *p, const float *q, size_t G, const void *page, float *logits) {
    for (size_t i = 0; i < G * PAGE_TOKENS; i++) logits[i] = 0;
    for (size_t m = 0; m < p->parts; m++) {
        uint16_t codes[PAGE_TOKENS];
        float k[PAGE_TOKENS];
        read_codes(p, page, m, codes);
        for (size_t i = 0; i < p->width; i++) {
            decode_channel(p, m, codes, i, k);
            for (size_t g = 0; g < G; g++)
                for (size_t t = 0; t < PAGE_TOKENS; t++) logits[g * PAGE_TOKENS + t] += q[(g * p->parts + m) * p->width + i] * k[t];
        }
    }
}

static void accumulate_pq_scalar(const struct pq_codebook *p, const float *weights, size_t G, const void *page, float *acc) {
    for (size_t m = 0; m < p->parts; m++) {
        uint16_t codes[PAGE_TOKENS];
        float v[PAGE_TOKENS];
        read_codes(p, page, m, codes);
        for (size_t i = 0; i < p->width; i++) {
            decode_channel(p, m, codes, i, v);
            for (size_t g = 0; g < G; g++) {
                float sum = 0;
                for (size_t t = 0; t < PAGE_TOKENS; t++) sum += weights[g * PAGE_TOKENS + t] * v[t];
                acc[(g * p->parts + m) * p->width + i] += sum;
            }
        }
    }
}

/* Makes tables[parts][2^bits][pq_stride(G)]. */
static void prepare_pq_scalar(const struct pq_codebook *p, const float *q, size_t G, float *tables) {
    for (size_t m = 0; m < p->parts; m++) {
        for (size_t j = 0; j < centroids(p); j++) {
            float *to = tables + (m * centroids(p) + j) * pq_stride(G);
            for (size_t g = 0; g < G; g++) {
                float sum = 0;
                for (size_t i = 0; i < p->width; i++)
                    sum += q[(g * p->parts + m) * p->width + i] * half_to_float(rows_of(p, m)[j * p->width + i]);
                to[g] = sum;
            }
        }
    }
}

static void look_up_pq_scalar(const struct pq_codebook *p, const float *tables, size_t G, const void *page, float *logits) {
    for (size_t i = 0; i < G * PAGE_TOKENS; i++) logits[i] = 0;
    for (size_t m = 0; m < p->parts; m++) {
        uint16_t codes[PAGE_TOKENS];
        read_codes(p, page, m, codes);
        for (size_t t = 0; t < PAGE_TOKENS; t++) {
            const float *from = tables + (m * centroids(p) + codes[t]) * pq_stride(G);
            for (size_t g = 0; g < G; g++) logits[g * PAGE_TOKENS + t] += from[g];
        }
    }
}

/* Adds to code_sums[parts][2^bits][pq_stride(G)]. */
static void accumulate_by_code_pq_scalar(const struct pq_codebook *p, const float *weights, size_t G, const void *page,
                                         float *code_sums) {
    for (size_t m = 0; m < p->parts; m++) {
        uint16_t codes[PAGE_TOKENS];
        read_codes(p, page, m, codes);
        for (size_t t = 0; t < PAGE_TOKENS; t++) {
            float *to = code_sums + (m * centroids(p) + codes[t]) * pq_stride(G);
            for (size_t g = 0; g < G; g++) to[g] += weights[g * PAGE_TOKENS + t];
        }
    }
}

static void finish_pq_scalar(const struct pq_codebook *p, const float *code_sums, size_t G, float *acc) {
    for (size_t m = 0; m < p->parts; m++) {
        for (size_t g = 0; g < G; g++) {
            for (size_t i = 0; i < p->width; i++) {
                float sum = 0;
                for (size_t j = 0; j < centroids(p); j++)
                    sum += code_sums[(m * centroids(p) + j) * pq_stride(G) + g] * half_to_float(rows_of(p, m)[j * p->width + i]);
                acc[(g * p->parts + m) * p->width + i] += sum;
            }
        }
    }
}

static void score_rotated_scalar(const struct key_rotation *rotation, const float *q, size_t G, size_t hd, const float *keys,
                                 float *logits) {
    size_t pairs = rotation->pairs;
    for (size_t i = 0; i < G * PAGE_TOKENS; i++) logits[i] = 0;
    for (size_t i = 0; i < pairs; i++) {
        size_t first = rotation->adjacent ? 2 * i : i, second = rotation->adjacent ? 2 * i + 1 : i + pairs;
        const float *cosine = rotation->cosine + i * PAGE_TOKENS, *sine = rotation->sine + i * PAGE_TOKENS;
        for (size_t t = 0; t < PAGE_TOKENS; t++) {
            float a = keys[first * PAGE_TOKENS + t], b = keys[second * PAGE_TOKENS + t];
            float c = cosine[t], s = sine[t], x = a * c - b * s, y = a * s + b * c;
            for (size_t g = 0; g < G; g++) logits[g * PAGE_TOKENS + t] += q[g * hd + first] * x + q[g * hd + second] * y;
        }
    }
    for (size_t i = 2 * pairs; i < hd; i++) {
        for (size_t t = 0; t < PAGE_TOKENS; t++) {
            for (size_t g = 0; g < G; g++) logits[g * PAGE_TOKENS + t] += q[g * hd + i] * keys[i * PAGE_TOKENS + t];
        }
    }
}

void pq_init_scalar(struct pq_ops *ops) {
    ops->decode_channels = channels_pq_scalar;
    ops->decode_rows = rows_pq_scalar;
    ops->score = score_pq_scalar;
    ops->accumulate = accumulate_pq_scalar;
    ops->accumulate_int8 = accumulate_pq_scalar;
    ops->prepare = prepare_pq_scalar;
    ops->look_up = look_up_pq_scalar;
    ops->accumulate_by_code = accumulate_by_code_pq_scalar;
    ops->finish_code_sums = finish_pq_scalar;
    ops->score_rotated_channels = score_rotated_scalar;
}
