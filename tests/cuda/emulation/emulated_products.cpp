/* The products of fragments, which most of the time goes to: compiled with optimization. */
#include "backend/cuda/ptx.cuh"

/* Lane 4 r + t has of a the rows r and r + 8, of b the column r, and of d those rows and the columns 2 t and 2 t + 1. */
void emulated_multiply_all(void *const *given) {
    double columns[16][8]; /* of b: [k][column], in the order in which products are added; it and the roundings are the hardware's own */
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned i = 0; i < 4; i++) columns[lane % 4 * 4 + i][lane / 4] = ((const emulated_numbers *)given[lane])->b[i / 2][i % 2];
    for (unsigned row = 0; row < 16; row++) {
        emulated_numbers *lanes[4];
        double sums[8] = {};
        for (unsigned t = 0; t < 4; t++) lanes[t] = (emulated_numbers *)given[row % 8 * 4 + t];
        for (unsigned k = 0; k < 16; k++) {
            const double left = lanes[k / 4]->a[2 * (k % 4 / 2) + row / 8][k % 2];
            for (unsigned column = 0; column < 8; column++) sums[column] += left * columns[k][column];
        }
        for (unsigned column = 0; column < 8; column++) {
            float *d = &lanes[column / 2]->d[2 * (row / 8) + column % 2];
            *d = (float)((double)*d + sums[column]);
        }
    }
}
