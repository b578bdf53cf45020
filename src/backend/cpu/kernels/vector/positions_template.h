/* This template implements vector_ops.score_positions on the lanes of an instruction set. A file includes it after
 * multiply_template.h and defines
 *
 *     vec_reverse(x)                     the lanes in the opposite order
 *     POSITION_ROWS, POSITION_VECS       rows and registers of tokens summed together */

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

/* Scores tokens 32 + j and those behind it, of POSITION_VECS registers, and their mirror images. */
INLINE void score_mirrored(size_t rows, size_t pairs, const float (*rotated)[2 * POSITION_PAIRS_MAX], const float *waves, size_t j,
                           float *logits) {
    vec even[POSITION_ROWS][POSITION_VECS], odd[POSITION_ROWS][POSITION_VECS];
    sum_waves(rows, pairs, rotated, waves + j, even);
    sum_waves(rows, pairs, (const float(*)[2 * POSITION_PAIRS_MAX])(rotated[0] + POSITION_STRIDE(pairs)), waves + POSITION_HALF + j,
              odd);
    UNROLL for (size_t m = 0; m < rows; m++) {
        UNROLL for (size_t v = 0; v < POSITION_VECS; v++) {
            float *after = logits + 2 * POSITION_HALF * m + POSITION_HALF + j + v * LANES,
                  *before = logits + 2 * POSITION_HALF * m + POSITION_HALF - j - (v + 1) * LANES;
            vec_store(after, vec_add(vec_load(after), vec_add(even[m][v], odd[m][v])));
            vec_store(before, vec_add(vec_load(before), vec_reverse(vec_sub(even[m][v], odd[m][v]))));
        }
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

static void PASTE(score_positions, ISA)(const float *products, size_t rows, size_t pairs, const float *rotation, const float *waves,
                                        float *logits) {
    const size_t stride = POSITION_STRIDE(pairs);
    size_t m = 0;
    for (; m + POSITION_ROWS <= rows; m += POSITION_ROWS)
        score_position_rows(POSITION_ROWS, products + 2 * stride * m, pairs, rotation, waves, logits + 2 * POSITION_HALF * m);
    for (; m < rows; m++) score_position_rows(1, products + 2 * stride * m, pairs, rotation, waves, logits + 2 * POSITION_HALF * m);
}
