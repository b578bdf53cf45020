/* The reference of the slots for product quantization and of score_turned, one number at a time in the layout of
 * format/page_layout.h. The other tiers are tested against this file, and this file against double precision. */
#include "base/half.h"
#include "backend/cpu/kernels/pq/code_planes.h"
#include "backend/cpu/kernels/init.h"

static size_t centroids(const struct product_code *p) { return (size_t)1 << p->bits; }

/* The codes of sub-vector m, and its centroids. */
static void read_codes(const struct product_code *p, const void *block, size_t m, uint16_t *codes) {
    code_planes_read((const uint8_t *)block + m * BLOCK_PQ_PART(p->bits), p->bits, codes);
}

static const uint16_t *rows_of(const struct product_code *p, size_t m) { return p->rows + m * centroids(p) * p->width; }

static void channels_pq_scalar(const struct product_code *p, const void *block, float *channels) {
    for (size_t m = 0; m < p->parts; m++) {
        uint16_t codes[BLOCK_TOKENS];
        read_codes(p, block, m, codes);
        for (size_t i = 0; i < p->width; i++) {
            float *to = channels + (m * p->width + i) * BLOCK_TOKENS;
            for (size_t t = 0; t < BLOCK_TOKENS; t++) to[t] = half_to_float(rows_of(p, m)[codes[t] * p->width + i]);
        }
    }
}

static void rows_pq_scalar(const struct product_code *p, const void *block, float *rows) {
    for (size_t m = 0; m < p->parts; m++) {
        uint16_t codes[BLOCK_TOKENS];
        read_codes(p, block, m, codes);
        for (size_t t = 0; t < BLOCK_TOKENS; t++) {
            float *to = rows + (t * p->parts + m) * p->width;
            for (size_t i = 0; i < p->width; i++) to[i] = half_to_float(rows_of(p, m)[codes[t] * p->width + i]);
        }
    }
}

static void score_pq_scalar(const struct product_code *p, const float *q, size_t G, const void *block, float *logits) {
    for (size_t i = 0; i < G * BLOCK_TOKENS; i++) logits[i] = 0;
    for (size_t m = 0; m < p->parts; m++) {
        uint16_t codes[BLOCK_TOKENS];
        read_codes(p, block, m, codes);
        for (size_t t = 0; t < BLOCK_TOKENS; t++) {
            const uint16_t *row = rows_of(p, m) + codes[t] * p->width;
            for (size_t g = 0; g < G; g++) {
                const float *from = q + (g * p->parts + m) * p->width;
                for (size_t i = 0; i < p->width; i++) logits[g * BLOCK_TOKENS + t] += from[i] * half_to_float(row[i]);
            }
        }
    }
}

static void mix_pq_scalar(const struct product_code *p, const float *weights, size_t G, const void *block, float *acc) {
    for (size_t m = 0; m < p->parts; m++) {
        uint16_t codes[BLOCK_TOKENS];
        read_codes(p, block, m, codes);
        for (size_t i = 0; i < p->width; i++) {
            for (size_t g = 0; g < G; g++) {
                float sum = 0;
                for (size_t t = 0; t < BLOCK_TOKENS; t++)
                    sum += weights[g * BLOCK_TOKENS + t] * half_to_float(rows_of(p, m)[codes[t] * p->width + i]);
                acc[(g * p->parts + m) * p->width + i] += sum;
            }
        }
    }
}

/* tables[parts][2^bits][product_stride(G)] */
static void prepare_pq_scalar(const struct product_code *p, const float *q, size_t G, float *tables) {
    for (size_t m = 0; m < p->parts; m++) {
        for (size_t j = 0; j < centroids(p); j++) {
            float *to = tables + (m * centroids(p) + j) * product_stride(G);
            for (size_t g = 0; g < G; g++) {
                float sum = 0;
                for (size_t i = 0; i < p->width; i++)
                    sum += q[(g * p->parts + m) * p->width + i] * half_to_float(rows_of(p, m)[j * p->width + i]);
                to[g] = sum;
            }
        }
    }
}

static void look_up_pq_scalar(const struct product_code *p, const float *tables, size_t G, const void *block, float *logits) {
    for (size_t i = 0; i < G * BLOCK_TOKENS; i++) logits[i] = 0;
    for (size_t m = 0; m < p->parts; m++) {
        uint16_t codes[BLOCK_TOKENS];
        read_codes(p, block, m, codes);
        for (size_t t = 0; t < BLOCK_TOKENS; t++) {
            const float *from = tables + (m * centroids(p) + codes[t]) * product_stride(G);
            for (size_t g = 0; g < G; g++) logits[g * BLOCK_TOKENS + t] += from[g];
        }
    }
}

/* tallies[parts][2^bits][product_stride(G)] */
static void tally_pq_scalar(const struct product_code *p, const float *weights, size_t G, const void *block, float *tallies) {
    for (size_t m = 0; m < p->parts; m++) {
        uint16_t codes[BLOCK_TOKENS];
        read_codes(p, block, m, codes);
        for (size_t t = 0; t < BLOCK_TOKENS; t++) {
            float *to = tallies + (m * centroids(p) + codes[t]) * product_stride(G);
            for (size_t g = 0; g < G; g++) to[g] += weights[g * BLOCK_TOKENS + t];
        }
    }
}

static void finish_pq_scalar(const struct product_code *p, const float *tallies, size_t G, float *acc) {
    for (size_t m = 0; m < p->parts; m++) {
        for (size_t g = 0; g < G; g++) {
            for (size_t i = 0; i < p->width; i++) {
                float sum = 0;
                for (size_t j = 0; j < centroids(p); j++)
                    sum += tallies[(m * centroids(p) + j) * product_stride(G) + g] * half_to_float(rows_of(p, m)[j * p->width + i]);
                acc[(g * p->parts + m) * p->width + i] += sum;
            }
        }
    }
}

static void score_turned_scalar(const struct key_turn *turn, const float *q, size_t G, size_t hd, const float *keys,
                                float *logits) {
    size_t pairs = turn->pairs;
    for (size_t i = 0; i < G * BLOCK_TOKENS; i++) logits[i] = 0;
    for (size_t i = 0; i < pairs; i++) {
        size_t first = turn->adjacent ? 2 * i : i, second = turn->adjacent ? 2 * i + 1 : i + pairs;
        const float *cosine = turn->cosine + i * BLOCK_TOKENS, *sine = turn->sine + i * BLOCK_TOKENS;
        for (size_t t = 0; t < BLOCK_TOKENS; t++) {
            float a = keys[first * BLOCK_TOKENS + t], b = keys[second * BLOCK_TOKENS + t];
            float c = cosine[t], s = sine[t], x = a * c - b * s, y = a * s + b * c;
            for (size_t g = 0; g < G; g++) logits[g * BLOCK_TOKENS + t] += q[g * hd + first] * x + q[g * hd + second] * y;
        }
    }
    for (size_t i = 2 * pairs; i < hd; i++) {
        for (size_t t = 0; t < BLOCK_TOKENS; t++) {
            for (size_t g = 0; g < G; g++) logits[g * BLOCK_TOKENS + t] += q[g * hd + i] * keys[i * BLOCK_TOKENS + t];
        }
    }
}

static void score_turned_pq_scalar(const struct product_code *p, const struct key_turn *turn, const float *q, size_t G,
                                   const void *block, float *logits) {
    float keys[KERNELS_MOST_CHANNELS * BLOCK_TOKENS];
    size_t hd = p->parts * p->width;
    channels_pq_scalar(p, block, keys);
    for (size_t i = 0; turn->gain && i < hd * BLOCK_TOKENS; i++)
        keys[i] = turn->mean[i / BLOCK_TOKENS] + turn->gain[i % BLOCK_TOKENS] * keys[i];
    score_turned_scalar(turn, q, G, hd, keys, logits);
}

void kernels_fill_scalar_product(struct kernels *k) {
    k->channels_pq = channels_pq_scalar;
    k->rows_pq = rows_pq_scalar;
    k->score_pq = score_pq_scalar;
    k->mix_pq = mix_pq_scalar;
    k->mix_light_pq = mix_pq_scalar;
    k->prepare_pq = prepare_pq_scalar;
    k->look_up_pq = look_up_pq_scalar;
    k->tally_pq = tally_pq_scalar;
    k->finish_pq = finish_pq_scalar;
    k->score_turned = score_turned_scalar;
    k->score_turned_pq = score_turned_pq_scalar;
}
