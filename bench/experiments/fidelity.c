/* Measures what compressed KV caches cost, for a list of methods: perplexity, divergence from full precision, answers to retrieval tasks,
 * memory. Writes a work folder (fidelity_store.h), from which bench/reports/fidelity_report.py makes docs/reports/fidelity.md.
 *
 *     fidelity -f TEXT --methods LIST -w FOLDER [options]
 */
#include "fidelity.h"

#include "base/hash.h"
#include "console.h"
#include "fidelity_prefill.h"
#include "options.h"
#include "text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_MODEL PROJECT_DIR "/models/lab-27m-q8_0.gguf"
#define DEFAULT_WORDS PROJECT_DIR "/bench/experiments/fidelity_words.json"
enum { LEAST_CONTEXT = 64 };

struct parts {
    bool steps, paper, needles, memory;
};

/* ---- Shared by the parts */

struct terse_session_options fidelity_session_options(const struct run *run, uint32_t context) {
    struct terse_session_options options = terse_session_options_defaults();
    prefill_index(run->index);
    options.cache = run->cache;
    options.context = context;
    options.progress.report = progress_show;
    return options;
}

const char *fidelity_key(const struct run *run, const char *what, char *key, size_t capacity) {
    snprintf(key, capacity, "%s|%016" PRIx64 "|%s", run->spec, run->codebook_hash, what);
    return key;
}

cJSON *fidelity_line(const struct run *run) {
    cJSON *line = cJSON_CreateObject();
    cJSON_AddStringToObject(line, "run", run->spec);
    cJSON_AddStringToObject(line, "method", run->cache.method);
    if (run->codebook) {
        struct terse_codebook_info info;
        terse_codebook_describe(run->codebook, &info);
        cJSON_AddStringToObject(line, "weighting", info.weighting);
        cJSON_AddStringToObject(line, "corpus", info.corpus);
        cJSON_AddBoolToObject(line, "shared", info.shared);
        cJSON_AddNumberToObject(line, "codebook_tokens", (double)info.tokens);
    }
    return line;
}

void fidelity_add_report(cJSON *line, const struct terse_cache_report *report) {
    cJSON_AddNumberToObject(line, "bits", report->bits_per_value);
    cJSON_AddNumberToObject(line, "resident", (double)report->resident);
    cJSON_AddNumberToObject(line, "codes", (double)report->codes);
    cJSON_AddNumberToObject(line, "exact", (double)report->exact);
    cJSON_AddNumberToObject(line, "recent", (double)report->window);
    cJSON_AddNumberToObject(line, "tables", (double)report->tables);
    cJSON_AddNumberToObject(line, "codebook", (double)report->codebook);
}

/* ---- Options */

static int parse_parts(const char *list, struct parts *parts) {
    char item[32];
    while (list_next(&list, item, sizeof item)) {
        if (strcmp(item, "default") == 0)
            parts->steps = true;
        else if (strcmp(item, "paper") == 0)
            parts->paper = true;
        else if (strcmp(item, "needles") == 0)
            parts->needles = true;
        else if (strcmp(item, "memory") == 0)
            parts->memory = true;
        else
            return complain("--parts: there is no part \"%s\"; there are default, paper, needles and memory", item);
    }
    return EXIT_OK;
}

static int parse_tasks(struct fidelity *f) {
    const char *list = f->tasks;
    char item[32], *end;
    size_t n = 0;
    for (; list_next(&list, item, sizeof item); n++) {
        unsigned long value = strtoul(item, &end, 10);
        if (n == FIDELITY_LENGTHS || end == item || *end || value > 1000)
            return complain("--tasks %s: give up to %d numbers of tasks up to 1000", f->tasks, FIDELITY_LENGTHS);
        f->n_tasks[n] = (uint32_t)value;
    }
    return EXIT_OK;
}

static int open_runs(struct fidelity *f) {
    const char *list = f->methods;
    char item[128];
    size_t capacity = 1;
    for (const char *c = list; *c; c++) capacity += *c == ',';
    if (!(f->runs = calloc(capacity, sizeof *f->runs))) return complain("no memory for %zu methods", capacity);
    while (list_next(&list, item, sizeof item)) {
        int status = run_open(item, f->work, f->model, &f->runs[f->n_runs]);
        if (status != EXIT_OK) return status;
        f->n_runs++;
    }
    return EXIT_OK;
}

static enum options_result parse(struct fidelity *f, int argc, char **argv) {
    const struct option options[] = {
        {"-m, --model", "FILE", OPTION_TEXT, &f->model_path, 0, 0, "GGUF model"},
        {"-f, --file", "FILE", OPTION_TEXT, &f->file, 0, 0, "text to score, and to plant facts in"},
        {"-w, --work", "FOLDER", OPTION_TEXT, &f->work, 0, 0,
         "where results go, and where codebooks/METHOD.gguf and codebooks/NAME.gguf are"},
        {"--methods", "LIST", OPTION_TEXT, &f->methods, 0, 0, "METHOD[:OPTION=VALUE]..., ...: see fidelity_run.h"},
        {"--parts", "LIST", OPTION_TEXT, &f->parts, 0, 0, "of default, paper, needles, memory"},
        {"--resume", NULL, OPTION_FLAG, &f->resume, 0, 0, "add what is missing to a folder that has results"},
        {"-c, --ctx-size", "N", OPTION_INTEGER, &f->context, LEAST_CONTEXT, INT32_MAX, "tokens of a window"},
        {"--chunks", "K", OPTION_INTEGER, &f->chunks, 1, INT32_MAX, "windows to score"},
        {"--scored", "N", OPTION_INTEGER, &f->scored, 0, INT32_MAX, "tokens of a window that are scored, its last; 0: half of it"},
        {"-ub, --ubatch", "U", OPTION_INTEGER, &f->ubatch, 1, INT32_MAX, "tokens per decoding step"},
        {"--tasks", "A,B,C,D", OPTION_TEXT, &f->tasks, 0, 0,
         "retrieval tasks of each kind with 4096, 8192, 16384 and 32000 tokens"},
        {"--words", "FILE", OPTION_TEXT, &f->words, 0, 0,
         "words that retrieval tasks are made of, where the sources lie elsewhere"},
        {"--memory-tokens", "N", OPTION_INTEGER, &f->memory_tokens, 256, INT32_MAX, "tokens at which memory is measured"},
        {"-t, --threads", "N", OPTION_INTEGER, &f->threads, 0, 1024, "threads; 0: one per processor"},
    };
    const struct option_set set = {
        .usage = "fidelity -f FILE --methods LIST -w FOLDER [options]",
        .about = "Measures what compressed KV caches cost. bench/experiments/fidelity.sh calls it for docs/reports/fidelity.md.\n",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
    };
    return options_parse(&set, argc, argv);
}

/* ---- The work folder */

static cJSON *setup_of(const struct fidelity *f) {
    char number[32];
    const char *slash = strrchr(f->file, '/');
    XXH64_state_t hash;
    XXH64_reset(&hash, 0);
    XXH64_update(&hash, f->text, f->n_bytes);
    cJSON *setup = cJSON_CreateObject();
    cJSON_AddStringToObject(setup, "model", f->info.name);
    cJSON_AddStringToObject(setup, "weights", f->info.weights);
    snprintf(number, sizeof number, "%016" PRIx64, f->info.fingerprint);
    cJSON_AddStringToObject(setup, "fingerprint", number);
    cJSON_AddStringToObject(setup, "text", slash ? slash + 1 : f->file);
    snprintf(number, sizeof number, "%016" PRIx64, XXH64_digest(&hash));
    cJSON_AddStringToObject(setup, "text_hash", number);
    cJSON_AddNumberToObject(setup, "context", (double)f->context);
    cJSON_AddNumberToObject(setup, "scored", (double)f->scored);
    cJSON_AddNumberToObject(setup, "ubatch", (double)f->ubatch);
    return setup;
}

static int load_text(struct fidelity *f) {
    int status = text_read(f->file, &f->text, &f->n_bytes);
    if (status != EXIT_OK) return status;
    status = text_tokenize(f->model, f->text, f->n_bytes, TERSE_TOKENIZE_ADD_SPECIAL, &f->tokens, &f->n_tokens);
    if (status != EXIT_OK) return status;
    size_t available = f->n_tokens / (size_t)f->context;
    if (!available) return complain("%s has %zu tokens, too few for a window of %" PRId64, f->file, f->n_tokens, f->context);
    if ((size_t)f->chunks > available) remark("the text has %zu windows of %" PRId64 " tokens only", available, f->context);
    f->windows = (uint32_t)((size_t)f->chunks < available ? (size_t)f->chunks : available);
    return EXIT_OK;
}

static int start(struct fidelity *f) {
    struct terse_error error;
    if (!f->file || !f->methods || !f->work) return complain("-f FILE, --methods LIST and -w FOLDER are needed; see --help");
    if (f->scored >= f->context) return complain("--scored %" PRId64 " leaves no tokens of a window to prefill", f->scored);
    if (!f->scored) f->scored = f->context - f->context / 2;
    int status = parse_tasks(f);
    if (status != EXIT_OK) return status;
    if (terse_model_load(f->model_path, &f->model, &error) != TERSE_OK) return complain_error(&error);
    if (prefill_engine_new(f->model, (uint32_t)f->threads, &f->engine, &error) != TERSE_OK) return complain_error(&error);
    terse_model_describe(f->model, &f->info);
    if ((status = load_text(f)) != EXIT_OK) return status;
    if ((status = open_runs(f)) != EXIT_OK) return status;
    return store_open(f->work, setup_of(f), f->resume, &f->store);
}

int main(int argc, char **argv) {
    struct fidelity f = {.model_path = DEFAULT_MODEL,
                         .parts = "default,paper,needles",
                         .tasks = "4,4,3,2",
                         .words = DEFAULT_WORDS,
                         .context = 8192,
                         .chunks = 4,
                         .ubatch = 64,
                         .memory_tokens = 32768};
    struct parts parts = {0};
    console_begin("fidelity");
    enum options_result parsed = parse(&f, argc - 1, argv + 1);
    if (parsed != OPTIONS_GO) return console_end(parsed == OPTIONS_HELP ? EXIT_OK : EXIT_FAILED);
    int status = parse_parts(f.parts, &parts);
    if (status == EXIT_OK) status = start(&f);
    if (status == EXIT_OK && parts.memory) status = fidelity_memory(&f); /* first, while nothing else has taken memory */
    if (status == EXIT_OK && (parts.steps || parts.paper)) status = fidelity_perplexity(&f, parts.steps, parts.paper);
    if (status == EXIT_OK && parts.needles) status = fidelity_needles(&f);
    store_free(f.store);
    for (size_t i = 0; i < f.n_runs; i++) run_close(&f.runs[i]);
    free(f.runs);
    free(f.tokens);
    free(f.text);
    terse_engine_free(f.engine);
    terse_model_free(f.model);
    return console_end(status);
}
