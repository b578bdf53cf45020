/* CommVQ's values: sums of weights by code and the search on every tier against their definitions, the codec against decoded rows, softmax (s C) =
 * (softmax s) C, how codes lie, codebooks that fitting finds, and what is refused. */
#include "backend/cpu/codec/binary_code_search.h"
#include "backend/cpu/codec/codec.h"
#include "base/half.h"
#include "format/commvq.h"
#include "support/counting_memory.h"
#include "support/kernel_check.h"
#include "train/additive.h"

#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_HD = 256, MOST_CODES = ADDITIVE_MOST_CODES };

static struct random source = {5};

/* ---- Sums of weights by code ---------------------------------------------------------------------------------------------------- */

static void check_by_code(const struct tier *k, size_t G, size_t n, enum fill fill, enum guard_side side) {
    float *weights = guard_floats(G * 64, side), *code_sums = guard_floats(G * n, side), before[20 * MOST_CODES];
    uint8_t *codes = guard_bytes(8 * n, side);
    fill_floats(&source, fill, weights, G * 64);
    fill_floats(&source, FILL_NORMAL, code_sums, G * n);
    fill_bytes(&source, codes, 8 * n);
    memcpy(before, code_sums, G * n * sizeof *before);
    k->commvq->accumulate_by_code(weights, G, n, codes, code_sums);
    for (size_t g = 0; g < G; g++) {
        double all = 0;
        for (size_t t = 0; t < 64; t++) all += fabs((double)weights[g * 64 + t]);
        for (size_t i = 0; i < n; i++) {
            double want = (double)before[g * n + i], set = 0;
            for (size_t t = 0; t < 64; t++) {
                if (!(codes[t / 8 * n + i] >> t % 8 & 1)) continue;
                want += (double)weights[g * 64 + t];
                set++;
            }
            double apart = 64e-7 * all + (k->isa == CPU_SCALAR ? 0 : 1.001 * set * all / 65406);
            check_close((double)code_sums[g * n + i], want, fabs(want), 1e-6, apart + 1e-29, "%s accumulate_by_code %s G %zu n %zu",
                        k->name, fill_name(fill), G, n);
        }
    }
    guard_release();
}

static void code_sums_equal_their_definition(void **state) {
    (void)state;
    static const size_t groups[] = {1, 2, 3, 4, 5, 8, 19}, codes[] = {32, 64, 96, 256, 512};
    const struct tier *k;
    for (size_t tier = 0; (k = tier_at(tier)); tier++)
        for (size_t g = 0; g < 7; g++)
            for (size_t n = 0; n < 5; n++)
                for (int fill = 0; fill < FILLS; fill++)
                    check_by_code(k, groups[g], codes[n], (enum fill)fill, (g + n) % 2 ? GUARD_START : GUARD_END);
}

/* One weight among zeros is summed exactly: it has the whole range of the integers to itself. */
static void one_weight_is_summed_exactly(void **state) {
    (void)state;
    const struct tier *k;
    for (size_t tier = 0; (k = tier_at(tier)); tier++) {
        for (size_t t = 0; t < 64; t++) {
            float weights[64] = {0}, code_sums[64] = {0};
            uint8_t codes[8 * 64];
            weights[t] = t % 2 ? -0.37f : 0.37f;
            fill_bytes(&source, codes, sizeof codes);
            k->commvq->accumulate_by_code(weights, 1, 64, codes, code_sums);
            for (size_t i = 0; i < 64; i++) {
                float want = codes[t / 8 * 64 + i] >> t % 8 & 1 ? weights[t] : 0;
                assert_true(fabsf(code_sums[i] - want) <= 2e-7f);
            }
        }
    }
}

/* ---- The search ---------------------------------------------------------------------------------------------------------------- */

/* Whole numbers, of which every tier's sums are exact. */
static void make_whole(size_t n, float *couplings, float *field) {
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < i; k++) couplings[i * n + k] = couplings[k * n + i] = (float)(int)(random_bits(&source) % 15) - 7;
        couplings[i * n + i] = 0;
        field[i] = (float)(int)(random_bits(&source) % 201) - 100;
    }
}

static double energy_of(const float *couplings, const float *field, const double *signs, size_t n) {
    double energy = 0;
    for (size_t i = 0; i < n; i++) {
        energy -= 2 * signs[i] * (double)field[i];
        for (size_t k = 0; k < n; k++) energy += signs[i] * (double)couplings[i * n + k] * signs[k];
    }
    return energy;
}

/* The greedy start of the search: signs set one after another, the one of largest field first, none flipped afterwards. */
static void set_by_definition(const float *couplings, const float *field, size_t n, double *signs) {
    double f[MOST_CODES];
    bool set[MOST_CODES] = {false};
    for (size_t i = 0; i < n; i++) f[i] = (double)field[i];
    for (size_t step = 0; step < n; step++) {
        size_t at = n;
        for (size_t i = 0; i < n; i++)
            if (!set[i] && (at == n || fabs(f[i]) > fabs(f[at]) || (fabs(f[i]) == fabs(f[at]) && i > at && f[i] != 0))) at = i;
        set[at] = true;
        signs[at] = f[at] < 0 ? -1 : 1;
        for (size_t i = 0; i < n; i++) f[i] -= signs[at] * (double)couplings[at * n + i];
    }
}

static void searching_is_the_same_on_every_tier(void **state) {
    (void)state;
    static const size_t codes[] = {32, 64, 96, 128, 256, 512};
    for (int repeat = 0; repeat < 18; repeat++) {
        size_t n = codes[repeat % 6];
        enum guard_side side = repeat % 2 ? GUARD_START : GUARD_END;
        float *couplings = guard_floats(n * n, side), *field = guard_floats(n, side), first[MOST_CODES];
        double signs[MOST_CODES], simple[MOST_CODES];
        const struct tier *k;
        make_whole(n, couplings, field);
        set_by_definition(couplings, field, n, simple);
        for (size_t tier = 0; (k = tier_at(tier)); tier++) {
            float *left = guard_copy(field, n * sizeof *field, side), *got = guard_floats(n, side);
            k->commvq->local_search(couplings, n, 1, left, got);
            if (!tier) memcpy(first, got, n * sizeof *got);
            assert_memory_equal(first, got, n * sizeof *got);
            for (size_t i = 0; i < n; i++) {
                double field_left = (double)field[i];
                for (size_t j = 0; j < n; j++) field_left -= (double)couplings[i * n + j] * (double)got[j];
                assert_true(got[i] == 1 || got[i] == -1);
                assert_true((double)left[i] == field_left);
                assert_true(field_left * (double)got[i] >= 0); /* no flipped sign lowers the energy */
                signs[i] = (double)got[i];
            }
            assert_true(energy_of(couplings, field, signs, n) <= energy_of(couplings, field, simple, n));
        }
        guard_release();
    }
}

/* Rows searched together have the codes that each has by itself. */
static void rows_are_searched_independently(void **state) {
    (void)state;
    enum { N = 96, ROWS = 5 };
    static float couplings[N * N], fields[ROWS * N], left[ROWS * N], signs[ROWS * N], single[N], other[N];
    const struct tier *k;
    fill_floats(&source, FILL_NORMAL, couplings, N * N);
    for (size_t i = 0; i < N; i++)
        for (size_t j = 0; j <= i; j++) couplings[j * N + i] = i == j ? 0 : couplings[i * N + j];
    fill_floats(&source, FILL_NORMAL, fields, ROWS * N);
    for (size_t tier = 0; (k = tier_at(tier)); tier++) {
        for (size_t count = 0; count <= ROWS; count++) {
            memcpy(left, fields, sizeof left);
            k->commvq->local_search(couplings, N, count, left, signs);
            for (size_t r = 0; r < count; r++) {
                memcpy(other, fields + r * N, sizeof other);
                k->commvq->local_search(couplings, N, 1, other, single);
                assert_memory_equal(single, signs + r * N, sizeof single);
                assert_memory_equal(other, left + r * N, sizeof other);
            }
        }
    }
}

static void bad_fields_do_no_harm(void **state) {
    (void)state;
    enum { N = 64 };
    const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f, 0};
    const struct tier *k;
    for (size_t tier = 0; (k = tier_at(tier)); tier++) {
        for (size_t b = 0; b < 5; b++) {
            for (int couplings_too = 0; couplings_too < 2; couplings_too++) {
                float *couplings = guard_floats(N * N, GUARD_END), *field = guard_floats(N, GUARD_END),
                      *signs = guard_floats(N, GUARD_END);
                make_whole(N, couplings, field);
                for (size_t i = 0; i < N; i++) field[i] = bad[b];
                for (size_t i = 0; couplings_too && i < N * N; i++) couplings[i] = bad[b];
                k->commvq->local_search(couplings, N, 1, field, signs);
                for (size_t i = 0; i < N; i++) assert_true(signs[i] == 1 || signs[i] == -1);
                guard_release();
            }
        }
    }
}

/* ---- The codec with a random codebook */

static const struct shape {
    uint32_t hd, bits;
} shapes[] = {{32, 32}, {64, 128}, {128, 128}, {128, 256}, {96, 160}, {256, 512}, {160, 32}};
#define EACH_SHAPE(s) for (const struct shape *s = shapes; s < shapes + sizeof shapes / sizeof *shapes; s++)

struct setup {
    struct codec_shape shape;
    float *parameters, *rows;
    double *C; /* as it is read */
    void *learned;
    uint8_t *block;
};

static struct setup setup_new(const struct shape *s, size_t tokens) {
    struct setup u = {.shape = {s->hd, 1, s->hd, s->bits, NULL}};
    struct terse_error error;
    size_t hd = s->hd, numbers = hd * s->bits, n = codec_parameters(&codec_additive, u.shape);
    assert_int_equal(codec_check(&codec_additive, u.shape, CODEC_VALUES, &error), TERSE_OK);
    assert_int_equal(n, numbers + hd + 1);
    assert_int_equal(codec_page_bytes(&codec_additive, u.shape, CODEC_VALUES), 64 + 8 * s->bits);
    u.parameters = malloc(n * sizeof *u.parameters);
    u.rows = malloc(64 * hd * sizeof *u.rows);
    u.C = malloc(numbers * sizeof *u.C);
    for (size_t i = 0; i < n; i++)
        u.parameters[i] = half_to_float(half_from_float(2 * random_normal(&source) / sqrtf((float)s->bits)));
    u.parameters[n - 1] = 1.25f;
    for (size_t c = 0; c < hd; c++) {
        float least = INFINITY, most = -INFINITY;
        for (size_t i = c; i < numbers; i += hd) least = fminf(least, u.parameters[i]), most = fmaxf(most, u.parameters[i]);
        for (size_t i = c; i < numbers; i += hd) {
            double step = ((double)most - (double)least) / 127;
            u.C[i] = (double)least + step * (double)lrintf((u.parameters[i] - least) * (1 / ((most - least) / 127)));
        }
    }
    for (size_t t = 0; t < 64; t++) {
        float size = expf(2 * random_normal(&source));
        for (size_t c = 0; c < hd; c++)
            u.rows[t * hd + c] = u.parameters[numbers + c] + (t == 5 ? 0 : size * random_normal(&source));
    }
    if (cpu_codec_additive.learned->make(u.shape, CODEC_VALUES, u.parameters, &u.learned, &error)) fail_msg("%s", error.message);
    u.shape.learned = u.learned;
    assert_int_equal(posix_memalign((void **)&u.block, 64, codec_page_bytes(&codec_additive, u.shape, CODEC_VALUES)), 0);
    cpu_codec_additive.encode(u.shape, CODEC_VALUES, u.rows, tokens, u.block);
    return u;
}

static void setup_free(struct setup *u) {
    cpu_codec_additive.learned->free(u->learned);
    free(u->parameters);
    free(u->rows);
    free(u->C);
    free(u->block);
}

/* The shape that a token's code stands for, by the definition; returns its gain. */
static double shape_by_definition(const struct setup *u, size_t t, double *shape) {
    size_t hd = u->shape.head_dim, bits = u->shape.bits;
    for (size_t c = 0; c < hd; c++) {
        shape[c] = 0;
        for (size_t i = 0; i < bits; i++)
            if (u->block[64 + t / 8 * bits + i] >> t % 8 & 1) shape[c] += u->C[i * hd + c];
    }
    return u->block[t] ? 1.25 * exp2(((double)u->block[t] - 128) / 20) : 0;
}

static void decoding_is_what_the_definition_says(void **state) {
    (void)state;
    EACH_SHAPE(s) {
        struct setup u = setup_new(s, 64);
        const float *mean = u.parameters + s->hd * s->bits;
        float *decoded = malloc(64 * s->hd * sizeof *decoded);
        double shape[MOST_HD], square, product, size, unit;
        cpu_codec_additive.decode(u.shape, CODEC_VALUES, u.block, decoded);
        for (size_t t = 0; t < 64; t++) {
            double gain = shape_by_definition(&u, t, shape);
            square = product = size = unit = 0;
            for (size_t c = 0; c < s->hd; c++) {
                double x = (double)u.rows[t * s->hd + c] - (double)mean[c];
                assert_true(fabs((double)decoded[t * s->hd + c] - (double)mean[c] - gain * shape[c]) <= 2e-5 * (1 + gain));
                square += shape[c] * shape[c];
                product += shape[c] * x;
                size += x * x;
            }
            /* The gain is the best one, to within the step of its code. */
            if (t == 5) assert_true(gain == 0);
            if (u.block[t] > 1 && u.block[t] < 255) assert_true(fabs(gain * square / product - 1) < 0.018);
        }
        free(decoded);
        setup_free(&u);
    }
}

/* No flipped bit improves a code that encoding found, but for rounding, and the codes are better than bits set each by its own field or
 * at random. */
static void no_flipped_bit_improves_a_code(void **state) {
    (void)state;
    EACH_SHAPE(s) {
        struct setup u = setup_new(s, 64);
        const float *mean = u.parameters + s->hd * s->bits;
        double shape[MOST_HD], x[MOST_HD], found = 0, plain = 0, by_field = 0;
        for (size_t t = 0; t < 64; t++) {
            double size = 0, rest = 0, m[MOST_HD] = {0}, other[MOST_HD] = {0};
            if (t == 5) continue;
            shape_by_definition(&u, t, shape);
            for (size_t c = 0; c < s->hd; c++) size += pow((double)u.rows[t * s->hd + c] - (double)mean[c], 2);
            for (size_t c = 0; c < s->hd; c++) {
                x[c] = ((double)u.rows[t * s->hd + c] - (double)mean[c]) / sqrt(size / s->hd);
                rest += pow(x[c] - shape[c], 2);
                for (size_t i = 0; i < s->bits; i++) m[c] += u.C[i * s->hd + c] / 2;
            }
            for (size_t i = 0; i < s->bits; i++) {
                bool set = u.block[64 + t / 8 * s->bits + i] >> t % 8 & 1;
                double flipped = 0, along = 0;
                for (size_t c = 0; c < s->hd; c++) {
                    double row = u.C[i * s->hd + c];
                    flipped += pow(x[c] - shape[c] - (set ? -row : row), 2);
                    along += (x[c] - m[c]) * row;
                    if (along != 0 && c + 1 == s->hd && along > 0)
                        for (size_t j = 0; j < s->hd; j++) other[j] += u.C[i * s->hd + j];
                }
                assert_true(flipped >= rest - 1e-3);
            }
            found += rest;
            plain += s->hd;
            for (size_t c = 0; c < s->hd; c++) by_field += pow(x[c] - other[c], 2);
        }
        assert_true(found < plain && found < (s->bits < s->hd ? 1 : 0.9) * by_field);
        setup_free(&u);
    }
}

/* accumulate, and accumulate_by_code with finish_code_sums over many pages, give weights times decoded rows. */
static void reading_equals_decoded_rows(void **state) {
    (void)state;
    static const uint32_t groups[] = {1, 3, 4, 16, 17, 40};
    EACH_SHAPE(s) {
        for (size_t i = 0; i < 6; i++) {
            enum { BLOCKS = 3 };
            struct setup u = setup_new(s, 64);
            size_t G = u.shape.group = groups[i], hd = s->hd, bytes = codec_page_bytes(&codec_additive, u.shape, CODEC_VALUES);
            float *weights = malloc(BLOCKS * G * 64 * sizeof *weights), *accumulated = calloc(G * hd, sizeof *accumulated);
            float *finished = calloc(G * hd, sizeof *finished), *rows = malloc(64 * hd * sizeof *rows);
            float *code_sums = calloc(cpu_codec_additive.code_sums->floats(u.shape), sizeof *code_sums);
            double *want = calloc(2 * G * hd, sizeof *want), *terms = want + G * hd;
            uint8_t *block = u.block;
            for (size_t j = 0; j < BLOCKS * G * 64; j++) weights[j] = (float)pow(random_unit(&source), 4) / 64;
            for (size_t b = 0; b < BLOCKS; b++) {
                for (size_t j = 0; j < 8 * s->bits; j++) block[64 + j] = (uint8_t)random_bits(&source);
                cpu_codec_additive.decode(u.shape, CODEC_VALUES, block, rows);
                cpu_codec_additive.accumulate_values(u.shape, weights + b * G * 64, block, accumulated);
                cpu_codec_additive.code_sums->add(u.shape, weights + b * G * 64, block, code_sums);
                for (size_t g = 0; g < G; g++)
                    for (size_t t = 0; t < 64; t++)
                        for (size_t c = 0; c < hd; c++) {
                            double x = (double)weights[(b * G + g) * 64 + t] * (double)rows[t * hd + c];
                            want[g * hd + c] += x;
                            terms[g * hd + c] += fabs(x);
                        }
            }
            cpu_codec_additive.code_sums->finish(u.shape, code_sums, finished);
            for (size_t j = 0; j < G * hd; j++) {
                double most = 0;
                for (size_t c = 0; c < hd; c++) most = fmax(most, terms[j / hd * hd + c]);
                assert_true(fabs((double)accumulated[j] - want[j]) <= 3e-4 * most);
                assert_true(fabs((double)finished[j] - want[j]) <= 3e-4 * most);
                assert_true(fabs((double)finished[j] - (double)accumulated[j]) <= 2e-4 * most);
            }
            assert_true(bytes == 64 + 8 * s->bits);
            free(weights), free(accumulated), free(finished), free(rows), free(code_sums), free(want);
            setup_free(&u);
        }
    }
}

static void pages_of_few_tokens_end_in_zeros(void **state) {
    (void)state;
    EACH_SHAPE(s) {
        struct setup whole = setup_new(s, 64), few = whole;
        size_t bytes = codec_page_bytes(&codec_additive, whole.shape, CODEC_VALUES);
        assert_int_equal(posix_memalign((void **)&few.block, 64, bytes), 0);
        for (size_t n = 0; n <= 64; n += 13) {
            memset(few.block, 0xaa, bytes);
            cpu_codec_additive.encode(whole.shape, CODEC_VALUES, whole.rows, n, few.block);
            for (size_t t = 0; t < 64; t++) {
                assert_int_equal(few.block[t], t < n ? whole.block[t] : 0);
                for (size_t i = 0; i < s->bits; i++) {
                    size_t at = 64 + t / 8 * s->bits + i;
                    assert_int_equal(few.block[at] >> t % 8 & 1, t < n ? whole.block[at] >> t % 8 & 1 : 0);
                }
            }
        }
        free(few.block);
        setup_free(&whole);
    }
}

static void gathered_tokens_decode_as_before(void **state) {
    (void)state;
    EACH_SHAPE(s) {
        struct setup u = setup_new(s, 64);
        size_t hd = s->hd, bytes = codec_page_bytes(&codec_additive, u.shape, CODEC_VALUES);
        static const uint8_t slots[] = {3, 5, 8, 21, 63, 0};
        float *from = malloc(64 * hd * sizeof *from), *to = malloc(64 * hd * sizeof *to);
        uint8_t *block = NULL;
        assert_int_equal(posix_memalign((void **)&block, 64, bytes), 0);
        memset(block, 0, bytes);
        cpu_codec_additive.gather_tokens(u.shape, CODEC_VALUES, u.block, slots, 6, block, 10);
        cpu_codec_additive.gather_tokens(u.shape, CODEC_VALUES, u.block, slots + 1, 2, block, 12); /* over what is there */
        cpu_codec_additive.decode(u.shape, CODEC_VALUES, u.block, from);
        cpu_codec_additive.decode(u.shape, CODEC_VALUES, block, to);
        static const uint8_t there[] = {3, 5, 5, 8, 63, 0};
        for (size_t i = 0; i < 6; i++) assert_memory_equal(to + (10 + i) * hd, from + there[i] * hd, hd * sizeof *to);
        for (size_t t = 0; t < 64; t++)
            for (size_t i = 0; (t < 10 || t > 15) && i < s->bits; i++)
                assert_int_equal(block[t], 0), assert_int_equal(block[64 + t / 8 * s->bits + i] >> t % 8 & 1, 0);
        free(from), free(to), free(block);
        setup_free(&u);
    }
}

static void bad_codebooks_are_refused(void **state) {
    (void)state;
    struct codec_shape shape = {.head_dim = 64, .group = 1, .width = 64, .bits = 64};
    struct terse_error error;
    size_t n = codec_parameters(&codec_additive, shape), places[] = {0, 64 * 64 - 1, 64 * 64 + 3, n - 1};
    const float bad[] = {NAN, INFINITY, -INFINITY, 70000, -70000};
    float *parameters = calloc(n, sizeof *parameters);
    void *learned;
    for (size_t p = 0; p < 4; p++) {
        for (size_t b = 0; b < (p < 2 ? 5 : 3); b++) {
            float kept = parameters[places[p]];
            parameters[places[p]] = bad[b];
            assert_int_equal(codec_check_parameters(&codec_additive, shape, parameters, &error), TERSE_E_FORMAT);
            parameters[places[p]] = kept;
        }
    }
    for (int kind = 0; kind < 2; kind++) { /* nothing but zeros, and numbers whose steps are next to nothing */
        float row[64 * 64], out[64 * 64];
        _Alignas(64) uint8_t block[64 + 8 * 64];
        for (size_t i = 0; i < n - 65; i++) parameters[i] = kind ? ldexpf((float)(i % 7), -149) : 0;
        parameters[n - 1] = 1;
        assert_int_equal(cpu_codec_additive.learned->make(shape, CODEC_VALUES, parameters, &learned, &error), TERSE_OK);
        shape.learned = learned;
        fill_floats(&source, FILL_NORMAL, row, 64 * 64);
        row[7] = INFINITY, row[64 + 9] = NAN, row[128] = 3e38f;
        cpu_codec_additive.encode(shape, CODEC_VALUES, row, 64, block);
        cpu_codec_additive.decode(shape, CODEC_VALUES, block, out);
        for (size_t i = 0; i < 64 * 64; i++) assert_true(isfinite(out[i]));
        cpu_codec_additive.learned->free(learned);
        shape.learned = NULL;
    }
    static const struct codec_shape wrong[] = {
        {.head_dim = 64, .group = 1, .width = 32, .bits = 64}, {.head_dim = 64, .group = 1, .width = 64, .bits = 0},
        {.head_dim = 64, .group = 1, .width = 64, .bits = 48}, {.head_dim = 64, .group = 1, .width = 64, .bits = 160},
        {.head_dim = 48, .group = 1, .width = 48, .bits = 48}, {.head_dim = 288, .group = 1, .width = 288, .bits = 288}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(codec_check(&codec_additive, wrong[i], CODEC_VALUES, &error), TERSE_E_UNSUPPORTED);
    assert_int_equal(codec_check(&codec_additive, shape, CODEC_KEYS, &error), TERSE_E_UNSUPPORTED);
    struct coding coding = additive_coding(128, 2);
    assert_true(coding.codec == &codec_additive && coding.width == 128 && coding.bits == 256);
    free(parameters);
}

/* ---- Learning ------------------------------------------------------------------------------------------------------------------ */

/* Rows whose numbers go together, as a head's do, at a size of about 1. */
static float *make_rows(size_t n, size_t d, uint64_t seed) {
    struct random random = {7};
    float *rows = malloc(n * d * sizeof *rows), mixing[16 * MOST_HD];
    fill_floats(&random, FILL_NORMAL, mixing, 16 * d);
    random.state = seed;
    for (size_t p = 0; p < n; p++) {
        float hidden[16];
        for (size_t k = 0; k < 16; k++) hidden[k] = random_normal(&random) / (float)(2 + k);
        for (size_t c = 0; c < d; c++) {
            float x = 0.3f * random_normal(&random);
            for (size_t k = 0; k < 16; k++) x += hidden[k] * mixing[k * d + c];
            rows[p * d + c] = x;
        }
    }
    return rows;
}

static struct additive_result fit(const struct additive_points *points, size_t d, size_t codes, uint32_t iterations, float *C,
                                  double *errors) {
    struct additive_options options = additive_options_defaults();
    struct additive_result result;
    struct terse_error error;
    options.iterations = iterations;
    if (additive_fit(points, d, codes, &options, C, errors, &result, &error)) fail_msg("%s", error.message);
    for (size_t i = 0; i < codes * d; i++) assert_true(isfinite(C[i]));
    return result;
}

/* The rows solve the equations: nothing of the gradient is left. */
static void rows_are_least_squares(void **state) {
    (void)state;
    enum { N = 40, D = 7, POINTS = 90 };
    double A[N * N] = {0}, B[N * D] = {0}, kept[N * N], right[N * D];
    float C[N * D], last[N * D];
    for (size_t p = 0; p < POINTS; p++) {
        double s[N], x[D], w = random_unit(&source);
        for (size_t i = 0; i < N; i++) s[i] = (double)(random_bits(&source) % 2);
        for (size_t c = 0; c < D; c++) x[c] = (double)random_normal(&source);
        for (size_t i = 0; i < N; i++) {
            for (size_t k = 0; k < N; k++) A[i * N + k] += w * s[i] * s[k];
            for (size_t c = 0; c < D; c++) B[i * D + c] += w * s[i] * x[c];
        }
    }
    memcpy(kept, A, sizeof A);
    memcpy(right, B, sizeof B);
    fill_floats(&source, FILL_NORMAL, last, N * D);
    memcpy(C, last, sizeof C);
    additive_solve(N, D, A, B, 0.25, C);
    for (size_t i = 0; i < N; i++) {
        for (size_t c = 0; c < D; c++) {
            double left = right[i * D + c] + 0.25 * ((double)last[i * D + c] - (double)C[i * D + c]), terms = 0;
            for (size_t k = 0; k < N; k++) {
                left -= kept[i * N + k] * (double)C[k * D + c];
                terms += fabs(kept[i * N + k] * (double)C[k * D + c]);
            }
            assert_true(fabs(left) <= 1e-6 * (terms + 1));
        }
    }
}

static double error_of(const float *rows, size_t n, size_t d, size_t codes, const float *C) {
    struct additive_search search;
    struct terse_error error;
    double left = 0, all = 0;
    uint8_t *bits = malloc(n * codes / 8);
    assert_int_equal(additive_search_new(d, codes, &search, &error), TERSE_OK);
    additive_search_set(&search, C);
    additive_search_find(&search, rows, n, d, bits);
    for (size_t p = 0; p < n; p++) {
        for (size_t c = 0; c < d; c++) {
            double sum = 0;
            for (size_t i = 0; i < codes; i++)
                if (bits[(p * codes + i) / 8] >> i % 8 & 1) sum += (double)C[i * d + c];
            left += pow((double)rows[p * d + c] - sum, 2);
            all += pow((double)rows[p * d + c], 2);
        }
    }
    additive_search_free(&search);
    free(bits);
    return left / all;
}

/* More bits err less, on rows not learned from too; fitting wins; what fitting reports is so. */
static void errors_fall_with_bits_and_with_fitting(void **state) {
    (void)state;
    enum { N = 3000, D = 64 };
    float *rows = make_rows(N, D, 1), *others = make_rows(600, D, 2), C[128 * D];
    double last = 1, errors[7];
    for (size_t codes = 32; codes <= 128; codes += 32) {
        struct additive_result result = fit(&(struct additive_points){rows, N, D, NULL}, D, codes, 6, C, errors);
        assert_true(result.error < 0.8 * last && result.error <= errors[6] && errors[6] < 0.97 * errors[0]);
        assert_true(fabs(error_of(rows, N, D, codes, C) - result.error) <= 1e-5);
        assert_true(error_of(others, 600, D, codes, C) < 1.25 * result.error + 0.02);
        assert_true(fabs(result.effective_samples - N) < 1e-6 * N);
        last = result.error;
    }
    free(rows), free(others);
}

/* Sums of rows that are nearly at right angles are found again. */
static void planted_sums_are_coded_without_error(void **state) {
    (void)state;
    enum { N = 2000, D = 64, CODES = 32 };
    float C[CODES * D], *rows = calloc(N * D, sizeof *rows), found[CODES * D];
    fill_floats(&source, FILL_NORMAL, C, CODES * D);
    for (size_t i = 0; i < CODES * D; i++) C[i] *= 0.35f;
    for (size_t p = 0; p < N; p++)
        for (size_t i = 0; i < CODES; i++)
            for (size_t c = 0, set = random_bits(&source) % 2; set && c < D; c++) rows[p * D + c] += C[i * D + c];
    assert_true(error_of(rows, N, D, CODES, C) < 1e-9);                                                   /* only the search */
    assert_true(fit(&(struct additive_points){rows, N, D, NULL}, D, CODES, 30, found, NULL).error < 0.2); /* from any start */
    free(rows);
}

static void weights_draw_the_error_to_them(void **state) {
    (void)state;
    enum { N = 2000, D = 32 };
    float *rows = make_rows(N, D, 3), weights[N], C[32 * D];
    double even, drawn;
    for (size_t p = 0; p < N; p++) weights[p] = p < N / 8 ? 1 : 1e-3f;
    fit(&(struct additive_points){rows, N, D, NULL}, D, 32, 6, C, NULL);
    even = error_of(rows, N / 8, D, 32, C);
    struct additive_result result = fit(&(struct additive_points){rows, N, D, weights}, D, 32, 6, C, NULL);
    drawn = error_of(rows, N / 8, D, 32, C);
    assert_true(drawn < even);
    assert_true(result.effective_samples > N / 8 && result.effective_samples < N / 8 * 1.1);
    for (size_t p = 0; p < N; p++) weights[p] = 2;
    fit(&(struct additive_points){rows, N, D, weights}, D, 32, 6, C, NULL);
    assert_true(fabs(error_of(rows, N / 8, D, 32, C) - even) < 0.02);
    free(rows);
}

static void fitting_is_the_same_for_any_number_of_threads(void **state) {
    (void)state;
    enum { N = 2100, D = 32 };
    float *rows = make_rows(N, D, 4), one[64 * D], C[64 * D];
    int threads = omp_get_max_threads();
    struct additive_points points = {rows, N, D, NULL};
    omp_set_num_threads(1);
    fit(&points, D, 64, 4, one, NULL);
    for (int n = 2; n <= 5; n++) {
        omp_set_num_threads(n);
        fit(&points, D, 64, 4, C, NULL);
        assert_memory_equal(one, C, sizeof C);
    }
#pragma omp parallel num_threads(2)
    {
#pragma omp single
        fit(&points, D, 64, 4, C, NULL);
    }
    assert_memory_equal(one, C, sizeof C);
    omp_set_num_threads(threads);
    free(rows);
}

/* Few points, points that are all alike, points that are 0. */
static void degenerate_points_are_fitted(void **state) {
    (void)state;
    enum { D = 32 };
    float rows[5 * D], C[64 * D];
    for (int kind = 0; kind < 3; kind++) {
        for (size_t i = 0; i < 5 * D; i++) rows[i] = kind == 2 ? 0 : kind == 1 ? (float)(i % D) / D : random_normal(&source);
        for (size_t n = 1; n <= 5; n += 4) {
            struct additive_result result = fit(&(struct additive_points){rows, n, D, NULL}, D, 64, 8, C, NULL);
            assert_true(result.error >= 0 && result.error < (kind == 2 ? 1e-30 : 0.05));
        }
    }
}

static bool stop_soon(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)what, (void)done, (void)total;
    return --*(int *)user > 0;
}

static void bad_fits_are_refused(void **state) {
    (void)state;
    enum { N = 40, D = 32 };
    float *rows = make_rows(N, D, 5), weights[N] = {0}, C[64 * D];
    struct additive_points points = {rows, N, D, NULL};
    struct additive_options options = additive_options_defaults();
    struct terse_error error;
    for (int left = 1; left < 5; left++) {
        int count = left;
        options.progress = (struct terse_progress){stop_soon, &count};
        assert_int_equal(additive_fit(&points, D, 64, &options, C, NULL, NULL, &error), TERSE_E_INTERRUPTED);
    }
    options = additive_options_defaults();
    const size_t codes[] = {0, 31, 48, 544};
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(additive_fit(&points, D, codes[i], &options, C, NULL, NULL, &error), TERSE_E_ARGUMENT);
    assert_int_equal(additive_fit(&points, 257, 64, &options, C, NULL, NULL, &error), TERSE_E_ARGUMENT);
    points.weights = weights;
    assert_int_equal(additive_fit(&points, D, 64, &options, C, NULL, NULL, &error), TERSE_E_ARGUMENT);
    const float bad[] = {NAN, INFINITY, -1};
    for (size_t i = 0; i < 3; i++) {
        weights[3] = bad[i];
        assert_int_equal(additive_fit(&points, D, 64, &options, C, NULL, NULL, &error), TERSE_E_ARGUMENT);
        points.weights = NULL;
        rows[77] = i < 2 ? bad[i] : 1e16f;
        assert_int_equal(additive_fit(&points, D, 64, &options, C, NULL, NULL, &error), TERSE_E_ARGUMENT);
        rows[77] = 0;
        points.weights = weights;
    }
    points.n = 0;
    assert_int_equal(additive_fit(&points, D, 64, &options, C, NULL, NULL, &error), TERSE_E_ARGUMENT);
    options.iterations = 0;
    points = (struct additive_points){rows, N, D, NULL};
    assert_int_equal(additive_fit(&points, D, 64, &options, C, NULL, NULL, &error), TERSE_E_ARGUMENT);
    free(rows);
}

/* Every allocation of a fit and of opening a codebook is refused once; the memory that a codebook reports is what it has allocated. */
static void refused_memory_is_reported(void **state) {
    (void)state;
    enum { N = 600, D = 32 };
    float *rows = make_rows(N, D, 6), C[64 * D];
    const struct codec_shape shape = {.head_dim = D, .group = 1, .width = D, .bits = 64};
    float *parameters = calloc(codec_parameters(&codec_additive, shape), sizeof *parameters);
    struct additive_options options = additive_options_defaults();
    struct terse_error error;
    size_t before = live_bytes, refused = 0;
    void *learned = NULL;
    options.iterations = 1;
    for (;; refused++) {
        allowed = allocations + refused;
        enum terse_status status =
            additive_fit(&(struct additive_points){rows, N, D, NULL}, D, 64, &options, C, NULL, NULL, &error);
        assert_int_equal(live_bytes, before);
        if (status == TERSE_OK) break;
        assert_int_equal(status, TERSE_E_MEMORY);
    }
    assert_true(refused > 10);
    for (refused = 0;; refused++) {
        allowed = allocations + refused;
        enum terse_status status = cpu_codec_additive.learned->make(shape, CODEC_VALUES, parameters, &learned, &error);
        if (status == TERSE_OK) break;
        assert_int_equal(status, TERSE_E_MEMORY);
        assert_int_equal(live_bytes, before);
        assert_null(learned);
    }
    allowed = SIZE_MAX;
    assert_true(refused > 4);
    assert_int_equal(cpu_codec_additive.learned->bytes(learned), live_bytes - before);
    assert_int_equal(cpu_codec_additive.learned->predict_bytes(shape, CODEC_VALUES, NULL), live_bytes - before);
    cpu_codec_additive.learned->free(learned);
    assert_int_equal(live_bytes, before);
    free(rows), free(parameters);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(code_sums_equal_their_definition),
        cmocka_unit_test(one_weight_is_summed_exactly),
        cmocka_unit_test(searching_is_the_same_on_every_tier),
        cmocka_unit_test(rows_are_searched_independently),
        cmocka_unit_test(bad_fields_do_no_harm),
        cmocka_unit_test(decoding_is_what_the_definition_says),
        cmocka_unit_test(no_flipped_bit_improves_a_code),
        cmocka_unit_test(reading_equals_decoded_rows),
        cmocka_unit_test(pages_of_few_tokens_end_in_zeros),
        cmocka_unit_test(gathered_tokens_decode_as_before),
        cmocka_unit_test(bad_codebooks_are_refused),
        cmocka_unit_test(rows_are_least_squares),
        cmocka_unit_test(errors_fall_with_bits_and_with_fitting),
        cmocka_unit_test(planted_sums_are_coded_without_error),
        cmocka_unit_test(weights_draw_the_error_to_them),
        cmocka_unit_test(fitting_is_the_same_for_any_number_of_threads),
        cmocka_unit_test(degenerate_points_are_fitted),
        cmocka_unit_test(bad_fits_are_refused),
        cmocka_unit_test(refused_memory_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
