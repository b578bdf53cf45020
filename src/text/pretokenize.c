/* The word-splitting expressions, matched by PCRE2. Owns the compiled expressions; knows nothing of tokens.
 *
 * What is a letter, a number or a space is what PCRE2's version of Unicode says: a character newer than that is a symbol. The models'
 * own tokenizers have the same limit, each with the version of its day. Qwen's would also compose characters (NFC) first; that is
 * left out here, as llama.cpp does, so that the words put together are always the text. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pretokenize.h"
#include "base/text.h"
#include "text/utf8.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STAGES = 4 };

/* White space is spelled out, inside of brackets: PCRE2's \s would take U+180E in, which Unicode took out of it in version 6.3. */
#define WHITE "\\t-\\r\\x{85}\\p{Z}"
#define CONTRACTION "'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])|"
#define LETTERS_AND_ONE_BEFORE "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define SYMBOLS_AND_LINE_ENDS " ?[^" WHITE "\\p{L}\\p{N}]+[\\r\\n]*|"
#define SPACES "[" WHITE "]*[\\r\\n]+|[" WHITE "]+(?![^" WHITE "])|[" WHITE "]+"

#define GPT_2 "'(?:s|t|re|ve|m|ll|d)| ?\\p{L}+| ?\\p{N}+| ?[^" WHITE "\\p{L}\\p{N}]+|[" WHITE "]+(?![^" WHITE "])|[" WHITE "]+"
#define LLAMA_3 CONTRACTION LETTERS_AND_ONE_BEFORE "\\p{N}{1,3}|" SYMBOLS_AND_LINE_ENDS SPACES
#define QWEN_2 CONTRACTION LETTERS_AND_ONE_BEFORE "\\p{N}|" SYMBOLS_AND_LINE_ENDS SPACES

/* The expressions are those of the models' own tokenizer.json; which name means which, that llama-bpe ignores merges and adds BOS,
 * and the stages of "default" (which no model was trained with, but files without a name are read with) are llama.cpp's. */
static const struct kind {
    const char *names; /* separated by spaces, one at each end too */
    bool ignores_merges, adds_bos;
    const char *stages[MAX_STAGES];
} kinds[] = {
    {" default ", false, false, {"[\\p{P}$+<=>^~|]+", GPT_2, "\\p{N}+", "[0-9]{3}"}},
    {" gpt-2 phi-2 mpt olmo jais trillion mellum a.x-4.0 exaone4 ", false, false, {GPT_2}},
    {" llama-bpe llama-v3 llama3 falcon3 pixtral midm-2.0 lfm2 ", true, true, {LLAMA_3}},
    {" smaug-bpe dbrx ", false, false, {LLAMA_3}},
    {" qwen2 deepseek-r1-qwen megrez stablelm2 hunyuan ", false, false, {QWEN_2}},
};

struct pretokenizer {
    const struct kind *kind;
    pcre2_code *code[MAX_STAGES]; /* NULL past the last */
    pcre2_match_context *limits;
};

static const struct kind *find_kind(struct gguf_string name) {
    char wanted[64] = " default ";
    if (name.size > sizeof wanted - 3) return NULL;
    if (name.size) {
        if (memchr(name.data, ' ', name.size) || memchr(name.data, '\0', name.size)) return NULL;
        memcpy(wanted + 1, name.data, name.size);
        memcpy(wanted + 1 + name.size, " ", 2);
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strstr(kinds[i].names, wanted)) return &kinds[i];
    return NULL;
}

enum terse_status pretokenizer_new(struct gguf_string name, struct pretokenizer **pretokenizer, struct terse_error *error) {
    *pretokenizer = NULL;
    const struct kind *kind = find_kind(name);
    if (!kind) {
        char shown[64];
        return status_fail(
            error, TERSE_E_UNSUPPORTED,
            "the tokenizer cuts words like %s; terse knows gpt-2, llama-bpe, qwen2, default (tokenizer.ggml.pre) and "
            "their aliases: use a model with one of these",
            text_quote(shown, sizeof shown, name.data, name.size));
    }
    struct pretokenizer *p = calloc(1, sizeof *p);
    if (!p) return status_no_memory(error, sizeof *p, "the pre-tokenizer");
    p->kind = kind;
    p->limits = pcre2_match_context_create(NULL);
    bool complete = p->limits != NULL;
    /* The most that an expression takes back is a run of white space, once, looking for a line's end in it. PCRE2's own limit (ten
     * million) would fail such a run in a text that may be 2^30 bytes long. */
    if (p->limits) pcre2_set_match_limit(p->limits, UINT32_C(1) << 31);
    for (size_t i = 0; i < MAX_STAGES && kind->stages[i]; i++) {
        int code;
        PCRE2_SIZE offset;
        p->code[i] = pcre2_compile((PCRE2_SPTR)kind->stages[i], PCRE2_ZERO_TERMINATED, PCRE2_UTF, &code, &offset, NULL);
        complete = complete && p->code[i];
        /* Without JIT (not built in, or memory may not be made executable) PCRE2 interprets: slower, the same words. */
        if (p->code[i]) pcre2_jit_compile(p->code[i], PCRE2_JIT_COMPLETE);
    }
    if (!complete) {
        pretokenizer_free(p);
        return status_no_memory(error, 4096, "the pre-tokenizer's expressions");
    }
    *pretokenizer = p;
    return TERSE_OK;
}

void pretokenizer_free(struct pretokenizer *p) {
    if (!p) return;
    for (size_t i = 0; i < MAX_STAGES; i++) pcre2_code_free(p->code[i]);
    pcre2_match_context_free(p->limits);
    free(p);
}

bool pretokenizer_ignores_merges(const struct pretokenizer *p) { return p->kind->ignores_merges; }
bool pretokenizer_adds_bos(const struct pretokenizer *p) { return p->kind->adds_bos; }

/* One call of pretokenizer_split. */
struct cut {
    const struct pretokenizer *pretokenizer;
    const struct word_sink *sink;
    struct terse_error *error;
    pcre2_match_data *match;
};

/* Cuts well-formed text[n > 0] by the expressions from `stage` on. */
static enum terse_status cut_piece(const struct cut *c, size_t stage, const char *text, size_t n) {
    const struct pretokenizer *p = c->pretokenizer;
    enum terse_status status = TERSE_OK;
    if (stage == MAX_STAGES || !p->code[stage]) return c->sink->word(c->sink->user, text, n);
    size_t at = 0;
    while (at < n && !status) {
        /* Without PCRE2_NO_UTF_CHECK each match would read the whole text again. */
        int found = pcre2_match(p->code[stage], (PCRE2_SPTR)text, n, at, PCRE2_NO_UTF_CHECK, c->match, p->limits);
        if (found == PCRE2_ERROR_NOMATCH) break;
        if (found < 0) return status_no_memory(c->error, n, "cutting a text into words");
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(c->match);
        size_t first = span[0], end = span[1];
        if (first > at) status = cut_piece(c, stage + 1, text + at, first - at);
        if (!status) status = cut_piece(c, stage + 1, text + first, end - first);
        at = end;
    }
    if (!status && at < n) status = cut_piece(c, stage + 1, text + at, n - at);
    return status;
}

enum terse_status pretokenizer_split(const struct pretokenizer *p, const char *text, size_t n_bytes, const struct word_sink *sink,
                                     struct terse_error *error) {
    struct cut cut = {p, sink, error, pcre2_match_data_create(1, NULL)};
    if (!cut.match) return status_no_memory(error, n_bytes, "cutting a text into words");
    enum terse_status status = TERSE_OK;
    for (size_t at = 0, n; at < n_bytes && !status; at += n) {
        n = utf8_prefix(text + at, n_bytes - at);
        if (n) {
            status = cut_piece(&cut, 0, text + at, n);
            continue;
        }
        for (size_t length; at + n < n_bytes && utf8_next(text + at + n, n_bytes - at - n, &length) != UTF8_WHOLE; n += length)
            continue;
        status = sink->word(sink->user, text + at, n);
    }
    pcre2_match_data_free(cut.match);
    return status;
}
