/* Encodes by byte-level BPE: words of bytes are merged in the order of the file's merge list.
 *
 * Vocabularies of this kind are written in printable characters: each byte has a letter of its own (itself where it is printable in
 * Latin-1, else U+0100 and on), so that a token's text is never cut inside a character. Source: the GPT-2 tokenizer. */
#include "base/memory.h"
#include "text/tokenizer_private.h"
#include "text/utf8.h"

#include <inttypes.h>
#include <string.h>

/* These return the letter of a byte, and the byte of a letter or -1. */
static unsigned letter_of(unsigned char byte) {
    if (byte <= 0x20) return 0x100u + byte;
    if (byte >= 0x7f && byte <= 0xa0) return 0x121u + (byte - 0x7fu);
    return byte == 0xad ? 0x143u : byte;
}

static int byte_of(unsigned letter) {
    if (letter >= 0x100 && letter <= 0x120) return (int)letter - 0x100;
    if (letter >= 0x121 && letter <= 0x142) return (int)letter - 0x121 + 0x7f;
    if (letter == 0x143) return 0xad;
    return letter < 0x100 && letter_of((unsigned char)letter) == letter ? (int)letter : -1;
}

/* Writes a byte's letter as 1 or 2 bytes of UTF-8. */
static size_t write_letter(unsigned char byte, char *utf8) {
    unsigned letter = letter_of(byte);
    if (letter < 0x80) {
        utf8[0] = (char)letter;
        return 1;
    }
    utf8[0] = (char)(0xc0 | letter >> 6);
    utf8[1] = (char)(0x80 | (letter & 0x3f));
    return 2;
}

size_t bpe_bytes(struct gguf_string text, char *bytes) {
    size_t n = 0;
    for (size_t at = 0, length; at < text.size; at += length) {
        const unsigned char *c = (const unsigned char *)text.data + at;
        int byte = -1;
        if (utf8_next(text.data + at, text.size - at, &length) == UTF8_WHOLE && length <= 2)
            byte = byte_of(length == 1 ? c[0] : (c[0] & 0x1fu) << 6 | (c[1] & 0x3fu));
        if (byte >= 0) {
            bytes[n++] = (char)byte;
        } else {
            /* Some files have plain text among their letters, which stands for itself. */
            memcpy(bytes + n, c, length);
            n += length;
        }
    }
    return n;
}

/* ---- Loading ------------------------------------------------------------------------------------------------------------- */

static uint64_t find_merge(const struct bpe *bpe, uint64_t pair) {
    uint64_t bucket = pair * UINT64_C(0x9e3779b97f4a7c15);
    bucket = (bucket ^ bucket >> 32) & bpe->mask;
    while (bpe->merges[bucket].pair != pair && bpe->merges[bucket].pair != UINT64_MAX) bucket = (bucket + 1) & bpe->mask;
    return bucket;
}

/* Adds the merge of priority `rank`, "LEFT RIGHT". The earlier of two merges with the same pair counts. both[v->longest] is scratch. */
static enum terse_status add_merge(struct tokenizer *t, struct gguf_string merge, uint32_t rank, char *both,
                                   struct terse_error *error) {
    const struct vocabulary *v = &t->vocabulary;
    const char *space = merge.size > 1 ? memchr(merge.data + 1, ' ', merge.size - 1) : NULL;
    if (!space)
        return status_fail(
            error, TERSE_E_FORMAT,
            "tokenizer.ggml.merges: entry %" PRIu32 " is not two texts with a space between: convert the model again", rank);
    size_t n_left = (size_t)(space - merge.data), n_right = merge.size - n_left - 1;
    int32_t left = vocabulary_find(v, merge.data, n_left), right = vocabulary_find(v, space + 1, n_right), token = -1;
    if (n_left + n_right <= v->longest) {
        memcpy(both, merge.data, n_left);
        memcpy(both + n_left, space + 1, n_right);
        token = vocabulary_find(v, both, n_left + n_right);
    }
    if (left < 0 || right < 0 || token < 0)
        return status_fail(
            error, TERSE_E_FORMAT,
            "tokenizer.ggml.merges: entry %" PRIu32 " merges or makes a text that is no token: convert the model again", rank);
    if (!token_is_text(v, token)) return TERSE_OK;
    uint64_t pair = (uint64_t)left << 32 | (uint64_t)right, bucket = find_merge(&t->bpe, pair);
    if (t->bpe.merges[bucket].pair == UINT64_MAX) t->bpe.merges[bucket] = (struct bpe_merge){pair, {rank, token}};
    return TERSE_OK;
}

static enum terse_status load_merges(struct tokenizer *t, const struct gguf *gguf, struct terse_error *error) {
    struct gguf_array array;
    enum terse_status status = gguf_get_array(gguf, "tokenizer.ggml.merges", GGUF_STRING, &array, NULL, error);
    if (status) return status;
    if (array.count > INT32_MAX)
        return status_fail(error, TERSE_E_FORMAT, "tokenizer.ggml.merges has %" PRIu64 " entries: convert the model again",
                           array.count);
    uint64_t buckets = 2;
    while (buckets < array.count + array.count / 2 + 1) buckets *= 2;
    t->bpe.mask = buckets - 1;
    t->bpe.merges = memory_array(buckets, sizeof *t->bpe.merges);
    struct gguf_string *merges = memory_array(array.count, sizeof *merges);
    char *scratch = memory_array(t->vocabulary.longest, 1);
    if (!t->bpe.merges || !merges || !scratch) {
        status = status_no_memory(error, buckets * sizeof *t->bpe.merges + array.count * sizeof *merges, "the merges");
        goto done;
    }
    for (uint64_t i = 0; i < buckets; i++) t->bpe.merges[i].pair = UINT64_MAX;
    gguf_array_strings(&array, merges);
    for (uint64_t i = 0; i < array.count && !status; i++) status = add_merge(t, merges[i], (uint32_t)i, scratch, error);
done:
    memory_free(merges);
    memory_free(scratch);
    return status;
}

enum terse_status bpe_load(struct tokenizer *t, const struct gguf *gguf, struct terse_error *error) {
    struct gguf_string name = {"", 0};
    bool found;
    enum terse_status status = gguf_get_string(gguf, "tokenizer.ggml.pre", &name, &found, error);
    if (status) return status;
    if ((status = pretokenizer_new(name, &t->bpe.pretokenizer, error))) return status;
    for (int byte = 0; byte < 256; byte++) {
        char letter[2];
        size_t n = write_letter((unsigned char)byte, letter);
        t->byte_token[byte] = vocabulary_find(&t->vocabulary, letter, n);
    }
    return load_merges(t, gguf, error);
}

void bpe_destroy(struct bpe *bpe) {
    pretokenizer_free(bpe->pretokenizer);
    memory_free(bpe->merges);
}

/* ---- Encoding ------------------------------------------------------------------------------------------------------------ */

static bool rule(const void *context, const char *text, const struct symbol *left, const struct symbol *right,
                 struct merge *merge) {
    const struct bpe *bpe = context;
    (void)text;
    if (left->token < 0 || right->token < 0) return false;
    const struct bpe_merge *found = &bpe->merges[find_merge(bpe, (uint64_t)left->token << 32 | (uint64_t)right->token)];
    *merge = found->merge;
    return found->pair != UINT64_MAX;
}

/* Returns the token of the whole word, or -1. encoder->scratch holds the longest text of the vocabulary and one letter more. */
static int32_t find_word(const struct encoder *e, const char *word, size_t n) {
    const struct vocabulary *v = &e->tokenizer->vocabulary;
    size_t size = 0;
    for (size_t i = 0; i < n; i++) {
        size += write_letter((unsigned char)word[i], e->scratch + size);
        if (size > v->longest) return -1;
    }
    int32_t token = vocabulary_find(v, e->scratch, size);
    return token >= 0 && token_is_text(v, token) ? token : -1;
}

static enum terse_status encode_word(void *user, const char *word, size_t n) {
    struct encoder *e = user;
    const struct tokenizer *t = e->tokenizer;
    struct merger *m = &e->merger;
    int32_t token = pretokenizer_ignores_merges(t->bpe.pretokenizer) ? find_word(e, word, n) : -1;
    if (token >= 0) return encoder_emit(e, token);
    enum terse_status status = merger_begin(m, n, e->error);
    if (status) return status;
    for (size_t i = 0; i < n; i++) merger_add(m, (uint32_t)i, 1, t->byte_token[(unsigned char)word[i]]);
    if ((status = merger_run(m, rule, &t->bpe, word, e->error))) return status;
    for (uint32_t i = 0; i != MERGE_END && !status; i = m->symbols[i].next) {
        /* A byte without a token is lost unless the vocabulary has a token for the unknown. */
        token = m->symbols[i].token >= 0 ? m->symbols[i].token : t->unknown;
        if (token >= 0) status = encoder_emit(e, token);
    }
    return status;
}

enum terse_status bpe_encode(struct encoder *e, const char *text, size_t n) {
    enum terse_status status = encoder_scratch(e, e->tokenizer->vocabulary.longest + 2);
    if (status) return status;
    const struct word_sink sink = {encode_word, e};
    return pretokenizer_split(e->tokenizer->bpe.pretokenizer, text, n, &sink, e->error);
}
