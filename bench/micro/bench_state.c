/* Times saving and loading a session of lab-27m with random keys and values, and the first token after it beside one of the session
 * that was saved, since a loaded session's pages lie in a mapped file. Times are those of the process, the least of some rounds.
 *
 *     bench_state [TOKENS] [METHOD...]      32768, f16 q8_0 terse-2 */
#include "terse.h"
#include "terse_calibrate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 12

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(enum terse_status status, const struct terse_error *error) {
    if (!status) return;
    fprintf(stderr, "bench_state: %s\n", error->message);
    exit(1);
}

static double least(double a, double b) { return a < b ? a : b; }

/* Times one more token, which is taken back again. */
static double time_step(struct terse_session *session) {
    struct terse_error error;
    double start = cpu_seconds();
    must(terse_session_decode(session, &(int32_t){5}, 1, NULL, &error), &error);
    double seconds = cpu_seconds() - start;
    must(terse_session_truncate(session, terse_session_length(session) - 1, &error), &error);
    return seconds;
}

static void measure(struct terse_engine *engine, size_t tokens, const char *method) {
    static const char path[] = "bench_state.tmp";
    struct terse_session_options options = terse_session_options_defaults();
    struct terse_session *session, *loaded = NULL;
    struct terse_error error;
    struct stat file;
    double save = 1e9, load = 1e9, first = 1e9, before = 1e9, after = 1e9;
    options.cache.method = method;
    options.context = (uint32_t)tokens + 1000;
    options.allow_longer_context = true;
    must(terse_session_new(engine, &options, &session, &error), &error);
    must(terse_session_fill_random(session, tokens, 1, &error), &error);
    must(terse_session_decode(session, &(int32_t){5}, 1, NULL, &error), &error);
    for (int i = 0; i < ROUNDS; i++) {
        double start = cpu_seconds();
        must(terse_session_save(session, path, &error), &error);
        double saved = cpu_seconds();
        terse_session_free(loaded);
        double begin = cpu_seconds();
        must(terse_session_load(engine, &options, path, &loaded, &error), &error);
        double end = cpu_seconds();
        save = least(save, saved - start);
        load = least(load, end - begin);
        first = least(first, time_step(loaded));
        for (int j = 0; j < 3; j++) {
            before = least(before, time_step(session));
            after = least(after, time_step(loaded));
        }
    }
    stat(path, &file);
    printf("%-10s %8zu %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f\n", method, tokens, (double)file.st_size / 0x1p20, 1e3 * save,
           1e3 * load, 1e3 * first, 1e3 * after, 1e3 * before);
    terse_session_free(session);
    terse_session_free(loaded);
    unlink(path);
}

int main(int argc, char **argv) {
    static const char *const usual[] = {"f16", "q8_0", "terse-2"};
    struct terse_engine_options one = terse_engine_options_defaults();
    struct terse_model *model;
    struct terse_engine *engine;
    struct terse_error error;
    size_t tokens = argc > 1 ? (size_t)strtoull(argv[1], NULL, 10) : 32768;
    one.threads = 1;
    must(terse_model_load(PROJECT_DIR "/models/lab-27m-q8_0.gguf", &model, &error), &error);
    must(terse_engine_new(model, &one, &engine, &error), &error);
    printf("%-10s %8s %9s %9s %9s %9s %9s %9s   ms of CPU\n", "method", "tokens", "MiB", "save", "load", "first", "loaded",
           "saved");
    for (int i = 2; i < argc; i++) measure(engine, tokens, argv[i]);
    for (size_t i = 0; argc <= 2 && i < 3; i++) measure(engine, tokens, usual[i]);
    terse_engine_free(engine);
    terse_model_free(model);
    return 0;
}
