/* Selects the largest of many numbers, by a block: a template. The keep-th largest is found digit by digit; then all that are
 * larger are taken, and the first of those that equal it. They are taken in the order in which they stand. */
#ifndef TERSE_BACKEND_CUDA_SELECT_LARGEST_CUH
#define TERSE_BACKEND_CUDA_SELECT_LARGEST_CUH

#include <stdint.h>

/* Returns the keep-th largest of bits(0 .. n - 1), 0 < keep <= n, and how many of those that are equal to it are taken. */
template <int THREADS, class Bits> static __device__ uint2 least_selected(Bits bits, uint32_t n, uint32_t keep) {
    __shared__ uint32_t counts[256], found[2];
    uint32_t prefix = 0, left = keep;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (uint32_t i = threadIdx.x; i < 256; i += THREADS) counts[i] = 0;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
            uint32_t own = bits(i);
            if (shift == 24 || own >> (shift + 8) == prefix >> (shift + 8)) atomicAdd(&counts[own >> shift & 255], 1u);
        }
        __syncthreads();
        if (threadIdx.x < 32) { /* a lane has eight digits, the first lane the largest ones */
            const uint32_t top = 255 - 8 * threadIdx.x;
            uint32_t own = 0;
            for (uint32_t i = 0; i < 8; i++) own += counts[top - i];
            uint32_t before = own;
            for (uint32_t apart = 1; apart < 32; apart *= 2) {
                const uint32_t more = __shfl_up_sync(0xffffffffu, before, apart);
                before += threadIdx.x >= apart ? more : 0;
            }
            before -= own;
            if (before < left && left <= before + own) {
                uint32_t digit = top, rest = left - before;
                while (counts[digit] < rest) rest -= counts[digit--];
                found[0] = prefix | digit << shift;
                found[1] = rest;
            }
        }
        __syncthreads();
        prefix = found[0];
        left = found[1];
        __syncthreads();
    }
    return make_uint2(prefix, left);
}

/* Counts the threads of the block that say yes: those before this one, and all of them. */
template <int THREADS> static __device__ uint2 count_before(bool yes) {
    __shared__ uint32_t of_warp[THREADS / 32];
    uint32_t ballot = __ballot_sync(0xffffffffu, yes), warp = threadIdx.x / 32, before = 0, all = 0;
    __syncthreads();
    if (threadIdx.x % 32 == 0) of_warp[warp] = __popc(ballot);
    __syncthreads();
    for (uint32_t i = 0; i < THREADS / 32; i++) {
        before += i < warp ? of_warp[i] : 0;
        all += of_warp[i];
    }
    return make_uint2(before + __popc(ballot & ((1u << threadIdx.x % 32) - 1)), all);
}

/* Calls put(place, i), place < keep, 0 < keep <= n, for the `keep` largest of bits(i), i < n. All THREADS threads of the block, a multiple of
 * 32, call this. */
template <int THREADS, class Bits, class Put> static __device__ void select_largest(Bits bits, uint32_t n, uint32_t keep, Put put) {
    const uint2 least = least_selected<THREADS>(bits, n, keep);
    uint32_t equals = 0, taken = 0;
    for (uint32_t first = 0; first < n; first += THREADS) {
        uint32_t i = first + threadIdx.x, own = i < n ? bits(i) : 0;
        bool equal = i < n && own == least.x;
        uint2 before = count_before<THREADS>(equal);
        bool wanted = i < n && (own > least.x || (equal && equals + before.x < least.y));
        uint2 place = count_before<THREADS>(wanted);
        if (wanted) put(taken + place.x, i);
        equals += before.y;
        taken += place.y;
    }
}

#endif
