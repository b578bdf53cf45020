/* Encodes by SentencePiece-style BPE: spaces become U+2581, the characters of the text merge to the token with the best score, and
 * what is no token falls back to the tokens of its bytes. Source: SentencePiece's BPE model; U+2581, the space put before a text
 * and the byte tokens "<0x41>" as in the LLaMA 2 tokenizer. */
#include "base/memory.h"
#include "text/tokenizer_private.h"
#include "text/utf8.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char space[] = "\xe2\x96\x81";
enum { SPACE_BYTES = sizeof space - 1 };

static bool begins_with_space(const char *data, size_t n) { return n >= SPACE_BYTES && memcmp(data, space, SPACE_BYTES) == 0; }

size_t spm_bytes(struct gguf_string text, char *bytes) {
    size_t n = 0;
    for (size_t at = 0; at < text.size;) {
        bool is_space = begins_with_space(text.data + at, text.size - at);
        bytes[n++] = is_space ? ' ' : text.data[at];
        at += is_space ? SPACE_BYTES : 1;
    }
    return n;
}

/* ---- Loading ------------------------------------------------------------------------------------------------------------- */

/* Returns the priority of a score: a smaller number for a higher score. The bits of a float are put in order of its value and
 * inverted. */
static uint32_t priority_of(float score) {
    uint32_t bits;
    score += 0.0f; /* makes -0 equal to 0 */
    memcpy(&bits, &score, sizeof bits);
    return bits & UINT32_C(1) << 31 ? bits : ~(bits | UINT32_C(1) << 31);
}

static enum terse_status load_scores(struct tokenizer *t, const struct gguf *gguf, struct terse_error *error) {
    const uint32_t n = t->vocabulary.n;
    struct gguf_array scores;
    enum terse_status status = gguf_get_array(gguf, "tokenizer.ggml.scores", GGUF_F32, &scores, NULL, error);
    if (status) return status;
    if (scores.count != n)
        return status_fail(error, TERSE_E_FORMAT,
                           "tokenizer.ggml.scores has %" PRIu64 " entries for %" PRIu32 " tokens: convert the model again",
                           scores.count, n);
    t->spm.priority = memory_array(n, sizeof *t->spm.priority);
    if (!t->spm.priority) return status_no_memory(error, n * sizeof *t->spm.priority, "the vocabulary");
    for (uint32_t i = 0; i < n; i++) {
        float score;
        memcpy(&score, (const char *)scores.data + i * sizeof score, sizeof score);
        t->spm.priority[i] = priority_of(score);
    }
    return TERSE_OK;
}

static bool has_inner_space(struct gguf_string text) {
    for (size_t at = 1; at < text.size; at++)
        if (begins_with_space(text.data + at, text.size - at) &&
            !(at >= SPACE_BYTES && begins_with_space(text.data + at - SPACE_BYTES, SPACE_BYTES)))
            return true;
    return false;
}

enum terse_status spm_load(struct tokenizer *t, const struct gguf *gguf, struct terse_error *error) {
    const struct vocabulary *v = &t->vocabulary;
    bool found;
    enum terse_status status = load_scores(t, gguf, error);
    if (status) return status;
    t->spm.add_space_prefix = true;
    if ((status = gguf_get_bool(gguf, "tokenizer.ggml.add_space_prefix", &t->spm.add_space_prefix, &found, error))) return status;
    t->spm.cut_at_spaces = true;
    for (uint32_t i = 0; i < v->n; i++)
        if (token_is_text(v, (int32_t)i) && has_inner_space(v->text[i])) t->spm.cut_at_spaces = false;
    for (int byte = 0; byte < 256; byte++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)byte);
        int32_t token = vocabulary_find(v, name, 6);
        t->byte_token[byte] = token >= 0 ? token : vocabulary_find(v, (const char[]){(char)byte}, 1);
    }
    return TERSE_OK;
}

void spm_destroy(struct spm *spm) { memory_free(spm->priority); }

/* ---- Encoding ------------------------------------------------------------------------------------------------------------ */

static int32_t find_text(const struct vocabulary *v, const char *data, size_t n) {
    int32_t token = vocabulary_find(v, data, n);
    return token >= 0 && token_is_text(v, token) ? token : -1;
}

static bool rule(const void *context, const char *text, const struct symbol *left, const struct symbol *right,
                 struct merge *merge) {
    const struct tokenizer *t = context;
    merge->token = find_text(&t->vocabulary, text + left->start, left->size + right->size);
    if (merge->token < 0) return false;
    merge->priority = t->spm.priority[merge->token];
    return true;
}

/* Adds, for a character that is no token, the tokens of its bytes, else the unknown token, else nothing. */
static enum terse_status emit_bytes(struct encoder *e, const char *data, size_t n) {
    const struct tokenizer *t = e->tokenizer;
    enum terse_status status = TERSE_OK;
    bool complete = true;
    if (begins_with_space(data, n)) {
        data = " ";
        n = 1;
    }
    for (size_t i = 0; i < n; i++) complete = complete && t->byte_token[(unsigned char)data[i]] >= 0;
    if (!complete) return t->unknown >= 0 ? encoder_emit(e, t->unknown) : TERSE_OK;
    for (size_t i = 0; i < n && !status; i++) status = encoder_emit(e, t->byte_token[(unsigned char)data[i]]);
    return status;
}

/* Encodes text[n > 0] in which spaces are U+2581. */
static enum terse_status encode_word(struct encoder *e, const char *text, size_t n) {
    const struct tokenizer *t = e->tokenizer;
    struct merger *m = &e->merger;
    enum terse_status status = merger_begin(m, n, e->error);
    if (status) return status;
    for (size_t at = 0, length; at < n; at += length) {
        if (utf8_next(text + at, n - at, &length) != UTF8_WHOLE) length = 1;
        merger_add(m, (uint32_t)at, (uint32_t)length, find_text(&t->vocabulary, text + at, length));
    }
    if ((status = merger_run(m, rule, t, text, e->error))) return status;
    for (uint32_t i = 0; i != MERGE_END && !status; i = m->symbols[i].next) {
        const struct symbol *s = &m->symbols[i];
        status = s->token >= 0 ? encoder_emit(e, s->token) : emit_bytes(e, text + s->start, s->size);
    }
    return status;
}

enum terse_status spm_encode(struct encoder *e, const char *text, size_t n) {
    const struct spm *spm = &e->tokenizer->spm;
    enum terse_status status = encoder_scratch(e, SPACE_BYTES * (n + 1));
    if (status) return status;
    size_t size = 0;
    char *out = e->scratch;
    if (spm->add_space_prefix) {
        memcpy(out, space, SPACE_BYTES);
        size = SPACE_BYTES;
    }
    for (size_t i = 0; i < n; i++) {
        memcpy(out + size, text[i] == ' ' ? space : text + i, text[i] == ' ' ? SPACE_BYTES : 1);
        size += text[i] == ' ' ? SPACE_BYTES : 1;
    }
    /* Encoding word by word, where that gives the same tokens, needs less memory and stays in the processor's caches. */
    for (size_t begin = 0, end; begin < size && !status; begin = end) {
        end = begin;
        while (begins_with_space(out + end, size - end)) end += SPACE_BYTES;
        while (end < size && !(spm->cut_at_spaces && begins_with_space(out + end, size - end))) end++;
        status = encode_word(e, out + begin, end - begin);
    }
    return status;
}
