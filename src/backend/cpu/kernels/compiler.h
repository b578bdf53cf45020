/* Asks compilers for inlining and unrolling. Kernels are written with sizes that are constants once they are inlined; their sums
 * are kept in registers only if the loops over them are unrolled. */
#ifndef TERSE_BACKEND_CPU_KERNELS_COMPILER_H
#define TERSE_BACKEND_CPU_KERNELS_COMPILER_H

#define INLINE static inline __attribute__((always_inline))

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define SANITIZED
#endif
#if defined(SANITIZED) /* unrolled code with checks takes compilers minutes */
#define UNROLL
#define UNROLL_16
#elif defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#define UNROLL_16 _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#define UNROLL_16 _Pragma("GCC unroll 16")
#endif

/* Makes name_suffix, where the suffix (mostly ISA) is a macro. */
#define PASTE_(name, suffix) name##_##suffix
#define PASTE(name, suffix) PASTE_(name, suffix)

#define SMALLER(a, b) ((a) < (b) ? (a) : (b))

#endif
