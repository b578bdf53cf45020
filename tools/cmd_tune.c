/* Implements `terse tune`: measures KV methods on a model, shows which are worth taking, picks one and keeps it as what `terse run`,
 * `terse serve` and the Python package take. tune.c measures, front.c picks. */
#include "codebooks.h"
#include "commands.h"
#include "front_plot.h"
#include "png.h"
#include "table.h"
#include "tune.h"

#include <terse_choice.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The candidates, the most useful ones first: where the time does not suffice for all, the last ones are left out. */
static const char usual[] = "terse-4,terse-3,q8_0,terse-2,q4_0,terse-2.5,terse-1.5,kivi-4,terse-1,kivi-2";

enum {
    CONTEXT = 32768,
    LEAST_POSITIONS = 128 /* to pick by */
};

struct command_tune {
    struct setup setup;
    struct tune tune;
    const char *methods, *file, *plot;
    uint64_t budget;
    double seconds;
    int format;
    const char *corpus; /* the text's name */
    int32_t *tokens;
    size_t n_tokens;
    struct front_row rows[TUNE_METHODS];
    const struct front_row *pick;
    char why[512];
};

/* ---- The candidates */

/* Adds one; a usual one that the model cannot use is left out. */
static int add(struct command_tune *c, const char *method) {
    struct terse_error error;
    int status;
    if (c->tune.n == TUNE_METHODS) return complain("--kv takes %d methods at most", TUNE_METHODS - 1);
    for (size_t i = 0; i < c->tune.n; i++)
        if (strcmp(c->tune.candidates[i].name, method) == 0) return EXIT_OK;
    enum terse_status failed = tune_add(&c->tune, method, &status, &error);
    if (!failed) return status;
    if (c->methods || !c->tune.n) return complain_error(&error);
    remark("without %s: %s", method, error.message);
    return EXIT_OK;
}

static int add_all(struct command_tune *c) {
    const char *list = c->methods ? c->methods : usual;
    char name[64];
    int status = add(c, "f16");
    while (status == EXIT_OK && list_next(&list, name, sizeof name)) status = add(c, name);
    if (status == EXIT_OK && c->tune.n < 2) return complain("--kv names no method to compare with f16");
    return status;
}

/* Refuses a budget that nothing keeps to, and leaves out methods that do not: they need not be measured. */
static int apply_budget(struct command_tune *c) {
    struct tune *t = &c->tune;
    const struct tune_candidate *least = &t->candidates[0];
    size_t kept = 1; /* f16, which the others are compared with */
    for (size_t i = 1; i < t->n; i++)
        if (t->candidates[i].row.peak < least->row.peak) least = &t->candidates[i];
    if (!c->budget) return EXIT_OK;
    if (least->row.peak > c->budget)
        return complain("--budget: %u tokens take %.2f MiB with %s, the least of all: allow as much, or lower -c", t->context,
                        (double)least->row.peak / 0x1p20, least->name);
    for (size_t i = 1; i < t->n; i++) {
        if (t->candidates[i].row.peak > c->budget) {
            remark("without %s: it takes %.2f MiB", t->candidates[i].name, (double)t->candidates[i].row.peak / 0x1p20);
            continue;
        }
        t->candidates[kept] = t->candidates[i];
        t->candidates[kept].row.method = t->candidates[kept].name;
        t->candidates[kept].options.cache.method = t->candidates[kept].name;
        kept++;
    }
    t->n = kept;
    return kept > 1 ? EXIT_OK : complain("--budget: f16 alone keeps to it");
}

/* ---- Results */

static const struct table_column columns[] = {
    {"kv", "KV", 0},
    {"bits_per_value", "bits/value", 2},
    {"bytes", NULL, 0},
    {"mib", "MiB", 1},
    {"divergence", "KL divergence", 8},
    {"error", "+/-", 8},
    {"tokens_per_second", "tokens/s", 2},
    {"speed_over_f16", "over f16", 2},
    {"attention_over_f16", "attention over f16", 2},
    {"choice", "", 0},
};

static cJSON *row_json(const struct command_tune *c, const struct front_row *row) {
    cJSON *json = cJSON_CreateObject();
    bool over = c->budget && row->peak > c->budget;
    cJSON_AddStringToObject(json, "kv", row->method);
    cJSON_AddNumberToObject(json, "bits_per_value", row->bits);
    cJSON_AddNumberToObject(json, "bytes", (double)row->bytes);
    cJSON_AddNumberToObject(json, "mib", (double)row->bytes / 0x1p20);
    if (row->positions) {
        cJSON_AddNumberToObject(json, "divergence", row->divergence);
        cJSON_AddNumberToObject(json, "error", row->error);
    }
    if (row->speed > 0) {
        cJSON_AddNumberToObject(json, "tokens_per_second", row->rate);
        cJSON_AddNumberToObject(json, "speed_over_f16", row->speed);
    }
    if (row->attention > 0) cJSON_AddNumberToObject(json, "attention_over_f16", row->attention);
    cJSON_AddStringToObject(json, "choice", row == c->pick ? "pick" : over ? "over the budget" : row->on_front ? "front" : "");
    return json;
}

/* Returns all that was measured as an object. */
static cJSON *all_json(const struct command_tune *c, cJSON *rows) {
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "model", c->setup.info.name);
    cJSON_AddStringToObject(json, "device", setup_device(&c->setup));
    cJSON_AddStringToObject(json, "corpus", c->corpus);
    cJSON_AddNumberToObject(json, "context", c->tune.context);
    cJSON_AddNumberToObject(json, "budget", (double)c->budget);
    cJSON_AddNumberToObject(json, "positions", (double)c->tune.candidates[0].row.positions);
    cJSON_AddNumberToObject(json, "allowed_divergence", TERSE_CHOICE_DIVERGENCE);
    if (c->pick) cJSON_AddStringToObject(json, "pick", c->pick->method);
    if (c->pick) cJSON_AddStringToObject(json, "why", c->why);
    cJSON_AddItemToObject(json, "rows", rows);
    return json;
}

static int print_table(const struct command_tune *c, const cJSON *rows) {
    const struct tune *t = &c->tune;
    if (c->format == TABLE_MARKDOWN)
        printf("%s, %s, on %s, %u threads (%s); a cache of %u tokens; divergence over %llu positions of %s\n\n", c->setup.info.name,
               c->setup.info.weights, setup_device(&c->setup), terse_engine_threads(c->setup.engine), terse_cpu_name(), t->context,
               (unsigned long long)t->candidates[0].row.positions, c->corpus);
    int status = table_print(rows, columns, sizeof columns / sizeof columns[0], (enum table_format)c->format);
    if (c->format == TABLE_MARKDOWN && c->pick) printf("\nPick: %s: %s.\n", c->pick->method, c->why);
    return status;
}

static int print_results(const struct command_tune *c) {
    cJSON *rows = cJSON_CreateArray();
    int status;
    if (!rows) return complain("no memory for the table");
    for (size_t i = 0; i < c->tune.n; i++) cJSON_AddItemToArray(rows, row_json(c, &c->rows[i]));
    if (c->format == TABLE_JSON) {
        cJSON *all = all_json(c, rows);
        status = json_print(all);
        cJSON_Delete(all);
        return status;
    }
    status = print_table(c, rows);
    cJSON_Delete(rows);
    return status;
}

static int draw(const struct command_tune *c) {
    char title[256];
    if (!c->plot) return EXIT_OK;
    snprintf(title, sizeof title, "%.100s, a cache of %u tokens: divergence on %.80s", c->setup.info.name, c->tune.context,
             c->corpus);
    return front_plot(c->rows, c->tune.n, c->pick, TERSE_CHOICE_DIVERGENCE, title, c->plot);
}

/* Keeps the pick where terse_choose finds it. */
static int keep(const struct command_tune *c) {
    char path[4096];
    struct terse_error error;
    const struct front_row *pick = c->pick;
    const struct terse_tuned tuned = {.method = pick->method,
                                      .corpus = c->corpus,
                                      .context = c->tune.context,
                                      .budget = c->budget,
                                      .positions = pick->positions,
                                      .bits = pick->bits,
                                      .divergence = pick->divergence,
                                      .speed = pick->speed};
    if (terse_kept_path(c->setup.model, "tuned", ".json", path, sizeof path, &error) != TERSE_OK) return complain_error(&error);
    int status = codebooks_check_place(path, true);
    if (status != EXIT_OK) return status;
    if (terse_tuned_save(c->setup.model, &tuned, path, &error) != TERSE_OK) return complain_error(&error);
    remark("kept: %s: terse run, terse serve and kv=\"auto\" of Python take %s for this model", path, pick->method);
    return EXIT_OK;
}

/* Says which candidates the time did not suffice for. */
static void say_unmeasured(const struct command_tune *c) {
    char names[512] = "";
    size_t length = 0;
    for (size_t i = c->tune.windows.n_caches; i < c->tune.n && length < sizeof names; i++)
        length += (size_t)snprintf(names + length, sizeof names - length, "%s%s", length ? ", " : "", c->tune.candidates[i].name);
    if (length) remark("not measured for want of time: %s: give a longer --time", names);
}

/* Prints, draws and keeps what there is: `status` is that of measuring. */
static int finish(struct command_tune *c, int status) {
    struct tune *t = &c->tune;
    uint64_t positions = t->candidates[0].row.positions;
    bool anything = positions || t->candidates[0].row.rate > 0, interrupted = status == EXIT_INTERRUPTED;
    for (size_t i = 0; i < t->n; i++) c->rows[i] = t->candidates[i].row;
    front_find(c->rows, t->n);
    if (positions >= LEAST_POSITIONS) c->pick = front_pick(c->rows, t->n, c->budget, TERSE_CHOICE_DIVERGENCE);
    if (c->pick) front_explain(c->rows, t->n, c->pick, TERSE_CHOICE_DIVERGENCE, c->why, sizeof c->why);
    if (!anything && interrupted) return status;
    if (print_results(c) != EXIT_OK || (positions && draw(c) != EXIT_OK)) return EXIT_FAILED;
    fflush(stdout);
    if (interrupted) {
        if (c->pick) remark("interrupted: the pick is not kept");
        return status;
    }
    say_unmeasured(c);
    if (c->pick) return keep(c);
    return complain("%llu positions were scored, and a pick takes %d: give a longer --time or a longer text",
                    (unsigned long long)positions, LEAST_POSITIONS);
}

/* ---- The command */

static enum options_result parse(struct command_tune *c, int argc, char **argv) {
    const struct option options[] = {
        {"-f, --file", "FILE", OPTION_TEXT, &c->file, 0, 0,
         "text to measure divergence on; without it a built-in one, from Wikipedia"},
        {"-c, --ctx-size", "N", OPTION_INTEGER, &c->setup.context, 0, INT32_MAX,
         "tokens of the cache that a method is wanted for; 0: 32768, or the model's where that is less"},
        {"--budget", "SIZE", OPTION_SIZE, &c->budget, 0, 0, "bytes that such a cache may take, as 512M or 2G; without it any"},
        {"--time", "TIME", OPTION_TIME, &c->seconds, 1, 86400, "measure no longer than this: 90s, 10m, 1h"},
        {"--kv", "METHOD,...", OPTION_TEXT, &c->methods, 0, 0,
         "methods to measure beside f16, the most wanted ones first; else q8_0, q4_0, kivi-4, kivi-2, terse-4 to terse-1"},
        {"--plot", "FILE", OPTION_TEXT, &c->plot, 0, 0, "draw what was measured, as SVG or PNG"},
        {"-o, --output", TABLE_FORMATS, OPTION_CHOICE, &c->format, 0, 0, "form of the table"},
    };
    const struct option_set set = {
        .usage = "terse tune [-m MODEL] [--budget 2G] [-c N] [-f TEXT] [--time 10m] [options]",
        .about =
            "Measures KV methods on a model: bytes of a cache, divergence from f16 on a text, speed behind a full cache. Prints\n"
            "those worth taking, and picks the smallest whose divergence is at most 0.005 and that keeps to the budget. The pick\n"
            "is kept for the model: terse run, terse serve and Python take it where no method is named.\n",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .common = c->setup.common,
        .n_common = SETUP_DEVICE,
    };
    return options_parse(&set, argc, argv);
}

static int check_options(const struct command_tune *c) {
    if (c->setup.context && c->setup.context < TUNE_LEAST_TOKENS)
        return complain("-c %lld: speed is measured behind at least %d tokens", (long long)c->setup.context, TUNE_LEAST_TOKENS);
    if (!c->plot) return EXIT_OK;
    if (front_plot_kind(c->plot) == FRONT_PNG && !png_can_be_written())
        return complain(
            "--plot %s: PNG takes librsvg (Debian: librsvg2-2), which this machine has not: install it, or name a file NAME.svg",
            c->plot);
    if (front_plot_kind(c->plot) == FRONT_NONE)
        return complain("--plot %s: it draws SVG and PNG: name a file NAME.svg or NAME.png (terse.plot of the Python package draws "
                        "others from -o json)",
                        c->plot);
    return codebooks_check_place(c->plot, false);
}

static int choose_context(struct command_tune *c) {
    uint32_t most = c->setup.info.context;
    c->tune.context = c->setup.context ? (uint32_t)c->setup.context : most < CONTEXT ? most : CONTEXT;
    if (c->tune.context > most)
        return complain("-c %u: the model was trained for %u tokens: use a smaller number", c->tune.context, most);
    if (c->tune.context < TUNE_LEAST_TOKENS)
        return complain("the model was trained for %u tokens, and speed is measured behind at least %d", most, TUNE_LEAST_TOKENS);
    return EXIT_OK;
}

static int start(struct command_tune *c) {
    int status = setup_load(&c->setup);
    if (status == EXIT_OK) status = choose_context(c);
    if (status == EXIT_OK) status = setup_engine(&c->setup);
    if (status == EXIT_OK) status = codebooks_read_text(&c->setup, c->file, &c->corpus, &c->tokens, &c->n_tokens);
    if (status == EXIT_OK && c->n_tokens < TUNE_LEAST_TOKENS)
        status = complain("%s has %zu tokens: give a text of at least %d", c->corpus, c->n_tokens, TUNE_LEAST_TOKENS);
    if (status == EXIT_OK) status = add_all(c);
    return status == EXIT_OK ? apply_budget(c) : status;
}

static int measure(struct command_tune *c) {
    struct tune *t = &c->tune;
    int status = tune_speed(t, c->seconds / 3);
    return status == EXIT_OK ? tune_divergence(t, c->tokens, c->n_tokens, c->corpus) : status;
}

int cmd_tune(int argc, char **argv) {
    struct command_tune c = {.seconds = 600};
    setup_init(&c.setup);
    c.tune.setup = &c.setup;
    enum options_result parsed = parse(&c, argc, argv);
    if (parsed != OPTIONS_GO) return parsed == OPTIONS_HELP ? EXIT_OK : EXIT_FAILED;
    c.tune.until = console_seconds() + c.seconds;
    int status = check_options(&c);
    if (status == EXIT_OK) status = start(&c);
    if (status == EXIT_OK) {
        status = measure(&c);
        if (status != EXIT_FAILED) status = finish(&c, status);
    }
    tune_free(&c.tune);
    free(c.tokens);
    setup_free(&c.setup);
    return status;
}
