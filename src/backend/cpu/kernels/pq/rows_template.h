/* Tables and tallies for N queries at once, a row of which holds what all of them have of one centroid: included by
 * backend/cpu/kernels/pq/template.h for N = 1, 2, 4 and 8. */
typedef float PASTE(row, N) __attribute__((vector_size(4 * N), aligned(4), may_alias));

/* sum[64][N] += the rows that the codes point to; four sub-vectors at a time, so that a sum is fetched and put back once for all.
 */
static void PASTE(look_up, N)(const struct product_code *p, const float *tables, uint32_t (*offsets)[BLOCK_TOKENS], float *sum) {
    typedef PASTE(row, N) row;
    size_t table = PRODUCT_PLANE(p->bits) * N, m = 0;
    for (; m + 4 <= p->parts; m += 4, tables += 4 * table) {
        for (size_t t = 0; t < BLOCK_TOKENS; t++) {
            const row *a = (const row *)(tables + offsets[m][t]), *b = (const row *)(tables + table + offsets[m + 1][t]);
            const row *c = (const row *)(tables + 2 * table + offsets[m + 2][t]);
            const row *d = (const row *)(tables + 3 * table + offsets[m + 3][t]);
            *(row *)(sum + t * N) += (*a + *b) + (*c + *d);
        }
    }
    for (; m < p->parts; m++, tables += table)
        for (size_t t = 0; t < BLOCK_TOKENS; t++) *(row *)(sum + t * N) += *(const row *)(tables + offsets[m][t]);
}

/* tallies += weights[64][N] by code. */
static void PASTE(tally, N)(const struct product_code *p, const float *weights, const void *block, float *tallies) {
    typedef PASTE(row, N) row;
    uint32_t offsets[BLOCK_TOKENS];
    for (size_t m = 0; m < p->parts; m++, tallies += PRODUCT_PLANE(p->bits) * N) {
        product_offsets(p, block, m, N, offsets);
        for (size_t t = 0; t < BLOCK_TOKENS; t++) *(row *)(tallies + offsets[t]) += *(const row *)(weights + t * N);
    }
}

/* table[2^bits][N]: the products of the m-th sub-vector's centroids with q[width][N]. */
static void PASTE(prepare, N)(const struct product_code *p, size_t m, const float *q, float *table) {
    typedef PASTE(row, N) row;
    float floats[SOME_CENTROIDS * PRODUCT_MOST_WIDTH];
    for (size_t j = 0; j < product_centroids(p); j++, table += N) {
        if (j % SOME_CENTROIDS == 0) some_centroids(p, m, j, floats);
        const float *x = floats + j % SOME_CENTROIDS * p->width;
        row sum = *(const row *)q * x[0];
        for (size_t i = 1; i < p->width; i++) sum += *(const row *)(q + i * N) * x[i];
        *(row *)table = sum;
    }
}

/* sum[width][N]: the m-th sub-vector's centroids by tallies[2^bits][N]. */
static void PASTE(finish, N)(const struct product_code *p, size_t m, const float *tallies, float *sum) {
    typedef PASTE(row, N) row;
    float floats[SOME_CENTROIDS * PRODUCT_MOST_WIDTH];
    memset(sum, 0, p->width * N * sizeof *sum);
    for (size_t j = 0; j < product_centroids(p); j += SOME_CENTROIDS, tallies += SOME_CENTROIDS * N) {
        some_centroids(p, m, j, floats);
        for (size_t i = 0; i < p->width; i++) {
            row even = *(const row *)(sum + i * N), odd = {0};
            for (size_t r = 0; r < SOME_CENTROIDS; r += 2) {
                even += *(const row *)(tallies + r * N) * floats[r * p->width + i];
                odd += *(const row *)(tallies + (r + 1) * N) * floats[(r + 1) * p->width + i];
            }
            *(row *)(sum + i * N) = even + odd;
        }
    }
}
#undef N
