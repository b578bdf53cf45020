/* Has the reference of CommVQ's keys. */
#include "backend/cpu/kernels/commvq/init.h"
#include "backend/cpu/kernels/pq/code_planes.h"

#include <math.h>

static void products_scalar(const float *x, size_t n, size_t d, size_t stride, const float *panel, size_t width, float *out) {
    for (size_t r = 0; r < n; r++) {
        for (size_t j = 0; j < width; j++) {
            float sum = 0;
            for (size_t i = 0; i < d; i++) sum += x[r * stride + i] * panel[i * width + j];
            out[r * width + j] = sum;
        }
    }
}

static float cell_of(const float *half, size_t columns, const float *products, size_t a, size_t b) {
    return half[a * columns + b] - products[columns + b] - products[a];
}

static uint32_t least_commvq_scalar(const float *half, size_t entries, size_t columns, const float *products, float *least) {
    uint32_t best = 0;
    *least = INFINITY;
    for (size_t a = 0; a < entries; a++) {
        for (size_t b = 0; b < columns; b++) {
            float value = cell_of(half, columns, products, a, b);
            if (!(value < *least)) continue;
            *least = value;
            best = (uint32_t)(a * columns + b);
        }
    }
    return best;
}

static size_t within_commvq_scalar(const float *half, size_t entries, size_t columns, const float *products, float limit,
                                   size_t most, uint32_t *cells, float *values) {
    size_t found = 0;
    for (size_t a = 0; a < entries; a++) {
        for (size_t b = 0; b < columns; b++) {
            float value = cell_of(half, columns, products, a, b);
            if (!(value < limit)) continue;
            if (found < most) {
                cells[found] = (uint32_t)(a * columns + b);
                values[found] = value;
            }
            found++;
        }
    }
    return found;
}

static void read_codes(const struct commvq_code *c, const void *codes, size_t subvector, size_t round, uint16_t *to) {
    code_planes_read((const uint8_t *)codes + (subvector * c->rounds + round) * COMMVQ_PART, COMMVQ_BITS, to);
}

static void channels_commvq_scalar(const struct commvq_code *c, const float *gains, const void *codes, float *channels) {
    for (size_t k = 0; k < c->subvectors; k++) {
        int32_t sum[2 * COMMVQ_MOST_PAIRS][PAGE_TOKENS] = {{0}};
        for (size_t r = 0; r < c->rounds; r++) {
            const int8_t *table = c->rows + (k * c->rounds + r) * COMMVQ_ENTRIES * 2 * c->stride;
            uint16_t code[PAGE_TOKENS];
            read_codes(c, codes, k, r, code);
            for (size_t t = 0; t < PAGE_TOKENS; t++) {
                const int8_t *a = table + code[t] % COMMVQ_ENTRIES * 2 * c->stride,
                             *b = table + code[t] / COMMVQ_ENTRIES * 2 * c->stride;
                for (size_t j = 0; j < c->pairs; j++) {
                    sum[j][t] += a[j] - b[c->stride + j];
                    sum[c->pairs + j][t] += a[c->stride + j] + b[j];
                }
            }
        }
        for (size_t i = 0; i < 2 * c->pairs; i++) {
            size_t channel = c->channels[k * 2 * c->pairs + i];
            for (size_t t = 0; t < PAGE_TOKENS; t++)
                channels[channel * PAGE_TOKENS + t] =
                    c->mean[channel] + gains[t] * c->steps[k * c->stride + i % c->pairs] * (float)sum[i][t];
        }
    }
}

/* Computes conj(q) z of one row. */
static void conjugate_times(const float *qr, const float *qi, const float *zr, const float *zi, size_t n, float *re, float *im) {
    for (size_t j = 0; j < n; j++) {
        re[j] = qr[j] * zr[j] + qi[j] * zi[j];
        im[j] = qr[j] * zi[j] - qi[j] * zr[j];
    }
}

static void prepare_commvq_scalar(const struct commvq_code *c, const float *q, float *tables) {
    for (size_t k = 0; k < c->subvectors; k++) {
        float qr[2 * COMMVQ_MOST_PAIRS] = {0}, qi[2 * COMMVQ_MOST_PAIRS] = {0}, zr[2 * COMMVQ_MOST_PAIRS] = {0},
                     zi[2 * COMMVQ_MOST_PAIRS] = {0};
        const uint8_t *channels = c->channels + k * 2 * c->pairs;
        for (size_t j = 0; j < c->pairs; j++) {
            qr[j] = q[channels[j]];
            qi[j] = q[channels[c->pairs + j]];
        }
        for (size_t i = 0; i < c->rounds * COMMVQ_ENTRIES; i++, tables += 2 * c->stride) {
            const int8_t *row = c->rows + (k * c->rounds * COMMVQ_ENTRIES + i) * 2 * c->stride;
            for (size_t j = 0; j < c->pairs; j++) {
                zr[j] = c->steps[k * c->stride + j] * (float)row[j];
                zi[j] = c->steps[k * c->stride + j] * (float)row[c->stride + j];
            }
            conjugate_times(qr, qi, zr, zi, c->stride, tables, tables + c->stride);
        }
        for (size_t j = 0; j < c->pairs; j++) {
            zr[j] = c->mean[channels[j]];
            zi[j] = c->mean[channels[c->pairs + j]];
        }
        conjugate_times(qr, qi, zr, zi, c->stride, tables, tables + c->stride);
        tables += 2 * c->stride;
    }
}

static void look_up_commvq_scalar(const struct commvq_code *c, const struct key_rotation *rotation, const float *tables,
                                  const float *gains, const void *codes, float *logits) {
    for (size_t t = 0; t < PAGE_TOKENS; t++) logits[t] = 0;
    for (size_t k = 0; k < c->subvectors; k++, tables += 2 * c->stride) {
        float re[COMMVQ_MOST_PAIRS][PAGE_TOKENS] = {{0}}, im[COMMVQ_MOST_PAIRS][PAGE_TOKENS] = {{0}};
        for (size_t r = 0; r < c->rounds; r++, tables += COMMVQ_ENTRIES * 2 * c->stride) {
            uint16_t code[PAGE_TOKENS];
            read_codes(c, codes, k, r, code);
            for (size_t t = 0; t < PAGE_TOKENS; t++) {
                const float *a = tables + code[t] % COMMVQ_ENTRIES * 2 * c->stride,
                            *b = tables + code[t] / COMMVQ_ENTRIES * 2 * c->stride;
                for (size_t j = 0; j < c->pairs; j++) {
                    re[j][t] += a[j] - b[c->stride + j];
                    im[j][t] += a[c->stride + j] + b[j];
                }
            }
        }
        for (size_t j = 0; j < c->pairs; j++) {
            size_t pair = k * c->pairs + j;
            for (size_t t = 0; t < PAGE_TOKENS; t++) {
                float x = tables[j] + gains[t] * re[j][t], y = tables[c->stride + j] + gains[t] * im[j][t];
                bool rotated = pair < rotation->pairs;
                logits[t] +=
                    rotated ? x * rotation->cosine[pair * PAGE_TOKENS + t] - y * rotation->sine[pair * PAGE_TOKENS + t] : x;
            }
        }
    }
}

void commvq_init_scalar(struct commvq_ops *ops) {
    ops->multiply_panel = products_scalar;
    ops->nearest = least_commvq_scalar;
    ops->within = within_commvq_scalar;
    ops->decode = channels_commvq_scalar;
    ops->prepare = prepare_commvq_scalar;
    ops->look_up = look_up_commvq_scalar;
}
