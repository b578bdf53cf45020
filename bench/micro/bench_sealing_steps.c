/* Times each decoding step of a session, by where it falls among the 64 in which a page fills: once with pages encoded ahead,
 * beside the steps that follow (the method's own window), once within the step that seals them (no window). In the second way the
 * longest step takes longer than the median by the time of encoding; as far as it does not in the first way, encoding overlaps. The
 * cache is filled with random keys and values, and methods that need a codebook get one of random numbers.
 *
 *     bench_sealing_steps MODEL.gguf [DEPTH [METHOD [DEVICE [PAGES]]]]       32768, terse-2, cuda, 8 pages of steps */
#include "base/clock.h"
#include "terse.h"
#include "terse_calibrate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE 64

static void must(enum terse_status status, const struct terse_error *error) {
    if (!status) return;
    fprintf(stderr, "bench_sealing_steps: %s\n", error->message);
    exit(1);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *ms, size_t n) {
    qsort(ms, n, sizeof *ms, ascending);
    return ms[n / 2];
}

/* Returns NULL where the method can do without. */
static struct terse_codebook *codebook_for(const struct terse_model *model, const char *method) {
    struct terse_cache_options options = terse_cache_options_defaults();
    struct terse_codebook *codebook = NULL;
    struct terse_error error;
    char name[64];
    options.method = method;
    must(terse_cache_codebook(&options, name, sizeof name, &error), &error);
    if (name[0] && strcmp(name, "terse") != 0) must(terse_codebook_random(model, method, &codebook, &error), &error);
    return codebook;
}

static void run(struct terse_engine *engine, const char *method, const struct terse_codebook *codebook, uint32_t tail, size_t depth,
                size_t pages) {
    struct terse_session_options options = terse_session_options_defaults();
    struct terse_session *session;
    struct terse_error error;
    double *ms = malloc(pages * PAGE * sizeof *ms), of_place[PAGE], all = 0, longest = 0;
    size_t place = 0;
    if (!ms) exit(1);
    options.cache.method = method;
    options.cache.codebook = codebook;
    options.cache.tail_tokens = tail;
    options.allow_longer_context = true;
    options.context = (uint32_t)(depth + (pages + 2) * PAGE);
    must(terse_session_new(engine, &options, &session, &error), &error);
    must(terse_session_fill_random(session, depth, 1, &error), &error);
    for (size_t i = 0; i < (pages + 1) * PAGE; i++) { /* the first page's steps warm up */
        int32_t token = 17;
        double start = clock_now();
        must(terse_session_decode(session, &token, 1, NULL, &error), &error);
        if (i >= PAGE) ms[i % PAGE * pages + i / PAGE - 1] = 1e3 * (clock_now() - start);
    }
    for (size_t i = 0; i < PAGE; i++) {
        of_place[i] = median(ms + i * pages, pages);
        all += of_place[i];
        if (of_place[i] > longest) longest = of_place[i], place = i;
    }
    qsort(of_place, PAGE, sizeof *of_place, ascending);
    printf("%s, %s: mean %.3f ms, median %.3f, longest %.3f (step %zu of 64), before it %.3f %.3f %.3f\n", method,
           tail ? "encoded ahead" : "encoded within the step", all / PAGE, of_place[PAGE / 2], longest, place, of_place[PAGE - 4],
           of_place[PAGE - 3], of_place[PAGE - 2]);
    terse_session_free(session);
    free(ms);
}

int main(int argc, char **argv) {
    size_t depth = argc > 2 ? (size_t)atoi(argv[2]) : 32768, pages = argc > 5 ? (size_t)atoi(argv[5]) : 8;
    const char *method = argc > 3 ? argv[3] : "terse-2";
    struct terse_engine_options engine_options = terse_engine_options_defaults();
    struct terse_engine *engine;
    struct terse_model *model;
    struct terse_error error;
    if (argc < 2 || pages < 1) {
        fprintf(stderr, "usage: bench_sealing_steps MODEL.gguf [DEPTH [METHOD [DEVICE [PAGES]]]]\n");
        return 1;
    }
    engine_options.device = argc > 4 ? argv[4] : "cuda";
    must(terse_model_load(argv[1], &model, &error), &error);
    must(terse_engine_new(model, &engine_options, &engine, &error), &error);
    struct terse_codebook *codebook = codebook_for(model, method);
    run(engine, method, codebook, 128, depth, pages);
    run(engine, method, codebook, 0, depth, pages);
    terse_codebook_free(codebook);
    terse_engine_free(engine);
    terse_model_free(model);
    return 0;
}
