/* Guarded memory, fills, measures and timing for the kernel tests; see the header. */
#include "support/kernel_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- Memory -------------------------------------------------------------------------------------------------------------- */

#define MOST_GUARDS 256

static struct {
    void *map;
    size_t bytes;
} guards[MOST_GUARDS];
static size_t n_guards;

void *guard_bytes(size_t bytes, enum guard_side side) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t usable = (bytes + page - 1) / page * page;
    if (usable == 0) usable = page;
    assert_true(n_guards < MOST_GUARDS);
    unsigned char *map = mmap(NULL, usable + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(map != MAP_FAILED);
    assert_int_equal(mprotect(map + page, usable, PROT_READ | PROT_WRITE), 0);
    guards[n_guards].map = map;
    guards[n_guards++].bytes = usable + 2 * page;
    memset(map + page, 0xA5, usable);
    return side == GUARD_START ? map + page : map + page + usable - bytes;
}

float *guard_floats(size_t n, enum guard_side side) { return guard_bytes(n * sizeof(float), side); }

void *guard_copy(const void *data, size_t bytes, enum guard_side side) {
    void *copy = guard_bytes(bytes, side);
    if (bytes) memcpy(copy, data, bytes);
    return copy;
}

void guard_release(void) {
    while (n_guards) {
        n_guards--;
        munmap(guards[n_guards].map, guards[n_guards].bytes);
    }
}

/* ---- Fills --------------------------------------------------------------------------------------------------------------- */

/* splitmix64 (Steele, Lea and Flood 2014). */
uint64_t random_bits(struct random *random) {
    uint64_t z = random->state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

double random_unit(struct random *random) { return (double)(random_bits(random) >> 11) * 0x1p-53; }

float random_normal(struct random *random) {
    double radius = sqrt(-2 * log(1 - random_unit(random)));
    return (float)(radius * cos(6.283185307179586 * random_unit(random)));
}

static float fill_one(struct random *random, enum fill fill, size_t i, float previous) {
    float x = random_normal(random);
    switch (fill) {
    case FILL_ZERO: return 0;
    case FILL_SPREAD: return ldexpf(x, (int)(random_bits(random) % 41) - 20);
    case FILL_TINY: return x * 1e-40f;
    case FILL_LARGE: return x * 1e17f;
    case FILL_CANCEL: return i % 2 ? -previous * (1 + 1e-6f * x) : 1000 * x;
    default: return x;
    }
}

void fill_floats(struct random *random, enum fill fill, float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = fill_one(random, fill, i, i ? x[i - 1] : 0);
    if (fill == FILL_OUTLIER && n) x[random_bits(random) % n] *= 1000;
}

void fill_halves(struct random *random, enum fill fill, uint16_t *half, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float x = random_normal(random);
        switch (fill) {
        case FILL_ZERO: x = 0; break;
        case FILL_SPREAD: x = ldexpf(x, (int)(random_bits(random) % 21) - 10); break;
        case FILL_TINY: x *= 1e-6f; break; /* below 6.1e-5 a half is subnormal */
        case FILL_LARGE: x *= 8192; break; /* 65504 is the largest */
        case FILL_CANCEL: x = i % 2 ? -100 : 100; break;
        case FILL_OUTLIER: x *= random_bits(random) % 64 ? 1 : 1000; break;
        default: break;
        }
        vector_ops_at(CPU_SCALAR)->float_to_half(&x, &half[i], 1);
    }
}

void fill_bytes(struct random *random, void *data, size_t bytes) {
    unsigned char *byte = data;
    for (size_t i = 0; i < bytes; i++) byte[i] = (unsigned char)(random_bits(random) >> 56);
}

const char *fill_name(enum fill fill) {
    static const char *const names[FILLS] = {"normal", "zero", "spread", "tiny", "large", "cancel", "outlier"};
    return names[fill];
}

/* ---- Tiers and measures -------------------------------------------------------------------------------------------------- */

const struct tier *tier_at(size_t i) {
    static struct tier tiers[CPU_ISAS];
    for (int isa = 0; isa < CPU_ISAS; isa++) {
        if (!cpu_has((enum cpu_isa)isa) || i-- > 0) continue;
        const enum cpu_isa at = (enum cpu_isa)isa;
        tiers[isa] = (struct tier){cpu_isa_name(at),    at,
                                   vector_ops_at(at),   weights_ops_at(at),
                                   scaled_ops_at(at),   pq_ops_at(at),
                                   commvq_ops_at(at),   select_ops_at(at),
                                   transform_ops_at(at)};
        return &tiers[isa];
    }
    return NULL;
}

const size_t odd_lengths[] = {0,  1,  2,   3,   4,   5,   6,   7,   8,   9,   10,  11,  12,  13,  14,  15, 16,
                              17, 18, 23,  24,  25,  31,  32,  33,  47,  48,  49,  63,  64,  65,  79,  80, 95,
                              96, 97, 127, 128, 129, 191, 192, 255, 256, 257, 511, 512, 513, 999, 1000};
const size_t n_odd_lengths = sizeof odd_lengths / sizeof *odd_lengths;

void check_close(double got, double want, double scale, double relative, double absolute, const char *format, ...) {
    if (isnan(got) && isnan(want)) return;
    if (got == want) return; /* equal infinities too */
    double error = fabs(got - want);
    if (error <= relative * scale + absolute) return; /* false when anything is NaN */
    char where[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(where, sizeof where, format, arguments);
    va_end(arguments);
    fail_msg("%s: got %.9g, want %.9g, off by %.3g of %.3g allowed", where, got, want, error, relative * scale + absolute);
}

/* ---- Clock --------------------------------------------------------------------------------------------------------------- */

bool bench_wanted(int argc, char **argv) { return argc > 1 && strcmp(argv[1], "--bench") == 0; }

double clock_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double time_call(void (*call)(void *user), void *user) {
    size_t repeats = 1;
    double best = INFINITY;
    for (int run = 0; run < 5;) {
        double start = clock_seconds();
        for (size_t i = 0; i < repeats; i++) call(user);
        double seconds = clock_seconds() - start;
        if (seconds < 0.03) {
            repeats *= 2;
            continue;
        }
        if (seconds / (double)repeats < best) best = seconds / (double)repeats;
        run++;
    }
    return best;
}

double read_bandwidth(const void *data, size_t bytes, int threads) {
    const struct vector_ops *kernel = vector_ops(); /* max reads with the widest registers and computes next to nothing */
    double best = 0;
    size_t chunk = bytes / (size_t)threads / 512 * 512;
    for (int run = 0; run < 3; run++) {
        double start = clock_seconds();
        float most = 0;
#pragma omp parallel for num_threads(threads) schedule(static, 1) reduction(max : most)
        for (int thread = 0; thread < threads; thread++)
            most = kernel->max((const float *)data + (size_t)thread * chunk / sizeof(float), chunk / sizeof(float));
        double seconds = clock_seconds() - start;
        volatile float keep = most; /* the reads must not be optimised away */
        (void)keep;
        double rate = (double)chunk * threads / seconds;
        if (rate > best) best = rate;
    }
    return best;
}
