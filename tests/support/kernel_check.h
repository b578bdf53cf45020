/* Shared by the kernel tests: memory fenced by inaccessible pages, reproducible fills, error measures, and the clock for --bench.
 *
 * A kernel test holds every slot of every tier to the scalar one, and the scalar one to a double-precision sum. Failures end the
 * running cmocka test with a message that names the tier, the slot and the shape.
 */
#ifndef TESTS_SUPPORT_KERNEL_CHECK_H
#define TESTS_SUPPORT_KERNEL_CHECK_H

#include "backend/cpu/kernels/commvq/ops.h"
#include "backend/cpu/kernels/cpu.h"
#include "backend/cpu/kernels/limits.h"
#include "backend/cpu/kernels/pq/ops.h"
#include "backend/cpu/kernels/scaled/ops.h"
#include "backend/cpu/kernels/select/ops.h"
#include "backend/cpu/kernels/transform/ops.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "backend/cpu/kernels/weights/ops.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- Memory -------------------------------------------------------------------------------------------------------------- */

/* The side says which end of the memory touches an inaccessible page. With GUARD_END the address is only as aligned as `bytes` is. */
enum guard_side { GUARD_END, GUARD_START };

/* `bytes` bytes filled with 0xA5 (as floats: tiny, as codes: arbitrary); stays until guard_release. bytes 0 gives a valid pointer
 * to nothing. */
void *guard_bytes(size_t bytes, enum guard_side side);
float *guard_floats(size_t n, enum guard_side side);
/* Returns a copy of data[bytes]. */
void *guard_copy(const void *data, size_t bytes, enum guard_side side);
/* Frees everything that guard_* gave out. */
void guard_release(void);

/* Returns whether a test leaves out the i-th of its pairs (of a shape with a number of queries) or rows: in an emulator, where they take most of a minute,
 * two of three. All the shapes and all the numbers are among the others. */
static inline bool leaves_out(size_t i) { return *TESTS_EMULATOR && i % 3; }

/* ---- Fills --------------------------------------------------------------------------------------------------------------- */

struct random {
    uint64_t state; /* the seed; every seed gives another sequence */
};
uint64_t random_bits(struct random *random);
/* Uniform in [0, 1). */
double random_unit(struct random *random);
/* Standard normal. */
float random_normal(struct random *random);

enum fill {
    FILL_NORMAL, /* standard normal */
    FILL_ZERO,
    FILL_SPREAD,  /* normal times powers of two from 2^-20 to 2^20 */
    FILL_TINY,    /* subnormal floats */
    FILL_LARGE,   /* normal times 1e17: products and sums of up to 1e3 of them stay finite */
    FILL_CANCEL,  /* +x, -x, +x, ... : sums are far smaller than their terms */
    FILL_OUTLIER, /* normal with one value a thousand times larger */
    FILLS
};
void fill_floats(struct random *random, enum fill fill, float *x, size_t n);
/* Half floats of the same kinds, finite. */
void fill_halves(struct random *random, enum fill fill, uint16_t *half, size_t n);
void fill_bytes(struct random *random, void *data, size_t bytes);
const char *fill_name(enum fill fill);

/* ---- Tiers and measures -------------------------------------------------------------------------------------------------- */

/* The kernels of one instruction set. */
struct tier {
    const char *name;
    enum cpu_isa isa;
    const struct vector_ops *vector;
    const struct weights_ops *weights;
    const struct scaled_ops *scaled;
    const struct pq_ops *pq;
    const struct commvq_ops *commvq;
    const struct select_ops *select;
    const struct transform_ops *transform;
};
/* The i-th instruction set that this processor runs, scalar first; NULL past the last. For one thread. */
const struct tier *tier_at(size_t i);

/* Lengths at which vector loops and their tails meet: 0, 1, 7, 8, 15, 16, 17, ..., up to 1000. */
extern const size_t odd_lengths[];
extern const size_t n_odd_lengths;

/* Fails unless |got - want| <= relative * scale + absolute, where `scale` is the sum of the absolute terms that make up `want`.
 * Infinities must agree in sign, NaN with NaN. The rest is printf's, naming the case. */
__attribute__((format(printf, 6, 7))) void check_close(double got, double want, double scale, double relative, double absolute,
                                                       const char *format, ...);

/* ---- Clock --------------------------------------------------------------------------------------------------------------- */

/* True when the program was started with --bench. */
bool bench_wanted(int argc, char **argv);
double clock_seconds(void);
/* Seconds of one call: the fastest of five runs, each repeated to some 50 ms. */
double time_call(void (*call)(void *user), void *user);
/* Bytes per second of a plain read of data[bytes] by `threads` threads, the best of three. */
double read_bandwidth(const void *data, size_t bytes, int threads);

#endif
