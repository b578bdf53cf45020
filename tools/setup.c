/* Declares the common options, and loads the model and makes the session options that they ask for. */
#include "setup.h"

#include "codebooks.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* Lists methods as "f16, streaming-N, antkv-4|2|1": methods of a family share their first part. */
static void list_methods(char *text, size_t capacity) {
    struct terse_method_info method;
    const char *family = "";
    size_t length = 0;
    for (size_t i = 0; terse_method_describe(i, &method) && length < capacity; i++) {
        const char *dash = strchr(method.name, '-');
        size_t prefix = dash ? (size_t)(dash + 1 - method.name) : 0;
        bool same = prefix && strncmp(family, method.name, prefix) == 0;
        length += (size_t)snprintf(text + length, capacity - length, "%s%s",
                                   same ? "|"
                                   : i  ? ", "
                                        : "",
                                   method.name + (same ? prefix : 0));
        family = method.name;
    }
}

bool setup_names_model(const char *argument) {
    size_t n = strlen(argument);
    return n > 5 && strcmp(argument + n - 5, ".gguf") == 0;
}

void setup_init(struct setup *setup) {
    struct terse_session_options defaults = terse_session_options_defaults();
    *setup = (struct setup){.method = defaults.cache.method,
                            .tail_tokens = -1,
                            .first_tokens = -1,
                            .mat_shallow = -1,
                            .device = "cpu",
                            .gpu_layers = -1,
                            .batch = defaults.batch,
                            .prefill = (int)defaults.prefill,
                            .anchors = {defaults.cache.anchor_percent, defaults.cache.anchor_count}};
    list_methods(setup->methods, sizeof setup->methods);
    snprintf(setup->method_help, sizeof setup->method_help,
             "KV cache: auto, or auto:0.02, auto:2G: terse-N by its measured KL divergence or its bytes; %s", setup->methods);
    const struct option common[SETUP_COMMON] = {
        {"-m, --model", "FILE", OPTION_TEXT, &setup->model_path, 0, 0, "GGUF model; without one the built-in lab-27m"},
        {"-t, --threads", "N", OPTION_INTEGER, &setup->threads, -1, 1024,
         "threads; 0 or -1: one per processor, which ranks of one machine divide"},
        {"--device", "NAME", OPTION_TEXT, &setup->device, 0, 0,
         "where to compute: cpu, cuda or another backend's name, gpu, or auto: a GPU, if any"},
        {"-ngl, --n-gpu-layers", "N", OPTION_INTEGER, &setup->gpu_layers, -1, INT32_MAX,
         "0: --device cpu, all of the model's layers or more: --device gpu; -1: as --device says"},
        {"-ctk, --cache-type-k", "TYPE", OPTION_TEXT, &setup->key_type, 0, 0,
         "keys as f16, q8_0, q4_0, kivi-4, kivi-2 or terse-N instead of the method's"},
        {"-ctv, --cache-type-v", "TYPE", OPTION_TEXT, &setup->value_type, 0, 0, "the same for values"},
        {"--kv-tail-tokens", "N", OPTION_INTEGER, &setup->tail_tokens, -1, INT32_MAX,
         "newest tokens kept exact beside the first 4, at least; -1: the method's own number"},
        {"--kv-first-tokens", "N", OPTION_INTEGER, &setup->first_tokens, -1, INT32_MAX, NULL},
        {"--anchors", "N%|N", OPTION_AMOUNT, &setup->anchors, 0, 0,
         "the part of a prompt, or the number of its tokens, that stays exact; antkv: 1%"},
        {"--anchor-score", "squared|l1|random", OPTION_CHOICE, &setup->anchor_score, 0, 0, NULL},
        {"--top-k-tokens", "N%|N", OPTION_AMOUNT, &setup->read, 0, 0,
         "the part of a prompt, or the number of its tokens, that a step reads; selfindex: 7.5%"},
        {"--evict", "METHOD", OPTION_TEXT, &setup->evict, 0, 0,
         "keep the tokens that mat-N, snapkv-N or streaming-N would keep, stored in this method's codes"},
        {"--mat-anchors", "N", OPTION_INTEGER, &setup->mat_anchors, 0, INT32_MAX,
         "mat: tokens kept beside the newest; 0: 64, at most a quarter of all"},
        {"--mat-shallow", "N", OPTION_INTEGER, &setup->mat_shallow, -1, INT32_MAX,
         "mat: first layers that keep the first tokens instead; -1: 2"},
        {"--codebook", "FILE", OPTION_TEXT, &setup->codebook_path, 0, 0,
         "what the method has learned about the model; none: terse-N without; else what is kept is taken"},
        {"--auto-calibrate", NULL, OPTION_FLAG, &setup->auto_calibrate, 0, 0,
         "learn a missing profile too, and codebooks that take minutes; --no-auto-calibrate: nothing"},
        {"--no-auto-calibrate", NULL, OPTION_FLAG, &setup->no_auto_calibrate, 0, 0, NULL},
        {"--prefill", "exact|compressed", OPTION_CHOICE, &setup->prefill, 0, 0,
         "read a prompt exactly, or by chunks through the cache"},
        {"-b, --batch-size", "N", OPTION_INTEGER, &setup->batch, 1, INT32_MAX, "tokens per chunk of a compressed prefill"},
        {"--kv-budget", "SIZE", OPTION_SIZE, &setup->kv_budget, 0, 0,
         "most of all KV caches, as 4G: --kv auto:min=terse-1.5 lowers pages to keep to it; 0: any"},
        {"--allow-longer-context", NULL, OPTION_FLAG, &setup->allow_longer, 0, 0, "permit more than the model was trained for"},
        {"--mlock", NULL, OPTION_FLAG, &setup->lock, 0, 0, NULL},
        {"--no-mmap", NULL, OPTION_FLAG, &setup->no_mapping, 0, 0, NULL},
        {"--rope-scaling", "none|linear|yarn", OPTION_TEXT, &setup->rope_scaling, 0, 0, NULL},
        {"--rope-scale", "X", OPTION_NUMBER, &setup->rope_scale, 1, 1e6, NULL},
        {"--rope-freq-base", "X", OPTION_NUMBER, &setup->rope_base, 1.001, 1e30, NULL},
    };
    memcpy(setup->common, common, sizeof common);
}

/* embedded.S has a GGUF file. */
extern const char default_model_begin[], default_model_end[];
static const char default_name[] = "the built-in model";

static size_t default_size(void) { return (size_t)(default_model_end - default_model_begin); }

/* Reads the file into memory; NULL where that cannot be, so that loading says why. */
static void *read_model(const char *path, size_t *size) {
    struct stat file;
    FILE *in = fopen(path, "rb");
    char *bytes = NULL;
    if (in && !fstat(fileno(in), &file) && S_ISREG(file.st_mode) &&
        (bytes = aligned_alloc(64, ((size_t)file.st_size + 64) / 64 * 64))) {
        *size = fread(bytes, 1, (size_t)file.st_size, in);
        if (*size != (size_t)file.st_size) {
            free(bytes);
            bytes = NULL;
        }
    }
    if (in) fclose(in);
    return bytes;
}

enum terse_status setup_try_load(struct setup *setup, struct terse_error *error) {
    struct terse_model_options options = terse_model_options_defaults();
    enum terse_status status;
    size_t size = 0;
    options.rope_scaling = setup->rope_scaling;
    options.rope_scale = (float)setup->rope_scale;
    options.rope_freq_base = (float)setup->rope_base;
    if (setup->no_mapping && setup->model_path && !setup->model_bytes) setup->model_bytes = read_model(setup->model_path, &size);
    if (setup->model_bytes)
        status = terse_model_load_memory_with(setup->model_bytes, size, setup->model_path, &options, &setup->model, error);
    else if (setup->model_path)
        status = terse_model_load_with(setup->model_path, &options, &setup->model, error);
    else
        status = terse_model_load_memory_with(default_model_begin, default_size(), default_name, &options, &setup->model, error);
    if (status == TERSE_OK) terse_model_describe(setup->model, &setup->info);
    return status;
}

int setup_choose_device(const struct setup *setup, const char **device) {
    *device = setup->device;
    if (setup->gpu_layers < 0) return EXIT_OK;
    bool all = setup->gpu_layers >= setup->info.layers;
    if (setup->gpu_layers && !all)
        return complain("-ngl %" PRId64 ": a model is computed on one device; 0 is the processor, %u or more a GPU",
                        setup->gpu_layers, setup->info.layers);
    *device = all ? "gpu" : "cpu";
    return EXIT_OK;
}

/* Returns whether the CPU may serve: -ngl asks for whatever device there is, as llama.cpp has it, where --device gpu asks for a
 * GPU. */
static bool may_do_without_gpu(const struct setup *setup, const char *device) {
    return setup->gpu_layers > 0 && strcmp(device, "gpu") == 0;
}

int setup_engine(struct setup *setup) {
    struct terse_engine_options options = terse_engine_options_defaults();
    struct terse_error error;
    if (setup->engine) return EXIT_OK;
    int status = setup_choose_device(setup, &options.device);
    if (status != EXIT_OK) return status;
    options.threads = setup->threads > 0 ? (uint32_t)setup->threads : 0;
    options.kv_budget = setup->kv_budget;
    options.over_ranks = console_ranks() > 1;
    if (setup->prefixes) options.prefixes = setup->prefixes;
    enum terse_status failed = terse_engine_new(setup->model, &options, &setup->engine, &error);
    if (failed == TERSE_E_UNSUPPORTED && may_do_without_gpu(setup, options.device)) {
        remark("-ngl %" PRId64 ": the processor computes, as there is no GPU for it: %s", setup->gpu_layers, error.message);
        options.device = "cpu";
        failed = terse_engine_new(setup->model, &options, &setup->engine, &error);
    }
    return failed ? complain_error(&error) : EXIT_OK;
}

/* Ends this process, of a rank other than 0, when rank 0's work is done: it follows. */
_Noreturn static void follow(struct setup *setup) {
    struct terse_error error;
    console_ignore_signals();
    int status = setup_engine(setup);
    if (status == EXIT_OK && terse_engine_follow(setup->engine, &error) != TERSE_OK) status = complain_error(&error);
    setup_free(setup);
    exit(console_end(status));
}

int setup_load(struct setup *setup) {
    struct terse_error error;
    if (setup_try_load(setup, &error) != TERSE_OK) return complain_error(&error);
    if (setup->lock && mlockall(MCL_CURRENT))
        remark("--mlock: memory cannot be locked: %s: raise the limit (ulimit -l)", strerror(errno));
    if (!console_is_first()) follow(setup);
    return EXIT_OK;
}

const char *setup_device(const struct setup *setup) {
    if (setup->engine) return terse_engine_device(setup->engine);
    return setup->gpu_layers > 0 ? "auto" : setup->gpu_layers < 0 ? setup->device : "cpu";
}

enum terse_status setup_cache_bytes(const struct setup *setup, const struct terse_cache_options *options, uint64_t tokens,
                                    struct terse_cache_report *report, struct terse_error *error) {
    return terse_cache_bytes(setup->model, setup_device(setup), options, tokens, report, error);
}

enum terse_status setup_open_gguf(const char *path, struct terse_gguf **gguf, struct terse_error *error) {
    if (path) return terse_gguf_open(path, gguf, error);
    return terse_gguf_open_memory(default_model_begin, default_size(), default_name, gguf, error);
}

void setup_free(struct setup *setup) {
    codebooks_free(setup->codebooks);
    terse_engine_free(setup->engine);
    terse_model_free(setup->model);
    free(setup->model_bytes);
    setup->model_bytes = NULL;
    setup->codebooks = NULL;
    setup->engine = NULL;
    setup->model = NULL;
}

struct terse_session_options setup_session_options(const struct setup *setup) {
    struct terse_session_options options = terse_session_options_defaults();
    options.cache.method = setup->method;
    options.cache.key_type = setup->key_type;
    options.cache.value_type = setup->value_type;
    if (setup->tail_tokens >= 0) options.cache.tail_tokens = (uint32_t)setup->tail_tokens;
    if (setup->first_tokens >= 0)
        options.cache.first_tokens = setup->first_tokens ? (uint32_t)setup->first_tokens : TERSE_FIRST_NONE;
    options.cache.anchor_score = (enum terse_anchor_score)setup->anchor_score;
    options.cache.anchor_percent = setup->anchors.percent;
    options.cache.anchor_count = setup->anchors.number;
    options.cache.read_percent = setup->read.percent;
    options.cache.read_count = setup->read.number;
    options.cache.evict = setup->evict;
    options.cache.least_rate = setup->least_rate;
    options.cache.mat_anchors = (uint32_t)setup->mat_anchors;
    if (setup->mat_shallow >= 0) options.cache.mat_shallow = (uint32_t)setup->mat_shallow;
    options.context = (uint32_t)setup->context;
    options.allow_longer_context = setup->allow_longer;
    options.prefill = (enum terse_prefill)setup->prefill;
    options.batch = (uint32_t)setup->batch;
    options.progress.report = progress_show;
    return options;
}

enum terse_status setup_try_cache(const struct setup *setup, struct terse_error *error) {
    struct terse_session_options options = setup_session_options(setup);
    struct terse_cache_report report;
    return setup_cache_bytes(setup, &options.cache, 1, &report, error);
}

void setup_remark_eviction(const struct setup *setup) {
    enum { LONG = 1 << 20 }; /* tokens: more than any eviction keeps */
    struct terse_session_options options = setup_session_options(setup);
    struct terse_cache_options without_tail = options.cache, without_eviction = options.cache;
    struct terse_cache_report kept, shorter, all;
    char method[256];
    without_tail.tail_tokens = 0;
    without_eviction.evict = NULL;
    if (!setup->evict || setup_cache_bytes(setup, &options.cache, LONG, &kept, NULL) || kept.codes) return;
    if (setup_cache_bytes(setup, &without_eviction, LONG, &all, NULL) || all.bits_per_value > 15) return;
    bool tail = !setup_cache_bytes(setup, &without_tail, LONG, &shorter, NULL) && shorter.codes;
    remark("--kv %s: nothing is compressed, as all of the %" PRIu64
           " tokens that are kept are new enough to stay exact: keep more of "
           "them%s",
           setup_method_text(setup, method, sizeof method), kept.kept, tail ? ", or lower --kv-tail-tokens" : "");
}

int setup_check_codebook(const struct setup *setup) {
    char method[256];
    if (!setup->codebook_path || strcmp(setup->codebook_path, "none") == 0 || codebooks_needed(setup)) return EXIT_OK;
    return complain("--codebook is for methods that learn, and %s learns nothing: omit it, or choose another --kv",
                    setup_method_text(setup, method, sizeof method));
}

/* Adds ", anchors 1%" or ", anchors 64"; nothing where none was asked for. */
static void write_amount(const char *what, struct amount amount, bool asked, char *text, size_t capacity) {
    text[0] = 0;
    if (amount.number)
        snprintf(text, capacity, ", %s %u", what, amount.number);
    else if (asked)
        snprintf(text, capacity, ", %s %g%%", what, amount.percent);
}

const char *setup_method_text(const struct setup *setup, char *buffer, size_t capacity) {
    const char *k = setup->key_type, *v = setup->value_type, *evict = setup->evict;
    char anchors[48], read[48];
    write_amount("anchors", setup->anchors, setup->anchors.percent >= 0, anchors, sizeof anchors);
    write_amount("reading", setup->read, setup->read.percent > 0, read, sizeof read);
    snprintf(buffer, capacity, "%s%s%s%s%s%s%s%s%s", setup->method, k ? ", keys " : "", k ? k : "", v ? ", values " : "",
             v ? v : "", anchors, read, evict ? ", tokens of " : "", evict ? evict : "");
    return buffer;
}

const char *setup_rates_text(const struct terse_cache_report *cache, char *text, size_t capacity) {
    size_t length = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < cache->n_rates && length < capacity; i++)
        if (cache->rate_tokens[i])
            length += (size_t)snprintf(text + length, capacity - length, "%s %" PRIu64 "%s at terse-%g", length ? "," : ";",
                                       cache->rate_tokens[i], length ? "" : " tokens", (double)cache->rates[i]);
    return text;
}

const char *setup_calibrate_command(const struct setup *setup, const char *method, char *text, size_t capacity) {
    const char *model = setup->model_path, *device = setup->gpu_layers > 0 ? "gpu" : setup->device;
    const bool elsewhere = setup->gpu_layers && strcmp(device, "cpu") != 0;
    snprintf(text, capacity, "terse calibrate%s%s --kv %s%s%s", model ? " -m " : "", model ? model : "", method,
             elsewhere ? " --device " : "", elsewhere ? device : "");
    return text;
}
