/* Times calibration: seconds of each stage on the shipped model and text, by number of windows of 2048 tokens and by number of layers,
 * and an extrapolation to the usual 128 windows. Processor time of all threads stands beside wall-clock time: divided by the number of
 * threads it is the time that an idle machine would take. The time for gradients is linear in the number of windows; that for k-means
 * is too, once the text is large enough that the initial centroids are found from a sample.
 *
 *     bench_calibrate [METHOD [WINDOWS [THREADS]]]     antkv-1, up to 32 windows, all processors
 */
#include "base/clock.h"
#include "model/model.h"
#include "terse_calibrate.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { USUAL_WINDOWS = 128 };

struct cost {
    double seconds, processors; /* wall-clock time; processor time of all threads */
};

struct stages {
    struct cost start;
    char what[32]; /* the current stage */
    struct cost first, second;
};

static struct cost now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (struct cost){clock_now(), (double)t.tv_sec + 1e-9 * (double)t.tv_nsec};
}

static struct cost since(struct cost start) {
    struct cost end = now();
    return (struct cost){end.seconds - start.seconds, end.processors - start.processors};
}

static bool watch(void *user, const char *what, uint64_t done, uint64_t total) {
    struct stages *s = user;
    (void)done, (void)total;
    if (strcmp(what, "centroids") == 0 && strcmp(s->what, what) != 0) {
        s->first = since(s->start);
        s->start = now();
    }
    snprintf(s->what, sizeof s->what, "%s", what);
    return true;
}

static void fail(const char *message) {
    fprintf(stderr, "bench_calibrate: %s\n", message);
    exit(1);
}

static int32_t *read_tokens(const struct terse_model *model, size_t *n) {
    FILE *file = fopen(PROJECT_DIR "/data/wiki.valid.raw", "rb");
    struct terse_error error;
    size_t size = 0, capacity = 4 << 20;
    char *text = malloc(capacity);
    int32_t *tokens = malloc(capacity * sizeof *tokens);
    if (!file || !text || !tokens) fail("cannot read data/wiki.valid.raw");
    size = fread(text, 1, capacity - 4, file);
    fclose(file);
    if (terse_tokenize(model, text, size, TERSE_TOKENIZE_ADD_SPECIAL, tokens, capacity, n, &error)) fail(error.message);
    free(text);
    return tokens;
}

static struct stages time_one(const struct terse_model *model, const char *method, uint32_t windows, uint32_t threads,
                              const int32_t *tokens, size_t n) {
    struct terse_calibration options = terse_calibration_defaults();
    struct terse_codebook *codebook;
    struct terse_error error;
    struct stages stages = {.start = now()};
    options.method = method;
    options.windows = windows;
    options.threads = threads;
    options.progress = (struct terse_progress){watch, &stages};
    const char *first = "gradients";
    if (terse_calibrate(model, &options, tokens, n, &codebook, &error)) fail(error.message);
    stages.second = since(stages.start);
    struct terse_codebook_info info;
    terse_codebook_describe(codebook, &info);
    if (strncmp(info.weighting, "none", 4) == 0) first = "keys and values";
    printf("%4u windows %3u layers  %s %7.2f s (%7.2f), %6.3f s a window (%6.3f)  centroids %7.2f s (%7.2f)\n", windows,
           model->layers, first, stages.first.seconds, stages.first.processors, stages.first.seconds / windows,
           stages.first.processors / windows, stages.second.seconds, stages.second.processors);
    fflush(stdout);
    terse_codebook_free(codebook);
    return stages;
}

/* Returns the value at x of the line through two points. */
static double at(double x, double x1, double y1, double x2, double y2) { return y1 + (y2 - y1) * (x - x1) / (x2 - x1); }

int main(int argc, char **argv) {
    const char *method = argc > 1 ? argv[1] : "antkv-1";
    uint32_t most = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 32,
             threads = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0;
    struct terse_model *model;
    struct terse_error error;
    size_t n;
    if (most < 2) fail("give at least 2 windows");
    if (terse_model_load(PROJECT_DIR "/models/lab-27m-q8_0.gguf", &model, &error)) fail(error.message);
    int32_t *tokens = read_tokens(model, &n);
    struct stages before = {0}, last = {0};
    for (uint32_t windows = most / 4 ? most / 4 : 1; windows <= most; windows *= 2) {
        before = last;
        last = time_one(model, method, windows, threads, tokens, n);
    }
    double half = most / 2, all = most, usual = USUAL_WINDOWS;
    double seconds = at(usual, half, before.first.seconds + before.second.seconds, all, last.first.seconds + last.second.seconds);
    double processors =
        at(usual, half, before.first.processors + before.second.processors, all, last.first.processors + last.second.processors);
    printf("%4d windows, along the last two: %.0f s (%.0f of %d processors: %.0f s)\n", USUAL_WINDOWS, seconds, processors,
           threads ? (int)threads : omp_get_num_procs(), processors / (threads ? (int)threads : omp_get_num_procs()));
    for (uint32_t layers = model->layers / 4; layers && layers < model->layers; layers *= 2) {
        struct terse_model shorter = *model; /* its first layers and the output */
        shorter.layers = layers;
        time_one(&shorter, method, most / 2, threads, tokens, n);
    }
    free(tokens);
    terse_model_free(model);
    return 0;
}
