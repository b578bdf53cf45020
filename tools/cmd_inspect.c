/* Implements `terse inspect`: what a GGUF file holds, whether terse can run it, and what its KV cache costs by each method; it
 * measures for a few seconds how fast the model is here. Of a codebook it says what it is for and where it comes from. It works on
 * any well-formed GGUF file, also on those that terse cannot run. */
#include "codebooks.h"
#include "commands.h"
#include "fits.h"
#include "forecast.h"
#include "rate_choice.h"
#include "rate_costs.h"
#include "setup.h"
#include "table.h"
#include "text.h"

#include <terse_choice.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct inspect {
    struct setup setup; /* its model is NULL when terse cannot run the file */
    const char *file;
    bool list_tensors;
    uint64_t budget, fits; /* 0: not asked */
    int format;
    struct forecast forecast; /* of a model, unless the format is csv */

    struct terse_gguf *gguf;
    bool is_codebook;                                    /* then no model is looked for */
    struct terse_codebook *codebook;                     /* NULL when terse cannot use it */
    const struct terse_codebook *profile;                /* that there is of the model, or NULL; of `setup` */
    struct terse_error refusal;                          /* why the model or codebook did not load; code TERSE_OK when it did */
    cJSON *parts, *metadata, *types, *tensors, *methods; /* arrays of objects; no parts of a file that was not split */
};

enum { EXIT_CANNOT_RUN = 2 };

static const struct table_column part_columns[] = {{"name", "part", 0}, {"tensors", "tensors", 0}, {"bytes", "bytes", 0}};
static const struct table_column metadata_columns[] = {{"key", "key", 0}, {"type", "type", 0}, {"value", "value", 0}};
static const struct table_column type_columns[] = {
    {"type", "type", 0}, {"tensors", "tensors", 0}, {"bytes", "bytes", 0}, {"supported", "supported", 0}};
static const struct table_column tensor_columns[] = {
    {"name", "tensor", 0}, {"type", "type", 0}, {"shape", "shape", 0}, {"bytes", "bytes", 0}, {"supported", "supported", 0}};
/* Without --budget its column is omitted. */
static const struct table_column method_columns[] = {{"kv", "KV", 0},
                                                     {"summary", "what", 0},
                                                     {"bits_per_value", "bits/value", 2},
                                                     {"bytes_per_token", "bytes/token", 1},
                                                     {"mib_at_context", "MiB at that context", 2},
                                                     {"context_in_budget", "context in the budget", 0}};
#define COLUMNS(table) table, sizeof table / sizeof table[0]
enum { N_METHOD_COLUMNS = sizeof method_columns / sizeof method_columns[0] };

/* ---- What is in the file. Its strings may be hostile: they are made printable as they are read. */

static void add_text(cJSON *object, const char *key, const char *text) {
    char *copy = strdup(text);
    cJSON_AddStringToObject(object, key, copy ? text_make_printable(copy) : "");
    free(copy);
}

static cJSON *collect_parts(const struct inspect *f) {
    uint32_t n = terse_gguf_part_count(f->gguf);
    cJSON *rows = cJSON_CreateArray();
    for (uint32_t i = 0; i < n && n > 1; i++) {
        struct terse_gguf_part part;
        cJSON *row = cJSON_CreateObject();
        terse_gguf_part(f->gguf, i, &part);
        cJSON_AddStringToObject(row, "name", part.name);
        cJSON_AddNumberToObject(row, "tensors", (double)part.tensors);
        cJSON_AddNumberToObject(row, "bytes", (double)part.bytes);
        cJSON_AddItemToArray(rows, row);
    }
    return rows;
}

static cJSON *collect_metadata(const struct inspect *f) {
    enum { SHOWN_IN_TABLE = 80, SHOWN_IN_JSON = 4096 };
    size_t capacity = f->format == TABLE_MARKDOWN ? SHOWN_IN_TABLE : SHOWN_IN_JSON;
    char value[SHOWN_IN_JSON];
    cJSON *rows = cJSON_CreateArray();
    for (uint64_t i = 0; i < terse_gguf_metadata_count(f->gguf); i++) {
        const char *key, *type;
        cJSON *row = cJSON_CreateObject();
        terse_gguf_metadata(f->gguf, i, &key, &type);
        terse_gguf_metadata_text(f->gguf, i, value, capacity);
        add_text(row, "key", key);
        add_text(row, "type", type);
        add_text(row, "value", value);
        cJSON_AddItemToArray(rows, row);
    }
    return rows;
}

static cJSON *collect_tensors(const struct inspect *f) {
    cJSON *rows = cJSON_CreateArray();
    for (uint64_t i = 0; i < terse_gguf_tensor_count(f->gguf); i++) {
        struct terse_gguf_tensor tensor;
        char shape[4 * 24] = "";
        cJSON *row = cJSON_CreateObject();
        terse_gguf_tensor(f->gguf, i, &tensor);
        for (uint32_t d = 0; d < tensor.n_dims; d++)
            snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%llu", d ? " x " : "",
                     (unsigned long long)tensor.dims[d]);
        add_text(row, "name", tensor.name);
        add_text(row, "type", tensor.type);
        cJSON_AddStringToObject(row, "shape", shape);
        cJSON_AddNumberToObject(row, "bytes", (double)tensor.bytes);
        cJSON_AddStringToObject(row, "supported", tensor.supported ? "yes" : "no");
        cJSON_AddItemToArray(rows, row);
    }
    return rows;
}

static cJSON *find_type(cJSON *rows, const char *type) {
    cJSON *row;
    cJSON_ArrayForEach(row, rows) {
        if (strcmp(cJSON_GetObjectItemCaseSensitive(row, "type")->valuestring, type) == 0) return row;
    }
    return NULL;
}

static void add_to_number(cJSON *row, const char *key, double more) {
    cJSON *item = cJSON_GetObjectItemCaseSensitive(row, key);
    cJSON_SetNumberValue(item, item->valuedouble + more);
}

/* Makes a row for each type. A hostile file may name billions of types: what comes after MOST_TYPES shares a row. */
static cJSON *collect_types(const struct inspect *f) {
    enum { MOST_TYPES = 64 };
    cJSON *rows = cJSON_CreateArray();
    int n_types = 0;
    for (uint64_t i = 0; i < terse_gguf_tensor_count(f->gguf); i++) {
        struct terse_gguf_tensor tensor;
        terse_gguf_tensor(f->gguf, i, &tensor);
        cJSON *row = find_type(rows, tensor.type);
        const char *type = n_types < MOST_TYPES ? tensor.type : "others";
        if (!row && !(row = find_type(rows, type))) {
            row = cJSON_CreateObject();
            cJSON_AddStringToObject(row, "type", type);
            cJSON_AddNumberToObject(row, "tensors", 0);
            cJSON_AddNumberToObject(row, "bytes", 0);
            cJSON_AddStringToObject(row, "supported", tensor.supported ? "yes" : "no");
            cJSON_AddItemToArray(rows, row);
            n_types++;
        }
        add_to_number(row, "tensors", 1);
        add_to_number(row, "bytes", (double)tensor.bytes);
    }
    return rows;
}

/* ---- What its cache costs */

/* Returns the most tokens whose cache never takes more than `budget` bytes, up to MOST_TOKENS. */
#define MOST_TOKENS (UINT64_C(1) << 40)
static uint64_t tokens_in_budget(const struct inspect *f, const struct terse_cache_options *options) {
    uint64_t fits = 0, too_many = MOST_TOKENS + 1;
    while (too_many - fits > 1) {
        uint64_t bytes, middle = fits + (too_many - fits) / 2;
        if (terse_cache_peak(f->setup.model, setup_device(&f->setup), options, middle, &bytes, NULL) == TERSE_OK &&
            bytes <= f->budget)
            fits = middle;
        else
            too_many = middle;
    }
    return fits;
}

/* Returns the options of a method as terse run would take it. A cache takes the same bytes whatever the method's codebook has
 * learned. */
static struct terse_cache_options options_of(const struct inspect *f, const char *method) {
    struct terse_cache_options options = terse_cache_options_defaults();
    struct setup setup = f->setup;
    setup.method = options.method = method;
    if (codebooks_is_profile(&setup)) options.codebook = f->profile;
    return options;
}

/* Returns the context that is told of: that of -c, or the model's. */
static uint32_t context_of(const struct inspect *f) {
    return f->setup.context ? (uint32_t)f->setup.context : f->setup.info.context;
}

/* Writes a method of the table under a name that --kv accepts: "streaming-N" and "quest-K" are shown for 512 tokens. */
static void instance_of(const char *pattern, char *name, size_t capacity) {
    size_t length = strlen(pattern);
    bool parameter = length > 2 && (strcmp(pattern + length - 2, "-N") == 0 || strcmp(pattern + length - 2, "-K") == 0);
    snprintf(name, capacity, "%.*s%s", (int)(parameter ? length - 1 : length), pattern, parameter ? "512" : "");
}

static cJSON *collect_methods(const struct inspect *f) {
    cJSON *rows = cJSON_CreateArray();
    struct terse_method_info method;
    const uint32_t context = context_of(f), most = f->setup.allow_longer ? UINT32_MAX : f->setup.info.context;
    for (size_t i = 0; f->setup.model && terse_method_describe(i, &method); i++) {
        char name[64];
        struct terse_cache_report full;
        instance_of(method.name, name, sizeof name);
        struct terse_cache_options options = options_of(f, name);
        if (setup_cache_bytes(&f->setup, &options, context, &full, NULL) != TERSE_OK) continue;
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "kv", name);
        cJSON_AddStringToObject(row, "summary", method.summary);
        cJSON_AddNumberToObject(row, "bits_per_value", full.bits_per_value);
        cJSON_AddNumberToObject(row, "bytes_per_token", (double)full.resident / context);
        cJSON_AddNumberToObject(row, "mib_at_context", (double)full.resident / 0x1p20);
        if (f->budget) {
            uint64_t tokens = tokens_in_budget(f, &options);
            if (tokens == MOST_TOKENS)
                cJSON_AddStringToObject(row, "context_in_budget", "without end");
            else
                cJSON_AddNumberToObject(row, "context_in_budget", (double)(tokens < most ? tokens : most));
        }
        cJSON_AddItemToArray(rows, row);
    }
    return rows;
}

/* ---- Output */

/* Returns the refusal, without the file's name that it begins with. */
static const char *refusal_text(const struct inspect *f) {
    size_t length = f->file ? strlen(f->file) : 0;
    bool named = length && strncmp(f->refusal.message, f->file, length) == 0 && strncmp(f->refusal.message + length, ": ", 2) == 0;
    return f->refusal.message + (named ? length + 2 : 0);
}

/* Prints a codebook, whose strings came through the library, which made them printable. */
static void print_codebook(const struct inspect *f) {
    struct terse_codebook_info c;
    if (!f->codebook) {
        printf("This is a codebook that terse cannot use: %s\n", refusal_text(f));
        return;
    }
    terse_codebook_describe(f->codebook, &c);
    if (c.profile) {
        printf("This is a profile: what the methods terse-N have learned about a model. It serves every N, and every file of the "
               "model, "
               "whatever its quantization.\n\n"
               "for the model \"%s\" of norms' fingerprint %016" PRIx64 "\n"
               "learned from %" PRIu64 " tokens of \"%s\", weights of samples: %s, seed %" PRIu64 "\n"
               "transforms and importance of each layer and KV head, %.1f MiB of memory\n",
               c.model, c.fingerprint, c.tokens, c.corpus, c.weighting, c.seed, (double)c.bytes / 0x1p20);
        rate_costs_print(f->codebook);
        return;
    }
    printf("This is a codebook: what a KV method has learned about a model.\n\n"
           "method %s, for the model \"%s\" of %sfingerprint %016" PRIx64 "\n"
           "learned from %" PRIu64 " tokens of \"%s\", weights of samples: %s, seed %" PRIu64 "\n"
           "centroids for %s, %.1f MiB of memory\n",
           c.method, c.model, c.of_norms ? "norms' " : "", c.fingerprint, c.tokens, c.corpus, c.weighting, c.seed,
           c.shared ? "the whole model" : "each layer and KV head", (double)c.bytes / 0x1p20);
}

static void print_support(const struct inspect *f) {
    const struct terse_model_info *m = &f->setup.info;
    const cJSON *row;
    if (f->is_codebook) {
        print_codebook(f);
        return;
    }
    if (!f->setup.model) {
        printf("terse cannot run this file: %s\n", refusal_text(f));
        cJSON_ArrayForEach(row, f->types) {
            if (strcmp(cJSON_GetObjectItemCaseSensitive(row, "supported")->valuestring, "no") == 0)
                printf("tensor type %s is not supported\n", cJSON_GetObjectItemCaseSensitive(row, "type")->valuestring);
        }
        return;
    }
    char experts[64] = "", sliding[64] = "", recurrent[64] = "", latent[64] = "";
    if (m->latent) snprintf(latent, sizeof latent, ", %u of them values (latent attention)", m->latent);
    if (m->recurrent_layers)
        snprintf(recurrent, sizeof recurrent, " (%u recurrent, all but one in %u)", m->recurrent_layers, m->attention_interval);
    if (m->sliding_layers) snprintf(sliding, sizeof sliding, ", %u layers sliding over %u", m->sliding_layers, m->sliding_window);
    if (m->experts) snprintf(experts, sizeof experts, " in %u experts, %u for a token", m->experts, m->experts_used);
    printf("terse can run this file.\n\n%s: architecture %s, %.1f M parameters, %s, %.1f MiB\n"
           "%u layers%s of width %u, %u query heads and %u KV heads of %u%s, feed-forward %u%s, vocabulary %u, context %u%s\n"
           "fingerprint %016" PRIx64 "\n"
           "norms' fingerprint %016" PRIx64 ", the same for every quantization\n",
           m->name, m->architecture, 1e-6 * (double)m->parameters, m->weights, (double)m->bytes / 0x1p20, m->layers, recurrent,
           m->width, m->query_heads, m->kv_heads, m->head_dim, latent, m->feed_forward, experts, m->vocabulary, m->context, sliding,
           m->fingerprint, m->norms_fingerprint);
}

static int print_sections(const struct inspect *f) {
    const char *path = f->file ? f->file : "built-in model";
    int status = EXIT_OK;
    printf("%s: GGUF version %u, %llu metadata entries, %llu tensors\n", path, terse_gguf_version(f->gguf),
           (unsigned long long)terse_gguf_metadata_count(f->gguf), (unsigned long long)terse_gguf_tensor_count(f->gguf));
    print_support(f);
    if (f->setup.model) forecast_print(&f->forecast, &f->setup);
    if (cJSON_GetArraySize(f->parts)) {
        printf("\n## Parts\n\n");
        status |= table_print(f->parts, COLUMNS(part_columns), TABLE_MARKDOWN);
    }
    if (terse_gguf_metadata_count(f->gguf)) {
        printf("\n## Metadata\n\n");
        status |= table_print(f->metadata, COLUMNS(metadata_columns), TABLE_MARKDOWN);
    }
    if (terse_gguf_tensor_count(f->gguf)) {
        printf("\n## Tensors\n\n");
        status |= table_print(f->types, COLUMNS(type_columns), TABLE_MARKDOWN);
        if (f->list_tensors) putchar('\n');
        if (f->list_tensors) status |= table_print(f->tensors, COLUMNS(tensor_columns), TABLE_MARKDOWN);
    }
    if (!f->setup.model) return status;
    printf("\n## KV cache at %u tokens%s\n\n", context_of(f), f->budget ? ", and tokens that fit the budget" : "");
    return status | table_print(f->methods, method_columns, N_METHOD_COLUMNS - !f->budget, TABLE_MARKDOWN);
}

/* Adds a fingerprint as text: a JSON number does not hold every u64 for every reader; a fingerprint is a name rather than a number. */
static void add_fingerprint(cJSON *object, const char *name, uint64_t fingerprint) {
    char text[24];
    snprintf(text, sizeof text, "%016" PRIx64, fingerprint);
    cJSON_AddStringToObject(object, name, text);
}

static void add_costs(cJSON *item, const struct terse_codebook_info *c) {
    if (!c->n_costs) return;
    cJSON *costs = cJSON_AddArrayToObject(item, "rate_costs");
    for (size_t i = 0; i < c->n_costs; i++) {
        cJSON *cost = cJSON_CreateObject();
        cJSON_AddNumberToObject(cost, "bits", (double)c->costs[i].bits);
        cJSON_AddNumberToObject(cost, "divergence", (double)c->costs[i].divergence);
        cJSON_AddNumberToObject(cost, "error", (double)c->costs[i].error);
        cJSON_AddItemToArray(costs, cost);
    }
    cJSON_AddStringToObject(item, "rate_costs_corpus", c->costs_corpus);
    cJSON_AddNumberToObject(item, "rate_costs_positions", (double)c->costs_positions);
}

static void add_codebook(cJSON *object, const struct terse_codebook *codebook) {
    struct terse_codebook_info c;
    char seed[24];
    cJSON *item = cJSON_AddObjectToObject(object, "codebook");
    terse_codebook_describe(codebook, &c);
    snprintf(seed, sizeof seed, "%" PRIu64, c.seed);
    cJSON_AddStringToObject(item, "method", c.method);
    cJSON_AddStringToObject(item, "model", c.model);
    cJSON_AddBoolToObject(item, "profile", c.profile);
    add_fingerprint(item, c.of_norms ? "norms_fingerprint" : "fingerprint", c.fingerprint);
    cJSON_AddStringToObject(item, "corpus", c.corpus);
    cJSON_AddNumberToObject(item, "tokens", (double)c.tokens);
    cJSON_AddStringToObject(item, "weighting", c.weighting);
    cJSON_AddRawToObject(item, "seed", seed);
    cJSON_AddBoolToObject(item, "shared", c.shared);
    cJSON_AddNumberToObject(item, "bytes", (double)c.bytes);
    add_costs(item, &c);
}

static void add_shape(cJSON *object, const struct terse_model_info *m) {
    cJSON *shape = cJSON_AddObjectToObject(object, "shape");
    cJSON_AddStringToObject(shape, "architecture", m->architecture);
    add_text(shape, "name", m->name);
    cJSON_AddStringToObject(shape, "weights", m->weights);
    cJSON_AddNumberToObject(shape, "layers", m->layers);
    cJSON_AddNumberToObject(shape, "width", m->width);
    cJSON_AddNumberToObject(shape, "query_heads", m->query_heads);
    cJSON_AddNumberToObject(shape, "kv_heads", m->kv_heads);
    cJSON_AddNumberToObject(shape, "head_dim", m->head_dim);
    cJSON_AddNumberToObject(shape, "feed_forward", m->feed_forward);
    cJSON_AddNumberToObject(shape, "sliding_layers", m->sliding_layers);
    cJSON_AddNumberToObject(shape, "sliding_window", m->sliding_window);
    cJSON_AddNumberToObject(shape, "recurrent_layers", m->recurrent_layers);
    cJSON_AddNumberToObject(shape, "attention_interval", m->attention_interval);
    cJSON_AddNumberToObject(shape, "latent", m->latent);
    cJSON_AddNumberToObject(shape, "experts", m->experts);
    cJSON_AddNumberToObject(shape, "experts_used", m->experts_used);
    cJSON_AddNumberToObject(shape, "vocabulary", m->vocabulary);
    cJSON_AddNumberToObject(shape, "merges", m->merges);
    cJSON_AddNumberToObject(shape, "context", m->context);
    cJSON_AddNumberToObject(shape, "parameters", (double)m->parameters);
    cJSON_AddNumberToObject(shape, "bytes", (double)m->bytes);
    cJSON_AddNumberToObject(shape, "embedding_bytes", (double)m->embedding_bytes);
    add_fingerprint(shape, "fingerprint", m->fingerprint);
    add_fingerprint(shape, "norms_fingerprint", m->norms_fingerprint);
}

static int print_json(const struct inspect *f) {
    cJSON *all = cJSON_CreateObject();
    add_text(all, "file", f->file ? f->file : "built-in model");
    cJSON_AddNumberToObject(all, "version", terse_gguf_version(f->gguf));
    cJSON_AddBoolToObject(all, "supported", f->setup.model || f->codebook);
    if (f->setup.model) {
        add_shape(all, &f->setup.info);
        cJSON_AddItemToObject(all, "forecast", forecast_json(&f->forecast, &f->setup));
    } else if (f->codebook)
        add_codebook(all, f->codebook);
    else
        add_text(all, "refusal", f->refusal.message);
    if (cJSON_GetArraySize(f->parts)) cJSON_AddItemReferenceToObject(all, "parts", f->parts);
    cJSON_AddItemReferenceToObject(all, "metadata", f->metadata);
    cJSON_AddItemReferenceToObject(all, "types", f->types);
    if (f->list_tensors) cJSON_AddItemReferenceToObject(all, "tensors", f->tensors);
    cJSON_AddItemReferenceToObject(all, "methods", f->methods);
    int status = json_print(all);
    cJSON_Delete(all);
    return status;
}

/* Finds the codebook that a method would take; NULL: it takes none, or there is none yet. Returns an exit status. */
static int find_codebook(struct inspect *f, const char *method, const struct terse_codebook **codebook) {
    const char *const own = f->setup.method;
    f->setup.method = method;
    const int status = codebooks_needed(&f->setup) ? codebooks_find(&f->setup, codebook) : EXIT_OK;
    f->setup.method = own;
    return status;
}

/* Prints whether a prompt fits, by each method. */
static int print_fits(struct inspect *f) {
    struct terse_method_info method;
    const uint32_t context = context_of(f);
    cJSON *rows = cJSON_CreateArray();
    int status = EXIT_OK;
    bool lacking = false;
    for (size_t i = 0; status == EXIT_OK && terse_method_describe(i, &method); i++) {
        char name[64];
        instance_of(method.name, name, sizeof name);
        struct terse_cache_options options = options_of(f, name);
        if (method.learns && !options.codebook) status = find_codebook(f, name, &options.codebook);
        cJSON *row = fits_row(&f->setup, &options, context, f->fits);
        if (row) cJSON_AddItemToArray(rows, row);
        lacking = lacking || (row && method.learns && !options.codebook && strncmp(name, "terse", 5) != 0);
    }
    if (status == EXIT_OK) status = fits_print(rows, &f->setup, context, f->fits, f->format);
    if (status == EXIT_OK && lacking && f->format == TABLE_MARKDOWN)
        printf(
            "\nCodebooks that terse calibrate has not learned for this model yet are not counted (antkv, cq, commvq, million).\n");
    cJSON_Delete(rows);
    return status;
}

static int print_file(struct inspect *f) {
    if (f->fits) return print_fits(f);
    switch ((enum table_format)f->format) {
    case TABLE_JSON: return print_json(f);
    case TABLE_CSV:
        if (f->list_tensors) return table_print(f->tensors, COLUMNS(tensor_columns), TABLE_CSV);
        return table_print(f->methods, COLUMNS(method_columns), TABLE_CSV);
    default: return print_sections(f);
    }
}

/* ---- The command */

static enum options_result parse(struct inspect *f, int argc, char **argv) {
    const struct option options[] = {
        {"--tensors", NULL, OPTION_FLAG, &f->list_tensors, 0, 0, "list every tensor"},
        {"-c, --ctx-size", "N", OPTION_INTEGER, &f->setup.context, 0, UINT32_MAX,
         "context in tokens that memory and speed are told for; 0: the model's"},
        {"--allow-longer-context", NULL, OPTION_FLAG, &f->setup.allow_longer, 0, 0, "permit more than the model was trained for"},
        {"--device", "NAME", OPTION_TEXT, &f->setup.device, 0, 0,
         "where the model would be computed, of which memory and speed are told: as of terse run"},
        {"--budget", "SIZE", OPTION_SIZE, &f->budget, 0, 0, "show the context whose KV cache fits SIZE, such as 4G"},
        {"--fits", "SIZE", OPTION_SIZE, &f->fits, 0, 0,
         "say alone, for each method, whether a prompt of -c tokens fits SIZE of memory, such as 8G, and which context does"},
        {"-o, --output", TABLE_FORMATS, OPTION_CHOICE, &f->format, 0, 0, "csv: the KV table only, or with --tensors the tensors"},
    };
    const struct option_set set = {
        .usage = "terse inspect [FILE] [options]",
        .about = "Shows what a GGUF file (the built-in model without one) holds, whether terse can run it, and what its\n"
                 "KV cache costs by each method; of a codebook, what it is for and where it comes from. Works on files\n"
                 "that terse cannot run, too. Exit status: 0, terse can run the file (or use the codebook); 2, it is a GGUF\n"
                 "file, but terse cannot; 1, it is none, is damaged, or cannot be read.\n",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .positional = &f->file,
        .n_positional = 1,
    };
    return options_parse(&set, argc, argv);
}

static bool is_codebook(const struct terse_gguf *gguf) {
    char value[32];
    for (uint64_t i = 0; i < terse_gguf_metadata_count(gguf); i++) {
        const char *key, *type;
        terse_gguf_metadata(gguf, i, &key, &type);
        if (strcmp(key, "general.architecture") != 0) continue;
        terse_gguf_metadata_text(gguf, i, value, sizeof value);
        return strcmp(value, "terse-codebook") == 0;
    }
    return false;
}

static int check_context(const struct inspect *f) {
    if (f->setup.context <= f->setup.info.context || f->setup.allow_longer) return EXIT_OK;
    return complain("-c %" PRId64 ": the model was trained for %u tokens: use -c %u, or --allow-longer-context", f->setup.context,
                    f->setup.info.context, f->setup.info.context);
}

/* Refuses a device that cannot serve the model: its caches by no method would be told. */
static int check_device(const struct inspect *f) {
    const struct terse_cache_options options = terse_cache_options_defaults();
    struct terse_cache_report report;
    struct terse_error error;
    return setup_cache_bytes(&f->setup, &options, 1, &report, &error) ? complain_error(&error) : EXIT_OK;
}

/* Loads the file. One that cannot be run is shown nevertheless; one that cannot be read is not. */
static int load(struct inspect *f) {
    int status = EXIT_OK;
    if (setup_open_gguf(f->file, &f->gguf, &f->refusal) != TERSE_OK) return complain_error(&f->refusal);
    f->is_codebook = f->file && is_codebook(f->gguf);
    f->setup.model_path = f->file;
    if (f->is_codebook)
        terse_codebook_load(f->file, &f->codebook, &f->refusal);
    else if (setup_try_load(&f->setup, &f->refusal) == TERSE_OK)
        status = codebooks_find(&f->setup, &f->profile);
    if (status == EXIT_OK && f->setup.model) status = check_context(f);
    if (status == EXIT_OK && f->setup.model) status = check_device(f);
    if (status == EXIT_OK && f->setup.model) status = rate_choice_make(&f->setup, NULL);
    if (status != EXIT_OK) return status;
    if (f->fits && !f->setup.model) return complain("--fits: %s", f->is_codebook ? "a codebook is no model" : refusal_text(f));
    if (f->fits) return EXIT_OK;
    f->parts = collect_parts(f);
    f->metadata = collect_metadata(f);
    f->types = collect_types(f);
    f->tensors = collect_tensors(f);
    f->methods = collect_methods(f);
    if (!f->setup.model || f->format == TABLE_CSV) return EXIT_OK;
    return forecast_make(&f->setup, context_of(f), f->profile, &f->forecast);
}

int cmd_inspect(int argc, char **argv) {
    struct inspect f = {0};
    setup_init(&f.setup);
    f.setup.method = NULL;
    rate_choice_take(&f.setup);
    enum options_result parsed = parse(&f, argc, argv);
    if (parsed != OPTIONS_GO) return parsed == OPTIONS_HELP ? EXIT_OK : EXIT_FAILED;
    int status = load(&f);
    if (status == EXIT_OK) status = print_file(&f);
    if (status == EXIT_OK && !f.setup.model && !f.codebook) status = EXIT_CANNOT_RUN;
    cJSON_Delete(f.parts);
    cJSON_Delete(f.metadata);
    cJSON_Delete(f.types);
    cJSON_Delete(f.tensors);
    cJSON_Delete(f.methods);
    terse_gguf_free(f.gguf);
    terse_codebook_free(f.codebook);
    setup_free(&f.setup);
    return status;
}
