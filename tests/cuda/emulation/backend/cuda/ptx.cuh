/* The instructions of src/backend/cuda/ptx.cuh on the host: what each says of the lanes' registers, in plain loops. */
#ifndef TERSE_BACKEND_CUDA_PTX_CUH
#define TERSE_BACKEND_CUDA_PTX_CUH

#include "cuda_emulation.h"

inline float exp2_fast(float x) { return exp2f(x); }

inline uint32_t permute(uint32_t low, uint32_t high, uint32_t selector) { return __byte_perm(low, high, selector); }

/* ---- Products of a warp */

inline float emulated_half(uint32_t pair, int high) {
    __half_raw h;
    h.x = (unsigned short)(pair >> 16 * high);
    return __half2float(__half(h));
}
inline float emulated_bf16(uint32_t pair, int high) { return __uint_as_float(pair >> 16 * high << 16); }

/* Operands of mma, a[2 * (k / 8) + row / 8][k % 2] and b[k / 8][k % 2]: a lane converts its own once, before it exchanges them. */
struct emulated_numbers {
    float a[4][2], b[2][2];
};

inline void emulated_multiply(float (&d)[4], const emulated_numbers &own) {
    const emulated_numbers *all = (const emulated_numbers *)emulated_exchange(0xffffffffu, &own, sizeof own);
    const emulated_numbers *rows = all + emulated_lane() / 4 * 4, *columns = all + emulated_lane() % 4 * 8;
    double sums[4] = {}; /* order and roundings are the hardware's own */
    for (unsigned lane = 0; lane < 4; lane++)
        for (unsigned i = 0; i < 4; i++) {
            const unsigned half = i / 2, k = i % 2;
            const double low = rows[lane].a[2 * half][k], high = rows[lane].a[2 * half + 1][k];
            const double left = columns[lane].b[half][k], right = columns[lane + 4].b[half][k];
            sums[0] += low * left, sums[1] += low * right;
            sums[2] += high * left, sums[3] += high * right;
        }
    for (unsigned i = 0; i < 4; i++) d[i] = (float)((double)d[i] + sums[i]);
}

template <class NUMBER>
inline void emulated_mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1,
                         NUMBER number) {
    const uint32_t words[6] = {a0, a1, a2, a3, b0, b1};
    emulated_numbers own;
    for (int i = 0; i < 6; i++)
        for (int high = 0; high < 2; high++) (i < 4 ? own.a[i] : own.b[i - 4])[high] = number(words[i], high);
    emulated_multiply(d, own);
}

inline void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    emulated_mma(d, a0, a1, a2, a3, b0, b1, [](uint32_t pair, int high) { return emulated_half(pair, high); });
}
inline void mma_bf16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    emulated_mma(d, a0, a1, a2, a3, b0, b1, [](uint32_t pair, int high) { return emulated_bf16(pair, high); });
}

/* A half and its rest are 22 bits, which a float has. */
inline void mma_sums(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&a_rest)[4], const uint32_t (&b)[2],
                     const uint32_t (&b_rest)[2]) {
    emulated_numbers own;
    for (int high = 0; high < 2; high++) {
        for (int i = 0; i < 4; i++) own.a[i][high] = emulated_half(a[i], high) + emulated_half(a_rest[i], high);
        for (int i = 0; i < 2; i++) own.b[i][high] = emulated_half(b[i], high) + emulated_half(b_rest[i], high);
    }
    emulated_multiply(d, own);
}

inline int emulated_byte(uint32_t word, unsigned i) { return (int8_t)(word >> 8 * i); }

struct emulated_operands {
    uint32_t a[4], b[2];
};

inline void mma_s8(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    const emulated_operands own = {{a0, a1, a2, a3}, {b0, b1}};
    const emulated_operands *all = (const emulated_operands *)emulated_exchange(0xffffffffu, &own, sizeof own);
    unsigned g = emulated_lane() / 4, t = emulated_lane() % 4;
    for (unsigned i = 0; i < 4; i++)
        for (unsigned k = 0; k < 32; k++)
            d[i] += emulated_byte(all[4 * g + k % 16 / 4].a[i / 2 + 2 * (k / 16)], k % 4) *
                    emulated_byte(all[4 * (2 * t + i % 2) + k % 16 / 4].b[k / 16], k % 4);
}

/* ---- Shared memory: addresses count from where it begins */

inline uint32_t shared_address(const void *p) { return (uint32_t)((const char *)p - emulated_shared_memory); }
inline char *emulated_shared_at(uint32_t address) { return emulated_shared_memory + (int32_t)address; }

inline uint16_t emulated_matrix_half(const uint32_t *addresses, unsigned matrix, unsigned row, unsigned column) {
    uint16_t h;
    memcpy(&h, emulated_shared_at(addresses[8 * matrix + row]) + 2 * column, 2);
    return h;
}

inline void emulated_load_matrices(uint32_t (&r)[4], uint32_t address, bool transposed) {
    const uint32_t *all = (const uint32_t *)emulated_exchange(0xffffffffu, &address, sizeof address);
    unsigned g = emulated_lane() / 4, t = emulated_lane() % 4;
    for (unsigned m = 0; m < 4; m++) {
        r[m] = 0;
        for (unsigned i = 0; i < 2; i++) {
            unsigned row = transposed ? 2 * t + i : g, column = transposed ? g : 2 * t + i;
            r[m] |= (uint32_t)emulated_matrix_half(all, m, row, column) << 16 * i;
        }
    }
    emulated_warp_barrier(0xffffffffu); /* what they read may be written next */
}
inline void load_matrices(uint32_t (&r)[4], uint32_t address) { emulated_load_matrices(r, address, false); }
inline void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) { emulated_load_matrices(r, address, true); }

inline uint32_t transpose_matrix(uint32_t x) {
    const uint32_t *all = (const uint32_t *)emulated_exchange(0xffffffffu, &x, sizeof x);
    unsigned g = emulated_lane() / 4, t = emulated_lane() % 4;
    uint32_t low = all[4 * (2 * t) + g / 2] >> 16 * (g % 2) & 0xffff, high = all[4 * (2 * t + 1) + g / 2] >> 16 * (g % 2) & 0xffff;
    return low | high << 16;
}

inline uint32_t load_shared(uint32_t address) {
    uint32_t r;
    memcpy(&r, emulated_shared_at(address), sizeof r);
    return r;
}
inline uint32_t load_shared_half(uint32_t address) {
    uint16_t r;
    memcpy(&r, emulated_shared_at(address), sizeof r);
    return r;
}
inline uint2 load_shared_pair(uint32_t address) { return make_uint2(load_shared(address), load_shared(address + 4)); }
inline uint4 load_shared_quad(uint32_t address) {
    return make_uint4(load_shared(address), load_shared(address + 4), load_shared(address + 8), load_shared(address + 12));
}
inline void store_shared_quad(uint32_t address, uint4 x) { memcpy(emulated_shared_at(address), &x, sizeof x); }

/* ---- One kernel after another */

inline void wait_for_kernels() {}
inline void let_next_kernel_begin() {}

/* ---- Copies: made when they are waited for, so that who does not wait finds what was there before */

void emulated_copy_async(char *to, const void *from, int bytes, bool valid);
void emulated_commit_copies();
void emulated_wait_copies(int left);
template <int UNIT> inline void copy_async(uint32_t to, const void *from, bool valid = true) {
    emulated_copy_async(emulated_shared_at(to), from, UNIT, valid);
}
inline void commit_copies() { emulated_commit_copies(); }
template <int N> inline void wait_copies() { emulated_wait_copies(N); }

#endif
