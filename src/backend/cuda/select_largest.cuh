/* Selects the largest of many numbers, by a block: a template. The keep-th largest is found digit by digit; then all that are
 * larger are taken, and the first of those that equal it. They are taken in the order in which they stand. */
#ifndef TERSE_BACKEND_CUDA_SELECT_LARGEST_CUH
#define TERSE_BACKEND_CUDA_SELECT_LARGEST_CUH

#include <stdint.h>

/* A least_taken says which is the least number that is taken, and how many of those that equal it are. */
struct least_taken {
    uint32_t bits, taken, equals;
};

/* Goes on from a digit, of eight bits from `shift` on, to the next one. counts[256] are of numbers that begin as `least` does, of
 * which the `taken` largest are taken, at least 1 of them. All threads of the block call this after a __syncthreads. */
static __device__ void take_digit(const uint32_t *counts, int shift, least_taken *least) {
    if (threadIdx.x < 32) { /* a lane has eight digits, the first lane the largest */
        const uint32_t highest = 255 - 8 * threadIdx.x, taken = least->taken;
        uint32_t own = 0, before;
        for (int i = 0; i < 8; i++) own += counts[highest - i];
        before = own;
        for (int o = 1; o < 32; o *= 2) {
            const uint32_t other = __shfl_up_sync(0xffffffffu, before, o);
            if (threadIdx.x >= (unsigned)o) before += other;
        }
        before -= own;
        __syncwarp();
        if (before < taken && taken <= before + own) {
            uint32_t digit = highest;
            while (before + counts[digit] < taken) before += counts[digit--];
            *least = {least->bits | digit << shift, taken - before, counts[digit]};
        }
    }
    __syncthreads();
}

/* Finds the least taken where the `keep` largest of bits(0 .. n - 1) are, numbers of BITS bits, 1 <= keep <= n. */
template <int THREADS, int BITS, class Bits> static __device__ least_taken find_least_taken(Bits bits, uint32_t n, uint32_t keep) {
    __shared__ uint32_t counts[256];
    __shared__ least_taken least;
    if (threadIdx.x == 0) least = {0, keep, n};
    for (int shift = BITS - 8; shift >= 0; shift -= 8) {
        for (uint32_t i = threadIdx.x; i < 256; i += THREADS) counts[i] = 0;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
            uint32_t own = bits(i);
            if (shift == BITS - 8 || own >> (shift + 8) == least.bits >> (shift + 8)) atomicAdd(&counts[own >> shift & 255], 1u);
        }
        __syncthreads();
        take_digit(counts, shift, &least);
    }
    const least_taken found = least;
    __syncthreads();
    return found;
}

/* Counts what the block's threads have: what those before this one have, and all of them. */
template <int THREADS> static __device__ uint2 sum_before(uint32_t own) {
    __shared__ uint32_t of_warp[THREADS / 32];
    uint32_t sum = own, warp = threadIdx.x / 32, before = 0, all = 0;
    for (int o = 1; o < 32; o *= 2) {
        const uint32_t other = __shfl_up_sync(0xffffffffu, sum, o);
        if (threadIdx.x % 32 >= (unsigned)o) sum += other;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 31) of_warp[warp] = sum;
    __syncthreads();
    for (uint32_t i = 0; i < THREADS / 32; i++) {
        before += i < warp ? of_warp[i] : 0;
        all += of_warp[i];
    }
    return make_uint2(before + sum - own, all);
}

/* Calls put(place, i), place < keep, 0 < keep <= n, for the `keep` largest of bits(i), i < n. All THREADS threads of the block, a multiple of
 * 32, call this. */
template <int THREADS, class Bits, class Put> static __device__ void select_largest(Bits bits, uint32_t n, uint32_t keep, Put put) {
    const least_taken least = find_least_taken<THREADS, 32>(bits, n, keep);
    uint32_t equals = 0, taken = 0;
    for (uint32_t first = 0; first < n; first += THREADS) {
        uint32_t i = first + threadIdx.x, own = i < n ? bits(i) : 0;
        bool equal = i < n && own == least.bits;
        uint2 before = sum_before<THREADS>(equal);
        bool wanted = i < n && (own > least.bits || (equal && equals + before.x < least.taken));
        uint2 place = sum_before<THREADS>(wanted);
        if (wanted) put(taken + place.x, i);
        equals += before.y;
        taken += place.y;
    }
}

#endif
