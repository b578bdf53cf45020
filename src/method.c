/* The table of methods and how options choose from it. Owns the names; leaves what they mean to codecs and policies. */
#include "method.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define QUANTIZED_TAIL 128 /* newest tokens that stay exact beside quantized blocks: the papers' practice */
#define SINKS 4            /* StreamingLLM, section 4.1 */

struct row {
    const char *name; /* "streaming-N": the part before N is matched, N is the policy's budget */
    const char *summary;
    const struct codec *key, *value;
    const struct policy *policy;
    uint32_t sinks;
};

static const struct row rows[] = {
    {"f16", "half precision, every token: 16 bits per value", &codec_f16, &codec_f16, &policy_keep_all, 0},
    {"q8_0", "8-bit codes, a scale per 32 channels: 8.5 bits per value", &codec_q8_0, &codec_q8_0, &policy_keep_all, 0},
    {"q4_0", "4-bit codes, a scale per 32 channels: 4.5 bits per value", &codec_q4_0, &codec_q4_0, &policy_keep_all, 0},
    {"streaming-N", "the first 4 and the newest tokens, N in all: text without end in constant memory", &codec_f16, &codec_f16,
     &policy_streaming, SINKS},
};
#define ROWS (sizeof rows / sizeof rows[0])

/* Decimal digits and nothing else. */
static bool parse_number(const char *text, uint32_t *number) {
    uint64_t value = 0;
    if (!*text) return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9') return false;
        value = value * 10 + (uint64_t)(*text - '0');
        if (value > UINT32_MAX) return false;
    }
    *number = (uint32_t)value;
    return true;
}

static const struct row *find_row(const char *name, uint32_t *number) {
    for (size_t i = 0; i < ROWS; i++) {
        const char *pattern = rows[i].name;
        size_t prefix = strlen(pattern) - 1;
        bool numbered = pattern[prefix] == 'N';
        if (numbered ? strncmp(name, pattern, prefix) == 0 && parse_number(name + prefix, number) : strcmp(name, pattern) == 0)
            return &rows[i];
    }
    return NULL;
}

/* "f16, q8_0, ..." */
static void list_names(const char *(*name_at)(size_t i), char *text, size_t capacity) {
    size_t length = 0;
    text[0] = 0;
    for (size_t i = 0; name_at(i) && length < capacity; i++)
        length += (size_t)snprintf(text + length, capacity - length, "%s%s", i ? ", " : "", name_at(i));
}

static const char *method_name_at(size_t i) { return i < ROWS ? rows[i].name : NULL; }
static const char *codec_name_at(size_t i) { return codec_at(i) ? codec_at(i)->name : NULL; }

/* NULL keeps the method's own codec. */
static enum terse_status override_codec(const char *name, const char *what, const struct codec **codec, struct terse_error *error) {
    if (!name) return TERSE_OK;
    const struct codec *found = codec_find(name);
    if (found) {
        *codec = found;
        return TERSE_OK;
    }
    char known[256];
    list_names(codec_name_at, known, sizeof known);
    return status_fail(error, TERSE_E_ARGUMENT, "unknown %s type '%.64s': use one of %s", what, name, known);
}

/* The name that options would have to be given as, codecs included: "q8_0/q4_0", "streaming-512", "streaming-512+q8_0/q4_0". */
static void write_name(const struct row *row, struct method *method) {
    const char *key = method->key->name, *value = method->value->name;
    char codecs[48];
    snprintf(codecs, sizeof codecs, "%s%s%s", key, key == value ? "" : "/", key == value ? "" : value);
    if (method->policy == &policy_keep_all) {
        snprintf(method->name, sizeof method->name, "%s", codecs);
        return;
    }
    bool own = method->key == row->key && method->value == row->value;
    snprintf(method->name, sizeof method->name, "%.*s%u%s%.40s", (int)strlen(row->name) - 1, row->name, method->parameters.budget,
             own ? "" : "+", own ? "" : codecs);
}

enum terse_status method_resolve(const struct terse_cache_options *options, struct method *method, struct terse_error *error) {
    const char *name = options->method ? options->method : rows[0].name;
    uint32_t number = 0;
    const struct row *row = find_row(name, &number);
    if (!row) {
        char known[256];
        list_names(method_name_at, known, sizeof known);
        return status_fail(error, TERSE_E_ARGUMENT, "unknown KV method '%.64s': use one of %s (N a number of tokens)", name, known);
    }
    *method = (struct method){.key = row->key, .value = row->value, .policy = row->policy, .parameters = {number, row->sinks}};
    enum terse_status status;
    if ((status = override_codec(options->key_type, "key", &method->key, error))) return status;
    if ((status = override_codec(options->value_type, "value", &method->value, error))) return status;
    if ((status = method->policy->check(&method->parameters, error))) return status;
    bool exact = method->key == &codec_f16 && method->value == &codec_f16; /* as exact as the window itself */
    method->tail_tokens = options->tail_tokens != TERSE_TAIL_DEFAULT ? options->tail_tokens : exact ? 0 : QUANTIZED_TAIL;
    write_name(row, method);
    return TERSE_OK;
}

enum terse_status method_check(const struct method *method, uint32_t head_dim, uint32_t group, struct terse_error *error) {
    struct codec_shape shape = {head_dim, group};
    enum terse_status status = method->key->check(shape, CODEC_KEYS, error);
    if (!status) status = method->value->check(shape, CODEC_VALUES, error);
    if (!status) status = codec_f16.check(shape, CODEC_KEYS, error); /* the window's */
    return status;
}

struct terse_cache_options terse_cache_options_defaults(void) {
    return (struct terse_cache_options){.method = rows[0].name, .tail_tokens = TERSE_TAIL_DEFAULT};
}

bool terse_method_describe(size_t i, struct terse_method_info *info) {
    if (i >= ROWS) return false;
    *info = (struct terse_method_info){rows[i].name, rows[i].summary};
    return true;
}
