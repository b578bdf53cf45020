/* Implements `terse perplexity`: the quality of a model with its real cache. For each window of -c tokens the first half is
 * prefilled and sealed, the second half is fed by decoding steps, and the positions context/2 .. context-2 are scored by the token
 * that follows each, as llama.cpp's tool does. --paper reads the whole window in the papers' protocol instead; the same positions
 * are scored. --free-running lets the cache go on from the first half by itself. */
#include "codebooks.h"
#include "commands.h"
#include "free_running.h"
#include "rate_choice.h"
#include "setup.h"
#include "text.h"
#include "windows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct perplexity {
    struct setup setup;
    const char *file, *base_path;
    bool compare, paper;
    int64_t chunks, ubatch;
    int64_t block;   /* of so many positions means are printed, too; 0: of none */
    int64_t written; /* tokens that the cache writes by itself after each first half; 0: the second half is read instead */

    struct windows windows; /* with one cache, or none where free_running is not NULL */
    int32_t *tokens;        /* of the file, or NULL */
    size_t n_tokens;
    struct kld_reader *reader;
    struct kld_writer *writer;
    struct free_running *free_running;
};

/* ---- Tokens */

/* Checks the base file, which must be of this model and, where they were given, of this context and this text. */
static int check_base(struct perplexity *p) {
    const struct kld_header *header = kld_reader_header(p->reader);
    const int32_t *tokens = kld_reader_tokens(p->reader);
    size_t n = (size_t)header->chunks * header->context;
    if (header->vocabulary != p->setup.info.vocabulary)
        return complain("%s is for a vocabulary of %u tokens and the model has %u: it belongs to another model", p->base_path,
                        header->vocabulary, p->setup.info.vocabulary);
    if (p->setup.context && (uint32_t)p->setup.context != header->context)
        return complain("%s has windows of %u tokens, not %lld; omit -c", p->base_path, header->context,
                        (long long)p->setup.context);
    if (!p->file) return EXIT_OK;
    if (p->n_tokens < n)
        return complain("%s has %zu tokens and %s was made from at least %zu: it belongs to another text", p->file, p->n_tokens,
                        p->base_path, n);
    for (size_t i = 0; i < n; i++)
        if (tokens[i] != p->tokens[i])
            return complain("%s and %s differ from token %zu on: the base belongs to another text", p->file, p->base_path, i);
    return EXIT_OK;
}

/* Chooses the text, the context and the number of windows. */
static int choose_windows(struct perplexity *p) {
    struct windows *w = &p->windows;
    int status;
    *w = (struct windows){.model = p->setup.model, .step = (uint32_t)p->ubatch, .paper = p->paper};
    if (p->file && (status = text_read_tokens(p->setup.model, p->file, &p->tokens, &p->n_tokens)) != EXIT_OK) return status;
    if (!p->compare) {
        w->context = p->setup.context ? (uint32_t)p->setup.context : WINDOWS_CONTEXT;
        return windows_choose(w, p->tokens, p->n_tokens, (uint64_t)p->chunks, p->file);
    }
    if ((status = kld_reader_open(p->base_path, &p->reader)) != EXIT_OK) return status;
    if ((status = check_base(p)) != EXIT_OK) return status;
    const struct kld_header *header = kld_reader_header(p->reader);
    w->context = header->context;
    return windows_choose(w, kld_reader_tokens(p->reader), (size_t)header->chunks * header->context, (uint64_t)p->chunks,
                          p->base_path);
}

/* ---- Windows */

static void print_running(const struct perplexity *p) {
    const struct score_totals *t = scorer_totals(p->windows.scorers[0]);
    progress_clear();
    printf("[%u] %.4f", p->windows.window + 1, exp(t->nll / (double)t->count));
    if (p->reader) {
        double kld = t->kld / (double)t->count;
        if (fabs(kld) < 5e-7) kld = 0; /* the 16-bit codes of a base can leave a sum just below 0, and 0 has no sign */
        printf("  KLD %.6f  same top %.2f %%", kld, 100 * (double)t->same_top / (double)t->count);
    }
    output_write("\n", 1);
}

static int read_window(void *user, const int32_t *window) {
    struct perplexity *p = user;
    if (p->free_running) return free_running_window(p->free_running, window);
    int status = windows_read(&p->windows, window);
    if (status == EXIT_OK) print_running(p);
    return status;
}

/* ---- Results */

static void print_kld(struct scorer *scorer) {
    static const struct {
        const char *name;
        double fraction;
    } quantiles[] = {{"median", 0.5}, {"90 %", 0.9}, {"95 %", 0.95}, {"99 %", 0.99}, {"99.9 %", 0.999}, {"max", 1}};
    const struct score_totals *t = scorer_totals(scorer);
    struct estimate base = estimate_exp(estimate_mean(t->base_nll, t->base_nll_squared, t->count));
    struct estimate ratio = estimate_exp(score_log_ratio(t)), kld = estimate_mean(t->kld, t->kld_squared, t->count);
    double same = (double)t->same_top / (double)t->count;
    printf("PPL(base) = %.4f +/- %.4f\n", base.mean, base.error);
    printf("PPL / PPL(base) = %.6f +/- %.6f\n", ratio.mean, ratio.error);
    printf("KLD mean = %.8f +/- %.8f\n", kld.mean, kld.error);
    scorer_sort_kld(scorer);
    for (size_t i = 0; i < sizeof quantiles / sizeof quantiles[0]; i++)
        printf("KLD %s = %.8f\n", quantiles[i].name, scorer_kld_quantile(scorer, quantiles[i].fraction));
    printf("same top-1 = %.3f +/- %.3f %%\n", 100 * same,
           100 * sqrt(same * (1 - same) / (double)(t->count > 1 ? t->count - 1 : 1)));
}

/* Prints means of blocks of neighbouring positions, by which runs over the same base are compared in pairs. */
static void print_blocks(const struct score_totals *t, size_t size) {
    for (size_t first = 0; first < t->count; first += size) {
        const size_t end = t->count - first < size ? t->count : first + size;
        double nll = 0, kld = 0;
        for (size_t i = first; i < end; i++) {
            nll += (double)t->nll_values[i];
            kld += (double)t->kld_values[i];
        }
        const double n = (double)(end - first);
        printf("block of %zu: NLL = %.8f, KLD = %.8f\n", end - first, nll / n, kld / n);
    }
}

static void print_results(const struct perplexity *p) {
    const struct score_totals *t = scorer_totals(p->windows.scorers[0]);
    struct estimate ppl = estimate_exp(estimate_mean(t->nll, t->nll_squared, t->count));
    struct terse_cache_report cache;
    char method[128], rates[160];
    terse_session_cache(p->windows.sessions[0], &cache);
    printf("PPL = %.4f +/- %.4f\n", ppl.mean, ppl.error);
    printf("KV cache = %llu bytes resident after %llu tokens, %.4f bits per value (%s%s)", (unsigned long long)cache.resident,
           (unsigned long long)cache.tokens, cache.bits_per_value, setup_method_text(&p->setup, method, sizeof method),
           setup_rates_text(&cache, rates, sizeof rates));
    /* The step's length is printed because it decides which tokens a method evicts or seals between two steps. */
    if (!p->paper) printf(", steps of %lld tokens", (long long)p->ubatch);
    putchar('\n');
    if (p->block) print_blocks(t, (size_t)p->block); /* before the divergences are sorted */
    if (p->reader) print_kld(p->windows.scorers[0]);
}

/* ---- The command */

static int check_free_running(const struct perplexity *p) {
    int64_t context = p->setup.context ? p->setup.context : WINDOWS_CONTEXT, room = context - context / 2;
    if (p->base_path || p->compare)
        return complain("--free-running compares with an f16 cache of its own: omit --kl-divergence and --kl-divergence-base");
    if (p->paper) return complain("--free-running writes by decoding steps: omit --paper");
    if (p->ubatch != WINDOWS_STEP && p->ubatch != 1) return complain("--free-running writes one token a step: omit --ubatch");
    if (p->written <= room) return EXIT_OK;
    return complain("--free-running %lld: behind half of %lld tokens there is room for %lld: use a smaller number, or -c %lld",
                    (long long)p->written, (long long)context, (long long)room, (long long)p->written * 2);
}

static int check_options(struct perplexity *p) {
    int status = rate_choice_take(&p->setup);
    if (status != EXIT_OK) return status;
    if (p->compare && !p->base_path) return complain("--kl-divergence compares with a base: add --kl-divergence-base FILE");
    if (!p->file && !p->compare) return complain("no text: give -f FILE");
    if (p->block && !p->compare) return complain("--block has means of divergences: add --kl-divergence");
    if (p->setup.context && p->setup.context < KLD_LEAST_CONTEXT)
        return complain("-c %lld: a window has at least %d tokens", (long long)p->setup.context, KLD_LEAST_CONTEXT);
    if (p->paper && p->setup.prefill != TERSE_PREFILL_EXACT) return complain("--paper and --prefill exclude each other");
    if (p->written && check_free_running(p) != EXIT_OK) return EXIT_FAILED;
    return setup_check_codebook(&p->setup);
}

static enum options_result parse(struct perplexity *p, int argc, char **argv) {
    const struct option options[] = {
        {"-f, --file", "FILE", OPTION_TEXT, &p->file, 0, 0, "text to score; with --kl-divergence the base brings its tokens"},
        {"-c, --ctx-size", "N", OPTION_INTEGER, &p->setup.context, 0, INT32_MAX, "tokens of a window; 0: 512, or the base's"},
        {"--chunks", "K", OPTION_INTEGER, &p->chunks, 0, INT32_MAX, "windows to score; 0: all"},
        {"-ub, --ubatch|--ubatch-size", "U", OPTION_INTEGER, &p->ubatch, 1, INT32_MAX,
         "tokens per decoding step of the second half; 1: as in generating"},
        {"--paper", NULL, OPTION_FLAG, &p->paper, 0, 0, "every token reads the compressed cache, its own key included"},
        {"--kl-divergence-base", "FILE", OPTION_TEXT, &p->base_path, 0, 0, "write a base file (llama.cpp's format)"},
        {"--kl-divergence", NULL, OPTION_FLAG, &p->compare, 0, 0, "read the base file instead and compare with it"},
        {"--block", "N", OPTION_INTEGER, &p->block, 0, INT32_MAX,
         "with --kl-divergence, print the means of every N positions too; 0: no"},
        {"--free-running", "N", OPTION_INTEGER, &p->written, 0, INT32_MAX,
         "let the cache write N tokens after each first half instead, and f16 score them; 0: no"},
        {"--kv", "METHOD", OPTION_TEXT, &p->setup.method, 0, 0, p->setup.method_help},
    };
    const struct option_set set = {
        .usage = "terse perplexity -f FILE -c N [options]",
        .about = "Cuts a text into windows, prefills the first half of each, feeds the second half through the KV cache\n"
                 "by decoding steps and scores it. Prints the running perplexity, PPL = x +/- y and the cache's size.\n",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .common = p->setup.common,
        .n_common = SETUP_COMMON,
        .llama_flags = true,
    };
    return options_parse(&set, argc, argv);
}

static int start(struct perplexity *p) {
    struct terse_error error;
    int status = setup_load(&p->setup);
    if (status == EXIT_OK) status = rate_choice_make(&p->setup, NULL);
    if (status == EXIT_OK) status = setup_engine(&p->setup);
    if (status == EXIT_OK) setup_remark_eviction(&p->setup);
    if (status != EXIT_OK) return status;
    if ((status = choose_windows(p)) != EXIT_OK) return status;

    struct windows *w = &p->windows;
    struct terse_session_options options = setup_session_options(&p->setup);
    options.context = w->context;
    options.progress = windows_progress(w);
    if (p->paper) options.prefill = TERSE_PREFILL_PAPER;
    if ((status = codebooks_provide(&p->setup, &options)) != EXIT_OK) return status;
    if (p->written) return free_running_new(&p->setup, &options, w->context / 2, (size_t)p->written, w->n, &p->free_running);
    w->n_caches = 1;
    if (terse_session_new(p->setup.engine, &options, &w->sessions[0], &error) != TERSE_OK) return complain_error(&error);

    uint32_t vocabulary = p->setup.info.vocabulary;
    if (p->base_path && !p->compare && console_is_first()) {
        const struct kld_header header = {w->context, vocabulary, w->n};
        if ((status = kld_writer_open(p->base_path, &header, p->tokens, &p->writer)) != EXIT_OK) return status;
    }
    const struct scorer_base base = {.writer = p->writer, .reader = p->reader};
    return scorer_new(vocabulary, w->context, w->n, &base, (int)terse_engine_threads(p->setup.engine), &w->scorers[0]);
}

int cmd_perplexity(int argc, char **argv) {
    struct perplexity p = {.ubatch = WINDOWS_STEP};
    setup_init(&p.setup);
    enum options_result parsed = parse(&p, argc, argv);
    if (parsed != OPTIONS_GO) return parsed == OPTIONS_HELP ? EXIT_OK : EXIT_FAILED;
    int status = check_options(&p);
    if (status == EXIT_OK) status = start(&p);
    if (status == EXIT_OK) rate_choice_say(&p.setup);
    if (status == EXIT_OK) status = windows_each(&p.windows, read_window, &p);
    if (status == EXIT_OK && p.writer) status = kld_writer_commit(p.writer);
    if (status == EXIT_OK && p.free_running) free_running_print(p.free_running);
    if (status == EXIT_OK && !p.free_running) print_results(&p);
    free_running_free(p.free_running);
    windows_free(&p.windows);
    kld_writer_free(p.writer);
    kld_reader_free(p.reader);
    free(p.tokens);
    setup_free(&p.setup);
    return status;
}
