/* The instructions of src/backend/cuda/ptx.cuh on the host: what each says of the lanes' registers, in plain loops. */
#ifndef TERSE_BACKEND_CUDA_PTX_CUH
#define TERSE_BACKEND_CUDA_PTX_CUH

#include "cuda_emulation.h"

inline float exp2_fast(float x) { return exp2f(x); }

inline uint32_t permute(uint32_t low, uint32_t high, uint32_t selector) { return __byte_perm(low, high, selector); }
inline int least_of(int x, int y, int z) { return x < y ? (x < z ? x : z) : y < z ? y : z; }
inline uint32_t least_sums(uint32_t x, uint32_t y, uint32_t z) {
    uint32_t least = 0;
    for (int shift = 0; shift < 32; shift += 16) {
        const int16_t sum = (int16_t)((x >> shift) + (y >> shift)), other = (int16_t)(z >> shift);
        least |= (uint32_t)(uint16_t)(sum < other ? sum : other) << shift;
    }
    return least;
}
inline uint32_t warp_slot() { return 8 * blockIdx.x + threadIdx.x / 32; }

/* ---- Products of a warp */

inline float emulated_half(uint32_t pair, int high) {
    __half_raw h;
    h.x = (unsigned short)(pair >> 16 * high);
    return __half2float(h);
}
inline float emulated_bf16(uint32_t pair, int high) { return __uint_as_float(pair >> 16 * high << 16); }

/* Operands of mma, a[2 * (k / 8) + row / 8][k % 2] and b[k / 8][k % 2], and sums d[2 * (row / 8) + column % 2] of a lane. */
struct emulated_numbers {
    float a[4][2], b[2][2], d[4];
};

void emulated_multiply_all(void *const *given); /* of a warp */

inline void emulated_multiply(float (&d)[4], emulated_numbers &own) {
    memcpy(own.d, d, sizeof d);
    emulated_meet(0xffffffffu, &own, emulated_multiply_all);
    memcpy(d, own.d, sizeof d);
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
inline void mma_from(float (&d)[4], const float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                     uint32_t b1) {
    memcpy(d, c, sizeof d);
    mma(d, a0, a1, a2, a3, b0, b1);
}
inline void mma_shallow(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b0) { mma(d, a0, a1, 0, 0, b0, 0); }
inline void mma_bf16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    emulated_mma(d, a0, a1, a2, a3, b0, b1, [](uint32_t pair, int high) { return emulated_bf16(pair, high); });
}

/* A half and its rest are 22 bits, which a float has. */
template <int N>
inline void mma_sums(float (&d)[N][4], const uint32_t (&a)[4], const uint32_t (&a_rest)[4], const uint32_t (&b)[N][2],
                     const uint32_t (&b_rest)[N][2]) {
    for (int i = 0; i < N; i++) {
        emulated_numbers own, rest;
        for (int high = 0; high < 2; high++) {
            for (int k = 0; k < 4; k++)
                own.a[k][high] = emulated_half(a[k], high), rest.a[k][high] = emulated_half(a_rest[k], high);
            for (int k = 0; k < 2; k++) {
                rest.b[k][high] = emulated_half(b[i][k], high);
                own.b[k][high] = rest.b[k][high] + emulated_half(b_rest[i][k], high);
            }
        }
        emulated_multiply(d[i], rest);
        emulated_multiply(d[i], own);
    }
}

template <class BYTE> int emulated_byte(uint32_t word, unsigned i) { return (BYTE)(word >> 8 * i); }

struct emulated_operands {
    uint32_t a[4], b[2];
    int d[4];
};

template <class A, class B>
void emulated_mma_bytes(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    emulated_operands own = {{a0, a1, a2, a3}, {b0, b1}, {d[0], d[1], d[2], d[3]}};
    emulated_meet(0xffffffffu, &own, [](void *const *given) {
        for (unsigned lane = 0; lane < 32; lane++) {
            int *d = ((emulated_operands *)given[lane])->d;
            for (unsigned i = 0; i < 4; i++)
                for (unsigned k = 0; k < 32; k++) {
                    const emulated_operands *left = (const emulated_operands *)given[lane / 4 * 4 + k % 16 / 4];
                    const emulated_operands *right = (const emulated_operands *)given[4 * (lane % 4 * 2 + i % 2) + k % 16 / 4];
                    d[i] += emulated_byte<A>(left->a[i / 2 + 2 * (k / 16)], k % 4) * emulated_byte<B>(right->b[k / 16], k % 4);
                }
        }
    });
    memcpy(d, own.d, sizeof d);
}

inline void mma_u8_s8(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    emulated_mma_bytes<uint8_t, int8_t>(d, a0, a1, a2, a3, b0, b1);
}
inline void mma_u8(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    emulated_mma_bytes<uint8_t, uint8_t>(d, a0, a1, a2, a3, b0, b1);
}

/* ---- Shared memory: addresses count from where it begins */

inline uint32_t shared_address(const void *p) { return (uint32_t)((const char *)p - emulated_shared_memory); }
inline char *emulated_shared_at(uint32_t address) { return emulated_shared_memory + (int32_t)address; }

struct emulated_matrices {
    uint32_t address; /* of the matrix lane / 8, the row lane % 8 */
    bool transposed;
    uint32_t r[4];
};

inline void emulated_load_all(void *const *given) {
    for (unsigned lane = 0; lane < 32; lane++) {
        emulated_matrices *own = (emulated_matrices *)given[lane];
        const unsigned g = lane / 4, t = lane % 4;
        for (unsigned m = 0; m < 4; m++) {
            uint16_t halves[2];
            for (unsigned i = 0; i < 2; i++) {
                const unsigned row = own->transposed ? 2 * t + i : g, column = own->transposed ? g : 2 * t + i;
                memcpy(&halves[i], emulated_shared_at(((const emulated_matrices *)given[8 * m + row])->address) + 2 * column, 2);
            }
            own->r[m] = halves[0] | (uint32_t)halves[1] << 16;
        }
    }
}

inline void emulated_load_matrices(uint32_t (&r)[4], uint32_t address, bool transposed) {
    emulated_matrices own = {address, transposed, {}};
    emulated_meet(0xffffffffu, &own, emulated_load_all);
    memcpy(r, own.r, sizeof r);
}
inline void load_matrices(uint32_t (&r)[4], uint32_t address) { emulated_load_matrices(r, address, false); }
inline void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) { emulated_load_matrices(r, address, true); }

inline uint32_t transpose_matrix(uint32_t x) {
    uint32_t own[2] = {x, 0};
    emulated_meet(0xffffffffu, own, [](void *const *given) {
        for (unsigned lane = 0; lane < 32; lane++) {
            const unsigned g = lane / 4, t = lane % 4;
            const uint32_t low = *(const uint32_t *)given[8 * t + g / 2] >> 16 * (g % 2) & 0xffff;
            const uint32_t high = *(const uint32_t *)given[8 * t + 4 + g / 2] >> 16 * (g % 2) & 0xffff;
            ((uint32_t *)given[lane])[1] = low | high << 16;
        }
    });
    return own[1];
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
inline void add_shared(uint32_t address, uint32_t x) {
    x += load_shared(address);
    memcpy(emulated_shared_at(address), &x, sizeof x);
}
inline void store_shared_pair(uint32_t address, uint2 x) { memcpy(emulated_shared_at(address), &x, sizeof x); }
inline void store_shared_quad(uint32_t address, uint4 x) { memcpy(emulated_shared_at(address), &x, sizeof x); }

/* ---- One kernel after another */

inline bool kernels_begin_early() { return true; }
inline void wait_for_kernels() {}
inline void let_next_kernel_begin() {}

/* ---- Barriers of some warps */

void emulated_wait_at_barrier(unsigned number, unsigned threads);
void emulated_arrive_at_barrier(unsigned number, unsigned threads);

inline void wait_at_barrier(uint32_t number, uint32_t threads) { emulated_wait_at_barrier(number, threads); }
inline void arrive_at_barrier(uint32_t number, uint32_t threads) { emulated_arrive_at_barrier(number, threads); }

/* ---- Copies: made when they are waited for, so that who does not wait finds what was there before */

void emulated_copy_async(char *to, const void *from, int bytes, bool valid);
void emulated_commit_copies();
void emulated_wait_copies(int left);
template <int UNIT> inline void copy_async(uint32_t to, const void *from, bool valid = true) {
    emulated_copy_async(emulated_shared_at(to), from, UNIT, valid);
}
inline void copy_once(uint32_t to, const void *from) { copy_async<16>(to, from); }
inline void commit_copies() { emulated_commit_copies(); }
inline void prefetch_line(const void *) {}
template <int N> inline void wait_copies() { emulated_wait_copies(N); }

#endif
