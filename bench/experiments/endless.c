/* Measures methods that keep a bounded number of tokens on text without end: perplexity over windows of a long text that is decoded from
 * its first token on, as StreamingLLM and MAT measure it, in all and for every 10,000 tokens; memory of the cache and of the process.
 *
 *     endless -f TEXT --methods LIST [options]
 *
 * prints first of which commit it is. bench/experiments/quality.py calls it for docs/reports/endless.md.
 *
 * A method may be followed by :anchors=N and :shallow=N (mat), and by :leave=most, least or random: the candidate with the largest logit
 * to token 0 is evicted (MAT's rule), that with the smallest, or a random one. The other rules test whether the logit matters.
 */
#include "commit.h"
#include "console.h"
#include "engine/engine.h"
#include "kv/cache.h"
#include "options.h"
#include "terse.h"
#include "text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_MODEL PROJECT_DIR "/models/lab-27m-q8_0.gguf"
#define PART 10000 /* tokens; a perplexity is printed for each part */

struct endless {
    const char *model_path, *file, *methods;
    int64_t window, windows, step, threads;
    int64_t block; /* of so many tokens means are printed; 0: of none */
    struct terse_model *model;
    struct terse_engine *engine;
    int32_t *tokens;
    size_t n_tokens;
};

/* ---- Eviction: caches of method mat are made with another pick_victim. */

static enum { EVICT_MOST, EVICT_LEAST, EVICT_RANDOM } victim;
static struct policy own_policy;
static uint64_t random_state = 1;

static size_t pick_victim(const struct policy_parameters *parameters, uint32_t layer, const float *logits, size_t n) {
    if (layer < parameters->shallow || victim == EVICT_MOST) return policy_mat.pick_victim(parameters, layer, logits, n);
    if (victim == EVICT_RANDOM) {
        uint64_t drawn;
#pragma omp critical
        drawn = random_state = random_state * 6364136223846793005u + 1442695040888963407u;
        return 1 + (size_t)(drawn >> 33) % (n - 1);
    }
    size_t least = 1;
    for (size_t i = 2; i < n; i++)
        if (logits[i] < logits[least]) least = i;
    return least;
}

static enum terse_status create(const struct cache_shape *shape, const struct method *method, uint32_t threads,
                                struct cache **cache, struct terse_error *error) {
    struct method own = *method;
    if (own.policy == &policy_mat) {
        own_policy = policy_mat;
        own_policy.pick_victim = pick_victim;
        own.policy = &own_policy;
    }
    return backend_cpu.kv->storage->create(shape, &own, threads, cache, error);
}

static enum terse_status make_engine(struct endless *e, struct terse_error *error) {
    static struct kv_ops ops;
    static struct kv_storage storage;
    struct terse_engine_options options = terse_engine_options_defaults();
    struct backend backend = backend_cpu;
    ops = *backend_cpu.kv;
    storage = *ops.storage;
    storage.create = create;
    ops.storage = &storage;
    backend.kv = &ops;
    options.threads = (uint32_t)e->threads;
    return engine_new(&backend, e->model, &options, &e->engine, error);
}

/* ---- Options of a method */

static int parse_word(const char *word, struct terse_cache_options *cache) {
    unsigned number;
    if (sscanf(word, "anchors=%u", &number) == 1)
        cache->mat_anchors = number;
    else if (sscanf(word, "shallow=%u", &number) == 1)
        cache->mat_shallow = number;
    else if (strcmp(word, "leave=most") == 0)
        victim = EVICT_MOST;
    else if (strcmp(word, "leave=least") == 0)
        victim = EVICT_LEAST;
    else if (strcmp(word, "leave=random") == 0)
        victim = EVICT_RANDOM;
    else
        return complain("\"%s\" is none of anchors=N, shallow=N and leave=most|least|random", word);
    return EXIT_OK;
}

static int parse_method(char *item, struct terse_cache_options *cache) {
    int status = EXIT_OK;
    *cache = terse_cache_options_defaults();
    victim = EVICT_MOST;
    char *word = strchr(item, ':');
    if (word) *word++ = 0;
    while (word && status == EXIT_OK) {
        char *next = strchr(word, ':');
        if (next) *next++ = 0;
        status = parse_word(word, cache);
        word = next;
    }
    cache->method = item;
    return status;
}

/* ---- Measuring */

struct sums {
    double nll, square;
    size_t n;
};

static void add(struct sums *sums, double nll) {
    sums->nll += nll;
    sums->square += nll * nll;
    sums->n++;
}

struct scoring {
    const struct endless *e;
    const int32_t *next; /* the token after each of the step's */
    size_t left;         /* of them */
    struct sums window, part, block;
};

/* Prints the mean of the tokens since the last block, in the words of terse perplexity --block. */
static void end_block(struct scoring *s) {
    if (s->block.n) printf("block of %zu: NLL = %.8f\n", s->block.n, s->block.nll / (double)s->block.n);
    s->block = (struct sums){0};
}

static void score_row(void *user, size_t i, const float *logits) {
    struct scoring *s = user;
    struct terse_model_info info;
    if (i >= s->left) return;
    terse_model_describe(s->e->model, &info);
    double max = -INFINITY, sum = 0;
    for (uint32_t j = 0; j < info.vocabulary; j++) max = logits[j] > max ? (double)logits[j] : max;
    for (uint32_t j = 0; j < info.vocabulary; j++) sum += exp((double)logits[j] - max);
    double nll = max + log(sum) - (double)logits[s->next[i]];
    add(&s->window, nll);
    add(&s->part, nll);
    add(&s->block, nll);
    if (s->e->block && s->block.n == (size_t)s->e->block) end_block(s);
}

/* Returns VmRSS in MiB. */
static double resident(void) {
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    double kib = 0;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "VmRSS: %lf", &kib) == 1) break;
    if (file) fclose(file);
    return kib / 1024;
}

static void print_part(struct scoring *s, struct terse_session *session, size_t done) {
    struct terse_cache_report report;
    terse_session_cache(session, &report);
    progress_clear();
    printf("    %7zu  %8.3f  %8.2f  %8.1f\n", done, exp(s->part.nll / (double)s->part.n), (double)report.resident / 1048576,
           resident());
    fflush(stdout);
    s->part = (struct sums){0};
}

/* Runs tokens[window], the first of which becomes the BOS. */
static enum terse_status run_window(const struct endless *e, struct terse_session *session, int32_t *tokens, struct scoring *s,
                                    bool parts, struct terse_error *error) {
    bool begins;
    int32_t bos = terse_token_bos(e->model, &begins);
    if (begins) tokens[0] = bos;
    terse_session_reset(session);
    s->part = (struct sums){0};
    for (size_t first = 0; first < (size_t)e->window; first += (size_t)e->step) {
        size_t n = (size_t)e->window - first < (size_t)e->step ? (size_t)e->window - first : (size_t)e->step;
        struct terse_logits_sink sink = {score_row, s, 0};
        s->next = tokens + first + 1;
        s->left = first + n < (size_t)e->window ? n : n - 1;
        enum terse_status status = terse_session_decode(session, tokens + first, n, &sink, error);
        if (status) return status;
        if (!progress_show(NULL, "reading", first + n, (uint64_t)e->window)) return TERSE_E_INTERRUPTED;
        if (parts && (first + n) / PART > first / PART) print_part(s, session, first + n);
    }
    return TERSE_OK;
}

static int run_method(const struct endless *e, char *item) {
    struct terse_session_options options = terse_session_options_defaults();
    struct terse_session *session;
    struct terse_error error;
    char name[128];
    snprintf(name, sizeof name, "%s", item);
    int exit_status = parse_method(item, &options.cache);
    if (exit_status != EXIT_OK) return exit_status;
    if (terse_session_new(e->engine, &options, &session, &error)) return complain_error(&error);
    struct scoring scoring = {.e = e};
    bool parts = e->window >= 2 * PART;
    double start = console_seconds();
    enum terse_status status = TERSE_OK;
    printf("%s\n", name);
    if (parts) printf("     tokens       PPL  cache MiB  process MiB\n");
    for (int64_t w = 0; w < e->windows && !status; w++)
        status = run_window(e, session, e->tokens + w * e->window, &scoring, parts, &error);
    struct terse_cache_report cache;
    terse_session_cache(session, &cache);
    terse_session_free(session);
    progress_clear();
    if (status == TERSE_E_INTERRUPTED) return EXIT_INTERRUPTED;
    if (status) return complain_error(&error);
    if (e->block) end_block(&scoring);
    double n = (double)scoring.window.n, mean = scoring.window.nll / n;
    double deviation = sqrt((scoring.window.square / n - mean * mean) / n);
    printf("    all: PPL %.3f +/- %.3f over %zu tokens, %.0f tokens/s\n", exp(mean), exp(mean) * deviation, scoring.window.n,
           n / (console_seconds() - start));
    printf("    cache: %llu bytes, %.4f bits per value\n", (unsigned long long)cache.resident, cache.bits_per_value);
    fflush(stdout);
    return EXIT_OK;
}

static int run(struct endless *e) {
    struct terse_error error;
    char *text;
    size_t n_bytes;
    int status = text_read(e->file, &text, &n_bytes);
    if (status != EXIT_OK) return status;
    if (terse_model_load(e->model_path, &e->model, &error)) {
        free(text);
        return complain_error(&error);
    }
    status = text_tokenize(e->model, text, n_bytes, TERSE_TOKENIZE_ADD_SPECIAL, &e->tokens, &e->n_tokens);
    free(text);
    if (status != EXIT_OK) return status;
    if (make_engine(e, &error)) return complain_error(&error);
    if (e->n_tokens < (size_t)(e->window * e->windows))
        return complain("%s has %zu tokens, %lld windows of %lld need more: use --windows or --window", e->file, e->n_tokens,
                        (long long)e->windows, (long long)e->window);
    char item[128];
    printf("commit %s\n", build_commit());
    while (status == EXIT_OK && list_next(&e->methods, item, sizeof item)) status = run_method(e, item);
    return status;
}

int main(int argc, char **argv) {
    struct endless e = {.model_path = DEFAULT_MODEL, .window = 4096, .windows = 4, .step = 16};
    const struct option options[] = {
        {"-m, --model", "FILE", OPTION_TEXT, &e.model_path, 0, 0, "GGUF model"},
        {"-f, --file", "FILE", OPTION_TEXT, &e.file, 0, 0, "text to read"},
        {"--methods", "LIST", OPTION_TEXT, &e.methods, 0, 0, "METHOD[:anchors=N][:shallow=N][:leave=most|least|random], ..."},
        {"--window", "N", OPTION_INTEGER, &e.window, 2, 1 << 30, "tokens of a window"},
        {"--windows", "N", OPTION_INTEGER, &e.windows, 1, 1 << 20, "windows, each from an empty cache"},
        {"--block", "N", OPTION_INTEGER, &e.block, 0, 1 << 30, "print the mean of every N tokens too; 0: no"},
        {"--step", "N", OPTION_INTEGER, &e.step, 1, 4096, "tokens of a decoding step, exact among themselves"},
        {"-t, --threads", "N", OPTION_INTEGER, &e.threads, 0, 1024, "threads; 0: one per processor"},
    };
    const struct option_set set = {.usage = "endless -f TEXT --methods LIST [options]",
                                   .about = "Perplexity and memory of methods that evict, over long texts.\n",
                                   .options = options,
                                   .n_options = sizeof options / sizeof options[0]};
    console_begin("endless");
    enum options_result parsed = options_parse(&set, argc - 1, argv + 1);
    if (parsed != OPTIONS_GO) return console_end(parsed == OPTIONS_HELP ? EXIT_OK : EXIT_FAILED);
    if (!e.file || !e.methods) return console_end(complain("-f TEXT and --methods LIST are needed; see --help"));
    int status = run(&e);
    free(e.tokens);
    terse_engine_free(e.engine);
    terse_model_free(e.model);
    return console_end(status);
}
