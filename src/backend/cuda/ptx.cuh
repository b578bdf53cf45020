/* Wraps instructions that C++ has no name for, for compute capability 8.0 and later, one a function. Nothing else is here, and no
 * such instruction elsewhere but in kv/hopper.cuh: tests run kernels on the host with another file of this name
 * (tests/cuda/emulation). */
#ifndef TERSE_BACKEND_CUDA_PTX_CUH
#define TERSE_BACKEND_CUDA_PTX_CUH

#include <cuda_fp16.h>
#include <stdint.h>

#define PTX_INLINE static __device__ __forceinline__

/* Returns 2^x, within 2^-22 of it; denormal numbers count as 0. */
PTX_INLINE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Returns the bytes of the two words, low then high, that the selector's four lowest digits of four bits number. A digit is 0 to 7
 * for a byte, and 8 more for eight times the byte's highest bit. (__byte_perm takes three bits.) */
PTX_INLINE uint32_t permute(uint32_t low, uint32_t high, uint32_t selector) {
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(low), "r"(high), "r"(selector));
    return r;
}

/* Returns the least of three, which is one instruction from compute capability 9.0 on. */
PTX_INLINE int least_of(int x, int y, int z) { return __vimin3_s32(x, y, z); }

/* Returns the least of x + y and z in each half of a word, 16-bit integers with a sign: one instruction from compute capability 9.0 on. */
PTX_INLINE uint32_t least_sums(uint32_t x, uint32_t y, uint32_t z) { return __viaddmin_s16x2(x, y, z); }

/* Returns which of the warps that a multiprocessor has room for this is: good for sharing work out evenly, for nothing else. */
PTX_INLINE uint32_t warp_slot() {
    uint32_t r;
    asm volatile("mov.u32 %0, %%warpid;" : "=r"(r));
    return r;
}

/* ---- Products of a warp */

/* Computes d[16][8] += a[16][16] b[16][8]. With g = lane / 4, t = lane % 4, a is {row g, columns 2t 2t+1}, {row g+8}, {row g,
 * columns 2t+8 2t+9}, {row g+8}; b is {rows 2t 2t+1, column g}, {rows 2t+8 2t+9}; d is {row g, columns 2t, 2t+1}, {row g+8}. */
PTX_INLINE void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Computes d = c + a b, where d and c are different registers. */
PTX_INLINE void mma_from(float (&d)[4], const float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                         uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

/* Computes d[16][8] += a[16][8] b[8][8], whose operands are the first ones of mma. */
PTX_INLINE void mma_shallow(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b0) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(b0));
}

/* Computes d[i] += (a + a_rest)(b[i] + b_rest[i]) but for the products of two rests, whose operands lie as those of mma. Products that are
 * added to the same sums wait for each other, so that others stand between them. */
template <int N>
PTX_INLINE void mma_sums(float (&d)[N][4], const uint32_t (&a)[4], const uint32_t (&a_rest)[4], const uint32_t (&b)[N][2],
                         const uint32_t (&b_rest)[N][2]) {
#pragma unroll
    for (int i = 0; i < N; i++) mma(d[i], a_rest[0], a_rest[1], a_rest[2], a_rest[3], b[i][0], b[i][1]);
#pragma unroll
    for (int i = 0; i < N; i++) mma(d[i], a[0], a[1], a[2], a[3], b_rest[i][0], b_rest[i][1]);
#pragma unroll
    for (int i = 0; i < N; i++) mma(d[i], a[0], a[1], a[2], a[3], b[i][0], b[i][1]);
}

/* Does the same as mma for bfloat16. */
PTX_INLINE void mma_bf16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Does the same for bytes, without sign of a and with one of b: d[16][8] += a[16][32] b[32][8], where a and b have columns, rows, 4t .. 4t+3 and 16 more. */
PTX_INLINE void mma_u8_s8(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Does the same for bytes without a sign. */
PTX_INLINE void mma_u8(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Loads four matrices of 8 rows of 16 bytes each; lane l gives the address of row l % 8 of matrix l / 8, and gets columns 2t, 2t +
 * 1 of row g of each. */
PTX_INLINE void load_matrices(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/* Loads them transposed: a lane gets 16-bit column g of rows 2t and 2t + 1 of each. */
PTX_INLINE void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/* Transposes a matrix of 8 by 8 halves, of which a lane has columns 2t, 2t + 1 of row g. */
PTX_INLINE uint32_t transpose_matrix(uint32_t x) {
    uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* ---- Shared memory. Addresses are those of the shared window, 32 bits. */

PTX_INLINE uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

PTX_INLINE uint32_t load_shared(uint32_t address) {
    uint32_t r;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(r) : "r"(address) : "memory");
    return r;
}

PTX_INLINE uint32_t load_shared_half(uint32_t address) {
    uint16_t r;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(r) : "r"(address) : "memory");
    return r;
}

PTX_INLINE uint2 load_shared_pair(uint32_t address) {
    uint2 r;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(r.x), "=r"(r.y) : "r"(address) : "memory");
    return r;
}

PTX_INLINE uint4 load_shared_quad(uint32_t address) {
    uint4 r;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "r"(address) : "memory");
    return r;
}

PTX_INLINE void add_shared(uint32_t address, uint32_t x) {
    asm volatile("red.shared.add.u32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}

PTX_INLINE void store_shared_pair(uint32_t address, uint2 x) {
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(x.x), "r"(x.y) : "memory");
}

PTX_INLINE void store_shared_quad(uint32_t address, uint4 x) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}

/* ---- Kernels that begin before the one that was launched before them has ended (launch.cuh). Before compute capability 9.0 none
 * does. */

/* Waits; after this a thread may read what the kernels launched before have written, and write what they read. */
PTX_INLINE void wait_for_kernels() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/* Returns whether kernels may begin early. */
PTX_INLINE bool kernels_begin_early() {
#if __CUDA_ARCH__ >= 900
    return true;
#else
    return false;
#endif
}
/* Lets the next kernel's blocks of threads begin, once all of this one's have come here. */
PTX_INLINE void let_next_kernel_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* ---- Barriers of some warps, numbered 0 to 15, of so many threads; __syncthreads is number 0 of all */

/* Waits until all others have come or arrived; sees then what they wrote to shared memory before. */
PTX_INLINE void wait_at_barrier(uint32_t number, uint32_t threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
/* Arrives and goes on. */
PTX_INLINE void arrive_at_barrier(uint32_t number, uint32_t threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/* ---- Copies from global to shared memory, while the lane goes on */

/* Copies UNIT bytes, 4, 8 or 16; zeros where they are not valid. */
template <int UNIT> PTX_INLINE void copy_async(uint32_t to, const void *from, bool valid = true) {
    if (UNIT == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(UNIT), "r"(valid ? UNIT : 0)
                     : "memory");
}
/* Copies 16 bytes of a line that is read once in a step: the L2 gives it up before others, and so keeps what all steps read, as tables,
 * activations and instructions. */
PTX_INLINE void copy_once(uint32_t to, const void *from) {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "l"(policy)
                 : "memory");
}
PTX_INLINE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Waits until all but the newest N groups of this lane's copies are there; a __syncwarp makes the other lanes' visible. */
template <int N> PTX_INLINE void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
/* Asks the L2 for a line of global memory, which nothing waits for. */
PTX_INLINE void prefetch_line(const void *from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

#endif
