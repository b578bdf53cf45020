/* Encodes: finds special tokens in the text first, and hands what stands between them to the tokenizer's kind. Answers questions
 * about single tokens, whose bytes and ids tokenizer_load.c has collected. */
#include "text/tokenizer_private.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Keeps offsets into a text, U+2581 written out, within 32 bits. */
#define MAX_TEXT (UINT64_C(1) << 30)

/* Returns the first of specials[low..high), sorted by their byte at `depth`, whose byte there is at least `wanted`; high when there
 * is none. */
static size_t first_not_below(const struct special *specials, size_t low, size_t high, size_t depth, unsigned wanted) {
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((unsigned char)specials[middle].text.data[depth] < wanted)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* These fields select the special tokens that are looked for. */
struct wanted {
    bool control;       /* those that are found only where special tokens are parsed, too */
    const bool *banned; /* [n_specials], or NULL */
};

static bool is_wanted(const struct tokenizer *t, const struct special *special, const struct wanted *wanted) {
    return (special->always || wanted->control) && !(wanted->banned && wanted->banned[special - t->specials]);
}

/* Returns the longest special token that text[n > 0] begins with, or NULL. It narrows the sorted list byte by byte. */
static const struct special *find_special(const struct tokenizer *t, const char *text, size_t n, const struct wanted *wanted) {
    const struct special *best = NULL;
    size_t low = 0, high = t->n_specials;
    for (size_t depth = 0; low < high; depth++) {
        /* All of low..high agree with the text in `depth` bytes. One that has no more comes first, and no other is like it. */
        const struct special *shortest = &t->specials[low];
        if (shortest->text.size == depth) {
            if (is_wanted(t, shortest, wanted)) best = shortest;
            low++;
        }
        if (depth == n) break;
        unsigned byte = (unsigned char)text[depth];
        high = first_not_below(t->specials, low, high, depth, byte + 1);
        low = first_not_below(t->specials, low, high, depth, byte);
    }
    return best;
}

static bool is_white(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* Encodes text[n > 0] that has no special tokens. It stands at the beginning or behind one. */
static enum terse_status encode_text(struct encoder *e, const char *text, size_t n) {
    return e->tokenizer->kind == TOKENIZER_BPE ? bpe_encode(e, text, n) : spm_encode(e, text, n);
}

/* A source is a text, with the parts of it that are taken as they are written. */
struct source {
    const char *text;
    size_t n_bytes;
    const struct text_span *literal; /* [n_literal] in order */
    size_t n_literal;
    struct wanted outside, inside; /* of the literal parts */
};

/* Returns the special token at text[at], or NULL. *part counts the literal parts that end at `at` or before, where there is one. No
 * special token reaches over a part's border. */
static const struct special *special_at(const struct tokenizer *t, const struct source *s, size_t at, size_t *part) {
    if (!t->begins_special[(unsigned char)s->text[at]]) return NULL; /* nearly always */
    while (*part < s->n_literal && s->literal[*part].end <= at) ++*part;
    const struct text_span *next = *part < s->n_literal ? &s->literal[*part] : NULL;
    bool inside = next && next->begin <= at;
    size_t end = inside ? next->end : next ? next->begin : s->n_bytes;
    return find_special(t, s->text + at, end - at, inside ? &s->inside : &s->outside);
}

static enum terse_status encode(struct encoder *e, const struct source *source, size_t first) {
    const struct tokenizer *t = e->tokenizer;
    enum terse_status status = TERSE_OK;
    size_t begin = first, part = 0; /* of the text that is not encoded yet */
    for (size_t at = first; at < source->n_bytes && !status;) {
        const struct special *special = special_at(t, source, at, &part);
        if (!special) {
            at++;
            continue;
        }
        if (at > begin) status = encode_text(e, source->text + begin, at - begin);
        if (!status) status = encoder_emit(e, special->token);
        at += special->text.size;
        while (special->takes_space && at < source->n_bytes && is_white(source->text[at])) at++;
        begin = at;
    }
    if (!status && source->n_bytes > begin) status = encode_text(e, source->text + begin, source->n_bytes - begin);
    return status;
}

static enum terse_status check_length(size_t n_bytes, struct terse_error *error) {
    if (n_bytes <= MAX_TEXT) return TERSE_OK;
    return status_fail(error, TERSE_E_ARGUMENT, "a text of %zu bytes: tokenize it in parts of at most %" PRIu64, n_bytes, MAX_TEXT);
}

enum terse_status tokenizer_encode(const struct tokenizer *t, const char *text, size_t n_bytes, unsigned flags, int32_t *tokens,
                                   size_t capacity, size_t *n_tokens, struct terse_error *error) {
    struct encoder e = {.tokenizer = t, .error = error};
    const bool add = flags & TERSE_TOKENIZE_ADD_SPECIAL;
    const struct source source = {.text = text, .n_bytes = n_bytes, .outside = {.control = flags & TERSE_TOKENIZE_PARSE_SPECIAL}};
    *n_tokens = 0;
    if (flags & ~(unsigned)(TERSE_TOKENIZE_ADD_SPECIAL | TERSE_TOKENIZE_PARSE_SPECIAL))
        return status_fail(error, TERSE_E_ARGUMENT, "unknown flags %#x: pass a sum of enum terse_tokenize_flags", flags);
    enum terse_status status = check_length(n_bytes, error);
    if (status || t->kind == TOKENIZER_NONE) return status;
    if (add && t->add_bos) status = encoder_emit(&e, t->bos);
    if (!status) status = encode(&e, &source, 0);
    if (!status && add && t->add_eos) status = encoder_emit(&e, t->eos);
    if (!status) *n_tokens = e.n_tokens;
    if (!status && e.n_tokens > capacity)
        status = status_fail(error, TERSE_E_ARGUMENT, "%zu tokens do not fit in %zu: pass a larger array", e.n_tokens, capacity);
    if (!status && e.n_tokens) memcpy(tokens, e.tokens, e.n_tokens * sizeof *tokens);
    encoder_destroy(&e);
    return status;
}

/* Returns whether a text is nothing but spaces and line ends: some vocabularies have such user-defined tokens, which mark
 * nothing. */
static bool is_blank(struct gguf_string text) {
    for (uint64_t i = 0; i < text.size; i++)
        if (!is_white(text.data[i])) return false;
    return true;
}

/* Sets banned[n_specials] for the special tokens that a text has outside its literal parts. */
static void find_outside(const struct tokenizer *t, const struct source *source, bool *banned) {
    size_t part = 0;
    for (size_t at = 0; at < source->n_bytes; at++) {
        const struct special *special = special_at(t, source, at, &part);
        if (!special || (part < source->n_literal && source->literal[part].begin <= at)) continue;
        banned[special - t->specials] = !is_blank(special->text);
        at += special->text.size - 1;
    }
}

enum terse_status tokenizer_encode_around(const struct tokenizer *t, const char *text, size_t n_bytes, size_t first,
                                          const struct text_span *literal, size_t n_literal, int32_t **tokens, size_t *n_tokens,
                                          struct terse_error *error) {
    struct encoder e = {.tokenizer = t, .error = error};
    struct source source = {
        .text = text, .n_bytes = n_bytes, .literal = literal, .n_literal = n_literal, .outside = {.control = true}};
    *tokens = NULL;
    *n_tokens = 0;
    enum terse_status status = check_length(n_bytes, error);
    if (status || t->kind == TOKENIZER_NONE) return status;
    bool *banned = calloc(t->n_specials + 1, sizeof *banned);
    if (!banned) return status_no_memory(error, t->n_specials + 1, "tokenizing a conversation");
    find_outside(t, &source, banned);
    source.inside.banned = banned;
    status = encode(&e, &source, first);
    free(banned);
    if (!status) {
        *tokens = e.tokens;
        *n_tokens = e.n_tokens;
        e.tokens = NULL;
    }
    encoder_destroy(&e);
    return status;
}

/* ---- Single tokens ------------------------------------------------------------------------------------------------------- */

static bool is_token(const struct tokenizer *t, int32_t token) { return token >= 0 && (uint32_t)token < t->vocabulary.n; }

uint32_t tokenizer_size(const struct tokenizer *t) { return t->vocabulary.n; }

const char *tokenizer_bytes(const struct tokenizer *t, int32_t token, bool show_special, size_t *n_bytes) {
    *n_bytes = 0;
    if (!is_token(t, token)) return "";
    uint8_t type = t->vocabulary.type[token];
    bool hidden = type == TOKEN_CONTROL || type == TOKEN_UNKNOWN || type == TOKEN_UNUSED;
    if (hidden && !show_special) return "";
    *n_bytes = t->first[token + 1] - t->first[token];
    return t->bytes + t->first[token];
}

size_t tokenizer_longest(const struct tokenizer *t) { return t->longest; }

int32_t tokenizer_bos(const struct tokenizer *t, bool *added) {
    if (added) *added = t->add_bos;
    return t->bos;
}

int32_t tokenizer_eos(const struct tokenizer *t) { return t->eos; }

int32_t tokenizer_fim(const struct tokenizer *t, enum terse_fim_mark mark) { return t->fim[mark]; }

bool tokenizer_ends(const struct tokenizer *t, int32_t token) { return is_token(t, token) && t->ends[token]; }

struct gguf_string tokenizer_chat_template(const struct tokenizer *t) {
    return t->chat_template;
}

struct gguf_string tokenizer_tools_template(const struct tokenizer *t) {
    return t->tools_template;
}
