/* CUDA kernels on the host, for tests where there is no GPU: what translate.py leaves of a .cu file is C++, and this, included before it, gives the words
 * their meaning. A block's threads are fibers, which take turns where they wait for one another; blocks run one after another. Instructions
 * that a warp executes together are in ptx.cuh beside this. It says nothing of speed, nor of races between the threads of a warp.
 *
 * Shared memory is filled with what is no number before each block. Memory of the device is the host's: AddressSanitizer watches it.
 */
#ifndef TESTS_CUDA_EMULATION_H
#define TESTS_CUDA_EMULATION_H

#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

/* The headers have been read as by a host's compiler; from here on sources may take this for CUDA. */
#define __CUDACC__ 1
#define __CUDA_ARCH__ 800
#undef __global__
#undef __device__
#undef __host__
#undef __constant__
#undef __forceinline__
#undef __noinline__
#undef __launch_bounds__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)

/* ---- Threads */

inline dim3 emulated_grid_of(const cudaLaunchConfig_t *c) { return c->gridDim; }
inline dim3 emulated_block_of(const cudaLaunchConfig_t *c) { return c->blockDim; }

struct emulated_thread {
    uint3 thread, block;
    unsigned lane;
};
extern emulated_thread *emulated_now;
extern dim3 emulated_grid, emulated_block;
#define threadIdx (emulated_now->thread)
#define blockIdx (emulated_now->block)
#define blockDim emulated_block
#define gridDim emulated_grid
#define warpSize 32

#define EMULATED_SHARED_BYTES (232 << 10)
extern char emulated_shared_memory[EMULATED_SHARED_BYTES];

/* Runs body() on all threads of all blocks, or, while a stream captures, keeps it. */
void emulated_run(dim3 grid, dim3 block, size_t shared, cudaStream_t stream, std::function<void()> body);

void emulated_barrier();                  /* of the block */
bool emulated_vote(bool all, bool value); /* of the block */
/* The lanes of the mask wait for one another. The last that comes calls together(given), if not NULL, before any goes on: given[32] is what each gave
 * as `own`, of its own stack, and NULL of lanes that are not in the mask or have ended. All call with the same function. */
typedef void emulated_together(void *const *given);
void emulated_meet(uint32_t mask, void *own, emulated_together *together);
inline unsigned emulated_lane() { return emulated_now->lane; }

struct emulated_launch {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
    emulated_launch(dim3 grid, dim3 block, size_t shared = 0, cudaStream_t stream = 0)
        : grid(grid), block(block), shared(shared), stream(stream) {}
    template <class... P, class... A> void run(void (*kernel)(P...), A... arguments) {
        emulated_run(grid, block, shared, stream, [=]() { kernel(arguments...); });
    }
};
#define EMULATED_KERNEL(kernel) kernel
template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *c, void (*kernel)(P...), A... arguments) {
    emulated_launch(emulated_grid_of(c), emulated_block_of(c), c->dynamicSmemBytes, c->stream).run(kernel, arguments...);
    return cudaSuccess;
}

#define __syncthreads emulated_barrier
inline int __syncthreads_or(int value) { return emulated_vote(false, value != 0); }
inline int __syncthreads_and(int value) { return emulated_vote(true, value != 0); }
inline void __syncwarp(uint32_t mask = 0xffffffffu) { emulated_meet(mask, NULL, NULL); }
inline uint32_t __ballot_sync(uint32_t mask, int value) {
    uint32_t own = value != 0;
    emulated_meet(mask, &own, [](void *const *given) {
        uint32_t ballot = 0;
        for (unsigned i = 0; i < 32; i++)
            if (given[i]) ballot |= *(uint32_t *)given[i] << i;
        for (unsigned i = 0; i < 32; i++)
            if (given[i]) *(uint32_t *)given[i] = ballot;
    });
    return own;
}
inline int __any_sync(uint32_t mask, int value) { return __ballot_sync(mask, value) != 0; }
inline int __all_sync(uint32_t mask, int value) { return __ballot_sync(mask, value) == mask; }
inline uint32_t __activemask() { return 0xffffffffu; }

template <class T> struct emulated_shuffle {
    T value, result;
    unsigned from;
};
/* A lane that gives nothing gives no number. */
template <class T> T emulated_from_lane(uint32_t mask, T value, unsigned lane) {
    emulated_shuffle<T> own;
    own.value = value;
    own.from = lane % 32;
    emulated_meet(mask, &own, [](void *const *given) {
        for (unsigned i = 0; i < 32; i++) {
            emulated_shuffle<T> *to = (emulated_shuffle<T> *)given[i];
            if (!to) continue;
            const emulated_shuffle<T> *from = (const emulated_shuffle<T> *)given[to->from];
            if (from)
                memcpy(&to->result, &from->value, sizeof(T));
            else
                memset(&to->result, 0xff, sizeof(T));
        }
    });
    return own.result;
}
template <class T> T __shfl_sync(uint32_t mask, T value, int lane, int width = 32) {
    unsigned own = emulated_lane();
    return emulated_from_lane(mask, value, (own & ~(unsigned)(width - 1)) | ((unsigned)lane & (unsigned)(width - 1)));
}
template <class T> T __shfl_xor_sync(uint32_t mask, T value, int lanes, int width = 32) {
    unsigned own = emulated_lane(), from = own ^ (unsigned)lanes;
    return emulated_from_lane(mask, value, from / (unsigned)width > own / (unsigned)width ? own : from);
}
template <class T> T __shfl_down_sync(uint32_t mask, T value, unsigned by, int width = 32) {
    unsigned own = emulated_lane();
    return emulated_from_lane(mask, value, own % (unsigned)width + by < (unsigned)width ? own + by : own);
}
template <class T> T __shfl_up_sync(uint32_t mask, T value, unsigned by, int width = 32) {
    unsigned own = emulated_lane();
    return emulated_from_lane(mask, value, own % (unsigned)width >= by ? own - by : own);
}
#define EMULATED_REDUCE(name, type, expression) \
    inline type name(uint32_t mask, type value) { \
        emulated_meet(mask, &value, [](void *const *given) { \
            bool first = true; \
            type a = 0; \
            for (unsigned i = 0; i < 32; i++) { \
                if (!given[i]) continue; \
                const type b = *(type *)given[i]; \
                a = first ? b : (expression); \
                first = false; \
            } \
            for (unsigned i = 0; i < 32; i++) \
                if (given[i]) *(type *)given[i] = a; \
        }); \
        return value; \
    }
EMULATED_REDUCE(__reduce_add_sync, int, a + b)
EMULATED_REDUCE(__reduce_add_sync, unsigned, a + b)
EMULATED_REDUCE(__reduce_max_sync, int, a > b ? a : b)
EMULATED_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
EMULATED_REDUCE(__reduce_min_sync, int, a < b ? a : b)
EMULATED_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)

template <class T> cudaError_t cudaFuncSetAttribute(T *, cudaFuncAttribute, int) { return cudaSuccess; }

/* ---- Memory */

inline void __threadfence() {}
inline void __threadfence_block() {}
template <class T> T __ldg(const T *p) { return *p; }
template <class T> T __ldcg(const T *p) { return *p; }
template <class T> T __ldcs(const T *p) { return *p; }
template <class T> T __ldca(const T *p) { return *p; }
template <class T> void __stcg(T *p, T x) { *p = x; }
template <class T> void __stcs(T *p, T x) { *p = x; }
template <class T, class U> T atomicAdd(T *p, U x) {
    T old = *p;
    *p += x;
    return old;
}
template <class T, class U> T atomicMax(T *p, U x) {
    T old = *p;
    if ((T)x > old) *p = (T)x;
    return old;
}
template <class T, class U> T atomicMin(T *p, U x) {
    T old = *p;
    if ((T)x < old) *p = (T)x;
    return old;
}
template <class T, class U> T atomicOr(T *p, U x) {
    T old = *p;
    *p |= x;
    return old;
}
inline unsigned atomicInc(unsigned *p, unsigned most) {
    unsigned old = *p;
    *p = old >= most ? 0 : old + 1;
    return old;
}
template <class T, class U> T atomicExch(T *p, U x) {
    T old = *p;
    *p = x;
    return old;
}

/* ---- Numbers */

using std::isfinite;
using std::isinf;
using std::isnan;
inline unsigned __float_as_uint(float x) {
    unsigned u;
    memcpy(&u, &x, 4);
    return u;
}
inline int __float_as_int(float x) { return (int)__float_as_uint(x); }
inline float __uint_as_float(unsigned u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}
inline float __int_as_float(int u) { return __uint_as_float((unsigned)u); }
/* The toolkit's own for hosts take ten times as long. The instructions are called by the compilers' builtins, since the header of intrinsics takes longer to
 * compile than most kernels do. */
#ifdef __F16C__
inline float emulated_half_to_float(__half half) {
    typedef short eight_halves __attribute__((vector_size(16)));
    const eight_halves halves = {(short)__half_raw(half).x};
    return __builtin_ia32_vcvtph2ps(halves)[0];
}
inline __half emulated_half_from_float(float x) {
    typedef float four_floats __attribute__((vector_size(16)));
    const four_floats floats = {x};
    __half_raw half;
    half.x = isnan(x) ? 0x7fff : (unsigned short)__builtin_ia32_vcvtps2ph(floats, 0)[0]; /* 0: to the nearest, ties to even */
    return half;
}
#define __float2half_rn emulated_half_from_float
#define __float2half emulated_half_from_float
#else
/* The integer of a half's digits counts units of 2^-24 if it is subnormal, else of 2^(exponent - 25). */
inline float emulated_half_to_float(__half half) {
    const unsigned bits = __half_raw(half).x, exponent = bits >> 10 & 31, normal = exponent != 0, sign = (bits & 0x8000u) << 16;
    if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | (bits & 0x3ffu) << 13);
    return (float)(int)((bits & 0x3ffu) | normal << 10) * __uint_as_float(sign | (exponent + 1 - normal + 102) << 23);
}
#endif
#define __half2float emulated_half_to_float
/* The toolkit has this for devices alone. */
inline __half emulated_half_fma(__half a, __half b, __half c) {
    return __float2half_rn(fmaf(emulated_half_to_float(a), emulated_half_to_float(b), emulated_half_to_float(c)));
}
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
    return __halves2half2(emulated_half_fma(__low2half(a), __low2half(b), __low2half(c)),
                          emulated_half_fma(__high2half(a), __high2half(b), __high2half(c)));
}
/* The compiler is told not to fuse (-ffp-contract=off). */
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline float __frcp_rn(float a) { return 1 / a; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
/* Rounds toward 0, but for a result that a double has rounded already. */
inline float __fmaf_rz(float a, float b, float c) {
    const double exact = (double)a * b + c;
    const float nearest = (float)exact;
    return fabs((double)nearest) > fabs(exact) ? nextafterf(nearest, 0) : nearest;
}
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float a) { return expf(a); }
inline float __logf(float a) { return logf(a); }
inline float __log2f(float a) { return log2f(a); }
inline int __float2int_rn(float a) { return (int)rintf(a); }
inline int __float2int_rz(float a) { return (int)a; }
inline int __float2int_rd(float a) { return (int)floorf(a); }
inline unsigned __float2uint_rn(float a) { return (unsigned)rintf(a); }
inline float __int2float_rn(int a) { return (float)a; }
inline float __uint2float_rn(unsigned a) { return (float)a; }
inline float __saturatef(float a) { return a < 0 || a != a ? 0 : a > 1 ? 1 : a; }
inline float rsqrtf(float a) { return (float)(1 / sqrt((double)a)); }
inline void sincospif(float a, float *s, float *c) {
    *s = (float)sin(M_PI * (double)a);
    *c = (float)cos(M_PI * (double)a);
}
inline void sincospi(double a, double *s, double *c) {
    *s = sin(M_PI * a);
    *c = cos(M_PI * a);
}
inline int __popc(unsigned a) { return __builtin_popcount(a); }
inline int __popcll(unsigned long long a) { return __builtin_popcountll(a); }
inline int __ffs(int a) { return __builtin_ffs(a); }
inline int __ffsll(long long a) { return __builtin_ffsll(a); }
inline int __clz(int a) { return a ? __builtin_clz((unsigned)a) : 32; }
inline unsigned __brev(unsigned a) {
    unsigned b = 0;
    for (int i = 0; i < 32; i++) b |= (a >> i & 1) << (31 - i);
    return b;
}
inline int __mul24(int a, int b) { return a * b; }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    uint64_t bytes = (uint64_t)b << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) {
        unsigned n = selector >> 4 * i & 15, byte = (unsigned)(bytes >> 8 * (n & 7)) & 255;
        if (n & 8) byte = byte & 128 ? 255 : 0;
        r |= byte << 8 * i;
    }
    return r;
}
inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += (int)(int8_t)((unsigned)a >> 8 * i) * (int)(int8_t)((unsigned)b >> 8 * i);
    return c;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return (unsigned)((((uint64_t)high << 32) | low) >> (by & 31));
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    return (unsigned)((((uint64_t)high << 32) | low) << (by & 31) >> 32);
}
inline unsigned __vabsdiffu4(unsigned a, unsigned b) {
    unsigned r = 0;
    for (int i = 0; i < 4; i++) {
        int x = (int)(a >> 8 * i & 255) - (int)(b >> 8 * i & 255);
        r |= (unsigned)(x < 0 ? -x : x) << 8 * i;
    }
    return r;
}
template <class A, class B> constexpr auto emulated_min(A a, B b) -> typename std::common_type<A, B>::type { return a < b ? a : b; }
template <class A, class B> constexpr auto emulated_max(A a, B b) -> typename std::common_type<A, B>::type { return a > b ? a : b; }
#define min emulated_min
#define max emulated_max

#endif
