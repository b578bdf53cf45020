/* Holds the table of methods and resolves options against it. Only this file knows methods' names; codecs and policies do what they
 * mean. */
#include "method/method.h"

#include "base/options.h"
#include "format/codebook_layouts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SNAPKV_WINDOW 32   /* SnapKV's window */
#define QUANTIZED_TAIL 128 /* newest tokens that stay exact beside quantized pages: the papers' practice */

_Static_assert(TERSE_FIT_TOKENS == SINKS + FIT_TOKENS && TERSE_FIT_TOKENS_MOST == SINKS + FIT_TOKENS_MOST,
               "what terse.h says of caches that fit");

struct row {
    const char
        *name; /* "streaming-N": a capital K, M or N ends the part that is matched; N is the policy's budget, MxN parse_parts' */
    const char *summary;
    struct coding key, value;
    const struct policy *policy;
    struct policy_parameters parameters;
    uint32_t power; /* of gradient norms in learning: a sample weighs by its gradient's norm to this power; 0: all weigh the same */
    bool mean;      /* is subtracted from rows in learning */
    const struct index *index; /* of the tokens that a step reads; NULL: it reads all */
};

#define CODING(c, w, b) \
    { .codec = &c, .width = w, .bits = b }
#define BOTH(codec, width, bits) .key = CODING(codec, width, bits), .value = CODING(codec, width, bits)
#define PLAIN(codec) BOTH(codec, 0, 0), .policy = &policy_keep_all
#define PQ(width, bits) BOTH(codec_pq, width, bits), .policy = &policy_keep_all
#define VQ(width, bits) BOTH(codec_vq, width, bits), .policy = &policy_keep_all
#define ANCHORED .policy = &policy_anchors, .parameters = {.anchor_percent = 1} /* AnTKV, section 4.1 */
#define GAIN_SHAPE(width, bits) BOTH(codec_gain_shape, width, bits), ANCHORED
#define TERSE(bits) \
    .key = {.codec = &codec_transform, .rate = bits}, .value = {.codec = &codec_transform, .rate = bits}, .policy = &policy_keep_all
/* CommVQ has 1 or 2 bits per value; its rounds and codes depend on head_dim, see method_resolve. */
#define COMM(bits) .key = CODING(codec_commvq, 0, bits), .value = CODING(codec_additive, 0, bits), .policy = &policy_keep_all
#define EVICTING(choice) BOTH(codec_f16, 0, 0), .policy = &choice
/* The budget is that of the paper's section 5.1 on RULER, and so are the sinks. */
#define SELF_INDEXED(codec) \
    BOTH(codec, 0, 0), .policy = &policy_attention_rank, .parameters = {.anchor_count = 64, .read_percent = 7.5}, \
                       .index = &index_sign

#define RATE_MOST 8.0

static const struct row rows[] = {
    {"f16", "half precision, every token: 16 bits per value", PLAIN(codec_f16)},
    {"q8_0", "8-bit codes, a scale per 32 channels: 8.5 bits per value", PLAIN(codec_q8_0)},
    {"q4_0", "4-bit codes, a scale per 32 channels: 4.5 bits per value", PLAIN(codec_q4_0)},
    {"terse-4", "transform coding, 4 bits per value shared over the model by what errors cost", TERSE(4)},
    {"terse-3", "the same, 3 bits", TERSE(3)},
    {"terse-2", "the same, 2 bits", TERSE(2)},
    {"terse-1", "the same, 1 bit", TERSE(1)},
    {"terse-0.5", "the same, half a bit", TERSE(0.5)},
    {"terse-N", "the same, N bits, 0.25 to 8", TERSE(0)},
    {"kivi-4", "KIVI: 4-bit codes, keys by channel, values by token: 5 bits per value", PLAIN(codec_kivi_4)},
    {"kivi-2", "KIVI: 2-bit codes: 3 bits per value", PLAIN(codec_kivi_2)},
    /* StreamingLLM has 4 sinks (section 4.1). */
    {"streaming-N", "the first 4 and the newest tokens, N in all: text without end in constant memory", EVICTING(policy_streaming),
     .parameters = {.exact = SINKS}},
    /* MAT's exact tokens are the middle of the flat optimum in its figure 5; its shallow layers are those of its figure 1. */
    {"mat-N", "MAT: anchor tokens and the newest, N in all: text without end in constant memory", EVICTING(policy_mat),
     .parameters = {.exact = 64, .shallow = 2}},
    {"snapkv-N", "SnapKV: of a prompt the N tokens that its end attends to most, and all tokens after it", EVICTING(policy_snapkv)},
    {"selfindex-2", "Self-Indexing: signs and 2 bits, 3.5 bits per value; a step reads 7.5 % of a prompt, found by the signs",
     SELF_INDEXED(codec_sign)},
    {"selfindex-16", "Self-Indexing: the signs as an index beside half precision", SELF_INDEXED(codec_f16)},
    {"quest-K", "Quest: half precision; a step reads the K tokens of a prompt whose pages have the highest upper bounds",
     PLAIN(codec_f16), .index = &index_quest},
    /* Codebooks of AnTKV and CommVQ are learned from samples weighted by the squared norm of the loss's gradient (power 2); antkv-4's by the
     * norm itself, which gave a smaller divergence in a simulation on the built-in model (not part of this repository). A mean row is
     * subtracted where codes are fine: with two bits and fewer that makes up to half of the divergence of public models
     * (docs/reports/equal-terms.md), with four it takes two fifths off (0.0030 for 0.0051, SmolLM2, a window of 8,192 tokens). */
    {"antkv-4", "AnTKV: pairs of channels as one of 256 shapes, a gain for each row, 1 % of the tokens exact", GAIN_SHAPE(2, 8),
     .power = 1, .mean = true},
    {"antkv-2", "AnTKV: 4 channels as one of 256 shapes, a gain", GAIN_SHAPE(4, 8), .power = 2},
    {"antkv-1", "AnTKV: 8 channels as one of 256 shapes, a gain", GAIN_SHAPE(8, 8), .power = 2},
    {"antkv-0.75", "AnTKV: 16 channels as one of 4096 shapes, a gain", GAIN_SHAPE(16, 12), .power = 2},
    {"antkv-0.375", "AnTKV: 32 channels as one of 4096 centroids", BOTH(codec_vq, 32, 12), ANCHORED, .power = 2},
    {"cq-4", "CQ: as antkv-4, centroids learned without weights and no anchors", VQ(2, 8)},
    {"cq-2", "CQ: as antkv-2", VQ(4, 8)},
    {"cq-1", "CQ: as antkv-1", VQ(8, 8)},
    {"cq-0.75", "CQ: as antkv-0.75", VQ(16, 12)},
    {"cq-0.375", "CQ: as antkv-0.375", VQ(32, 12)},
    {"commvq-2", "CommVQ: keys as sums of codes that commute with RoPE, values as sums of rows", COMM(2), .power = 2, .mean = true},
    {"commvq-1", "CommVQ: as commvq-2 with half the codes", COMM(1), .power = 2, .mean = true},
    {"million-4", "MILLION: product quantization, pairs of channels as one of 256 centroids: 4 bits per value", PQ(2, 8)},
    {"million-3", "MILLION: 4 channels as one of 4096", PQ(4, 12)},
    {"million-2", "MILLION: 4 channels as one of 256", PQ(4, 8)},
    {"million-MxN", "MILLION: each head in M parts, N bits each (4 to 12)", PQ(0, 0)},
};
#define ROWS (sizeof rows / sizeof rows[0])

/* Reads decimal digits and nothing else. */
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

/* Reads "32x8": parts of a head and bits of a code. */
static bool parse_parts(const char *text, uint32_t *parts, uint32_t *bits) {
    char first[16];
    const char *times = strchr(text, 'x');
    if (!times || (size_t)(times - text) >= sizeof first) return false;
    memcpy(first, text, (size_t)(times - text));
    first[times - text] = 0;
    return parse_number(first, parts) && parse_number(times + 1, bits);
}

/* These are the numbers in a method's name, in place of the N, K or M of the row that it matches. */
struct numbers {
    uint32_t budget;      /* streaming-N, quest-K */
    uint32_t parts, bits; /* million-MxN */
    double rate;          /* terse-N */
};

/* Reads "2.5": digits, at most one point, within the rates that codec transform has. */
static bool parse_rate(const char *text, double *rate) {
    size_t digits = strspn(text, "0123456789"), point = text[digits] == '.',
           more = point ? strspn(text + digits + 1, "0123456789") : 0;
    char copy[16];
    if (!digits || (point && !more) || text[digits + point + more] || digits + point + more >= sizeof copy) return false;
    memcpy(copy, text, digits + point + more + 1);
    *rate = strtod(copy, NULL);
    return *rate >= METHOD_RATE_LEAST && *rate <= RATE_MOST;
}

static bool parse_numbers(const struct row *row, char letter, const char *rest, struct numbers *numbers) {
    if (row->key.codec == &codec_transform) return parse_rate(rest, &numbers->rate);
    return letter == 'M' ? parse_parts(rest, &numbers->parts, &numbers->bits) : parse_number(rest, &numbers->budget);
}

static const struct row *find_row(const char *name, struct numbers *numbers) {
    for (size_t i = 0; i < ROWS; i++) {
        const char *pattern = rows[i].name, *open = strpbrk(pattern, "KMN");
        size_t prefix = open ? (size_t)(open - pattern) : strlen(pattern);
        if (strncmp(name, pattern, prefix) != 0) continue;
        const char *rest = name + prefix;
        if (!open ? !*rest : parse_numbers(&rows[i], *open, rest, numbers)) return &rows[i];
    }
    return NULL;
}

/* Writes "f16, q8_0, ...". */
static void list_names(const char *(*name_at)(size_t i), char *text, size_t capacity) {
    size_t length = 0;
    text[0] = 0;
    for (size_t i = 0; name_at(i) && length < capacity; i++)
        length += (size_t)snprintf(text + length, capacity - length, "%s%s", i ? ", " : "", name_at(i));
}

static const char *method_name_at(size_t i) { return i < ROWS ? rows[i].name : NULL; }

/* Returns the i-th codec that can be asked for by name. */
static const char *codec_name_at(size_t i) {
    const struct codec *codec;
    for (size_t at = 0; (codec = codec_at(at)); at++)
        if (codec_find(codec->name) && i-- == 0) return codec->name;
    return NULL;
}

static bool learns(struct coding coding) { return codec_learns(coding.codec); }

/* Returns a row's coding, with the rate that its name gives. */
static struct coding row_coding(const struct coding *coding, const struct numbers *numbers) {
    struct coding own = *coding;
    if (numbers->rate > 0) own.rate = numbers->rate;
    return own;
}

/* Writes a side's codec as users write it: "q8_0", "terse-3". */
static void write_coding(const struct coding *coding, char *text, size_t capacity) {
    if (coding->codec == &codec_transform)
        snprintf(text, capacity, "terse-%g", coding->rate);
    else
        snprintf(text, capacity, "%s", coding->codec->name);
}

static bool same_coding(const struct coding *a, const struct coding *b) {
    return a->codec == b->codec && !(a->rate < b->rate) && !(a->rate > b->rate);
}

/* Returns what comes nearest to a type of llama.cpp that terse does not have. */
static const char *nearest_type(const char *name) {
    static const char *const types[][2] = {{"f32", "f16"},      {"bf16", "f16"},  {"q8_1", "q8_0"},  {"q5_0", "terse-5"},
                                           {"q5_1", "terse-5"}, {"q4_1", "q4_0"}, {"iq4_nl", "q4_0"}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(name, types[i][0]) == 0) return types[i][1];
    return NULL;
}

/* Replaces a codec by the one with this name; NULL keeps the method's own. */
static enum terse_status override_codec(const char *name, const char *what, struct coding *coding, struct terse_error *error) {
    if (!name) return TERSE_OK;
    const struct codec *found = codec_find(name);
    struct numbers numbers = {0};
    const struct row *row = found ? NULL : find_row(name, &numbers);
    if (found) {
        *coding = (struct coding){.codec = found};
        return TERSE_OK;
    }
    if (row && row->key.codec == &codec_transform) {
        *coding = row_coding(&row->key, &numbers);
        return TERSE_OK;
    }
    const char *nearest = nearest_type(name);
    if (nearest) return status_fail(error, TERSE_E_ARGUMENT, "%ss are not kept as %s here: the nearest is %s", what, name, nearest);
    char known[256];
    list_names(codec_name_at, known, sizeof known);
    return status_fail(error, TERSE_E_ARGUMENT, "unknown %s type '%.64s': use one of %s, terse-N", what, name, known);
}

/* Writes the row's name with its numbers in canonical form, without leading zeros. */
static void write_row_name(const struct row *row, const struct numbers *numbers, char *text, size_t capacity) {
    int prefix = (int)strcspn(row->name, "KMN");
    if (numbers->rate > 0)
        snprintf(text, capacity, "%.*s%g", prefix, row->name, numbers->rate);
    else if (numbers->parts)
        snprintf(text, capacity, "%.*s%ux%u", prefix, row->name, numbers->parts, numbers->bits);
    else if (row->name[prefix])
        snprintf(text, capacity, "%.*s%u", prefix, row->name, numbers->budget);
    else
        snprintf(text, capacity, "%s", row->name);
}

/* Writes the name that options would have to be given as, codecs included: "q8_0/q4_0", "streaming-512", "streaming-512+q8_0/q4_0". */
static void write_name(const struct row *row, const struct numbers *numbers, const char *name, struct method *method) {
    struct coding row_key = row_coding(&row->key, numbers), row_value = row_coding(&row->value, numbers);
    bool own = same_coding(&method->key, &row_key) && same_coding(&method->value, &row_value);
    /* A name is plain where the names of the codecs say everything. */
    bool plain = row->policy->keeps_all && (!learns(row->key) || row->key.codec == &codec_transform);
    char key[20], value[20], codecs[44];
    write_coding(&method->key, key, sizeof key);
    write_coding(&method->value, value, sizeof value);
    bool both = strcmp(key, value) == 0;
    snprintf(codecs, sizeof codecs, "%s%s%s", key, both ? "" : "/", both ? "" : value);
    if (own)
        snprintf(method->name, sizeof method->name, "%s", name);
    else
        snprintf(method->name, sizeof method->name, "%s%s%s", plain ? "" : name, plain ? "" : "+", codecs);
}

/* Sets the policy of a row, with the budget that its name's numbers give. */
static void set_budget(const struct row *row, const struct numbers *numbers, const struct terse_cache_options *options,
                       struct method *method) {
    struct policy_parameters *parameters = &method->parameters;
    method->policy = row->policy;
    *parameters = row->parameters;
    if (numbers->budget) *(row->index ? &parameters->read_count : &parameters->budget) = numbers->budget;
    if (!row->policy->pick_victim) return;
    if (parameters->exact > numbers->budget / 4) parameters->exact = numbers->budget / 4;
    if (options->mat_anchors) parameters->exact = options->mat_anchors;
    if (options->mat_shallow != TERSE_SHALLOW_DEFAULT) parameters->shallow = options->mat_shallow;
}

/* Chooses by --evict the policy of another method, which evicts. */
static enum terse_status choose_eviction(const struct terse_cache_options *options, struct method *method,
                                         struct terse_error *error) {
    struct numbers numbers = {0};
    if (!options->evict) return TERSE_OK;
    const struct row *row = find_row(options->evict, &numbers);
    if (!row || !policy_evicts(row->policy))
        return status_fail(error, TERSE_E_ARGUMENT, "'%.40s' is no way to evict tokens: use mat-N, streaming-N or snapkv-N",
                           options->evict);
    if (policy_evicts(method->policy))
        return status_fail(error, TERSE_E_ARGUMENT, "%s evicts tokens itself: omit --evict, or choose another --kv", method->name);
    set_budget(row, &numbers, options, method);
    char canonical[32];
    write_row_name(row, &numbers, canonical, sizeof canonical);
    size_t length = strlen(method->name);
    snprintf(method->name + length, sizeof method->name - length, "+%s", canonical);
    return TERSE_OK;
}

/* Chooses which first tokens are exact beside codes. Methods that evict have their own. */
static enum terse_status choose_first_tokens(const struct terse_cache_options *options, struct method *method,
                                             struct terse_error *error) {
    const bool exact = method->key.codec->exact && method->value.codec->exact;
    if (options->first_tokens && (exact || policy_evicts(method->policy)))
        return status_fail(error, TERSE_E_ARGUMENT, "%s %s: omit --kv-first-tokens, or choose another --kv", method->name,
                           exact ? "keeps no codes beside which first tokens could be exact"
                                 : "decides itself which first tokens it keeps");
    if (options->first_tokens)
        method->parameters.exact = options->first_tokens == TERSE_FIRST_NONE ? 0 : options->first_tokens;
    else if (!exact && !method->parameters.exact)
        method->parameters.exact = SINKS;
    return TERSE_OK;
}

/* Chooses the anchors. Every method that keeps all tokens can have some. */
static enum terse_status choose_anchors(const struct terse_cache_options *options, struct method *method,
                                        struct terse_error *error) {
    struct policy_parameters *parameters = &method->parameters;
    bool asked = options->anchor_count || !(options->anchor_percent < 0);
    if (asked) {
        parameters->anchor_count = options->anchor_count;
        parameters->anchor_percent = options->anchor_percent < 0 ? 0 : options->anchor_percent;
    }
    bool wanted = parameters->anchor_count || parameters->anchor_percent != 0;
    if (wanted && policy_evicts(method->policy))
        return status_fail(error, TERSE_E_ARGUMENT, "%s keeps no anchors: omit --anchors", method->name);
    if (options->anchor_score < TERSE_ANCHORS_SQUARED || options->anchor_score > TERSE_ANCHORS_RANDOM)
        return status_fail(error, TERSE_E_ARGUMENT, "%d is no score of anchors", (int)options->anchor_score);
    if (options->anchor_score && (!wanted || method->policy->rank_by_attention))
        return status_fail(error, TERSE_E_ARGUMENT, "%s chooses no anchors by errors: omit --anchor-score, or add --anchors",
                           method->name);
    parameters->anchor_score = options->anchor_score;
    if (policy_evicts(method->policy)) return TERSE_OK;
    if (!wanted)
        method->policy = &policy_keep_all;
    else if (!method->policy->rank_by_attention)
        method->policy = &policy_anchors;
    return TERSE_OK;
}

/* Chooses the selection. Every method that keeps all tokens can read selected ones, if its codecs can gather tokens from their pages. */
static enum terse_status choose_selection(const struct terse_cache_options *options, struct method *method,
                                          struct terse_error *error) {
    struct policy_parameters *parameters = &method->parameters;
    if (options->read_count || options->read_percent > 0) {
        parameters->read_count = options->read_count;
        parameters->read_percent = options->read_percent;
        if (!method->index) method->index = method->key.codec->index ? method->key.codec->index : &index_sign;
    }
    if (!method->index) return TERSE_OK;
    if (policy_evicts(method->policy))
        return status_fail(error, TERSE_E_ARGUMENT, "%s reads every token that it keeps: omit --top-k-tokens", method->name);
    if (!parameters->read_count && !(parameters->read_percent > 0 && parameters->read_percent <= 100))
        return status_fail(error, TERSE_E_ARGUMENT,
                           "%s cannot read %g %% of a prompt's tokens: use more than 0 and at most 100, or a number of tokens",
                           method->name, parameters->read_percent);
    if (method->key.codec->gather == CODEC_GATHERS_NOTHING || method->value.codec->gather == CODEC_GATHERS_NOTHING)
        return status_fail(error, TERSE_E_UNSUPPORTED, "%s cannot read single tokens: omit --top-k-tokens, or choose another --kv",
                           method->name);
    return TERSE_OK;
}

static enum terse_status set_parts(struct numbers numbers, const char *name, uint32_t head_dim, struct method *method,
                                   struct terse_error *error) {
    if (!numbers.parts || head_dim % numbers.parts)
        return status_fail(error, TERSE_E_ARGUMENT, "%.40s: %u parts do not divide a head of %u channels; use a divisor of it",
                           name, numbers.parts, head_dim);
    method->key.width = method->value.width = head_dim / numbers.parts;
    method->key.bits = method->value.bits = numbers.bits;
    return TERSE_OK;
}

/* Writes the name of the one codebook that serves a session: that of the row's method, or a profile. */
static enum terse_status name_codebook(const char *canonical, const struct terse_cache_options *options, struct method *method,
                                       struct terse_error *error) {
    const struct codec *key = method->key.codec, *value = method->value.codec;
    if (!learns(method->key) && !learns(method->value)) return TERSE_OK;
    bool profile = key == &codec_transform || value == &codec_transform;
    if (profile && ((learns(method->key) && key != &codec_transform) || (learns(method->value) && value != &codec_transform)))
        return status_fail(error, TERSE_E_UNSUPPORTED,
                           "%s needs a profile and the codebook of %s, and a session has one of them: use "
                           "terse-N for both sides, or one that needs no codebook beside it",
                           method->name, canonical);
    snprintf(method->codebook, sizeof method->codebook, "%s", profile ? METHOD_PROFILE : canonical);
    method->learned = options->codebook;
    return TERSE_OK;
}

bool method_needs_weights(const struct method *method) { return strcmp(method->codebook, METHOD_PROFILE) == 0 && !method->learned; }

static enum terse_status choose_row(const struct terse_cache_options *options, const struct row **row, struct numbers *numbers,
                                    struct terse_error *error) {
    const char *name = options->method ? options->method : rows[0].name;
    char known[512];
    if ((*row = find_row(name, numbers))) return TERSE_OK;
    list_names(method_name_at, known, sizeof known);
    return status_fail(error, TERSE_E_ARGUMENT, "unknown KV method '%.40s': use one of %s", name, known);
}

enum terse_status method_resolve(const struct terse_cache_options *options, uint32_t head_dim, struct method *method,
                                 struct terse_error *error) {
    struct numbers numbers = {0};
    const struct row *row;
    enum terse_status status = choose_row(options, &row, &numbers, error);
    if (status) return status;
    *method =
        (struct method){.key = row_coding(&row->key, &numbers), .value = row_coding(&row->value, &numbers), .index = row->index};
    set_budget(row, &numbers, options, method);
    method->power = row->power;
    method->mean = row->mean;
    if (row->value.codec->by_rate) method->value = codec_coding(row->value.codec, head_dim, row->value.bits);
    if (row->key.codec->by_rate)
        method->key = codec_coding(row->key.codec, head_dim, row->key.bits);
    else if (row->key.codec->learner == CODEC_LEARNS_KMEANS && !row->key.width &&
             (status = set_parts(numbers, options->method, head_dim, method, error)))
        return status;
    if ((status = override_codec(options->key_type, "key", &method->key, error))) return status;
    if ((status = override_codec(options->value_type, "value", &method->value, error))) return status;
    char canonical[32];
    write_row_name(row, &numbers, canonical, sizeof canonical);
    write_name(row, &numbers, canonical, method);
    if ((status = choose_eviction(options, method, error))) return status;
    if ((status = choose_first_tokens(options, method, error))) return status;
    if ((status = choose_anchors(options, method, error))) return status;
    if ((status = choose_selection(options, method, error))) return status;
    if ((status = method->policy->check(&method->parameters, error))) return status;
    method->least_rate = options->least_rate;
    if ((status = method_check_least_rate(method, error))) return status;
    if (method->policy->keep_selected_only && method->key.codec->rope == CODEC_ROPE_BEFORE)
        return status_fail(
            error, TERSE_E_UNSUPPORTED,
            "%s: snapkv-N keeps keys as they were rotated, and this method's are before rotation; use mat-N or another "
            "--kv",
            method->name);
    const bool exact = method->key.codec->exact && method->value.codec->exact;
    uint32_t tail = method->policy->keep_selected_only ? SNAPKV_WINDOW : exact ? 0 : QUANTIZED_TAIL;
    method->tail_tokens = options->tail_tokens != TERSE_TAIL_DEFAULT ? options->tail_tokens : tail;
    return name_codebook(canonical, options, method, error);
}

enum terse_status terse_cache_codebook(const struct terse_cache_options *options, char *name, size_t capacity,
                                       struct terse_error *error) {
    struct numbers numbers = {0};
    const struct row *row;
    char canonical[32];
    name[0] = 0;
    enum terse_status status = OPTIONS_CHECK(options, terse_cache_options, error);
    if (!status) status = choose_row(options, &row, &numbers, error);
    if (status) return status;
    struct method method = {.key = row_coding(&row->key, &numbers), .value = row_coding(&row->value, &numbers)};
    write_row_name(row, &numbers, canonical, sizeof canonical);
    snprintf(method.name, sizeof method.name, "%s", canonical);
    if ((status = override_codec(options->key_type, "key", &method.key, error))) return status;
    if ((status = override_codec(options->value_type, "value", &method.value, error))) return status;
    status = name_codebook(canonical, options, &method, error);
    snprintf(name, capacity, "%s", method.codebook);
    return status;
}

struct codec_shape method_shape(const struct method *method, enum codec_side side, uint32_t layer, uint32_t head, uint32_t head_dim,
                                uint32_t group) {
    const struct coding *coding = side == CODEC_KEYS ? &method->key : &method->value;
    struct codec_shape shape = {
        .head_dim = head_dim, .group = group, .width = coding->width, .bits = coding->bits, .slices = method->slices};
    if (method->layouts && method->layouts->layout[side]) {
        const struct codebook_info *info = codebook_info(method->learned);
        shape.layout =
            &method->layouts->layout[side][info->shared ? 0 : (size_t)layer * info->kv_heads + head * method_slices(method)];
    }
    return shape;
}

struct method method_of_window(const struct method *method, uint32_t window) {
    struct method own = *method;
    own.policy = &policy_window;
    own.parameters = (struct policy_parameters){.exact = own.key.codec->exact && own.value.codec->exact ? 0
                                                         : policy_evicts(method->policy)                ? SINKS
                                                                                                        : method->parameters.exact,
                                                .window = window};
    own.index = NULL;
    own.beside_index = method->index;
    own.least_rate = 0;                                          /* the window bounds what they hold */
    if (method_fits_transforms(method) && window < FIT_TOKENS) { /* never as many tokens to fit to: 8 bits */
        const struct coding coding = codec_coding(&codec_q8_0, 0, 0);
        if (own.key.codec->id == CODEC_TRANSFORM) own.key = coding;
        if (own.value.codec->id == CODEC_TRANSFORM) own.value = coding;
        own.codebook[0] = 0;
        own.learned = NULL;
        own.layouts = NULL;
        own.of_weights = false;
    }
    if (method->policy->keep_selected_only) own.tail_tokens = own.parameters.exact ? QUANTIZED_TAIL : 0;
    return own;
}

uint32_t method_latent_slices(uint32_t rotated, uint32_t rank) {
    const bool serves = rotated && rotated % SCALE_GROUP == 0 && rotated <= CODEC_HEAD_DIM_MAX && rank && rank % rotated == 0;
    return serves && rotated + rank <= CODEC_ROW_MAX ? 1 + rank / rotated : 0;
}

/* Returns whether the codec serves keys that are wider than heads and end with the values. */
static bool serves_latents(const struct codec *codec) {
    return codec == &codec_f16 || codec == &codec_q8_0 || codec == &codec_q4_0 || codec == &codec_kivi_4 ||
           codec == &codec_kivi_2 || codec == &codec_transform;
}

enum terse_status method_for_latents(struct method *method, uint32_t rotated, uint32_t rank, struct terse_error *error) {
    const uint32_t slices = method->key.codec == &codec_transform ? method_latent_slices(rotated, rank) : 0;
    const bool alike = same_coding(&method->key, &method->value) && method->policy == &policy_keep_all && !method->index;
    if (!alike || !serves_latents(method->key.codec))
        return status_fail(error, TERSE_E_UNSUPPORTED,
                           "%s does not serve this model, whose keys and values are one latent: use --kv terse-N, f16, q8_0, q4_0, "
                           "kivi-4 or kivi-2",
                           method->name);
    if (method->key.codec == &codec_transform && !slices)
        return status_fail(
            error, TERSE_E_UNSUPPORTED,
            "%s cuts the model's keys into slices as wide as their %u rotated channels, which must be a multiple of %d "
            "and divide a latent of %u: use --kv f16, q8_0, q4_0, kivi-4 or kivi-2",
            method->name, rotated, SCALE_GROUP, rank);
    method->latents = true;
    method->slices = slices;
    if (slices) method->value = (struct coding){.codec = &codec_f16}; /* there is nothing that it would share bits with */
    return TERSE_OK;
}

static enum terse_status check_latents(uint32_t width, struct terse_error *error) {
    if (width && width % SCALE_GROUP == 0 && width <= CODEC_ROW_MAX) return TERSE_OK;
    return status_fail(
        error, TERSE_E_UNSUPPORTED,
        "the model's keys with their latents have %u channels, the KV cache serves multiples of %d up to %d: this model "
        "cannot run in terse",
        width, SCALE_GROUP, CODEC_ROW_MAX);
}

enum terse_status method_check(const struct method *method, uint32_t head_dim, uint32_t group, struct terse_error *error) {
    if (method->latents) return check_latents(head_dim, error);
    struct codec_shape half = {.head_dim = head_dim, .group = group};
    enum terse_status status =
        codec_check(method->key.codec, method_shape(method, CODEC_KEYS, 0, 0, head_dim, group), CODEC_KEYS, error);
    if (!status)
        status = codec_check(method->value.codec, method_shape(method, CODEC_VALUES, 0, 0, head_dim, group), CODEC_VALUES, error);
    if (!status) status = codec_check(&codec_f16, half, CODEC_KEYS, error); /* the window's */
    if (!status && method->index) status = index_check(method->index, head_dim, error);
    return status;
}

enum terse_status method_check_codebook(struct method *method, const uint64_t fingerprints[CODEBOOK_FINGERPRINTS], uint32_t layers,
                                        uint32_t kv_heads, uint32_t head_dim, struct terse_error *error) {
    if (!method->codebook[0]) return TERSE_OK;
    if (!method->learned)
        return status_fail(error, TERSE_E_ARGUMENT,
                           "%s needs a codebook for this model, which 'terse calibrate --kv %s' makes once: give it in the cache "
                           "options, or as --codebook FILE",
                           method->codebook, method->codebook);
    /* A side whose codec was overridden needs no parameters. */
    const struct codebook_info *info = codebook_info(method->learned);
    struct coding key = learns(method->key) ? method->key : info->key, value = learns(method->value) ? method->value : info->value;
    enum terse_status status = codebook_check(method->learned, method->codebook, key, value, fingerprints, layers,
                                              kv_heads * method_slices(method), method_slice_width(method, head_dim), error);
    double rate[2] = {method->key.rate, method->value.rate};
    if (status || (rate[CODEC_KEYS] == 0 && rate[CODEC_VALUES] == 0)) return status;
    return codebook_layouts(method->learned, rate, &method->layouts, error);
}

struct terse_cache_options terse_cache_options_defaults(void) {
    return (struct terse_cache_options){.size = sizeof(struct terse_cache_options),
                                        .method = rows[0].name,
                                        .tail_tokens = TERSE_TAIL_DEFAULT,
                                        .anchor_percent = -1,
                                        .mat_shallow = TERSE_SHALLOW_DEFAULT};
}

bool terse_method_describe(size_t i, struct terse_method_info *info) {
    if (i >= ROWS) return false;
    *info = (struct terse_method_info){rows[i].name, rows[i].summary, learns(rows[i].key)};
    return true;
}
