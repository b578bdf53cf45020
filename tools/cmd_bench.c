/* Implements `terse bench`: how fast prompts are read and tokens decoded with a given number of tokens in the cache, which part of
 * a step is attention, and how near its reading comes to the memory bandwidth measured in the same run. With `--kv all` the repeats
 * of every method alternate with repeats of f16. */
#include "bandwidth.h"
#include "codebooks.h"
#include "commands.h"
#include "setup.h"
#include "speed.h"
#include "table.h"
#include "text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DEPTHS = 32 };
enum { BY_KIND = -1 }; /* a number that was not given: its default depends on whether methods are named or all are measured */

/* An item is a line of the table that `--kv all` prints. */
struct item {
    const char *method;
    double read_percent; /* 0: the method's own */
    const char *label;   /* NULL: as setup_method_text has it */
};

/* f16 comes first, because the others are measured beside it. */
static const struct item all_items[] = {
    {"f16", 0, NULL},
    {"q8_0", 0, NULL},
    {"q4_0", 0, NULL},
    {"terse-4", 0, NULL},
    {"terse-3", 0, NULL},
    {"terse-2", 0, NULL},
    {"terse-1", 0, NULL},
    {"terse-0.5", 0, NULL},
    {"kivi-4", 0, NULL},
    {"kivi-2", 0, NULL},
    {"million-4", 0, NULL},
    {"million-3", 0, NULL},
    {"million-2", 0, NULL},
    {"antkv-4", 0, NULL},
    {"antkv-2", 0, NULL},
    {"antkv-1", 0, NULL},
    {"antkv-0.75", 0, NULL},
    {"antkv-0.375", 0, NULL},
    {"commvq-2", 0, NULL},
    {"commvq-1", 0, NULL},
    {"selfindex-2", 100, NULL},
    {"selfindex-2", 7.5, NULL},
    {"selfindex-16", 7.5, NULL},
    {"quest-1", 7.5, "quest, reading 7.5%"},
    {"streaming-1024", 0, NULL},
    {"mat-1024", 0, NULL},
    {"snapkv-1024", 0, NULL},
};
enum { N_ALL = sizeof all_items / sizeof all_items[0] };

struct bench {
    struct setup setup;
    const char *methods, *depths, *file;
    int64_t n_prompt, n_decode, repeats, parallel;
    int format, fill_text;
    char kv_help[640];
    bool all;             /* --kv all: the methods of all_items, */
    bool left_out[N_ALL]; /* except these, which the model cannot use */
    size_t item;          /* of all_items, the current one */

    int threads;
    double read_rate; /* of the machine, bytes per second */
    uint32_t depth[MOST_DEPTHS];
    size_t n_depths;
    size_t first_depth, end_depth; /* the current ones */
    struct speed_batch half;       /* f16's, whose repeats alternate with the others' */
    uint32_t longest;              /* tokens that any test holds */
    int32_t *text;                 /* tokens of -f */
    size_t n_text;
    int32_t *random;      /* [longest] */
    uint64_t done, total; /* runs, for the progress */
    struct {              /* tokens of the current run: all (0: outside of one), read before the current call, read by it */
        uint64_t total, before, reading;
    } run;
    cJSON *rows;
};

/* ---- Runs */

/* Shows the runs done and a part, 0..1, of the next one. Returns false after an interrupt. */
static bool show_done(const struct bench *b, double part) {
    enum { STEPS = 1000 }; /* of the bar, a run */
    return progress_show(NULL, "bench", STEPS * b->done + (uint64_t)(STEPS * part), STEPS * b->total);
}

/* Shows the session's progress within a prefill. */
static bool report_prefill(void *user, const char *what, uint64_t done, uint64_t total) {
    const struct bench *b = user;
    (void)what;
    if (!b->run.total) return !console_interrupted();
    double tokens = (double)b->run.before + (double)b->run.reading * (double)done / (double)total;
    return show_done(b, tokens / (double)b->run.total);
}

/* Reads tokens[n] after the `before` of a run. */
static int prefill(struct bench *b, struct terse_session *session, const int32_t *tokens, uint32_t before, uint32_t n) {
    struct terse_error error;
    b->run.before = before;
    b->run.reading = n;
    if (terse_session_prefill(session, tokens, n, NULL, &error) != TERSE_OK) return complain_error(&error);
    return EXIT_OK;
}

static int fill_session(struct bench *b, struct terse_session *session, uint32_t depth, uint64_t seed) {
    int status = EXIT_OK;
    if (!b->fill_text) return speed_fill(session, depth, seed);
    terse_session_reset(session);
    for (uint32_t at = 0, n; at < depth && status == EXIT_OK; at += n) { /* the text over and over */
        n = depth - at < b->n_text ? depth - at : (uint32_t)b->n_text;
        status = prefill(b, session, b->text, at, n);
    }
    return status;
}

/* Fills the caches of all sessions anew, for the repeat of that number, from 0 on. */
static int fill(struct bench *b, const struct speed_batch *batch, uint32_t depth, size_t repeat) {
    int status = EXIT_OK;
    for (size_t i = 0; i < batch->n && status == EXIT_OK; i++) {
        if (console_interrupted()) return EXIT_INTERRUPTED;
        status = fill_session(b, batch->items[i].session, depth, repeat * batch->n + i + 1);
    }
    return status;
}

/* Times n tokens that each session reads as a prompt, one after the other, or decodes one by one, together with the others, after
 * the `depth` that its cache holds. */
static int time_tokens(struct bench *b, const struct speed_batch *batch, uint32_t depth, uint32_t n, bool prompt,
                       struct speed_samples *samples) {
    int status = EXIT_OK;
    double begin = speed_begin(batch);
    for (size_t i = 0; prompt && i < batch->n && status == EXIT_OK; i++)
        status = prefill(b, batch->items[i].session, b->random, depth, n);
    if (!prompt) status = speed_decode(batch, b->random, n);
    if (status == EXIT_OK) speed_end(batch, begin, n, samples);
    return status;
}

/* Runs one test once, from its filling on. */
static int run_once(struct bench *b, const struct speed_batch *batch, uint32_t depth, uint32_t n, bool prompt,
                    struct speed_samples *samples) {
    b->run.total = (uint64_t)depth + n;
    int status = fill(b, batch, depth, samples->n);
    return status == EXIT_OK ? time_tokens(b, batch, depth, n, prompt, samples) : status;
}

/* ---- Rows */

static const struct table_column columns[] = {
    {"model", NULL, 0},
    {"weights", NULL, 0},
    {"weight_bytes", NULL, 0},
    {"cpu", NULL, 0},
    {"threads", NULL, 0},
    {"kv", "KV", 0},
    {"codebook", NULL, 0},
    {"kv_mib", "KV MiB", 2},
    {"bits_per_value", "bits/value", 2},
    {"test", "test", 0},
    {"tokens_per_second", "tokens/s", 2},
    {"deviation", "+/-", 2},
    {"speed_over_f16", "over f16", 2},
    {"attention_ms", "attention ms/token", 4},
    {"faster_than_f16", "faster than f16", 2},
    {"attention_mb", "KV read MB/token", 3},
    {"attention_gb_per_second", "attention GB/s", 2},
    {"attention_of_machine", "of machine", 3},
    {"decode_gb_per_second", "weights + KV GB/s", 2},
    {"decode_of_machine", "of machine", 3},
    {"machine_gb_per_second", NULL, 2},
};
enum { N_COLUMNS = sizeof columns / sizeof columns[0] };

static const char *method_label(const struct bench *b, char *buffer, size_t capacity) {
    if (b->all && all_items[b->item].label) return all_items[b->item].label;
    return setup_method_text(&b->setup, buffer, capacity);
}

/* Adds a row. The columns that compare it with f16 or the machine are filled in later, since the bandwidth is measured a second time at the end. */
static cJSON *add_row(struct bench *b, uint32_t depth, uint32_t n, bool prompt, const struct speed_samples *s) {
    char test[64], method[128];
    double mean, deviation;
    cJSON *row = cJSON_CreateObject();
    speed_mean(s, &mean, &deviation);
    snprintf(test, sizeof test, "%s%u", prompt ? "pp" : "tg", n);
    if (b->parallel > 1) snprintf(test + strlen(test), sizeof test - strlen(test), " x %" PRId64, b->parallel);
    if (depth) snprintf(test + strlen(test), sizeof test - strlen(test), " @ d%u", depth);
    cJSON_AddStringToObject(row, "model", b->setup.info.name);
    cJSON_AddStringToObject(row, "weights", b->setup.info.weights);
    cJSON_AddNumberToObject(row, "weight_bytes", (double)b->setup.info.bytes);
    cJSON_AddStringToObject(row, "cpu", terse_cpu_name());
    cJSON_AddNumberToObject(row, "threads", b->threads);
    cJSON_AddStringToObject(row, "kv", method_label(b, method, sizeof method));
    cJSON_AddStringToObject(row, "codebook", !codebooks_needed(&b->setup) ? "" : b->setup.random_codebooks ? "random" : "learned");
    cJSON_AddNumberToObject(row, "kv_mib", (double)s->resident / 0x1p20);
    cJSON_AddNumberToObject(row, "bits_per_value", s->cache.bits_per_value);
    cJSON_AddStringToObject(row, "test", test);
    cJSON_AddNumberToObject(row, "tokens_per_second", mean);
    cJSON_AddNumberToObject(row, "deviation", deviation);
    if (!prompt) {
        double steps = (double)n * (double)s->n, tokens = steps * (double)b->parallel;
        double seconds = s->counters.attention_seconds;
        double bytes = (double)s->counters.attention_bytes;
        double all = bytes + steps * (double)(b->setup.info.bytes - b->setup.info.embedding_bytes);
        cJSON_AddNumberToObject(row, "attention_ms", 1e3 * seconds / tokens);
        cJSON_AddNumberToObject(row, "attention_mb", 1e-6 * bytes / tokens);
        cJSON_AddNumberToObject(row, "attention_gb_per_second", seconds > 0 ? 1e-9 * bytes / seconds : 0);
        cJSON_AddNumberToObject(row, "decode_gb_per_second", 1e-9 * all / s->seconds);
    }
    cJSON_AddItemToArray(b->rows, row);
    return row;
}

static void add_ratio(cJSON *row, const char *key, const char *rate, double machine) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(row, rate);
    if (item && machine > 0) cJSON_AddNumberToObject(row, key, item->valuedouble / machine);
}

static const char *text_of(const cJSON *row, const char *key) {
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(row, key));
}

static double number_of(const cJSON *row, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(row, key);
    return item ? item->valuedouble : 0;
}

/* Adds to the row how it compares with f16's row of the same test, if f16 was among the methods named. */
static void compare_with_f16(const cJSON *rows, cJSON *row) {
    const cJSON *half;
    double own = number_of(row, "attention_ms");
    if (cJSON_GetObjectItemCaseSensitive(row, "speed_over_f16")) return;
    cJSON_ArrayForEach(half, rows) {
        if (strcmp(text_of(half, "kv"), "f16") != 0 || strcmp(text_of(half, "test"), text_of(row, "test")) != 0) continue;
        double rate = number_of(half, "tokens_per_second");
        cJSON_AddNumberToObject(row, "speed_over_f16", number_of(row, "tokens_per_second") / rate);
        if (own > 0) cJSON_AddNumberToObject(row, "faster_than_f16", number_of(half, "attention_ms") / own);
        return;
    }
}

static int print_rows(struct bench *b) {
    double machine = 1e-9 * b->read_rate;
    cJSON *row;
    cJSON_ArrayForEach(row, b->rows) {
        compare_with_f16(b->rows, row);
        add_ratio(row, "attention_of_machine", "attention_gb_per_second", machine);
        add_ratio(row, "decode_of_machine", "decode_gb_per_second", machine);
        cJSON_AddNumberToObject(row, "machine_gb_per_second", machine);
    }
    if (b->format == TABLE_MARKDOWN)
        printf("%s, %.1f M parameters, %s, %.1f MiB; %d threads (%s); the machine reads %.1f GB/s\n\n", b->setup.info.name,
               1e-6 * (double)b->setup.info.parameters, b->setup.info.weights, (double)b->setup.info.bytes / 0x1p20, b->threads,
               terse_cpu_name(), machine);
    if (b->format == TABLE_MARKDOWN && b->setup.random_codebooks)
        printf("Codebooks are random numbers: times are real, what was generated is noise.\n\n");
    return table_print(b->rows, columns, N_COLUMNS, (enum table_format)b->format);
}

/* ---- All tests */

static int run_test(struct bench *b, const struct speed_batch *batch, uint32_t depth, uint32_t n, bool prompt) {
    struct speed_samples *samples = calloc(1, sizeof *samples);
    int status = EXIT_OK;
    if (!samples) return complain("no memory for the samples");
    for (int64_t i = 0; i < b->repeats && status == EXIT_OK; i++) {
        status = run_once(b, batch, depth, n, prompt, samples);
        b->done++;
        if (status == EXIT_OK && !show_done(b, 0)) status = EXIT_INTERRUPTED;
    }
    if (status == EXIT_OK) add_row(b, depth, n, prompt, samples);
    free(samples);
    return status;
}

/* Runs a repeat of a test beside f16: prompts fill the cache anew, decoded tokens are appended to those of the repeat before. */
static int run_repeat(struct bench *b, const struct speed_batch *batch, uint32_t depth, uint32_t n, bool prompt,
                      struct speed_samples *samples) {
    if (prompt) return run_once(b, batch, depth, n, prompt, samples);
    int status = samples->n ? EXIT_OK : fill(b, batch, depth, 0);
    return status == EXIT_OK ? time_tokens(b, batch, depth, n, prompt, samples) : status;
}

/* Runs a test whose repeats alternate with f16's, so that other load on the machine affects both. The fastest repeats are compared. */
static int run_beside_f16(struct bench *b, const struct speed_batch *batch, uint32_t depth, uint32_t n, bool prompt) {
    struct speed_samples *own = calloc(1, sizeof *own), *half = calloc(1, sizeof *half);
    int status = own && half ? EXIT_OK : complain("no memory for the samples");
    bool other = batch != &b->half;
    for (int64_t i = 0; i < b->repeats && status == EXIT_OK; i++) {
        if (other) status = run_repeat(b, &b->half, depth, n, prompt, half);
        if (status == EXIT_OK) status = run_repeat(b, batch, depth, n, prompt, own);
        b->done++;
        if (status == EXIT_OK && !show_done(b, 0)) status = EXIT_INTERRUPTED;
    }
    if (status == EXIT_OK) {
        cJSON *row = add_row(b, depth, n, prompt, own);
        cJSON_AddNumberToObject(row, "speed_over_f16", other ? speed_fastest(own) / speed_fastest(half) : 1);
        if (!prompt) cJSON_AddNumberToObject(row, "faster_than_f16", other ? half->attention / own->attention : 1);
    }
    free(own);
    free(half);
    return status;
}

/* Touches the weights and grows the buffers once, so that the first repeat is like the others. */
static int warm_up(struct bench *b, const struct speed_batch *batch) {
    struct terse_error error;
    struct terse_session *first = batch->items[0].session;
    uint32_t n = b->n_prompt ? (uint32_t)b->n_prompt : 1;
    b->run.total = 0;
    terse_session_reset(first);
    if (terse_session_prefill(first, b->random, n, NULL, &error) != TERSE_OK) return complain_error(&error);
    terse_session_reset(first);
    return speed_decode(batch, b->random, 1);
}

static void free_batch(struct speed_batch *batch) {
    for (size_t i = 0; i < batch->n; i++) terse_session_free(batch->items[i].session);
    free(batch->items);
    *batch = (struct speed_batch){0};
}

/* Makes n sessions of the current method. After a failure *batch holds none. */
static int new_batch(struct bench *b, size_t n, struct speed_batch *batch) {
    struct terse_error error;
    struct terse_session_options options = setup_session_options(&b->setup);
    options.context = b->longest;
    options.progress = (struct terse_progress){report_prefill, b};
    int status = codebooks_provide(&b->setup, &options);
    if (status != EXIT_OK) return status;
    *batch = (struct speed_batch){.engine = b->setup.engine, .items = calloc(n, sizeof *batch->items)};
    if (!batch->items) return complain("no memory for %zu sequences", n);
    for (; batch->n < n && status == EXIT_OK; batch->n += status == EXIT_OK) {
        if (terse_session_new(b->setup.engine, &options, &batch->items[batch->n].session, &error) != TERSE_OK)
            status = complain_error(&error);
    }
    if (status != EXIT_OK) free_batch(batch);
    return status;
}

/* Frees the codebooks. Random ones are cheap to make again; those of many methods at once would fill the memory. */
static void drop_codebooks(struct bench *b) {
    if (!b->setup.random_codebooks) return;
    codebooks_free(b->setup.codebooks);
    b->setup.codebooks = NULL;
}

/* Finds what is wrong with one method before a codebook is learned for another. */
static int check_method(struct bench *b) {
    struct terse_error error;
    if (setup_try_cache(&b->setup, &error) != TERSE_OK) return complain_error(&error);
    setup_remark_eviction(&b->setup);
    return EXIT_OK;
}

static void count_runs(struct bench *b) {
    b->total += b->n_depths * ((b->n_prompt > 0) + (b->n_decode > 0)) * (uint64_t)b->repeats;
}

/* Counts the runs, and asks for a session: a method that the model cannot use is found before the others are measured. */
static int plan_method(struct bench *b) {
    struct speed_batch one;
    int status = new_batch(b, 1, &one);
    if (status == EXIT_OK) free_batch(&one);
    drop_codebooks(b);
    count_runs(b);
    return status;
}

/* Does the same for an item of `--kv all`, which skips methods that the model cannot use; f16 is required. */
static int plan_item(struct bench *b) {
    struct terse_session_options options = setup_session_options(&b->setup);
    struct terse_session *session;
    struct terse_error error;
    char label[128];
    options.context = b->longest;
    enum terse_status failed = setup_try_cache(&b->setup, &error);
    if (!failed) {
        int status = codebooks_provide(&b->setup, &options);
        if (status != EXIT_OK) return status;
        failed = terse_session_new(b->setup.engine, &options, &session, &error);
        if (!failed) terse_session_free(session);
        drop_codebooks(b);
    }
    if (failed && b->item == 0) return complain_error(&error);
    b->left_out[b->item] = failed;
    if (failed)
        remark("without %s: %s", method_label(b, label, sizeof label), error.message);
    else
        count_runs(b);
    return console_interrupted() ? EXIT_INTERRUPTED : EXIT_OK;
}

static int run_method(struct bench *b) {
    struct speed_batch made, *batch = &b->half;
    bool own = !b->all || b->item > 0; /* f16 uses the sessions that the others are compared with */
    int (*test)(struct bench *, const struct speed_batch *, uint32_t, uint32_t, bool) = b->all ? run_beside_f16 : run_test;
    int status = own ? new_batch(b, (size_t)b->parallel, batch = &made) : EXIT_OK;
    if (status != EXIT_OK) return status;
    status = warm_up(b, batch);
    for (size_t i = b->first_depth; i < b->end_depth && status == EXIT_OK; i++) {
        if (b->n_prompt) status = test(b, batch, b->depth[i], (uint32_t)b->n_prompt, true);
        if (b->n_decode && status == EXIT_OK) status = test(b, batch, b->depth[i], (uint32_t)b->n_decode, false);
    }
    if (own) free_batch(&made);
    drop_codebooks(b);
    return status;
}

static int for_each_item(struct bench *b, int (*visit)(struct bench *)) {
    int status = EXIT_OK;
    for (b->item = 0; b->item < N_ALL && status == EXIT_OK; b->item++) {
        if (b->left_out[b->item]) continue;
        b->setup.method = all_items[b->item].method;
        b->setup.read = (struct amount){all_items[b->item].read_percent, 0};
        status = visit(b);
    }
    b->setup.method = NULL;
    return status;
}

static int for_each_method(struct bench *b, int (*visit)(struct bench *)) {
    char name[64];
    const char *list = b->methods;
    int status = EXIT_OK;
    while (status == EXIT_OK && list_next(&list, name, sizeof name)) {
        b->setup.method = name;
        status = visit(b);
    }
    b->setup.method = NULL;
    return status;
}

static int run_list(struct bench *b) {
    b->end_depth = b->n_depths;
    return for_each_method(b, run_method);
}

/* Runs one depth after another, so that a long run that is interrupted has whole tables. */
static int run_all(struct bench *b) {
    int status = EXIT_OK;
    b->setup.method = all_items[0].method;
    if ((status = new_batch(b, (size_t)b->parallel, &b->half)) != EXIT_OK) return status;
    for (b->first_depth = 0; b->first_depth < b->n_depths && status == EXIT_OK; b->first_depth++) {
        b->end_depth = b->first_depth + 1;
        status = for_each_item(b, run_method);
    }
    free_batch(&b->half);
    return status;
}

/* ---- Before the tests */

static int parse_depths(struct bench *b) {
    char item[16], *end;
    const char *list = b->depths;
    while (list_next(&list, item, sizeof item)) {
        long long depth = strtoll(item, &end, 10);
        if (!item[0] || *end || depth < 0 || depth > INT32_MAX)
            return complain("-d takes whole numbers with commas between them, not \"%s\"", b->depths);
        if (b->n_depths == MOST_DEPTHS) return complain("-d takes at most %d depths", MOST_DEPTHS);
        b->depth[b->n_depths++] = (uint32_t)depth;
    }
    return EXIT_OK;
}

/* Returns how many tokens a test adds to a depth. */
static uint64_t most_added(const struct bench *b) {
    uint64_t decoded = (uint64_t)b->n_decode * (b->all ? (uint64_t)b->repeats : 1);
    return decoded > (uint64_t)b->n_prompt ? decoded : (uint64_t)b->n_prompt;
}

/* Chooses 8K and 32K, as far as they fit the model's context; the longest multiple of 1024 that fits in place of one that does not. */
static void choose_depths(struct bench *b) {
    static const uint32_t usual[] = {8192, 32768};
    uint64_t context = b->setup.info.context, added = most_added(b), space = context > added ? context - added : 0;
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++) {
        bool fits = usual[i] <= space || b->setup.allow_longer;
        uint32_t depth = fits ? usual[i] : (uint32_t)(space / 1024 * 1024);
        if (!b->n_depths || depth > b->depth[b->n_depths - 1]) b->depth[b->n_depths++] = depth;
        if (!fits) return;
    }
}

/* Sets how many tokens the tests hold, once the model is known. */
static int set_depths(struct bench *b) {
    uint64_t longest = 0;
    if (!b->n_depths) choose_depths(b);
    for (size_t i = 0; i < b->n_depths; i++)
        if (b->depth[i] > longest) longest = b->depth[i];
    longest += most_added(b);
    if (longest > INT32_MAX) return complain("-d and -p or -n together are more than %d tokens", INT32_MAX);
    if (longest > b->setup.info.context && !b->setup.allow_longer)
        return complain("-d and -p or -n together are %" PRIu64
                        " tokens, and the model was trained for %u: use smaller ones, or add "
                        "--allow-longer-context",
                        longest, b->setup.info.context);
    b->longest = (uint32_t)longest;
    return EXIT_OK;
}

static void set_default(int64_t *number, int64_t named, int64_t all, bool is_all) {
    if (*number == BY_KIND) *number = is_all ? all : named;
}

/* Refuses options that choose methods, or change all of them, contradict a table of all methods. */
static int check_all(const struct bench *b) {
    const struct setup *s = &b->setup;
    if (s->key_type || s->value_type || s->evict || s->codebook_path || s->read.number || s->read.percent > 0)
        return complain(
            "--kv all chooses its methods and their codebooks: leave -ctk, -ctv, --evict, --top-k-tokens and --codebook "
            "away, or name methods");
    if (b->fill_text) return complain("--kv all fills caches at random: omit --fill text, or name methods");
    return EXIT_OK;
}

static int check_options(struct bench *b) {
    b->all = b->methods && strcmp(b->methods, "all") == 0;
    bool random = b->setup.codebook_path && strcmp(b->setup.codebook_path, "random") == 0;
    b->setup.random_codebooks = b->all || random;
    set_default(&b->n_prompt, 512, 0, b->all);
    set_default(&b->n_decode, 128, 8, b->all);
    set_default(&b->repeats, 5, 3, b->all);
    if (b->all && check_all(b) != EXIT_OK) return EXIT_FAILED;
    if (random) b->setup.codebook_path = NULL;
    if (!b->depths && !b->all) b->depths = "0";
    if (!b->repeats) return complain("-r takes a whole number from 1 to %d, not 0", SPEED_MOST_REPEATS);
    if (!b->n_prompt && !b->n_decode) return complain("nothing to measure: give -p N, -n N or both more than 0");
    if (b->fill_text && !b->file) return complain("--fill text reads a text to the depth: add -f FILE");
    if (b->file && !b->fill_text) return complain("-f is the text of --fill text: add that");
    return parse_depths(b);
}

/* Takes the text of -f, and tokens drawn from the whole vocabulary for what is measured. */
static int make_tokens(struct bench *b) {
    if (b->file) {
        int status = text_read_tokens(b->setup.model, b->file, &b->text, &b->n_text);
        if (status != EXIT_OK) return status;
        if (!b->n_text) return complain("%s is empty", b->file);
    }
    if (!(b->random = malloc(b->longest * sizeof *b->random))) return complain("no memory for %u tokens", b->longest);
    speed_tokens(b->setup.info.vocabulary, b->random, b->longest);
    return EXIT_OK;
}

static enum options_result parse(struct bench *b, int argc, char **argv) {
    snprintf(b->kv_help, sizeof b->kv_help, "KV cache: %s; all: each of them alternating with f16, codebooks random",
             b->setup.methods);
    const struct option options[] = {
        {"-p, --n-prompt", "N", OPTION_INTEGER, &b->n_prompt, BY_KIND, 1 << 24,
         "tokens of a prompt to read; 0: no such test; -1: 512, with --kv all none"},
        {"-n, --n-gen", "N", OPTION_INTEGER, &b->n_decode, BY_KIND, 1 << 24,
         "tokens to decode one by one; 0: no such test; -1: 128, with --kv all 8"},
        {"-d, --n-depth", "N,...", OPTION_TEXT, &b->depths, 0, 0,
         "tokens in the cache before each test, several with commas; else 0, with --kv all 8192 and 32768"},
        {"-r, --repetitions", "N", OPTION_INTEGER, &b->repeats, BY_KIND, SPEED_MOST_REPEATS,
         "repeats of each test; -1: 5, with --kv all 3"},
        {"-np, --parallel", "N", OPTION_INTEGER, &b->parallel, 1, 4096,
         "sequences, each as deep as -d says, that are decoded together; tokens/s are those of all"},
        {"--fill", "random|text", OPTION_CHOICE, &b->fill_text, 0, 0,
         "random keys and values in the cache, or -f FILE read to the depth"},
        {"-f, --file", "FILE", OPTION_TEXT, &b->file, 0, 0, "the text of --fill text, over and over if it is shorter"},
        {"--kv", "METHOD,...", OPTION_TEXT, &b->methods, 0, 0, b->kv_help},
        {"-o, --output", TABLE_FORMATS, OPTION_CHOICE, &b->format, 0, 0, "form of the table"},
    };
    const struct option_set set = {
        .usage = "terse bench [options]",
        .about =
            "Measures prompt (pp) and decoding (tg) speed with N tokens in the cache (@ dN), and the time and bytes of\n"
            "attention in decoding, beside f16's and what the machine reads from memory in the same run with the same threads.\n"
            "--kv all measures every method that the model can use, in a few minutes: the table to choose from.\n"
            "--codebook random takes random numbers for what methods learn: times are real, what is generated is noise.\n",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .common = b->setup.common,
        .n_common = SETUP_COMMON,
        .llama_flags = true,
    };
    return options_parse(&set, argc, argv);
}

static int start(struct bench *b) {
    int status = setup_load(&b->setup);
    if (status == EXIT_OK) status = setup_engine(&b->setup);
    if (status != EXIT_OK) return status;
    b->threads = (int)terse_engine_threads(b->setup.engine);
    if ((status = set_depths(b)) != EXIT_OK) return status;
    if (!b->all && (status = for_each_method(b, check_method)) != EXIT_OK) return status;
    if ((status = make_tokens(b)) != EXIT_OK) return status;
    status = b->all ? for_each_item(b, plan_item) : for_each_method(b, plan_method);
    if (status != EXIT_OK) return status;
    return (b->rows = cJSON_CreateArray()) ? EXIT_OK : complain("no memory for the table");
}

int cmd_bench(int argc, char **argv) {
    struct bench b = {.n_prompt = BY_KIND, .n_decode = BY_KIND, .repeats = BY_KIND, .parallel = 1};
    setup_init(&b.setup);
    b.methods = b.setup.method;
    enum options_result parsed = parse(&b, argc, argv);
    if (parsed != OPTIONS_GO) return parsed == OPTIONS_HELP ? EXIT_OK : EXIT_FAILED;
    int status = check_options(&b);
    if (status == EXIT_OK) status = start(&b);
    if (status == EXIT_OK) {
        /* The bandwidth is measured before and after, and the better of the two counts, since other load on the machine comes and
         * goes. */
        b.read_rate = bandwidth_measure(b.threads);
        status = b.all ? run_all(&b) : run_list(&b);
        /* Rows measured before an interrupt or a failure are printed. */
        if (cJSON_GetArraySize(b.rows) > 0) {
            double after = bandwidth_measure(b.threads);
            if (after > b.read_rate) b.read_rate = after;
            if (print_rows(&b) != EXIT_OK) status = EXIT_FAILED;
        }
    }
    cJSON_Delete(b.rows);
    free(b.text);
    free(b.random);
    setup_free(&b.setup);
    return status;
}
