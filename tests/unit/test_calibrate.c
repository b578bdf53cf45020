/* Calibration: the weights' formula, the same bits for any number of threads, centroids that belong to their own layer, head and side,
 * interruption at every report, refused memory. test_capture has the samples that it learns from. */
#include "backend/cpu/codec/codec.h"
#include "base/memory.h"
#include "method/method.h"
#include "support/fixture_model.h"
#include "support/prepared.h"
#include "train/calibrate.h"
#include "train/capture.h"

#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define ALL ((size_t)1 << 40) /* a budget that no test exhausts */

/* ---- This program's own base/memory, which can refuse. */

static size_t live, refused_after = SIZE_MAX;

void *memory_array(size_t count, size_t size) {
    void *memory;
    size_t left = 0;
#pragma omp critical(test_memory)
    {
        left = refused_after;
        if (left && left != SIZE_MAX) refused_after--;
    }
    if (left == 0 || (size && count > (SIZE_MAX - MEMORY_ALIGN) / size)) return NULL;
    if (posix_memalign(&memory, MEMORY_ALIGN, count * size + 1)) return NULL;
#pragma omp atomic update
    live++;
    return memory;
}

void *memory_zeros(size_t count, size_t size) {
    void *memory = memory_array(count, size);
    if (memory) memset(memory, 0, count * size);
    return memory;
}

void memory_free(void *memory) {
    if (!memory) return;
#pragma omp atomic update
    live--;
    free(memory);
}

/* ---- Weights */

static void weights_are_powers_of_norms(void **state) {
    (void)state;
    const float norms[6] = {1e-9f, 2e-9f, 3e-9f, 0, 4e-9f, 1e-12f}, factors[6] = {1, 2, 1, 1, 0.5f, 1};
    for (uint32_t power = 0; power <= 2; power++) {
        for (int with = 0; with < 2; with++) {
            float weights[6];
            double sum = 0, least = INFINITY, expected[6], total = 0;
            memcpy(weights, norms, sizeof weights);
            calibrate_weigh(weights, with ? factors : NULL, 6, power, 7);
            for (int i = 0; i < 6; i++) {
                expected[i] = pow((double)norms[i] * 1e9, power) * (with ? pow((double)factors[i], 2) : 1);
                total += expected[i];
                sum += (double)weights[i];
                least = fmin(least, (double)weights[i]);
            }
            assert_true(fabs(sum / 6 - 1) < 1e-6);
            assert_true(least > 0 && least < 1e-2 + (power == 0));
            for (int i = 0; i < 6; i++) {
                if (expected[i] * 6 / total < 0.05) continue; /* what little the floor takes from the others */
                double ratio = (double)weights[i] / (expected[i] * 6 / total);
                if (fabs(ratio - 1) > 0.01) fail_msg("power %u, weight %d: %g of what it should be", power, i, ratio);
            }
        }
    }
    float none[3] = {0, 0, 0};
    calibrate_weigh(none, NULL, 3, 2, 4);
    for (int i = 0; i < 3; i++) assert_true(none[i] == 1);
}

/* Norms with tails as gradients have them: what is cut is all alike, no more than what was asked for, and the rest is in proportion. */
static void no_sample_outweighs_its_share(void **state) {
    (void)state;
    enum { N = 2000 };
    static float norms[N], weights[N];
    for (size_t i = 0; i < N; i++) norms[i] = powf((float)(i * 619 % N + 1) / N, -1.5f);
    for (double most = 2; most < 70; most *= 2) {
        double sum = 0, squares = 0, largest = 0, ratio = 0;
        size_t cut = 0;
        memcpy(weights, norms, sizeof weights);
        calibrate_weigh(weights, NULL, N, 1, most);
        for (size_t i = 0; i < N; i++) {
            sum += (double)weights[i];
            squares += (double)weights[i] * (double)weights[i];
            largest = fmax(largest, (double)weights[i]);
        }
        for (size_t i = 0; i < N; i++) {
            if ((double)weights[i] > largest * (1 - 1e-6)) cut++;
            if ((double)weights[i] < largest / 2 && norms[i] > 2) ratio = (double)weights[i] / (double)norms[i];
        }
        assert_true(fabs(sum / N - 1) < 1e-5);
        assert_true(largest <= most * 1.0001 && largest >= most * 0.99 && cut > 1);
        assert_true(sum * sum / squares >= N / most);
        for (size_t i = 0; i < N; i++)
            if ((double)weights[i] < largest / 2 && norms[i] > 2)
                assert_true(fabs((double)weights[i] / (double)norms[i] / ratio - 1) < 1e-3);
    }
    /* The more samples there are for each centroid, the less is cut; few are not made all alike. */
    assert_true(calibrate_most_weight(16384, 64) == 8 && calibrate_most_weight(1 << 20, 256) == 128);
    assert_true(calibrate_most_weight(100, 256) == 4);
}

/* ---- Calibration */

static struct terse_calibration small(const char *method) {
    struct terse_calibration o = terse_calibration_defaults();
    o.method = method;
    o.corpus = "random";
    o.window = 100;
    o.windows = 4;
    o.threads = 1;
    return o;
}

static enum terse_status put(void *user, size_t i, struct terse_codebook *codebook, struct terse_error *error) {
    struct terse_codebook **codebooks = user;
    (void)error;
    assert_null(codebooks[i]);
    codebooks[i] = codebook;
    return TERSE_OK;
}

static struct terse_codebook *calibrate(const struct terse_model *m, const struct terse_calibration *o, size_t budget) {
    struct terse_codebook *codebook = NULL;
    struct terse_error error;
    int32_t *tokens = fixture_tokens(m, 600);
    if (calibrate_together(budget, m, o, 1, tokens, 600, (struct calibrate_sink){put, &codebook}, &error))
        fail_msg("%s", error.message);
    free(tokens);
    return codebook;
}

/* Its file, to be freed; the codebook is freed here. */
static char *bytes_of(struct terse_codebook *codebook, size_t *size) {
    char path[] = P_tmpdir "/test_calibrate_XXXXXX", part[64];
    struct terse_error error;
    int made = mkstemp(path);
    assert_true(made >= 0);
    close(made);
    if (terse_codebook_save(codebook, path, &error)) fail_msg("%s", error.message);
    terse_codebook_free(codebook);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *size = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(*size);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *size, file), *size);
    fclose(file);
    unlink(path);
    snprintf(part, sizeof part, "%s.part", path);
    assert_int_not_equal(access(part, F_OK), 0);
    return bytes;
}

static void check_same(const char *what, struct terse_codebook *a, struct terse_codebook *b, bool same) {
    size_t size_a, size_b;
    char *bytes_a = bytes_of(a, &size_a), *bytes_b = bytes_of(b, &size_b);
    if ((size_a == size_b && memcmp(bytes_a, bytes_b, size_a) == 0) != same)
        fail_msg("%s: codebooks are %s", what, same ? "not the same" : "the same");
    free(bytes_a);
    free(bytes_b);
}

/* One KV head: the gradients' work is split within it. With many threads they share a fit, with few each has its own. */
static void threads_change_no_bit(void **state) {
    (void)state;
    const char *names[] = {"llama-untied", "qwen3"};
    const char *methods[] = {"antkv-1", "million-4"};
    for (int i = 0; i < 2; i++) {
        struct terse_model *m = fixture_model(names[i]);
        struct terse_calibration o = small(methods[i]);
        int before = omp_get_max_threads();
        for (uint32_t threads = 2; threads <= 12; threads += threads == 3 ? 9 : 1) {
            struct terse_calibration more = o;
            more.threads = threads;
            check_same(names[i], calibrate(m, &o, ALL), calibrate(m, &more, ALL), true);
        }
        assert_int_equal(omp_get_max_threads(), before);
        terse_model_free(m);
    }
}

static void options_change_the_codebook(void **state) {
    (void)state;
    struct terse_model *m = fixture_model("llama");
    struct terse_calibration o = small("antkv-1"), other = o;
    check_same("again", calibrate(m, &o, ALL), calibrate(m, &other, ALL), true);
    other.seed = 2;
    check_same("seed", calibrate(m, &o, ALL), calibrate(m, &other, ALL), false);
    other = o;
    other.weighting = TERSE_WEIGHTING_NONE;
    check_same("weighting", calibrate(m, &o, ALL), calibrate(m, &other, ALL), false);
    other.weighting = TERSE_WEIGHTING_ROW;
    check_same("rows", calibrate(m, &o, ALL), calibrate(m, &other, ALL), false);
    other = o;
    other.windows = 3;
    check_same("windows", calibrate(m, &o, ALL), calibrate(m, &other, ALL), false);
    check_same("budget", calibrate(m, &o, ALL), calibrate(m, &o, 1), false);
    terse_model_free(m);
}

static void the_codebook_names_its_model_and_text(void **state) {
    (void)state;
    struct terse_model *m = fixture_model("llama");
    struct terse_calibration o = small("antkv-1");
    struct terse_codebook_info info;
    o.seed = 77;
    struct terse_codebook *codebook = calibrate(m, &o, ALL);
    terse_codebook_describe(codebook, &info);
    assert_string_equal(info.method, "antkv-1");
    assert_string_equal(info.model, m->name);
    assert_string_equal(info.corpus, "random");
    assert_non_null(strstr(info.weighting, "per sub-vector"));
    assert_true(info.of_norms);
    assert_int_equal(info.fingerprint, m->norms_fingerprint);
    assert_int_equal(info.tokens, 400);
    assert_int_equal(info.seed, 77);
    assert_false(info.shared);
    assert_true(info.effective_samples > 1 && info.effective_samples < 400);
    terse_codebook_free(codebook);
    /* Without weights every sample counts, of those that the budget leaves. */
    o = small("cq-1");
    o.windows = 0;
    codebook = calibrate(m, &o, m->layers * m->kv_heads * (4 * m->head_dim + 2 * sizeof(float)) * (size_t)300);
    terse_codebook_describe(codebook, &info);
    assert_string_equal(info.weighting, "none");
    assert_int_equal(info.tokens, 600);
    assert_true(fabs(info.effective_samples - 300) < 1e-6);
    terse_codebook_free(codebook);
    terse_model_free(m);
}

/* The first 4 tokens of each window are no samples; of the others, the effective ones are no fewer than what the largest weight leaves. */
static void few_tokens_do_not_decide(void **state) {
    (void)state;
    static const char *const methods[] = {"cq-1", "antkv-2", "commvq-1"};
    struct terse_model *m = fixture_model("gpt2");
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        struct terse_calibration o = small(methods[i]);
        struct terse_codebook_info info;
        o.windows = 0;
        struct terse_codebook *codebook = calibrate(m, &o, ALL);
        terse_codebook_describe(codebook, &info);
        assert_int_equal(info.tokens, 600);
        if (i == 0) assert_true(fabs(info.effective_samples - 6 * 96) < 1e-6);
        if (!(info.effective_samples >= 6 * 96 / calibrate_most_weight(6 * 96, 64)))
            fail_msg("%s: %g effective samples", methods[i], info.effective_samples);
        terse_codebook_free(codebook);
    }
    terse_model_free(m);
}

/* Layers that turn apart, parallel parts, norms of heads by head: every kind of learner. */
static void every_architecture_learns(void **state) {
    (void)state;
    static const char *const models[] = {"gemma3", "command-r", "command-r-norms"};
    static const char *const methods[] = {"terse-2", "antkv-1", "cq-1", "million-2", "commvq-1"};
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        struct terse_model *m = fixture_model(models[i]);
        for (size_t j = 0; j < sizeof methods / sizeof methods[0]; j++) {
            struct terse_calibration o = small(methods[j]);
            struct terse_codebook *codebook = calibrate(m, &o, ALL);
            assert_int_equal(codebook_info(codebook)->layers, m->layers);
            assert_int_equal(codebook_info(codebook)->tokens, 400);
            terse_codebook_free(codebook);
        }
        terse_model_free(m);
    }
}

/* Mean squared error over a KV head's rows [n][hd] of what a codec makes of them with the centroids of some layer and head. */
static double error_with(const struct terse_codebook *codebook, enum codec_side side, uint32_t layer, uint32_t head,
                         const float *rows, size_t n) {
    const struct codebook_info *info = codebook_info(codebook);
    struct coding coding = side == CODEC_KEYS ? info->key : info->value;
    struct codec_shape shape = {.head_dim = info->head_dim,
                                .group = 1,
                                .width = coding.width,
                                .bits = coding.bits,
                                .learned = prepared_learned(codebook, side, layer, head)};
    void *block = memory_array(codec_page_bytes(coding.codec, shape, side), 1);
    float *decoded = malloc((size_t)64 * info->head_dim * sizeof *decoded);
    double sum = 0;
    assert_true(block && decoded);
    for (size_t first = 0; first < n; first += 64) {
        size_t count = n - first < 64 ? n - first : 64;
        cpu_codec_of(coding.codec)->encode(shape, side, rows + first * info->head_dim, count, block);
        cpu_codec_of(coding.codec)->decode(shape, side, block, decoded);
        for (size_t i = 0; i < count * info->head_dim; i++)
            sum += pow((double)decoded[i] - (double)rows[first * info->head_dim + i], 2);
    }
    memory_free(block);
    free(decoded);
    return sum / (double)n;
}

/* Rows of the text that was learned from are told best by the centroids of their own layer, head and side, and those are better
 * than what all share. */
static void centroids_are_those_of_their_own_head(void **state) {
    const char *method = *state;
    struct terse_model *m = fixture_model("llama");
    struct terse_calibration o = small(method);
    struct terse_codebook *own, *shared;
    int32_t *tokens = fixture_tokens(m, 600);
    uint32_t heads = m->layers * m->kv_heads;
    o.windows = 0;
    own = calibrate(m, &o, ALL);
    o.shared = true;
    shared = calibrate(m, &o, ALL);
    assert_true(codebook_info(shared)->shared);
    assert_ptr_equal(prepared_learned(shared, CODEC_KEYS, 0, 0), prepared_learned(shared, CODEC_KEYS, 1, 1));
    enum codec_rope rope = codebook_info(own)->key.codec->rope;
    struct capture_options options = {.side = {{true, rope != CODEC_ROPE_BEFORE, 0}, {true, false, 0}},
                                      .run = rope == CODEC_ROPE_IN_RUN ? ROPE_RUN_TOKENS : 0,
                                      .window = 100,
                                      .positions = m->context,
                                      .budget = ALL};
    struct capture *capture;
    float *rows = malloc((size_t)600 * m->head_dim * sizeof *rows);
    assert_non_null(rows);
    assert_int_equal(capture_new(m, &options, tokens, 600, &capture, NULL), TERSE_OK);
    for (uint32_t at = 0; at < 2 * heads; at++) {
        enum codec_side side = at < heads ? CODEC_KEYS : CODEC_VALUES;
        uint32_t head = at % heads;
        struct capture_reading reading = {side, head / m->kv_heads, head % m->kv_heads, 0, 1, 600};
        capture_rows(capture, &reading, 0, m->head_dim, rows);
        double least = error_with(own, side, head / m->kv_heads, head % m->kv_heads, rows, 600);
        for (uint32_t other = 0; other < heads; other++)
            if (other != head && !(least < error_with(own, side, other / m->kv_heads, other % m->kv_heads, rows, 600)))
                fail_msg("%s, side %d: head %u is told better by head %u", method, side, head, other);
        assert_true(least < error_with(own, (enum codec_side) !side, head / m->kv_heads, head % m->kv_heads, rows, 600));
        assert_true(least < error_with(shared, side, head / m->kv_heads, head % m->kv_heads, rows, 600));
    }
    capture_free(capture);
    terse_codebook_free(own);
    terse_codebook_free(shared);
    free(rows);
    free(tokens);
    terse_model_free(m);
}

/* Methods learn the same together as apart, where the same norms are kept; samples are normalized last and once. */
static void methods_can_learn_together(void **state) {
    (void)state;
    enum { N = 5 };
    struct terse_model *m = fixture_model("llama");
    struct terse_calibration o[N] = {small("antkv-2"), small("antkv-2"), small("cq-2"), small("antkv-2"), small("cq-2")};
    struct terse_codebook *together[N] = {NULL};
    struct calibrate_sink sink = {put, together};
    struct terse_error error;
    int32_t *tokens = fixture_tokens(m, 600);
    o[1].power = 1;
    o[3].weighting = TERSE_WEIGHTING_NONE;
    o[4].weighting = TERSE_WEIGHTING_SUBVECTOR;
    if (calibrate_together(ALL, m, o, N, tokens, 600, sink, &error)) fail_msg("%s", error.message);
    for (int i = 0; i < N; i++) check_same("together and apart", together[i], calibrate(m, &o[i], ALL), true);
    memset(together, 0, sizeof together);
    o[4] = small("million-2");
    assert_int_equal(calibrate_together(ALL, m, o, N, tokens, 600, sink, &error), TERSE_E_UNSUPPORTED);
    for (int i = 0; i < N; i++) assert_null(together[i]);
    o[0] = small("cq-2"); /* has no normalization, so it can learn with any of the others */
    o[4] = small("antkv-2");
    o[4].shared = true;
    assert_int_equal(calibrate_together(ALL, m, o, N, tokens, 600, sink, &error), TERSE_E_UNSUPPORTED);
    free(tokens);
    terse_model_free(m);
}

/* A profile is the same whatever rate it is learned for, and knows its model whatever its weights' quantization. */
static void a_profile_serves_every_rate(void **state) {
    (void)state;
    struct terse_model *m = fixture_model("llama");
    struct terse_calibration o = small("terse-2"), other = small("terse-0.5"), both[2] = {small("antkv-1"), small("terse-2")};
    struct terse_codebook *together[2] = {NULL};
    struct calibrate_sink sink = {put, together};
    struct terse_error error;
    int32_t *tokens = fixture_tokens(m, 600);
    if (calibrate_together(ALL, m, both, 2, tokens, 600, sink, &error)) fail_msg("%s", error.message);
    const struct codebook_info *info = codebook_info(together[1]);
    assert_string_equal(info->method, "terse");
    assert_true(info->fingerprint_of == CODEBOOK_OF_NORMS && info->fingerprint == m->norms_fingerprint);
    assert_true(info->fingerprint != m->fingerprint && codebook_is_profile(info) &&
                !codebook_is_profile(codebook_info(together[0])));
    check_same("together and apart", together[0], calibrate(m, &both[0], ALL), true);
    check_same("together and apart", together[1], calibrate(m, &o, ALL), true);
    check_same("rates", calibrate(m, &o, ALL), calibrate(m, &other, ALL), true);
    other.seed = 2;
    check_same("seeds", calibrate(m, &o, ALL), calibrate(m, &other, ALL), true);
    free(tokens);
    terse_model_free(m);
}

/* Tables of fewer rounds are taken from those of more that were learned of the same samples, whichever was asked for first, and from
 * no others. */
static void tables_learn_together(void **state) {
    (void)state;
    enum { N = 3 };
    struct terse_model *m = fixture_model("llama");
    struct terse_calibration o[N] = {small("commvq-1"), small("commvq-2"), small("commvq-1")};
    struct terse_codebook *together[N] = {NULL};
    struct terse_error error;
    int32_t *tokens = fixture_tokens(m, 600);
    for (int i = 0; i < N; i++) o[i].weighting = TERSE_WEIGHTING_ROW; /* norms of whole heads, whatever else is learned */
    o[2].power = 1;
    if (calibrate_together(ALL, m, o, N, tokens, 600, (struct calibrate_sink){put, together}, &error))
        fail_msg("%s", error.message);
    for (int i = 0; i < N; i++) check_same("together and apart", together[i], calibrate(m, &o[i], ALL), true);
    free(tokens);
    terse_model_free(m);
}

/* ---- Interruption and errors */

struct watch {
    uint64_t calls, allowed, done, total, stages;
    char what[64];
    pthread_t caller;
};

static bool watch_report(void *user, const char *what, uint64_t done, uint64_t total) {
    struct watch *watch = user;
    assert_true(pthread_equal(watch->caller, pthread_self()));
    if (strcmp(what, watch->what) != 0) {
        assert_int_equal(watch->done, watch->total); /* a stage is finished before the next */
        snprintf(watch->what, sizeof watch->what, "%s", what);
        watch->done = 0;
        watch->stages++;
    }
    assert_true(done >= watch->done && done <= total);
    watch->done = done;
    watch->total = total;
    return ++watch->calls <= watch->allowed;
}

static enum terse_status calibrate_watched(const struct terse_model *m, const char *method, uint32_t threads, struct watch *watch) {
    struct terse_calibration o = small(method);
    struct terse_codebook *codebook;
    struct terse_error error;
    int32_t *tokens = fixture_tokens(m, 200);
    o.threads = threads;
    o.progress = (struct terse_progress){watch_report, watch};
    watch->caller = pthread_self();
    enum terse_status status = terse_calibrate(m, &o, tokens, 200, &codebook, &error);
    assert_true(status == (codebook ? TERSE_OK : TERSE_E_INTERRUPTED));
    if (status) assert_null(strchr(error.message, '\n'));
    terse_codebook_free(codebook);
    free(tokens);
    return status;
}

static void every_report_may_stop_it(void **state) {
    (void)state;
    struct terse_model *m = fixture_model("llama");
    for (uint32_t threads = 1; threads <= 2; threads++) {
        for (int weighted = 0; weighted < 2; weighted++) {
            const char *method = weighted ? "antkv-1" : "cq-1";
            struct watch whole = {.allowed = UINT64_MAX};
            size_t before = live;
            assert_int_equal(calibrate_watched(m, method, threads, &whole), TERSE_OK);
            assert_int_equal(whole.stages, 2);
            assert_int_equal(whole.done, whole.total);
            assert_string_equal(whole.what, "centroids");
            /* Few of the reports are the first of their kind; with several threads their number varies, so the last ones are left, and
             * a run on a busy machine may end before as many as are allowed. */
            for (uint64_t allowed = 0; allowed < whole.calls / 2; allowed += 1 + allowed / 4) {
                struct watch watch = {.allowed = allowed};
                enum terse_status status = calibrate_watched(m, method, threads, &watch);
                assert_int_equal(status, threads > 1 && watch.calls <= allowed ? TERSE_OK : TERSE_E_INTERRUPTED);
                if (threads == 1) assert_int_equal(watch.calls, allowed + 1);
            }
            assert_int_equal(live, before);
        }
    }
    terse_model_free(m);
}

static void refuse(const struct terse_model *m, const struct terse_calibration *o, size_t n, enum terse_status code,
                   const char *says) {
    struct terse_codebook *codebook = (void *)&code;
    struct terse_error error;
    int32_t tokens[200] = {0};
    assert_int_equal(terse_calibrate(m, o, tokens, n, &codebook, &error), code);
    assert_null(codebook);
    if (!strstr(error.message, says)) fail_msg("no '%s' in: %s", says, error.message);
    assert_null(strchr(error.message, '\n'));
}

static void wrong_options_are_refused(void **state) {
    (void)state;
    struct terse_model *m = fixture_model("llama");
    struct terse_calibration o = small("f16");
    refuse(m, &o, 200, TERSE_E_ARGUMENT, "f16 learns nothing");
    o.method = "streaming-100";
    refuse(m, &o, 200, TERSE_E_ARGUMENT, "learns nothing");
    o.method = "antkv-5";
    refuse(m, &o, 200, TERSE_E_ARGUMENT, "unknown KV method");
    o = small("antkv-1");
    refuse(m, &o, 99, TERSE_E_ARGUMENT, "99 tokens, too few for a window of 100");
    o.window = m->context + 1;
    refuse(m, &o, 200, TERSE_E_ARGUMENT, "the model's context");
    o.window = 1;
    refuse(m, &o, 200, TERSE_E_ARGUMENT, "windows of 1 tokens");
    o = small("terse-2");
    o.shared = true;
    refuse(m, &o, 200, TERSE_E_ARGUMENT, "do without --shared");
    o = small("terse-2");
    o.text_labels = true;
    refuse(m, &o, 200, TERSE_E_ARGUMENT, "without gradients");
    o = small("terse-2");
    o.window = SINKS;
    refuse(m, &o, 200, TERSE_E_ARGUMENT, "make them longer");
    o = small("antkv-1");
    o.power = 3;
    refuse(m, &o, 200, TERSE_E_ARGUMENT, "power");
    o = small("antkv-1");
    o.weighting = (enum terse_weighting)9;
    refuse(m, &o, 200, TERSE_E_ARGUMENT, "weighting");
    o = small("antkv-1");
    o.threads = 2000;
    refuse(m, &o, 200, TERSE_E_ARGUMENT, "2000 threads");
    terse_model_free(m);
}

static void tokens_outside_the_vocabulary_are_refused(void **state) {
    (void)state;
    struct terse_model *m = fixture_model("llama");
    struct terse_calibration o = small("antkv-1");
    struct terse_codebook *codebook;
    int32_t *tokens = fixture_tokens(m, 200);
    size_t before = live;
    tokens[150] = (int32_t)m->vocabulary;
    assert_int_equal(terse_calibrate(m, &o, tokens, 200, &codebook, NULL), TERSE_E_ARGUMENT);
    assert_null(codebook);
    assert_int_equal(live, before);
    free(tokens);
    terse_model_free(m);
}

static void refused_memory_leaves_nothing(void **state) {
    struct terse_model *m = fixture_model("llama-untied");
    struct terse_calibration o = small(*state);
    int32_t *tokens = fixture_tokens(m, 200);
    enum terse_status status = TERSE_E_MEMORY;
    size_t before = live;
    for (size_t allowed = 0; status; allowed += 1 + allowed / 64) {
        struct terse_codebook *codebook;
        struct terse_error error;
        refused_after = allowed;
        status = terse_calibrate(m, &o, tokens, 200, &codebook, &error);
        refused_after = SIZE_MAX;
        assert_true(status == (codebook ? TERSE_OK : TERSE_E_MEMORY));
        terse_codebook_free(codebook);
        assert_int_equal(live, before);
    }
    free(tokens);
    terse_model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(methods_can_learn_together),
        cmocka_unit_test(a_profile_serves_every_rate),
        cmocka_unit_test(tables_learn_together),
        cmocka_unit_test(weights_are_powers_of_norms),
        cmocka_unit_test(no_sample_outweighs_its_share),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(options_change_the_codebook),
        cmocka_unit_test(the_codebook_names_its_model_and_text),
        cmocka_unit_test(few_tokens_do_not_decide),
        cmocka_unit_test(every_architecture_learns),
        cmocka_unit_test_prestate(centroids_are_those_of_their_own_head, "antkv-1"),
        cmocka_unit_test_prestate(centroids_are_those_of_their_own_head, "cq-2"),
        cmocka_unit_test_prestate(centroids_are_those_of_their_own_head, "million-4"),
        cmocka_unit_test_prestate(centroids_are_those_of_their_own_head, "commvq-2"),
        cmocka_unit_test(every_report_may_stop_it),
        cmocka_unit_test(wrong_options_are_refused),
        cmocka_unit_test(tokens_outside_the_vocabulary_are_refused),
        cmocka_unit_test_prestate(refused_memory_leaves_nothing, "antkv-0.375"),
        cmocka_unit_test_prestate(refused_memory_leaves_nothing, "terse-1"),
    };
    return cmocka_run_group_tests_name("calibrate", tests, NULL, NULL);
}
