/* Chooses the instruction set that processor and operating system offer, lowered by TERSE_CPU. */
#include "backend/cpu/kernels/cpu.h"
#include "base/text.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

static bool present[CPU_ISAS];
static enum cpu_isa chosen;
static char refused[64]; /* the value of TERSE_CPU, made printable, when it names no instruction set that is present */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const char *const isa_names[CPU_ISAS] = {"scalar", "avx2", "avxvnni", "avx512", "neon"};

#if defined(__x86_64__)
/* clang 14's __builtin_cpu_supports, which asks the operating system too (XGETBV), does not know "f16c"; its registers are
 * AVX's. */
static bool processor_has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}

static bool processor_has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && processor_has_f16c();
}

/* clang 14 does not know "avxvnni" either. */
static bool processor_has_avxvnni(void) {
    unsigned a, b, c, d;
    return processor_has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4) != 0;
}

/* Checks for all that CMakeLists.txt lets the compiler use in avx512*.c. Ice Lake and Zen 4 have it all. */
static bool processor_has_avx512(void) {
    return processor_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vbmi") &&
           __builtin_cpu_supports("avx512vnni");
}
#endif

static void choose(void) {
    present[CPU_SCALAR] = true;
#if defined(__x86_64__)
    present[CPU_AVX2] = processor_has_avx2();
    present[CPU_AVXVNNI] = processor_has_avxvnni();
    present[CPU_AVX512] = processor_has_avx512();
#elif defined(__aarch64__)
    present[CPU_NEON] = true;
#endif
    const char *wanted = getenv("TERSE_CPU");
    bool any = wanted && *wanted;
    for (int isa = 0; isa < CPU_ISAS; isa++) {
        if (!present[isa]) continue;
        chosen = (enum cpu_isa)isa; /* later ones are better */
        if (any && strcmp(wanted, isa_names[isa]) == 0) return;
    }
    if (!any) return;
    struct text_line line = text_line_begin(refused, sizeof refused);
    text_line_string(&line, wanted, strlen(wanted), true);
    text_line_end(&line);
}

enum cpu_isa cpu_isa(void) {
    pthread_once(&once, choose);
    return chosen;
}

bool cpu_has(enum cpu_isa isa) {
    pthread_once(&once, choose);
    return present[isa];
}

const char *cpu_isa_name(enum cpu_isa isa) { return isa_names[isa]; }

enum terse_status cpu_check(struct terse_error *error) {
    pthread_once(&once, choose);
    if (!*refused) return TERSE_OK;
    char offered[64] = "";
    for (int isa = 0; isa < CPU_ISAS; isa++) {
        if (!present[isa]) continue;
        if (*offered) strcat(offered, ", ");
        strcat(offered, isa_names[isa]);
    }
    return status_fail(error, TERSE_E_ARGUMENT,
                       "TERSE_CPU=%s is not offered by this processor and build: use one of %s, or unset it", refused, offered);
}

const char *terse_cpu_name(void) { return isa_names[cpu_isa()]; }
