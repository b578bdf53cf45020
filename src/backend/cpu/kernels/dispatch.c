/* Builds the table of each instruction set and chooses among them: by what processor and operating system offer, lowered by
 * TERSE_CPU. */
#include "backend/cpu/kernels/init.h"
#include "base/text.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#define ISA_COUNT 4

static struct kernels tables[ISA_COUNT];
static bool present[ISA_COUNT];
static enum kernels_isa chosen;
static char refused[64]; /* the value of TERSE_CPU, made printable, when it names no table that is present */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const char *const isa_names[ISA_COUNT] = {"scalar", "avx2", "avx512", "neon"};

#if defined(__x86_64__)
/* __builtin_cpu_supports asks the operating system too (XGETBV), but clang 14 does not know "f16c"; its registers are AVX's. */
static bool processor_has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}

static bool processor_has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && processor_has_f16c();
}

/* What CMakeLists.txt lets the compiler use in avx512*.c: Ice Lake and Zen 4 have it all. */
static bool processor_has_avx512(void) {
    return processor_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vbmi") &&
           __builtin_cpu_supports("avx512vnni");
}
#endif

/* The table of `base` with what these functions overlay; later tables are better ones. */
static void add_table(enum kernels_isa isa, enum kernels_isa base, void (*const *fills)(struct kernels *), size_t n_fills) {
    tables[isa] = tables[base];
    tables[isa].name = isa_names[isa];
    for (size_t i = 0; i < n_fills; i++) fills[i](&tables[isa]);
    present[isa] = true;
    chosen = isa;
}

static void choose(void) {
    void (*const scalar[])(struct kernels *) = {
        kernels_init_scalar_vector,  kernels_init_scalar_cache,   kernels_init_scalar_product,
        kernels_init_scalar_weights, kernels_init_scalar_nearest, kernels_init_scalar_commvq,
        kernels_init_scalar_sign,    kernels_init_scalar_choose,  kernels_init_scalar_additive};
    add_table(KERNELS_SCALAR, KERNELS_SCALAR, scalar, sizeof scalar / sizeof scalar[0]);
#if defined(__x86_64__)
    void (*const avx2[])(struct kernels *) = {kernels_init_avx2_vector,  kernels_init_avx2_cache,   kernels_init_avx2_product,
                                              kernels_init_avx2_weights, kernels_init_avx2_nearest, kernels_init_avx2_commvq,
                                              kernels_init_avx2_sign,    kernels_init_avx2_choose,  kernels_init_avx2_additive,
                                              kernels_init_avx2_codes,   kernels_init_avx2_kivi};
    void (*const avx512[])(struct kernels *) = {
        kernels_init_avx512_vector,   kernels_init_avx512_cache,  kernels_init_avx512_product, kernels_init_avx512_weights,
        kernels_init_avx512_nearest,  kernels_init_avx512_commvq, kernels_init_avx512_sign,    kernels_init_avx512_choose,
        kernels_init_avx512_additive, kernels_init_avx512_codes,  kernels_init_avx512_kivi,    kernels_init_avx512_weights_bytes};
    if (processor_has_avx2()) add_table(KERNELS_AVX2, KERNELS_SCALAR, avx2, sizeof avx2 / sizeof avx2[0]);
    if (processor_has_avx512()) add_table(KERNELS_AVX512, KERNELS_AVX2, avx512, sizeof avx512 / sizeof avx512[0]);
#elif defined(__aarch64__)
    void (*const neon[])(struct kernels *) = {kernels_init_neon_vector,  kernels_init_neon_cache,   kernels_init_neon_product,
                                              kernels_init_neon_weights, kernels_init_neon_nearest, kernels_init_neon_commvq,
                                              kernels_init_neon_sign,    kernels_init_neon_choose,  kernels_init_neon_additive,
                                              kernels_init_neon_codes};
    add_table(KERNELS_NEON, KERNELS_SCALAR, neon, sizeof neon / sizeof neon[0]);
#endif
    const char *wanted = getenv("TERSE_CPU");
    if (!wanted || !*wanted) return;
    for (int isa = 0; isa < ISA_COUNT; isa++) {
        if (present[isa] && strcmp(wanted, isa_names[isa]) == 0) {
            chosen = (enum kernels_isa)isa;
            return;
        }
    }
    struct text_line line = text_line_begin(refused, sizeof refused);
    text_line_string(&line, wanted, strlen(wanted), true);
    text_line_end(&line);
}

const struct kernels *kernels(void) {
    pthread_once(&once, choose);
    return &tables[chosen];
}

const struct kernels *kernels_for(enum kernels_isa isa) {
    pthread_once(&once, choose);
    return present[isa] ? &tables[isa] : NULL;
}

enum terse_status kernels_check(struct terse_error *error) {
    pthread_once(&once, choose);
    if (!*refused) return TERSE_OK;
    char offered[64] = "";
    for (int isa = 0; isa < ISA_COUNT; isa++) {
        if (!present[isa]) continue;
        if (*offered) strcat(offered, ", ");
        strcat(offered, isa_names[isa]);
    }
    return status_fail(error, TERSE_E_ARGUMENT,
                       "TERSE_CPU=%s is not offered by this processor and build: use one of %s, or unset it", refused, offered);
}

const char *terse_cpu_name(void) { return kernels()->name; }
