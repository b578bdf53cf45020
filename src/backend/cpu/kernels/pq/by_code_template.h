/* This template makes look-up tables and code sums of N queries at once; a row holds all queries' numbers of one centroid.
 * pq/template.h includes it for N = 1, 2, 4 and 8. Its parameter is N, which is undefined at the end. */
typedef float PASTE(row, N) __attribute__((vector_size(4 * N), aligned(4), may_alias));

/* Adds to sum[64][N] the rows that the codes point to, of four sub-vectors at a time, so that a sum is loaded and stored once for
 * all four. */
static void PASTE(look_up, N)(const struct pq_codebook *p, const float *tables, uint32_t (*offsets)[PAGE_TOKENS], float *sum) {
    typedef PASTE(row, N) row;
    size_t table = PQ_CHANNEL_ENTRIES(p->bits) * N, m = 0;
    for (; m + 4 <= p->parts; m += 4, tables += 4 * table) {
        for (size_t t = 0; t < PAGE_TOKENS; t++) {
            const row *a = (const row *)(tables + offsets[m][t]), *b = (const row *)(tables + table + offsets[m + 1][t]);
            const row *c = (const row *)(tables + 2 * table + offsets[m + 2][t]);
            const row *d = (const row *)(tables + 3 * table + offsets[m + 3][t]);
            *(row *)(sum + t * N) += (*a + *b) + (*c + *d);
        }
    }
    for (; m < p->parts; m++, tables += table)
        for (size_t t = 0; t < PAGE_TOKENS; t++) *(row *)(sum + t * N) += *(const row *)(tables + offsets[m][t]);
}

/* Adds weights[64][N] to code_sums by code. */
static void PASTE(accumulate_by_code, N)(const struct pq_codebook *p, const float *weights, const void *page, float *code_sums) {
    typedef PASTE(row, N) row;
    uint32_t offsets[PAGE_TOKENS];
    for (size_t m = 0; m < p->parts; m++, code_sums += PQ_CHANNEL_ENTRIES(p->bits) * N) {
        pq_offsets(p, page, m, N, offsets);
        for (size_t t = 0; t < PAGE_TOKENS; t++) *(row *)(code_sums + offsets[t]) += *(const row *)(weights + t * N);
    }
}

/* Makes table[2^bits][N], the products of the m-th sub-vector's centroids with q[width][N]. */
static void PASTE(prepare, N)(const struct pq_codebook *p, size_t m, const float *q, float *table) {
    typedef PASTE(row, N) row;
    float floats[SOME_CENTROIDS * PQ_WIDTH_MAX];
    for (size_t j = 0; j < pq_centroids(p); j++, table += N) {
        if (j % SOME_CENTROIDS == 0) some_centroids(p, m, j, floats);
        const float *x = floats + j % SOME_CENTROIDS * p->width;
        row sum = *(const row *)q * x[0];
        for (size_t i = 1; i < p->width; i++) sum += *(const row *)(q + i * N) * x[i];
        *(row *)table = sum;
    }
}

/* Computes sum[width][N], the m-th sub-vector's centroids times code_sums[2^bits][N]. */
static void PASTE(finish, N)(const struct pq_codebook *p, size_t m, const float *code_sums, float *sum) {
    typedef PASTE(row, N) row;
    float floats[SOME_CENTROIDS * PQ_WIDTH_MAX];
    memset(sum, 0, p->width * N * sizeof *sum);
    for (size_t j = 0; j < pq_centroids(p); j += SOME_CENTROIDS, code_sums += SOME_CENTROIDS * N) {
        some_centroids(p, m, j, floats);
        for (size_t i = 0; i < p->width; i++) {
            row even = *(const row *)(sum + i * N), odd = {0};
            for (size_t r = 0; r < SOME_CENTROIDS; r += 2) {
                even += *(const row *)(code_sums + r * N) * floats[r * p->width + i];
                odd += *(const row *)(code_sums + (r + 1) * N) * floats[(r + 1) * p->width + i];
            }
            *(row *)(sum + i * N) = even + odd;
        }
    }
}
#undef N
