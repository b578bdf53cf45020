/* Fuzz target of tokenizers: the first byte chooses one, the second the flags, the rest is a text. Its tokens must say the text again, must be
 * control tokens only where those are parsed, and must stream as UTF-8. Run it with the corpus in corpus/tokenizer; see CMakeLists.txt. */
#include "support/vocabulary_sample.h"
#include "text/detokenizer.h"
#include "text/tokenizer_private.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) abort();
}

static const char *const pres[] = {"default",     "gpt-2",  "llama-bpe", "qwen2",  "deepseek-llm", "deepseek-coder",
                                   "deepseek-v3", "falcon", "starcoder", "qwen35", "gpt-4o",       "tekken"};
static const unsigned spm_flags[] = {SPM_SPACE_PREFIX, 0, SPM_SPACE_PREFIX | SPM_INNER_SPACES, SPM_SPACE_RUNS, SPM_NO_BYTES};
enum { N_BPE = sizeof pres / sizeof *pres, N_ALL = N_BPE + sizeof spm_flags / sizeof *spm_flags };

static const struct tokenizer *tokenizer(size_t i) {
    static struct tokenizer_sample samples[N_ALL];
    struct gguf_writer writer = {0};
    if (samples[i].tokenizer) return samples[i].tokenizer;
    if (i < N_BPE)
        vocabulary_sample_bpe(&writer, pres[i]);
    else
        vocabulary_sample_spm(&writer, spm_flags[i - N_BPE]);
    require(tokenizer_sample_open(&writer, &samples[i], NULL) == TERSE_OK);
    return samples[i].tokenizer;
}

/* Spaces and their SentencePiece letters left out, in place: a prefix or which of the two there was cannot be told afterwards. */
static size_t without_spaces(char *text, size_t n) {
    size_t size = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == ' ') continue;
        if (n - i >= 3 && memcmp(text + i, "\xe2\x96\x81", 3) == 0)
            i += 2;
        else
            text[size++] = text[i];
    }
    return size;
}

static void check_bytes(const struct tokenizer *t, const int32_t *tokens, size_t n, const char *text, size_t n_bytes) {
    size_t size = 0, bytes;
    for (size_t i = 0; i < n; i++) size += (tokenizer_bytes(t, tokens[i], true, &bytes), bytes);
    char *said = malloc(size + 1), *asked = malloc(n_bytes + 1);
    require(said && asked);
    size = 0;
    for (size_t i = 0; i < n; i++) {
        const char *part = tokenizer_bytes(t, tokens[i], true, &bytes);
        memcpy(said + size, part, bytes);
        size += bytes;
    }
    if (n_bytes) memcpy(asked, text, n_bytes);
    if (t->kind == TOKENIZER_SPM) {
        size = without_spaces(said, size);
        n_bytes = without_spaces(asked, n_bytes);
    }
    require(size == n_bytes && memcmp(said, asked, size) == 0);
    free(said);
    free(asked);
}

static void check_stream(const struct tokenizer *t, const int32_t *tokens, size_t n) {
    struct terse_detokenizer *d;
    size_t bytes;
    require(detokenizer_new(t, DETOKENIZER_ALL, NULL, &d, NULL) == TERSE_OK);
    for (size_t i = 0; i <= n; i++) {
        const char *text = i < n ? terse_detokenizer_push(d, tokens[i], &bytes) : terse_detokenizer_finish(d, &bytes);
        require(text[bytes] == '\0' && utf8_prefix(text, bytes) == bytes);
    }
    terse_detokenizer_free(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    size_t which = data[0] % N_ALL, n_bytes = size - 2, n, capacity = n_bytes * 3 + 8;
    const struct tokenizer *t = tokenizer(which);
    unsigned flags = data[1] % 4;
    char *text = malloc(n_bytes ? n_bytes : 1); /* ends where the input ends */
    int32_t *tokens = malloc(capacity * sizeof *tokens);
    require(text && tokens);
    if (n_bytes) memcpy(text, data + 2, n_bytes);
    require(tokenizer_encode(t, text, n_bytes, flags, tokens, capacity, &n, NULL) == TERSE_OK);
    size_t begin = flags & TERSE_TOKENIZE_ADD_SPECIAL ? 1 : 0;
    require(n >= begin && (!begin || tokens[0] == VOCABULARY_SAMPLE_BOS));
    for (size_t i = begin; i < n; i++) {
        require(tokens[i] >= 0 && (uint32_t)tokens[i] < tokenizer_size(t));
        require(flags & TERSE_TOKENIZE_PARSE_SPECIAL || t->vocabulary.type[tokens[i]] != TOKEN_CONTROL);
    }
    bool lossless = which < N_BPE || !(spm_flags[which - N_BPE] & SPM_NO_BYTES);
    if (lossless) check_bytes(t, tokens + begin, n - begin, text, n_bytes);
    check_stream(t, tokens, n);
    free(text);
    free(tokens);
    return 0;
}
