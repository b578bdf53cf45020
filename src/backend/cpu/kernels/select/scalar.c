/* Has the reference of token selection, one number at a time in the layouts of format/page_layout.h. */
#include "backend/cpu/kernels/select/init.h"
#include "base/half.h"
#include "format/page_layout.h"

#include <string.h>

static void scores_sign_scalar(const uint8_t *tables, size_t n, const uint8_t *planes, uint16_t *scores) {
    for (size_t t = 0; t < PAGE_TOKENS; t++) {
        unsigned sum = 0;
        for (size_t j = 0; j < n; j++) {
            uint8_t code = planes[j * PAGE_TOKENS + t];
            sum += tables[2 * j * 16 + (code & 15)] + tables[(2 * j + 1) * 16 + (code >> 4)];
        }
        scores[t] = (uint16_t)sum;
    }
}

static void scores_quest_scalar(const float *q, size_t hd, const void *page, float *bounds) {
    const uint16_t *least = page;
    for (size_t p = 0; p < PAGE_TOKENS / QUEST_PAGE_TOKENS; p++, least += 2 * hd) {
        float sum = 0;
        for (size_t c = 0; c < hd; c++) {
            float a = q[c] * half_to_float(least[c]), b = q[c] * half_to_float(least[hd + c]);
            sum += a > b ? a : b;
        }
        bounds[p] = sum;
    }
}

static size_t count_scores_scalar(const uint16_t *scores, size_t n, uint16_t least) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += scores[i] >= least;
    return count;
}

static size_t list_scores_scalar(const uint16_t *scores, size_t n, uint16_t threshold, size_t skip, uint32_t *tokens) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        if (scores[i] < threshold) continue;
        if (scores[i] == threshold && skip) {
            skip--;
            continue;
        }
        tokens[count++] = (uint32_t)i;
    }
    return count;
}

/* Gathers from planes of 16, 8, 4, 2 and 1 bits, as the binary digits of `bits` say. */
static void gather_codes_scalar(const void *from, size_t parts, unsigned bits, const uint8_t *slots, size_t n, void *to,
                                size_t at) {
    const uint8_t *in = from;
    uint8_t *out = to;
    for (size_t m = 0; m < parts; m++) {
        for (unsigned part = 16; part; part /= 2) {
            if (!(bits & part)) continue;
            for (size_t i = 0; i < n; i++) {
                size_t read = slots[i] * (size_t)part, written = (at + i) * part;
                if (part >= 8) {
                    memcpy(out + written / 8, in + read / 8, part / 8);
                    continue;
                }
                unsigned mask = (1u << part) - 1, code = in[read / 8] >> read % 8 & mask;
                out[written / 8] = (uint8_t)((out[written / 8] & ~(mask << written % 8)) | code << written % 8);
            }
            in += PAGE_PQ_PART(part);
            out += PAGE_PQ_PART(part);
        }
    }
}

static void add_anchors_scalar(const float *weights, size_t stride, const float *factors, const float *norms, size_t rows,
                               float *keys, float *values) {
    for (size_t r = 0; r < rows; r++) {
        for (size_t j = 0; j < PAGE_TOKENS; j++) {
            float a = weights[r * stride + j] * factors[r];
            keys[j] += a * (1 - a) * norms[r];
            values[j] += a;
        }
    }
}

void select_init_scalar(struct select_ops *ops) {
    ops->add_anchors = add_anchors_scalar;
    ops->scores_sign = scores_sign_scalar;
    ops->scores_quest = scores_quest_scalar;
    ops->count_scores = count_scores_scalar;
    ops->list_scores = list_scores_scalar;
    ops->gather_codes = gather_codes_scalar;
}
