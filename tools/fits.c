/* The bytes of weights and caches are the library's own. What a command takes beside them was measured, as the peak of its resident
 * memory (VmHWM) after prompts of several lengths on four models: docs/laptop.md. */
#include "fits.h"

#include "table.h"

#include <stdio.h>
#include <string.h>

/* Of the command, its threads and what a step computes with; and of a tokenizer and logits for each token of the vocabulary. */
#define PROGRAM ((uint64_t)29 << 20)
#define PROGRAM_PER_TOKEN 80

/* ---- Bytes */

static enum terse_status find_fits_itself(const struct terse_cache_options *options, bool *fits, struct terse_error *error) {
    char codebook[64];
    enum terse_status status = terse_cache_codebook(options, codebook, sizeof codebook, error);
    *fits = !status && strcmp(codebook, "terse") == 0;
    return status;
}

/* Returns the bytes by which a method fits itself to a prompt: a profile, where the model has none the one that its weights imply; half as much
 * again while a session makes its own; and, of a prompt long enough, the first tokens as f16 holds them until their layer is sealed, of all layers
 * but the first three, by whose turn pages of all are in use. `half` reports f16's bytes of these tokens. */
static uint64_t fitting_bytes(const struct terse_model_info *m, const struct terse_cache_report *report,
                              const struct terse_cache_report *half, uint64_t tokens) {
    uint64_t implied = (uint64_t)m->layers * m->kv_heads * 2 * 2 * m->head_dim * m->head_dim * sizeof(float);
    uint64_t profile = report->codebook ? 0 : implied, own = (report->codebook ? report->codebook : implied) / 2;
    bool long_enough = tokens > TERSE_FIT_TOKENS && m->layers > 3;
    return profile + own + (long_enough ? half->resident / m->layers * (m->layers - 3) : 0);
}

enum terse_status fits_count(const struct setup *setup, const struct terse_cache_options *options, uint32_t context,
                             struct fits_bytes *bytes, struct terse_error *error) {
    const struct terse_model_info *m = &setup->info;
    const struct terse_cache_options as_f16 = terse_cache_options_defaults();
    struct terse_cache_report report, half;
    bool fits_itself;
    enum terse_status status = setup_cache_bytes(setup, options, context, &report, error);
    if (!status) status = setup_cache_bytes(setup, &as_f16, TERSE_FIT_TOKENS, &half, error);
    if (!status) status = find_fits_itself(options, &fits_itself, error);
    if (status) return status;
    uint64_t rows = (uint64_t)context * (m->width + (m->latent ? 1 : 2) * m->kv_heads * m->head_dim) *
                    sizeof(float); /* terse_session_begin_prompt */
    *bytes = (struct fits_bytes){.weights = m->bytes,
                                 .cache = report.resident,
                                 .working = PROGRAM + PROGRAM_PER_TOKEN * m->vocabulary + report.codebook + rows};
    if (fits_itself) bytes->working += fitting_bytes(m, &report, &half, context);
    return TERSE_OK;
}

uint64_t fits_sum(const struct fits_bytes *bytes) { return bytes->weights + bytes->cache + bytes->working; }

/* ---- Rows */

static uint32_t longest(const struct setup *setup, const struct terse_cache_options *options, uint64_t size) {
    uint32_t fits = 0, too_many = setup->info.context + 1;
    while (too_many - fits > 1) {
        uint32_t middle = fits + (too_many - fits) / 2;
        struct fits_bytes bytes;
        if (fits_count(setup, options, middle, &bytes, NULL) == TERSE_OK && fits_sum(&bytes) <= size)
            fits = middle;
        else
            too_many = middle;
    }
    return fits;
}

static void add_mib(cJSON *row, const char *name, uint64_t bytes) { cJSON_AddNumberToObject(row, name, (double)bytes / 0x1p20); }

cJSON *fits_row(const struct setup *setup, const struct terse_cache_options *options, uint32_t context, uint64_t size) {
    struct fits_bytes bytes;
    if (fits_count(setup, options, context, &bytes, NULL) != TERSE_OK) return NULL;
    cJSON *row = cJSON_CreateObject();
    cJSON_AddStringToObject(row, "kv", options->method);
    add_mib(row, "weights_mib", bytes.weights);
    add_mib(row, "cache_mib", bytes.cache);
    add_mib(row, "working_mib", bytes.working);
    add_mib(row, "total_mib", fits_sum(&bytes));
    cJSON_AddStringToObject(row, "fits", fits_sum(&bytes) <= size ? "yes" : "no");
    cJSON_AddNumberToObject(row, "longest_context", longest(setup, options, size));
    return row;
}

int fits_print(const cJSON *rows, const struct setup *setup, uint32_t context, uint64_t size, int format) {
    static const struct table_column columns[] = {{"kv", "KV", 0},
                                                  {"weights_mib", "weights, MiB", 1},
                                                  {"cache_mib", "KV cache", 1},
                                                  {"working_mib", "working memory", 1},
                                                  {"total_mib", "together", 1},
                                                  {"fits", "fits", 0},
                                                  {"longest_context", "longest context that fits", 0}};
    if (format == TABLE_MARKDOWN)
        printf("## %s in %.1f MiB, with a prompt of %u tokens\n\n", setup->info.name, (double)size / 0x1p20, context);
    return table_print(rows, columns, sizeof columns / sizeof *columns, (enum table_format)format);
}
