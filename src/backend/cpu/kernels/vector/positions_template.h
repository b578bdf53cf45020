/* This template implements vector_ops.score_positions on the lanes of an instruction set. A file includes it after
 * multiply_template.h and defines
 *
 *     vec_reverse(x)                     the lanes in the opposite order
 *     sum_four(x, to)                    writes to[4], the sums of the lanes of each of x[4]
 *     POSITION_ROWS, POSITION_VECS       rows and registers of tokens summed together: 4 and 2 */

/* Rotates products[2][stride] to the page's middle: rotated[2][stride]. */
INLINE void rotate_products(size_t stride, const float *products, const float *rotation, float *rotated) {
    for (size_t i = 0; i < stride; i += LANES) {
        const vec even = vec_load(products + i), odd = vec_load(products + stride + i), c = vec_load(rotation + i),
                  s = vec_load(rotation + stride + i);
        vec_store(rotated + i, vec_fma(odd, s, vec_mul(even, c)));
        vec_store(rotated + stride + i, vec_fnma(even, s, vec_mul(odd, c)));
    }
}

/* Computes sums[rows][POSITION_VECS] of one half of the products and of the waves. */
INLINE void sum_waves(size_t rows, size_t pairs, const float (*rotated)[2 * POSITION_PAIRS_MAX], const float *waves,
                      vec (*sums)[POSITION_VECS]) {
    UNROLL for (size_t m = 0; m < rows; m++) { UNROLL for (size_t v = 0; v < POSITION_VECS; v++) sums[m][v] = vec_zero(); }
    for (size_t i = 0; i < pairs; i++, waves += 2 * POSITION_HALF) {
        vec wave[POSITION_VECS];
        UNROLL for (size_t v = 0; v < POSITION_VECS; v++) wave[v] = vec_load(waves + v * LANES);
        UNROLL for (size_t m = 0; m < rows; m++) {
            const vec x = vec_set(rotated[m][i]);
            UNROLL for (size_t v = 0; v < POSITION_VECS; v++) sums[m][v] = vec_fma(x, wave[v], sums[m][v]);
        }
    }
}

/* Adds to one row the sums of a register of tokens from 32 + j on and of their mirror images. */
INLINE void add_mirrored(vec even, vec odd, size_t j, float *logits) {
    float *after = logits + POSITION_HALF + j, *before = logits + POSITION_HALF - j - LANES;
    vec_store(after, vec_add(vec_load(after), vec_add(even, odd)));
    vec_store(before, vec_add(vec_load(before), vec_reverse(vec_sub(even, odd))));
}

/* Scores tokens 32 + j and those behind it, of POSITION_VECS registers, and their mirror images. */
INLINE void score_mirrored(size_t rows, size_t pairs, const float (*rotated)[2 * POSITION_PAIRS_MAX], const float *waves, size_t j,
                           float *logits) {
    vec even[POSITION_ROWS][POSITION_VECS], odd[POSITION_ROWS][POSITION_VECS];
    sum_waves(rows, pairs, rotated, waves + j, even);
    sum_waves(rows, pairs, (const float(*)[2 * POSITION_PAIRS_MAX])(rotated[0] + POSITION_STRIDE(pairs)), waves + POSITION_HALF + j,
              odd);
    UNROLL for (size_t m = 0; m < rows; m++) {
        UNROLL for (size_t v = 0; v < POSITION_VECS; v++)
            add_mirrored(even[m][v], odd[m][v], j + v * LANES, logits + 2 * POSITION_HALF * m);
    }
}

INLINE void score_position_rows(size_t rows, const float *products, size_t pairs, const float *rotation, const float *waves,
                                float *logits) {
    float rotated[POSITION_ROWS][2 * POSITION_PAIRS_MAX];
    const size_t stride = POSITION_STRIDE(pairs);
    for (size_t m = 0; m < rows; m++) rotate_products(stride, products + 2 * stride * m, rotation, rotated[m]);
    for (size_t j = 0; j < POSITION_HALF; j += POSITION_VECS * LANES)
        score_mirrored(rows, pairs, (const float(*)[2 * POSITION_PAIRS_MAX]) rotated, waves, j, logits);
}

#define ALONE_VECS SMALLER(4, POSITION_HALF / LANES)

/* Scores one row. Both halves of its products are summed at once: the sums of one would wait for each other. */
INLINE void score_position_row(const float *products, size_t pairs, const float *rotation, const float *waves, float *logits) {
    float rotated[2 * POSITION_PAIRS_MAX];
    const size_t stride = POSITION_STRIDE(pairs);
    rotate_products(stride, products, rotation, rotated);
    for (size_t j = 0; j < POSITION_HALF; j += ALONE_VECS * LANES) {
        vec even[ALONE_VECS], odd[ALONE_VECS];
        UNROLL for (size_t v = 0; v < ALONE_VECS; v++) even[v] = odd[v] = vec_zero();
        for (size_t i = 0; i < pairs; i++) {
            const vec e = vec_set(rotated[i]), o = vec_set(rotated[stride + i]);
            const float *wave = waves + 2 * i * POSITION_HALF + j;
            UNROLL for (size_t v = 0; v < ALONE_VECS; v++) {
                even[v] = vec_fma(e, vec_load(wave + v * LANES), even[v]);
                odd[v] = vec_fma(o, vec_load(wave + POSITION_HALF + v * LANES), odd[v]);
            }
        }
        UNROLL for (size_t v = 0; v < ALONE_VECS; v++) add_mirrored(even[v], odd[v], j + v * LANES, logits);
    }
}

static void PASTE(score_positions, ISA)(const float *products, size_t rows, size_t pairs, const float *rotation, const float *waves,
                                        float *logits) {
    const size_t stride = POSITION_STRIDE(pairs);
    size_t m = 0;
    for (; m + POSITION_ROWS <= rows; m += POSITION_ROWS)
        score_position_rows(POSITION_ROWS, products + 2 * stride * m, pairs, rotation, waves, logits + 2 * POSITION_HALF * m);
    for (; m < rows; m++) score_position_row(products + 2 * stride * m, pairs, rotation, waves, logits + 2 * POSITION_HALF * m);
}

/* Where rows end, the last one is computed again and again. */
static void PASTE(score_position_slots, ISA)(const float *products, size_t rows, size_t pairs, const float *angles,
                                             const uint8_t *slots, size_t n, float *logits) {
    const size_t stride = POSITION_STRIDE(pairs);
    for (size_t m = 0, some; m < rows; m += some, logits += some * 2 * POSITION_HALF) {
        const float *own[4];
        some = SMALLER(rows - m, 4);
        for (size_t r = 0; r < 4; r++) own[r] = products + 2 * stride * SMALLER(m + r, rows - 1);
        for (size_t k = 0; k < n; k++) {
            const float *cosine = angles + 2 * slots[k] * pairs, *sine = cosine + pairs;
            vec sums[4];
            float scores[4];
            UNROLL for (size_t r = 0; r < 4; r++) sums[r] = vec_zero();
            for (size_t i = 0; i < pairs; i += LANES) {
                const vec c = vec_load(cosine + i), s = vec_load(sine + i);
                UNROLL for (size_t r = 0; r < 4; r++) {
                    sums[r] = vec_fma(c, vec_load(own[r] + i), sums[r]);
                    sums[r] = vec_fma(s, vec_load(own[r] + stride + i), sums[r]);
                }
            }
            sum_four(sums, scores);
            for (size_t r = 0; r < some; r++) logits[r * 2 * POSITION_HALF + k] += scores[r];
        }
    }
}
