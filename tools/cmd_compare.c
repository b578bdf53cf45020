/* Implements `terse compare`: which of two methods is nearer to an f16 cache on a text, and whether the text decides that. Three
 * caches, f16 and the methods', read the same windows side by side, as terse perplexity reads them; positions are compared in pairs.
 * bootstrap.c has the statistics. */
#include "bootstrap.h"
#include "codebooks.h"
#include "commands.h"
#include "rate_choice.h"
#include "setup.h"
#include "text.h"
#include "windows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { A, B, METHODS };
enum { F16, FIRST, SECOND, CACHES }; /* of the windows; a method's is FIRST + its number */

struct method {
    char name[64];  /* as a session takes it */
    char text[256]; /* as messages have it, with other options of the cache */
    struct terse_session_options options;
};

struct compare {
    struct setup setup;
    const char *names[METHODS]; /* as given: auto stands for a method */
    const char *file;
    int64_t chunks;
    struct method methods[METHODS];
    struct windows windows;
    int32_t *tokens;
    size_t n_tokens;
};

/* ---- The methods */

/* Makes the i-th method that of the setup; "auto" still has to choose. */
static int take_method(struct compare *c, size_t i) {
    c->setup.method = c->names[i];
    c->setup.choice = NULL;
    c->setup.why[0] = 0;
    return rate_choice_take(&c->setup);
}

static int choose_method(struct compare *c, size_t i) {
    int status = take_method(c, i);
    if (status == EXIT_OK) status = rate_choice_make(&c->setup, NULL);
    c->setup.least_rate = 0; /* the budget is for both caches together, and each keeps to its rate */
    return status;
}

/* Refuses names before anything is learned for one of them. */
static int check_names(struct compare *c) {
    struct terse_error error;
    bool learns = false;
    for (size_t i = 0; i < METHODS; i++) {
        if (take_method(c, i) != EXIT_OK) return EXIT_FAILED;
        if (setup_try_cache(&c->setup, &error) != TERSE_OK) return complain_error(&error);
        learns = learns || codebooks_needed(&c->setup);
    }
    /* --codebook has an effect where one of the two methods learns. */
    return learns ? EXIT_OK : setup_check_codebook(&c->setup);
}

/* Provides the codebook. That of --codebook is for a method that learns, and none for a terse-N. */
static int provide_codebook(struct setup *setup, struct terse_session_options *options) {
    const char *given = setup->codebook_path;
    if (given && strcmp(given, "none") == 0 && !codebooks_is_profile(setup)) setup->codebook_path = NULL;
    int status = codebooks_provide(setup, options);
    setup->codebook_path = given;
    return status;
}

static int prepare_method(struct compare *c, size_t i) {
    struct method *method = &c->methods[i];
    struct setup *setup = &c->setup;
    int status = choose_method(c, i);
    if (status != EXIT_OK) return status;
    snprintf(method->name, sizeof method->name, "%s", setup->method);
    setup->method = method->name;
    setup_method_text(setup, method->text, sizeof method->text);
    method->options = setup_session_options(setup);
    method->options.context = c->windows.context;
    method->options.progress = windows_progress(&c->windows);
    return provide_codebook(setup, &method->options);
}

static int prepare_methods(struct compare *c) {
    int status = check_names(c);
    for (size_t i = 0; i < METHODS && status == EXIT_OK; i++) status = prepare_method(c, i);
    if (status != EXIT_OK || strcmp(c->methods[A].name, c->methods[B].name) != 0) return status;
    return complain("both methods are %s: name two", c->methods[A].name);
}

/* Says what auto has chosen, and what the user may not expect of a method, once nothing is refused any more. */
static int remark_methods(struct compare *c) {
    for (size_t i = 0; i < METHODS; i++) {
        int status = choose_method(c, i);
        if (status != EXIT_OK) return status;
        rate_choice_say(&c->setup);
        setup_remark_eviction(&c->setup);
    }
    return EXIT_OK;
}

/* ---- The windows */

static int choose_windows(struct compare *c) {
    struct windows *w = &c->windows;
    *w = (struct windows){.model = c->setup.model, .step = WINDOWS_STEP};
    w->context = c->setup.context ? (uint32_t)c->setup.context : WINDOWS_CONTEXT;
    int status = text_read_tokens(c->setup.model, c->file, &c->tokens, &c->n_tokens);
    if (status == EXIT_OK) status = windows_choose(w, c->tokens, c->n_tokens, (uint64_t)c->chunks, c->file);
    if (status != EXIT_OK) return status;
    size_t positions = w->n * kld_rows(w->context);
    if (bootstrap_blocks(positions) >= BOOTSTRAP_LEAST_BLOCKS) return EXIT_OK;
    return complain("%u windows of %u tokens have %zu positions to score, and an interval needs more than %d: give a longer text, "
                    "more --chunks or a larger -c",
                    w->n, w->context, positions, (BOOTSTRAP_LEAST_BLOCKS - 1) * BOOTSTRAP_BLOCK);
}

/* Opens the n-th cache, and its scorer; those of f16 come first, because the others are compared with it. */
static int open_cache(struct compare *c, size_t n, const struct terse_session_options *options) {
    struct windows *w = &c->windows;
    struct terse_error error;
    const struct scorer_base base = {.kept = n == F16, .scorer = n == F16 ? NULL : w->scorers[F16]};
    w->n_caches = n + 1;
    if (terse_session_new(c->setup.engine, options, &w->sessions[n], &error) != TERSE_OK) return complain_error(&error);
    return scorer_new(c->setup.info.vocabulary, w->context, w->n, &base, (int)terse_engine_threads(c->setup.engine),
                      &w->scorers[n]);
}

static int open_caches(struct compare *c) {
    struct terse_session_options half = terse_session_options_defaults();
    half.context = c->windows.context;
    half.allow_longer_context = c->setup.allow_longer;
    half.progress = windows_progress(&c->windows);
    int status = open_cache(c, F16, &half);
    for (size_t i = 0; i < METHODS && status == EXIT_OK; i++) status = open_cache(c, FIRST + i, &c->methods[i].options);
    return status;
}

static const struct score_totals *totals_of(const struct compare *c, size_t cache) {
    return scorer_totals(c->windows.scorers[cache]);
}

static double mean_kld(const struct compare *c, size_t i) {
    const struct score_totals *t = totals_of(c, FIRST + i);
    double kld = t->kld / (double)t->count;
    return fabs(kld) < 5e-9 ? 0 : kld; /* the base's 16-bit codes can leave a sum just below 0, and 0 has no sign */
}

static int read_window(void *user, const int32_t *window) {
    struct compare *c = user;
    int status = windows_read(&c->windows, window);
    if (status != EXIT_OK) return status;
    progress_clear();
    printf("[%u] KLD(A) %.6f  KLD(B) %.6f\n", c->windows.window + 1, mean_kld(c, A), mean_kld(c, B));
    return output_write("", 0) ? EXIT_OK : EXIT_FAILED;
}

/* ---- Results */

/* Computes the intervals of the mean differences B - A, of divergence and of negative log-likelihood. */
static int compare_positions(const struct compare *c, struct interval *kld, struct interval *nll) {
    const struct score_totals *a = totals_of(c, FIRST), *b = totals_of(c, SECOND);
    double *differences = malloc(a->count * sizeof *differences);
    bool done = differences;
    for (size_t i = 0; done && i < a->count; i++) differences[i] = (double)b->kld_values[i] - (double)a->kld_values[i];
    done = done && bootstrap_mean(differences, a->count, kld);
    for (size_t i = 0; done && i < a->count; i++) differences[i] = (double)b->nll_values[i] - (double)a->nll_values[i];
    done = done && bootstrap_mean(differences, a->count, nll);
    free(differences);
    return done ? EXIT_OK : complain("no memory for the differences of %llu positions", (unsigned long long)a->count);
}

static void print_verdict(const struct compare *c, const struct interval *kld) {
    const char *a = c->methods[A].text, *b = c->methods[B].text;
    if (interval_contains(kld, 0))
        printf("The text does not decide between %s and %s: the interval of KLD(B) - KLD(A) contains 0.\n", a, b);
    else
        printf("%s is better than %s on this text: its KL divergence from f16 is smaller, and the interval of the difference does "
               "not contain 0.\n",
               kld->mean > 0 ? a : b, kld->mean > 0 ? b : a);
}

static int print_results(const struct compare *c) {
    static const char letters[METHODS] = {'A', 'B'};
    const struct score_totals *half = totals_of(c, F16);
    struct terse_cache_report cache;
    struct interval kld, nll;
    int status = compare_positions(c, &kld, &nll);
    if (status != EXIT_OK) return status;
    for (size_t i = 0; i < METHODS; i++) {
        terse_session_cache(c->windows.sessions[FIRST + i], &cache);
        printf("%c = %s, %.4f bits per value\n", letters[i], c->methods[i].text, cache.bits_per_value);
    }
    for (size_t i = 0; i < METHODS; i++) printf("KLD(%c) = %.8f\n", letters[i], mean_kld(c, i));
    printf("KLD(B) - KLD(A) = %.8f, 95 %% interval %.8f to %.8f\n", kld.mean, kld.low, kld.high);
    printf("PPL(f16) = %.4f\n", exp(half->nll / (double)half->count));
    for (size_t i = 0; i < METHODS; i++)
        printf("PPL(%c) / PPL(f16) = %.6f\n", letters[i], exp(score_log_ratio(totals_of(c, FIRST + i)).mean));
    printf("PPL(B) / PPL(A) = %.6f, 95 %% interval %.6f to %.6f\n", exp(nll.mean), exp(nll.low), exp(nll.high));
    printf("%llu positions, drawn %d times in blocks of %d; steps of %d tokens\n", (unsigned long long)half->count,
           BOOTSTRAP_RESAMPLES, BOOTSTRAP_BLOCK, WINDOWS_STEP);
    print_verdict(c, &kld);
    return EXIT_OK;
}

/* ---- The command */

static enum options_result parse(struct compare *c, int argc, char **argv) {
    const struct option options[] = {
        {"-f, --file", "FILE", OPTION_TEXT, &c->file, 0, 0, "text to score"},
        {"-c, --ctx-size", "N", OPTION_INTEGER, &c->setup.context, 0, INT32_MAX, "tokens of a window; 0: 512"},
        {"--chunks", "K", OPTION_INTEGER, &c->chunks, 0, INT32_MAX, "windows to score; 0: all"},
    };
    const struct option_set set = {
        .usage = "terse compare A B -f FILE -c N [options]",
        .about =
            "Scores a text with the KV methods A and B, named as for --kv, and with f16 beside them, as terse perplexity\n"
            "does. Prints the divergence of each from f16, the difference with its 95 % interval, and whether the text decides.\n"
            "Other options of the cache are for both methods.\n",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .common = c->setup.common,
        .n_common = SETUP_COMMON,
        .positional = c->names,
        .n_positional = METHODS,
    };
    return options_parse(&set, argc, argv);
}

static int check_options(const struct compare *c) {
    if (!c->names[B]) return complain("it takes two methods: terse compare A B -f FILE");
    if (strcmp(c->names[A], c->names[B]) == 0) return complain("both methods are %s: name two", c->names[A]);
    if (!c->file) return complain("no text: give -f FILE");
    if (c->setup.context && c->setup.context < KLD_LEAST_CONTEXT)
        return complain("-c %lld: a window has at least %d tokens", (long long)c->setup.context, KLD_LEAST_CONTEXT);
    return EXIT_OK;
}

static int start(struct compare *c) {
    int status = setup_load(&c->setup);
    if (status == EXIT_OK) status = setup_engine(&c->setup);
    if (status == EXIT_OK) status = choose_windows(c);
    if (status == EXIT_OK) status = prepare_methods(c);
    if (status == EXIT_OK) status = open_caches(c);
    return status == EXIT_OK ? remark_methods(c) : status;
}

int cmd_compare(int argc, char **argv) {
    struct compare c = {0};
    setup_init(&c.setup);
    enum options_result parsed = parse(&c, argc, argv);
    if (parsed != OPTIONS_GO) return parsed == OPTIONS_HELP ? EXIT_OK : EXIT_FAILED;
    int status = check_options(&c);
    if (status == EXIT_OK) status = start(&c);
    if (status == EXIT_OK) status = windows_each(&c.windows, read_window, &c);
    if (status == EXIT_OK) status = print_results(&c);
    windows_free(&c.windows);
    free(c.tokens);
    setup_free(&c.setup);
    return status;
}
