/* Score and accumulate of every tier against sums in double precision over the layouts of format/page_layout.h, for every number
 * of queries and head size, with extreme numbers, between inaccessible pages.
 *
 *     test_kernels_scaled --bench     bytes of pages read per second by two threads, as a share of a plain read of the same memory
 */
#include "format/page_layout.h"
#include "support/kernel_check.h"

#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#define EPSILON 0x1p-24
#define MOST_G 19 /* three passes of the widest tier */
#define MOST_HD 256

typedef void kernel_call(const float *in, size_t G, size_t hd, const void *page, float *out);
typedef void prepare_call(const float *q, size_t G, size_t hd, float *tables);

static const struct kernel {
    const char *name;
    size_t pointer; /* its place in struct scaled_ops */
    bool keys;
    enum { F16, Q8_0, Q4_0, KIVI_4, KIVI_2 } codec;
} kernels[] = {
    {"score_f16", offsetof(struct scaled_ops, score_f16), true, F16},
    {"accumulate_f16", offsetof(struct scaled_ops, accumulate_f16), false, F16},
    {"score_q8_0", offsetof(struct scaled_ops, score_q8_0), true, Q8_0},
    {"accumulate_q8_0", offsetof(struct scaled_ops, accumulate_q8_0), false, Q8_0},
    {"score_q4_0", offsetof(struct scaled_ops, score_q4_0), true, Q4_0},
    {"accumulate_q4_0", offsetof(struct scaled_ops, accumulate_q4_0), false, Q4_0},
    {"score_kivi_4", offsetof(struct scaled_ops, score_kivi_4), true, KIVI_4},
    {"accumulate_kivi_4", offsetof(struct scaled_ops, accumulate_kivi_4), false, KIVI_4},
    {"score_kivi_2", offsetof(struct scaled_ops, score_kivi_2), true, KIVI_2},
    {"accumulate_kivi_2", offsetof(struct scaled_ops, accumulate_kivi_2), false, KIVI_2},
    {"accumulate_int8_q4_0", offsetof(struct scaled_ops, accumulate_int8_q4_0), false, Q4_0},
    {"accumulate_int8_kivi_4", offsetof(struct scaled_ops, accumulate_int8_kivi_4), false, KIVI_4},
    {"accumulate_int8_kivi_2", offsetof(struct scaled_ops, accumulate_int8_kivi_2), false, KIVI_2},
};
#define N_KERNELS (sizeof kernels / sizeof *kernels)

static kernel_call *call_of(const struct tier *k, const struct kernel *kernel) {
    kernel_call *call;
    memcpy(&call, (const char *)k->scaled + kernel->pointer, sizeof call);
    return call;
}

/* Returns the function that prepares the kernel's queries; NULL: the kernel takes them as they are. */
static prepare_call *prepare_of(const struct tier *k, const struct kernel *kernel) {
    return !kernel->keys           ? NULL
           : kernel->codec == Q8_0 ? k->scaled->prepare_q8_0
           : kernel->codec == Q4_0 ? k->scaled->prepare_q4_0
                                   : NULL;
}

/* tables[G][K] are of use to some. */
static void call_kernel(const struct tier *k, const struct kernel *kernel, const float *in, size_t G, size_t hd, const void *page,
                        float *tables, float *out) {
    prepare_call *prepare = prepare_of(k, kernel);
    if (prepare) prepare(in, G, hd, tables);
    call_of(k, kernel)(prepare ? tables : in, G, hd, page, out);
}

/* Returns whether the kernel multiplies numbers in fixed point. */
static bool is_fixed(const struct tier *k, const struct kernel *kernel) {
    return kernel->codec != F16 && (k->isa == CPU_AVX2 || k->isa == CPU_AVXVNNI || k->isa == CPU_AVX512);
}

static unsigned bits_of(const struct kernel *kernel) { return kernel->codec == KIVI_4 ? 4 : 2; }

static size_t bytes_of(const struct kernel *kernel, size_t hd) {
    switch (kernel->codec) {
    case F16: return PAGE_BYTES_F16(hd);
    case Q8_0: return PAGE_BYTES_Q8_0(hd);
    case Q4_0: return PAGE_BYTES_Q4_0(hd);
    default: return PAGE_BYTES_KIVI(hd, bits_of(kernel));
    }
}

/* ---- The oracle ----------------------------------------------------------------------------------------------------------- */

static double half_at(const unsigned char *page, size_t byte) {
    uint16_t half;
    float x;
    memcpy(&half, page + byte, 2);
    vector_ops_at(CPU_SCALAR)->half_to_float(&half, &x, 1);
    return x;
}

/* zero + scale * code. */
struct element {
    double zero, scale, code;
};

static double value_of(struct element e) { return e.zero + e.scale * e.code; }
static double width_of(struct element e) { return fabs(e.zero) + fabs(e.scale * e.code); }

static struct element kivi_element(const struct kernel *kernel, const unsigned char *page, size_t hd, size_t c, size_t t) {
    unsigned bits = bits_of(kernel);
    size_t n = kernel->keys ? 64 : hd, i = kernel->keys ? t : c, bytes = n * bits / 8;
    size_t row = kernel->keys ? 8 * hd + c * bytes : t * (bytes + hd / 8), pair = row + bytes + c / 32 * 4;
    double code = page[row + i % bytes] >> i / bytes * bits & ((1u << bits) - 1);
    if (!kernel->keys) return (struct element){half_at(page, pair + 2), half_at(page, pair), code};
    size_t at = 2 * (t / 32 * hd + c);
    return (struct element){half_at(page, 4 * hd + at), half_at(page, at), code};
}

/* Channel c of token t, straight from the layouts of format/page_layout.h. */
static struct element element(const struct kernel *kernel, const unsigned char *page, size_t hd, size_t c, size_t t) {
    if (kernel->codec == F16) return (struct element){half_at(page, 2 * (kernel->keys ? c * 64 + t : t * hd + c)), 0, 0};
    if (kernel->codec != Q8_0 && kernel->codec != Q4_0) return kivi_element(kernel, page, hd, c, t);
    double scale = half_at(page, 2 * (c / 32 * 64 + t));
    const unsigned char *codes = page + hd / 32 * 64 * 2;
    if (kernel->codec == Q8_0) return (struct element){0, scale, (signed char)codes[kernel->keys ? c * 64 + t : t * hd + c]};
    size_t group = c / 32, byte = c % 16;
    unsigned char pair = kernel->keys ? codes[(group * 16 + byte) * 64 + t] : codes[(t * (hd / 32) + group) * 16 + byte];
    return (struct element){0, scale, (c % 32 < 16 ? pair % 16 : pair / 16) - 8};
}

/* Halves of the given fill wherever a page holds one. */
static void make_page(struct random *random, const struct kernel *kernel, enum fill fill, size_t hd, unsigned char *page) {
    size_t n = kernel->codec == F16 ? 64 * hd : kernel->codec == Q8_0 || kernel->codec == Q4_0 ? hd / 32 * 64 : 4 * hd;
    uint16_t *half = malloc(n * sizeof *half);
    fill_halves(random, fill, half, n);
    fill_bytes(random, page, bytes_of(kernel, hd)); /* every code, -128 of q8_0 too */
    if (kernel->codec >= KIVI_4 && !kernel->keys) {
        size_t codes = hd * bits_of(kernel) / 8, pairs = hd / 8;
        for (size_t t = 0; t < 64; t++) memcpy(page + t * (codes + pairs) + codes, half + t * (hd / 16), pairs);
    } else {
        memcpy(page, half, n * sizeof *half);
    }
    free(half);
}

/* The product of in[G][K] and the page: the sums [G][N], the sums of the absolute products, and the factors of the error of fixed point, which is a
 * part of the largest number: with one largest of all K, and with a largest for each 32 of them. */
struct oracle {
    double want[MOST_G * MOST_HD], terms[MOST_G * MOST_HD], fixed[MOST_G * MOST_HD], by_group[MOST_G * MOST_HD];
};

#define FIXED_PART 65000.0
#define COARSE_PART 253.0 /* of one byte */
#define FIXED_LEAST 1e-30

/* Queries of codes of 4 and 2 bits, as one byte each, and weights of the int8 kernels. */
static bool is_coarse(const struct tier *k, const struct kernel *kernel) {
    bool int8 = strncmp(kernel->name, "accumulate_int8", 15) == 0;
    bool byte_tier = k->isa == CPU_AVX512 || (kernel->codec == Q4_0 && (k->isa == CPU_AVX2 || k->isa == CPU_AVXVNNI));
    return (kernel->keys || int8) && kernel->codec != Q8_0 && byte_tier;
}

static void ask_oracle(const struct kernel *kernel, const float *in, size_t G, size_t hd, const unsigned char *page,
                       struct oracle *oracle) {
    static double value[64 * MOST_HD], width[64 * MOST_HD], code[64 * MOST_HD], scale[64 * MOST_HD]; /* [N][K] */
    size_t K = kernel->keys ? hd : 64, N = kernel->keys ? 64 : hd;
    bool scaled_after =
        kernel->keys && kernel->codec < KIVI_4; /* a query's numbers are in fixed point before they are multiplied by scales */
    for (size_t n = 0; n < N; n++) {
        for (size_t k = 0; k < K; k++) {
            struct element e = kernel->keys ? element(kernel, page, hd, k, n) : element(kernel, page, hd, n, k);
            value[n * K + k] = value_of(e);
            width[n * K + k] = width_of(e);
            code[n * K + k] = fabs(scaled_after ? e.scale * e.code : e.code);
            scale[n * K + k] = scaled_after ? 1 : e.scale;
        }
    }
    for (size_t g = 0; g < G; g++) {
        double numbers[MOST_HD];
        for (size_t k = 0; k < K; k++) numbers[k] = (double)in[g * K + k];
        for (size_t n = 0; n < N; n++) {
            double sum = 0, absolute = 0, most = 0, codes = 0, group_most = 0, group_codes = 0, by_group = 0;
            for (size_t k = 0; k < K; k++) {
                size_t at = n * K + k;
                double size = fabs(numbers[k] * scale[at]);
                if (k % 32 == 0) group_most = group_codes = 0;
                sum += numbers[k] * value[at];
                absolute += fabs(numbers[k]) * width[at];
                if (size > group_most) group_most = size; /* fmax takes long in an emulator */
                group_codes += code[at];
                if (k % 32 < 31) continue;
                by_group += (group_most + FIXED_LEAST * FIXED_PART) * group_codes;
                if (group_most > most) most = group_most;
                codes += group_codes;
            }
            oracle->want[g * N + n] = sum;
            oracle->terms[g * N + n] = absolute;
            oracle->fixed[g * N + n] = (most + FIXED_LEAST * FIXED_PART) * codes;
            oracle->by_group[g * N + n] = by_group;
        }
    }
}

/* A lane that is NaN does not affect the others. */
static void anchor_scores_are_sums_over_rows(void **state) {
    (void)state;
    enum { MOST = 9, STRIDE = 80 };
    struct random random = {3};
    const struct tier *k;
    for (size_t tier = 0; (k = tier_at(tier)); tier++) {
        for (size_t rows = 0; rows <= MOST; rows++) {
            enum guard_side side = rows % 2 ? GUARD_START : GUARD_END;
            size_t n = rows ? (rows - 1) * STRIDE + 64 : 0;
            float *weights = guard_floats(n, side), *factors = guard_floats(rows, side), *norms = guard_floats(rows, side);
            float *keys = guard_floats(64, side), *values = guard_floats(64, side), before[2][64];
            for (size_t i = 0; i < n; i++) weights[i] = (float)(random_bits(&random) % 65536) / 65536;
            for (size_t r = 0; r < rows; r++) {
                factors[r] = (float)(random_bits(&random) % 65536) / 65536;
                norms[r] = fabsf(random_normal(&random));
                weights[r * STRIDE + 63] = NAN;
            }
            for (size_t j = 0; j < 64; j++) before[0][j] = keys[j] = before[1][j] = values[j] = (float)j;
            k->select->add_anchors(weights, STRIDE, factors, norms, rows, keys, values);
            for (size_t j = 0; j < (rows ? 63 : 64); j++) {
                double key = before[0][j], value = before[1][j], terms = key;
                for (size_t r = 0; r < rows; r++) {
                    double a = (double)weights[r * STRIDE + j] * (double)factors[r];
                    key += a * (1 - a) * (double)norms[r];
                    terms += a * (double)norms[r]; /* 1 - A is no more exact than A */
                    value += a;
                }
                check_close(keys[j], key, terms, 4 * EPSILON * (double)(rows + 1), 0, "%s key %zu of %zu rows", k->name, j, rows);
                check_close(values[j], value, value, 4 * EPSILON * (double)(rows + 1), 0, "%s value %zu of %zu rows", k->name, j,
                            rows);
            }
            guard_release();
        }
    }
}

/* add_bytes, with rows apart as they lie in pages. */
static void check_add_bytes(struct random *random, enum fill fill, size_t G, size_t K, enum guard_side side) {
    size_t ldb = 32 + K % 3 * 32, ldo = 32 + G % 2 * 40;
    float *a = guard_floats(G * K, side), *out = guard_floats((G - 1) * ldo + 32, side), *before = malloc(G * ldo * sizeof *before);
    unsigned char *b = guard_bytes((K - 1) * ldb + 32, side);
    fill_floats(random, fill, a, G * K);
    fill_bytes(random, b, (K - 1) * ldb + 32);
    for (size_t i = 0; i < (K - 1) * ldb + 32; i++) b[i] &= 127;
    fill_floats(random, FILL_NORMAL, before, G * ldo);
    const struct tier *k;
    for (size_t tier = 0; (k = tier_at(tier)); tier++) {
        memcpy(out, before, ((G - 1) * ldo + 32) * sizeof *out);
        k->commvq->add_bytes(a, G, K, b, ldb, out, ldo);
        for (size_t g = 0; g < G; g++) {
            for (size_t n = 0; n < 32; n++) {
                double want = before[g * ldo + n], terms = fabs(want);
                for (size_t i = 0; i < K; i++) want += (double)a[g * K + i] * b[i * ldb + n];
                for (size_t i = 0; i < K; i++) terms += fabs((double)a[g * K + i] * b[i * ldb + n]);
                check_close(out[g * ldo + n], want, terms, EPSILON * (double)(K + 4), 1e-42, "%s add_bytes G %zu K %zu", k->name, G,
                            K);
            }
            for (size_t n = 32; g + 1 < G && n < ldo; n++) assert_true(out[g * ldo + n] == before[g * ldo + n]);
        }
    }
    free(before);
    guard_release();
}

static void bytes_are_added_as_products(void **state) {
    struct random random = {17};
    (void)state;
    for (size_t G = 1; G <= MOST_G; G++)
        for (size_t K = 1; K <= 256; K = K * 2 + 1)
            for (int side = 0; side < 2; side++)
                check_add_bytes(&random, K % 2 ? FILL_NORMAL : FILL_OUTLIER, G, K, side ? GUARD_START : GUARD_END);
}

static void check_shape(struct random *random, const struct kernel *kernel, enum fill fill, size_t G, size_t hd,
                        enum guard_side side) {
    static struct oracle oracle;
    size_t K = kernel->keys ? hd : 64, N = kernel->keys ? 64 : hd;
    float *in = guard_floats(G * K, side), *out = guard_floats(G * N, side), *before = guard_floats(G * N, side);
    float *tables = guard_floats(G * K, side);
    unsigned char *page = guard_bytes(bytes_of(kernel, hd), side);
    make_page(random, kernel, fill, hd, page);
    fill_floats(random, fill == FILL_LARGE ? FILL_OUTLIER : fill, in, G * K);
    if (!kernel->keys && fill == FILL_NORMAL) memset(in, 0, 64 * sizeof *in); /* the first query's weights */
    fill_floats(random, FILL_NORMAL, before, G * N);
    ask_oracle(kernel, in, G, hd, page, &oracle);
    const struct tier *k;
    for (size_t tier = 0; (k = tier_at(tier)); tier++) {
        memcpy(out, before, G * N * sizeof *out);
        call_kernel(k, kernel, in, G, hd, page, tables, out);
        for (size_t i = 0; i < G * N; i++) {
            double start = kernel->keys ? 0 : before[i]; /* score overwrites, accumulate adds */
            double fixed = !is_coarse(k, kernel)
                               ? oracle.fixed[i] / FIXED_PART
                               : (kernel->codec == Q4_0 && kernel->keys ? oracle.by_group : oracle.fixed)[i] / COARSE_PART;
            check_close(out[i], start + oracle.want[i], oracle.terms[i] + fabs(start), EPSILON * (double)(K + 4),
                        1e-42 + (is_fixed(k, kernel) ? fixed : 0), "%s %s G %zu hd %zu %s, %zu of %zu", k->name, kernel->name, G,
                        hd, fill_name(fill), i, N);
        }
    }
    guard_release();
}

static void test_every_shape(void **state) {
    (void)state;
    struct random random = {3};
    for (const struct kernel *kernel = kernels; kernel < kernels + N_KERNELS; kernel++) {
        for (size_t G = 1; G <= MOST_G; G++) {
            for (size_t hd = 32; hd <= MOST_HD; hd += hd < 128 ? 32 : 64) {
                if (!leaves_out(G + hd / 32)) check_shape(&random, kernel, FILL_NORMAL, G, hd, G % 2 ? GUARD_END : GUARD_START);
            }
        }
    }
}

static void test_extreme_numbers_and_both_guards(void **state) {
    (void)state;
    struct random random = {4};
    for (const struct kernel *kernel = kernels; kernel < kernels + N_KERNELS; kernel++) {
        for (int fill = 0; fill < FILLS; fill++) {
            for (size_t G = 1; G <= 9; G++) {
                for (int side = GUARD_END; side <= GUARD_START; side++) {
                    if (!leaves_out(G + (size_t)fill + (size_t)side))
                        check_shape(&random, kernel, (enum fill)fill, G, 96, (enum guard_side)side);
                }
            }
        }
    }
}

/* Keys of kivi are multiplied as their codes less the middle one, hence the scale. */
static void check_place(const struct tier *k, const struct kernel *kernel, size_t at, struct element e, double times, float got) {
    double want = times * value_of(e), error = fabs((double)got - want);
    if (is_fixed(k, kernel) ? error <= 1e-6 * times * (width_of(e) + 8 * fabs(e.scale)) : got == (float)want) return;
    fail_msg("%s %s: %zu, got %.9g, want %.9g", k->name, kernel->name, at, (double)got, want);
}

/* A query that is 1 at one place finds exactly that place of the page: no tier confuses channels, tokens, nibbles or scales. */
static void test_every_place_is_found(void **state) {
    (void)state;
    struct random random = {5};
    const size_t hd = 96;
    static float in[2 * MOST_HD], out[2 * MOST_HD], tables[2 * MOST_HD];
    for (const struct kernel *kernel = kernels; kernel < kernels + N_KERNELS; kernel++) {
        size_t K = kernel->keys ? hd : 64, N = kernel->keys ? 64 : hd;
        unsigned char *page = guard_bytes(bytes_of(kernel, hd), GUARD_END);
        make_page(&random, kernel, FILL_NORMAL, hd, page);
        const struct tier *k;
        for (size_t tier = 0; (k = tier_at(tier)); tier++) {
            for (size_t at = 0; at < K; at++) {
                size_t next = (at + 1) % K;
                memset(in, 0, sizeof in);
                memset(out, 0, sizeof out);
                in[at] = 1;
                in[K + next] = 2;
                call_kernel(k, kernel, in, 2, hd, page, tables, out);
                for (size_t n = 0; n < N; n++) {
                    check_place(k, kernel, at, kernel->keys ? element(kernel, page, hd, at, n) : element(kernel, page, hd, n, at),
                                1, out[n]);
                    check_place(k, kernel, next,
                                kernel->keys ? element(kernel, page, hd, next, n) : element(kernel, page, hd, n, next), 2,
                                out[N + n]);
                }
            }
        }
        guard_release();
    }
}

/* ---- Speed --------------------------------------------------------------------------------------------------------------- */

#define BENCH_BYTES ((size_t)512 << 20) /* beyond every cache */
#define BENCH_THREADS 2

struct bench_shape {
    const char *what;
    size_t G, hd;
};

static double kernel_rate(const struct tier *k, const struct kernel *kernel, const struct bench_shape *shape, const char *data) {
    size_t page_bytes = bytes_of(kernel, shape->hd), pages = BENCH_BYTES / page_bytes;
    kernel_call *call = call_of(k, kernel);
    prepare_call *prepare = prepare_of(k, kernel);
    double best = 0;
    for (int run = 0; run < 3; run++) {
        double start = clock_seconds();
#pragma omp parallel num_threads(BENCH_THREADS)
        {
            float in[16 * MOST_HD], out[16 * MOST_HD], tables[16 * MOST_HD];
            for (size_t i = 0; i < 16 * MOST_HD; i++) in[i] = (float)(i % 7) / 64, out[i] = 0;
            size_t thread = (size_t)omp_get_thread_num();
            if (prepare) prepare(in, shape->G, shape->hd, tables);
            for (size_t b = pages * thread / BENCH_THREADS; b < pages * (thread + 1) / BENCH_THREADS; b++) {
                call(prepare ? tables : in, shape->G, shape->hd, data + b * page_bytes, out);
            }
        }
        double rate = (double)(pages * page_bytes) / (clock_seconds() - start);
        if (rate > best) best = rate;
    }
    return best;
}

static int bench(void) {
    static const struct bench_shape shapes[] = {
        {"LLaMA-3.2-1B", 4, 64}, {"lab model", 3, 128}, {"LLaMA-3.1-8B", 4, 128}, {"one query", 1, 128}, {"eight queries", 8, 128}};
    char *data = mmap(NULL, BENCH_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return 1;
    const size_t pattern = (size_t)1 << 20;
    struct random random = {9};
    fill_halves(&random, FILL_NORMAL, (uint16_t *)data, pattern / 2);
    for (size_t i = pattern; i < BENCH_BYTES; i += pattern) memcpy(data + i, data, pattern);
    const struct tier *k;
    for (size_t tier = 1; (k = tier_at(tier)); tier++) {
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            for (const struct kernel *kernel = kernels; kernel < kernels + N_KERNELS; kernel++) {
                size_t bytes = bytes_of(kernel, shapes[s].hd);
                double read = read_bandwidth(data, BENCH_BYTES, BENCH_THREADS);
                double rate = kernel_rate(k, kernel, &shapes[s], data);
                printf("%-6s %-13s G %zu hd %3zu  %-12s %5.1f GB/s, %3.0f%% of a plain read (%.1f), %5.2f ns per token\n", k->name,
                       shapes[s].what, shapes[s].G, shapes[s].hd, kernel->name, rate * 1e-9, 100 * rate / read, read * 1e-9,
                       (double)bytes / 64 / rate * 1e9);
            }
        }
    }
    munmap(data, BENCH_BYTES);
    return 0;
}

int main(int argc, char **argv) {
    if (bench_wanted(argc, argv)) return bench();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_shape),
        cmocka_unit_test(test_extreme_numbers_and_both_guards),
        cmocka_unit_test(test_every_place_is_found),
        cmocka_unit_test(anchor_scores_are_sums_over_rows),
        cmocka_unit_test(bytes_are_added_as_products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
