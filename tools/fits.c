/* The bytes of weights and caches are the library's own. What a command takes beside them was measured, as the peak of its resident
 * memory (VmHWM) after prompts of several lengths on four models: docs/laptop.md. */
#include "fits.h"

#include "table.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Of the command and its threads; and of a tokenizer and logits for each token of the vocabulary and each merge. */
#define PROGRAM ((uint64_t)22 << 20)
#define PROGRAM_PER_TOKEN 100
#define PROGRAM_PER_MERGE 76
/* A step holds activations of so many tokens at once, of small models more, as many as take so many multiplications in a layer. */
#define PANEL_LEAST 192
#define PANEL_MOST 512
#define PANEL_MULTIPLICATIONS ((uint64_t)1000000000)
/* What a method that scores a prompt's tokens holds beside the rows of a layer. */
#define SCORES ((uint64_t)3 << 20)

/* The system maps a file by so many bytes. */
#define WINDOW 65536
/* Tokens of a text fall upon windows of a table of embeddings by a law of Zipf's, (1 + number of the window)^-ZIPF: of 2,800 tokens
 * of Qwen2.5's, WikiText's are in 343 windows of 1,429, C source's in 211, and by this law 290. */
#define ZIPF 1.4

/* ---- Bytes */

static enum terse_status find_fits_itself(const struct terse_cache_options *options, bool *fits, struct terse_error *error) {
    char codebook[64];
    enum terse_status status = terse_cache_codebook(options, codebook, sizeof codebook, error);
    *fits = !status && strcmp(codebook, "terse") == 0;
    return status;
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Returns the bytes of weights that a text of so many tokens reads. */
static uint64_t weight_bytes(const struct terse_model_info *m, uint64_t tokens) {
    const double windows = ceil((double)m->embedding_bytes / WINDOW);
    double sum = 0, read = 0;
    for (double i = 0; i < windows; i++) sum += pow(1 + i, -ZIPF);
    for (double i = 0; i < windows; i++) read += 1 - exp(-(double)tokens * pow(1 + i, -ZIPF) / sum);
    return m->bytes - m->embedding_bytes + least(m->embedding_bytes, (uint64_t)(read * WINDOW));
}

/* Returns the bytes of a command beside weights, the cache and what a method needs: rows of the whole prompt
 * (terse_session_begin_prompt), and a step's activations. */
static uint64_t working_bytes(const struct terse_model_info *m, uint64_t tokens) {
    const uint64_t queries = (uint64_t)m->query_heads * m->head_dim, kv = (uint64_t)m->kv_heads * m->head_dim;
    const uint64_t row = m->width + (m->latent ? 1 : 2) * kv, activations = m->width + 2 * (queries + m->feed_forward);
    const uint64_t fast = PANEL_MULTIPLICATIONS * m->layers / m->parameters;
    const uint64_t panel = fast < PANEL_LEAST ? PANEL_LEAST : least(fast, PANEL_MOST);
    return PROGRAM + PROGRAM_PER_TOKEN * m->vocabulary + PROGRAM_PER_MERGE * m->merges +
           (tokens * row + least(tokens, panel) * activations) * sizeof(float);
}

/* Returns the bytes of a prompt's tokens that a method scores when a layer has read them: they wait as f16 holds them. */
static uint64_t scoring_bytes(const struct terse_model_info *m, const char *method, uint64_t tokens) {
    const bool scores =
        strncmp(method, "snapkv", 6) == 0 || strncmp(method, "selfindex", 9) == 0 || strncmp(method, "antkv", 5) == 0;
    return scores ? SCORES + tokens * 2 * m->kv_heads * m->head_dim * 2 : 0;
}

/* Returns the bytes by which a method fits itself to a prompt: a profile, where the model has none the one that its weights imply; half as much
 * again while a session makes its own; and, of a prompt long enough, the first tokens as f16 holds them until their layer is sealed, of all layers
 * but the first fifth, by whose turn pages of all are in use. `half` reports f16's bytes of these tokens. */
static uint64_t fitting_bytes(const struct terse_model_info *m, const struct terse_cache_report *report,
                              const struct terse_cache_report *half, uint64_t tokens) {
    uint64_t implied = (uint64_t)m->layers * m->kv_heads * 2 * 2 * m->head_dim * m->head_dim * sizeof(float);
    uint64_t profile = report->codebook ? 0 : implied, own = (report->codebook ? report->codebook : implied) / 2;
    bool long_enough = tokens > TERSE_FIT_TOKENS && m->layers > 4;
    return profile + own + (long_enough ? half->resident / 5 * 4 : 0);
}

enum terse_status fits_count(const struct setup *setup, const struct terse_cache_options *options, uint32_t context,
                             struct fits_bytes *bytes, struct terse_error *error) {
    const struct terse_model_info *m = &setup->info;
    const struct terse_cache_options as_f16 = terse_cache_options_defaults();
    struct terse_cache_report report, half;
    bool fits_itself;
    enum terse_status status = setup_cache_bytes(setup, options, context, &report, error);
    const uint32_t fit = context < TERSE_FIT_TOKENS_MOST ? TERSE_FIT_TOKENS : TERSE_FIT_TOKENS_MOST;
    if (!status) status = setup_cache_bytes(setup, &as_f16, fit, &half, error);
    if (!status) status = find_fits_itself(options, &fits_itself, error);
    if (status) return status;
    *bytes =
        (struct fits_bytes){.weights = weight_bytes(m, context),
                            .cache = report.resident,
                            .working = working_bytes(m, context) + scoring_bytes(m, options->method, context) + report.codebook};
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
