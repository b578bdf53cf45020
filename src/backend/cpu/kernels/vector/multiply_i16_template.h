/* This template implements vector_ops.multiply_i16 on the lanes of an instruction set. A file includes it after multiply_template.h
 * and defines
 *
 *     ints                           a register of LANES sums of 32 bits
 *     ints_zero()
 *     ints_add_pairs(sums, row, b)   sums[c] += row[0] b[2 c] + row[1] b[2 c + 1], of 16-bit integers at `row` and `b`
 *     ints_to_vec(sums)
 *     MULTIPLY_I16_VECS              registers of columns summed together, whole strips: products need a register more than those of floats
 *
 * The loops are plain C where compilers vectorize them. */

/* Writes row[k] in units of the result, which is a 32767th of its norm: no product with a column of that norm overflows. Added to
 * 1.5 * 2^23, a number is rounded to an integer, which is then in the sum's lowest bits. A row that is not finite has a unit that
 * is not. */
static float row_to_i16(const float *row, size_t k, int16_t *to) {
    vec squares = vec_zero();
    float lanes[LANES], sum = 0;
    size_t i = 0;
    for (; i + LANES <= k; i += LANES) squares = vec_fma(vec_load(row + i), vec_load(row + i), squares);
    vec_store(lanes, squares);
    for (size_t j = 0; j < LANES; j++) sum += lanes[j];
    for (; i < k; i++) sum += row[i] * row[i];
    const float norm = sqrtf(sum), inverse = norm > 0 && I16_NORM / norm < INFINITY ? I16_NORM / norm : 0;
    for (i = 0; i < k; i++) {
        const float rounded = row[i] * inverse + 12582912.0f;
        uint32_t bits;
        memcpy(&bits, &rounded, sizeof bits);
        to[i] = (int16_t)(uint16_t)bits;
    }
    return inverse > 0 ? norm / I16_NORM : norm;
}

/* Does what multiply_tile does, for rows in integers. `b` is the first column's strip. */
INLINE void multiply_i16_tile(const int16_t (*a)[I16_DEPTH], const float *units, size_t rows, size_t k, const int16_t *b,
                              size_t vecs, const float *scales, float *out, size_t ldo) {
    ints sums[MULTIPLY_ROWS][MULTIPLY_I16_VECS];
    UNROLL for (size_t r = 0; r < rows; r++) { UNROLL for (size_t v = 0; v < vecs; v++) sums[r][v] = ints_zero(); }
    for (size_t i = 0; i < k; i += 2, b += 2 * I16_STRIP) UNROLL for (size_t r = 0; r < rows; r++) {
            UNROLL for (size_t v = 0; v < vecs; v++) {
                const size_t c = v * LANES, strip = c / I16_STRIP;
                sums[r][v] = ints_add_pairs(sums[r][v], a[r] + i, b + strip * I16_STRIP * k + 2 * (c % I16_STRIP));
            }
        }
    UNROLL for (size_t r = 0; r < rows; r++) {
        const vec unit = vec_set(units[r]);
        UNROLL for (size_t v = 0; v < vecs; v++)
            vec_store(out + r * ldo + v * LANES, vec_mul(ints_to_vec(sums[r][v]), vec_mul(unit, vec_load(scales + v * LANES))));
    }
}

INLINE void multiply_i16_rows(const int16_t (*a)[I16_DEPTH], const float *units, size_t rows, size_t k, const int16_t *b, size_t n,
                              const float *scales, float *out, size_t ldo) {
    size_t c = 0;
    for (; c + MULTIPLY_I16_VECS * LANES <= n; c += MULTIPLY_I16_VECS * LANES)
        multiply_i16_tile(a, units, rows, k, b + c * k, MULTIPLY_I16_VECS, scales + c, out + c, ldo);
    const size_t left = (n - c) / LANES;
    if (MULTIPLY_I16_VECS > 3 && left == 3) multiply_i16_tile(a, units, rows, k, b + c * k, 3, scales + c, out + c, ldo);
    if (MULTIPLY_I16_VECS > 2 && left == 2) multiply_i16_tile(a, units, rows, k, b + c * k, 2, scales + c, out + c, ldo);
    if (left == 1) multiply_i16_tile(a, units, rows, k, b + c * k, 1, scales + c, out + c, ldo);
}

static void PASTE(multiply_i16, ISA)(const float *a, size_t m, size_t k, size_t lda, const int16_t *b, size_t n,
                                     const float *scales, float *out, size_t ldo) {
    _Alignas(64) int16_t rows[MULTIPLY_ROWS][I16_DEPTH];
    float units[MULTIPLY_ROWS];
    for (size_t r = 0; r < m; r += MULTIPLY_ROWS) {
        const size_t together = m - r < MULTIPLY_ROWS ? m - r : MULTIPLY_ROWS;
        for (size_t i = 0; i < together; i++) units[i] = row_to_i16(a + (r + i) * lda, k, rows[i]);
        if (together == MULTIPLY_ROWS)
            multiply_i16_rows((const int16_t(*)[I16_DEPTH])rows, units, MULTIPLY_ROWS, k, b, n, scales, out + r * ldo, ldo);
        else
            for (size_t i = 0; i < together; i++)
                multiply_i16_rows((const int16_t(*)[I16_DEPTH])rows + i, units + i, 1, k, b, n, scales, out + (r + i) * ldo, ldo);
    }
}
