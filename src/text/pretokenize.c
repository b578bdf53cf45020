/* Splits words by expressions that PCRE2 matches. Owns the compiled expressions; knows nothing of tokens.
 *
 * PCRE2's version of Unicode decides what is a letter, a number or a space: a character newer than that is a symbol. The models'
 * own tokenizers have the same limit, each with the version of its day. Qwen's would also compose characters (NFC) first; that is
 * left out here, as llama.cpp does, so that the words put together are always the text. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pretokenize.h"
#include "base/text.h"
#include "text/utf8.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STAGES = 6 };

/* White space is spelled out, inside brackets: PCRE2's \s would include U+180E, which Unicode took out of it in version 6.3. */
#define WHITE "\\t-\\r\\x{85}\\p{Z}"
#define CONTRACTION "'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])|"
#define LETTERS_AND_ONE_BEFORE "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define SYMBOLS_AND_LINE_ENDS " ?[^" WHITE "\\p{L}\\p{N}]+[\\r\\n]*|"
#define SPACES "[" WHITE "]*[\\r\\n]+|[" WHITE "]+(?![^" WHITE "])|[" WHITE "]+"

#define GPT_2 "'(?:s|t|re|ve|m|ll|d)| ?\\p{L}+| ?\\p{N}+| ?[^" WHITE "\\p{L}\\p{N}]+|[" WHITE "]+(?![^" WHITE "])|[" WHITE "]+"
#define LLAMA_3 CONTRACTION LETTERS_AND_ONE_BEFORE "\\p{N}{1,3}|" SYMBOLS_AND_LINE_ENDS SPACES
#define QWEN_2 CONTRACTION LETTERS_AND_ONE_BEFORE "\\p{N}|" SYMBOLS_AND_LINE_ENDS SPACES

/* DeepSeek's expressions list the letters that have case, and Chinese, Japanese and Korean. */
#define CASED \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}\\x{1c4}-\\x{293}\\x{295}-\\x{2af}" \
    "\\x{370}-\\x{373}\\x{376}-\\x{377}\\x{37b}-\\x{37d}\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}" \
    "\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}" \
    "\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}" \
    "\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}" \
    "\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}" \
    "\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}" \
    "\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}" \
    "\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}" \
    "\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}" \
    "\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}" \
    "\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}" \
    "\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}"
#define CJK "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
#define DEEPSEEK_SYMBOLS "[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+"
#define DEEPSEEK_3 "[!-/:-@\\[-`{-~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES
#define QWEN_35 CONTRACTION "[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^" WHITE "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES
/* A cased word is capitals and then small letters: GPT-4o's expression includes a contraction behind it, that of Mistral's Tekken
 * does not. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED_WORD(BEHIND) \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" BEHIND "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" BEHIND "|"
#define SYMBOLS_AND_SLASHES " ?[^" WHITE "\\p{L}\\p{N}]+[\\r\\n/]*|"
#define GPT_4O CASED_WORD("(?i:'s|'t|'re|'ve|'m|'ll|'d)?") "\\p{N}{1,3}|" SYMBOLS_AND_SLASHES SPACES
#define TEKKEN CASED_WORD("") "\\p{N}|" SYMBOLS_AND_SLASHES SPACES

/* The expressions are those of the models' own tokenizer.json. llama.cpp decides which name means which expression, that llama-bpe
 * ignores merges and adds BOS, and what the stages of "default" are, which no model was trained with but which files without a name
 * are read with. */
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
    {" qwen35 ", false, false, {QWEN_35}},
    {" gpt-4o llama4 ", false, false, {GPT_4O}},
    {" tekken ", true, true, {TEKKEN}},
    {" starcoder refact command-r smollm codeshell exaone minerva-7b ", false, false, {"\\p{N}", GPT_2}},
    {" falcon ", false, false, {"[\\p{P}$+<=>^~|`]+", GPT_2, "[0-9]{3}"}},
    {" deepseek-llm ",
     false,
     false,
     {"[\\r\\n]", "[" WHITE "]?[" CASED "]+", "[" WHITE "]?" DEEPSEEK_SYMBOLS, "[" WHITE "]+$", CJK, "\\p{N}+"}},
    {" deepseek-coder ", false, false, {"[\\r\\n]", "[" WHITE "]?\\p{L}+", "[" WHITE "]?\\p{P}+", CJK, "\\p{N}"}},
    {" deepseek-v3 hunyuan-dense ", false, false, {"\\p{N}{1,3}", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{30ff}]+", DEEPSEEK_3}},
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
            "the tokenizer cuts words like %s; terse knows gpt-2, llama-bpe, qwen2, qwen35, gpt-4o, tekken, starcoder, "
            "refact, command-r, falcon, "
            "deepseek-llm, deepseek-coder, deepseek-v3, default (tokenizer.ggml.pre) and their aliases: use a model "
            "with one of these",
            text_quote(shown, sizeof shown, name.data, name.size));
    }
    struct pretokenizer *p = calloc(1, sizeof *p);
    if (!p) return status_no_memory(error, sizeof *p, "the pre-tokenizer");
    p->kind = kind;
    p->limits = pcre2_match_context_create(NULL);
    bool complete = p->limits != NULL;
    /* An expression backtracks at most over a stretch of white space, once, looking for a line's end in it. PCRE2's own limit (ten
     * million) would fail such a stretch in a text that may be 2^30 bytes long. */
    if (p->limits) pcre2_set_match_limit(p->limits, UINT32_C(1) << 31);
    for (size_t i = 0; i < MAX_STAGES && kind->stages[i]; i++) {
        int code;
        PCRE2_SIZE offset;
        p->code[i] = pcre2_compile((PCRE2_SPTR)kind->stages[i], PCRE2_ZERO_TERMINATED, PCRE2_UTF, &code, &offset, NULL);
        complete = complete && p->code[i];
        /* Without JIT (not built in, or memory may not be made executable) PCRE2 interprets the expressions: slower, with the same
         * words. */
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

/* A cut is one call of pretokenizer_split. */
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
