/* The products of fragments, which most of the time goes to: compiled with optimization. */
#include "backend/cuda/ptx.cuh"

/* Eight columns in a vector, which the compiler does not make of loops by itself. */
typedef double columns_of_row __attribute__((vector_size(8 * sizeof(double))));

/* Lane 4 r + t has of a the rows r and r + 8, of b the column r, and of d those rows and the columns 2 t and 2 t + 1. */
void emulated_multiply_all(void *const *given) {
    columns_of_row columns[16]; /* of b, in the order in which products are added; it and the roundings are the hardware's own */
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned i = 0; i < 4; i++)
            columns[lane % 4 * 4 + i][lane / 4] = ((const emulated_numbers *)given[lane])->b[i / 2][i % 2];
    for (unsigned row = 0; row < 16; row++) {
        emulated_numbers *lanes[4];
        columns_of_row sums = {};
        for (unsigned t = 0; t < 4; t++) lanes[t] = (emulated_numbers *)given[row % 8 * 4 + t];
        for (unsigned k = 0; k < 16; k++) sums += (double)lanes[k / 4]->a[2 * (k % 4 / 2) + row / 8][k % 2] * columns[k];
        for (unsigned column = 0; column < 8; column++) {
            float *d = &lanes[column / 2]->d[2 * (row / 8) + column % 2];
            *d = (float)((double)*d + sums[column]);
        }
    }
}
