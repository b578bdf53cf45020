/* Makes a tokenizer from a GGUF file: finds which kind it is, what its special tokens are, and the bytes of every token. */
#include "base/memory.h"
#include "base/text.h"
#include "text/tokenizer_private.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static bool is(struct gguf_string string, const char *text) {
    return string.size == strlen(text) && memcmp(string.data, text, string.size) == 0;
}

/* ---- Special tokens ------------------------------------------------------------------------------------------------------ */

/* Control tokens with these texts end a reply, whatever ids the file names: models are trained to end with one that the file
 * forgets. */
static const char *const known_ends[] = {"<|eot_id|>",
                                         "<|eom_id|>",
                                         "<|im_end|>",
                                         "<|end|>",
                                         "<|end_of_text|>",
                                         "<|endoftext|>",
                                         "<end_of_turn>",
                                         "</s>",
                                         "<|return|>",
                                         "<|call|>",
                                         "<|END_OF_TURN_TOKEN|>",
                                         "<|EOT|>",
                                         "<\357\275\234end\342\226\201of\342\226\201sentence\357\275\234>"};

/* Marks of fill in the middle have these keys, the older one second, and else these texts, as llama.cpp knows them. */
static const struct {
    const char *key, *older_key, *texts[7];
} fim_marks[N_FIM_MARKS + 1] = {
    [TERSE_FIM_PREFIX] = {"tokenizer.ggml.fim_pre_token_id",
                          "tokenizer.ggml.prefix_token_id",
                          {"<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
                           "<|code_prefix|>"}},
    [TERSE_FIM_SUFFIX] = {"tokenizer.ggml.fim_suf_token_id",
                          "tokenizer.ggml.suffix_token_id",
                          {"<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
                           "<|code_suffix|>"}},
    [TERSE_FIM_MIDDLE] = {"tokenizer.ggml.fim_mid_token_id",
                          "tokenizer.ggml.middle_token_id",
                          {"<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
                           "<|code_middle|>"}},
    [TERSE_FIM_REPOSITORY] = {"tokenizer.ggml.fim_rep_token_id",
                              NULL,
                              {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"}},
    [TERSE_FIM_FILE] = {"tokenizer.ggml.fim_sep_token_id", NULL, {"<|file_sep|>"}},
    /* A token that fills up such texts in training is no mark: it only ends a reply. */
    [N_FIM_MARKS] = {"tokenizer.ggml.fim_pad_token_id", NULL, {"<|fim_pad|>", "<fim-pad>", "<fim_pad>"}}};

/* Reads the id of a special token. `usual`: the id when the file names none, or -1. */
static enum terse_status load_id(const struct tokenizer *t, const struct gguf *gguf, const char *key, int32_t usual, int32_t *id,
                                 struct terse_error *error) {
    uint32_t value = 0;
    bool found;
    enum terse_status status = gguf_get_u32(gguf, key, &value, &found, error);
    if (status) return status;
    if (found && value >= t->vocabulary.n)
        return status_fail(error, TERSE_E_FORMAT, "%s is %" PRIu32 " and there are %" PRIu32 " tokens: convert the model again",
                           key, value, t->vocabulary.n);
    *id = found ? (int32_t)value : usual < (int32_t)t->vocabulary.n ? usual : -1;
    return TERSE_OK;
}

/* Reads whether a token is put around a text; `usual` holds when the file does not say. */
static enum terse_status load_added(const struct gguf *gguf, const char *key, int32_t id, bool usual, bool *added,
                                    struct terse_error *error) {
    bool found;
    *added = usual && id >= 0;
    enum terse_status status = gguf_get_bool(gguf, key, added, &found, error);
    if (!status && *added && id < 0)
        return status_fail(error, TERSE_E_FORMAT, "%s is true and the file names no such token: convert the model again", key);
    return status;
}

/* Returns the control or user-defined token of that text, or -1. */
static int32_t find_mark(const struct vocabulary *v, const char *text) {
    int32_t token = vocabulary_find(v, text, strlen(text));
    return token >= 0 && (v->type[token] == TOKEN_CONTROL || v->type[token] == TOKEN_USER_DEFINED) ? token : -1;
}

static enum terse_status load_fim_mark(const struct tokenizer *t, const struct gguf *gguf, size_t mark, int32_t *id,
                                       struct terse_error *error) {
    const char *older = fim_marks[mark].older_key;
    enum terse_status status = load_id(t, gguf, fim_marks[mark].key, -1, id, error);
    if (!status && *id < 0 && older) status = load_id(t, gguf, older, -1, id, error);
    for (size_t i = 0; !status && *id < 0 && i < sizeof fim_marks->texts / sizeof *fim_marks->texts; i++)
        if (fim_marks[mark].texts[i]) *id = find_mark(&t->vocabulary, fim_marks[mark].texts[i]);
    return status;
}

/* Loads the marks of fill in the middle, of which those behind a reply end it. */
static enum terse_status load_fim(struct tokenizer *t, const struct gguf *gguf, struct terse_error *error) {
    for (size_t mark = 0; mark <= N_FIM_MARKS; mark++) {
        int32_t id = -1;
        enum terse_status status = load_fim_mark(t, gguf, mark, &id, error);
        if (status) return status;
        if (mark < N_FIM_MARKS) t->fim[mark] = id;
        if (id >= 0 && mark > TERSE_FIM_MIDDLE) t->ends[id] = true;
    }
    return TERSE_OK;
}

/* Loads the special ids; those that the file does not name have llama.cpp's defaults: LLaMA 2's for SentencePiece, none for
 * byte-level BPE. */
static enum terse_status load_special_ids(struct tokenizer *t, const struct gguf *gguf, struct terse_error *error) {
    bool spm = t->kind == TOKENIZER_SPM;
    bool wants_bos = spm || pretokenizer_adds_bos(t->bpe.pretokenizer);
    int32_t eot = -1, eom = -1;
    enum terse_status status;
    if ((status = load_id(t, gguf, "tokenizer.ggml.bos_token_id", spm ? 1 : -1, &t->bos, error))) return status;
    if ((status = load_id(t, gguf, "tokenizer.ggml.eos_token_id", spm ? 2 : -1, &t->eos, error))) return status;
    if ((status = load_id(t, gguf, "tokenizer.ggml.unknown_token_id", spm ? 0 : -1, &t->unknown, error))) return status;
    if ((status = load_id(t, gguf, "tokenizer.ggml.eot_token_id", -1, &eot, error))) return status;
    if ((status = load_id(t, gguf, "tokenizer.ggml.eom_token_id", -1, &eom, error))) return status;
    if ((status = load_added(gguf, "tokenizer.ggml.add_bos_token", t->bos, wants_bos, &t->add_bos, error))) return status;
    if ((status = load_added(gguf, "tokenizer.ggml.add_eos_token", t->eos, false, &t->add_eos, error))) return status;

    t->ends = memory_zeros(t->vocabulary.n, sizeof *t->ends);
    if (!t->ends) return status_no_memory(error, t->vocabulary.n * sizeof *t->ends, "the vocabulary");
    if (t->eos >= 0) t->ends[t->eos] = true;
    if (eot >= 0) t->ends[eot] = true;
    if (eom >= 0) t->ends[eom] = true;
    for (size_t i = 0; i < sizeof known_ends / sizeof *known_ends; i++) {
        int32_t token = find_mark(&t->vocabulary, known_ends[i]);
        if (token >= 0) t->ends[token] = true;
    }
    /* gpt-oss ends a message with "<|end|>", but the reply goes on with the next message, up to "<|return|>". */
    int32_t end = find_mark(&t->vocabulary, "<|end|>");
    if (end >= 0 && find_mark(&t->vocabulary, "<|channel|>") >= 0 && find_mark(&t->vocabulary, "<|return|>") >= 0)
        t->ends[end] = false;
    return load_fim(t, gguf, error);
}

static int compare_specials(const void *a, const void *b) {
    const struct gguf_string *x = &((const struct special *)a)->text, *y = &((const struct special *)b)->text;
    int order = memcmp(x->data, y->data, x->size < y->size ? x->size : y->size);
    return order ? order : (x->size > y->size) - (x->size < y->size);
}

/* Phi 3's special tokens, but for these, take the white space behind them. Source: its tokenizer.json (rstrip), for which GGUF has
 * no key. */
static bool takes_space(const struct gguf_string *text) {
    return !is(*text, "<unk>") && !is(*text, "<s>") && !is(*text, "<|endoftext|>");
}

static enum terse_status collect_specials(struct tokenizer *t, const struct gguf *gguf, struct terse_error *error) {
    const struct vocabulary *v = &t->vocabulary;
    struct gguf_string architecture = {"", 0};
    bool found;
    enum terse_status status = gguf_get_string(gguf, "general.architecture", &architecture, &found, error);
    if (status) return status;
    bool phi_3 = t->kind == TOKENIZER_SPM && is(architecture, "phi3");
    size_t n = 0;
    for (uint32_t i = 0; i < v->n; i++) n += v->type[i] >= TOKEN_UNKNOWN && v->type[i] <= TOKEN_USER_DEFINED;
    t->specials = memory_array(n, sizeof *t->specials);
    if (!t->specials) return status_no_memory(error, n * sizeof *t->specials, "the vocabulary");
    for (uint32_t i = 0; i < v->n; i++) {
        if (v->type[i] < TOKEN_UNKNOWN || v->type[i] > TOKEN_USER_DEFINED || v->text[i].size == 0) continue;
        t->specials[t->n_specials++] =
            (struct special){v->text[i], (int32_t)i, v->type[i] == TOKEN_USER_DEFINED, phi_3 && takes_space(&v->text[i])};
        t->begins_special[(unsigned char)v->text[i].data[0]] = true;
    }
    qsort(t->specials, t->n_specials, sizeof *t->specials, compare_specials);
    return TERSE_OK;
}

/* ---- The bytes of tokens ------------------------------------------------------------------------------------------------- */

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Returns the byte that "<0x41>" stands for, or -1. */
static int named_byte(struct gguf_string text) {
    if (text.size != 6 || memcmp(text.data, "<0x", 3) != 0 || text.data[5] != '>') return -1;
    int high = hex_digit(text.data[3]), low = hex_digit(text.data[4]);
    return high >= 0 && low >= 0 ? high << 4 | low : -1;
}

/* Writes the bytes of one token, at most as many as its text has. */
static size_t token_bytes(const struct tokenizer *t, uint32_t token, char *bytes) {
    struct gguf_string text = t->vocabulary.text[token];
    int byte = t->vocabulary.type[token] == TOKEN_BYTE ? named_byte(text) : -1;
    if (byte >= 0) {
        bytes[0] = (char)byte;
        return 1;
    }
    if (t->vocabulary.type[token] == TOKEN_NORMAL)
        return t->kind == TOKENIZER_BPE ? bpe_bytes(text, bytes) : spm_bytes(text, bytes);
    memcpy(bytes, text.data, text.size);
    return text.size;
}

static enum terse_status collect_bytes(struct tokenizer *t, struct terse_error *error) {
    const struct vocabulary *v = &t->vocabulary;
    size_t most = 0;
    for (uint32_t i = 0; i < v->n; i++) most += v->text[i].size;
    t->bytes = memory_array(most, 1);
    t->first = memory_array((size_t)v->n + 1, sizeof *t->first);
    if (!t->bytes || !t->first) return status_no_memory(error, most + v->n * sizeof *t->first, "the vocabulary");
    t->first[0] = 0;
    for (uint32_t i = 0; i < v->n; i++) {
        size_t n = token_bytes(t, i, t->bytes + t->first[i]);
        t->first[i + 1] = t->first[i] + n;
        if (n > t->longest) t->longest = n;
    }
    return TERSE_OK;
}

/* ---- The kind ------------------------------------------------------------------------------------------------------------ */

static enum terse_status find_kind(struct tokenizer *t, const struct gguf *gguf, struct terse_error *error) {
    struct gguf_string name = {0};
    bool found;
    enum terse_status status = gguf_get_string(gguf, "tokenizer.ggml.model", &name, &found, error);
    if (status) return status;
    if (!found && gguf_has(gguf, "tokenizer.ggml.tokens"))
        return status_fail(error, TERSE_E_FORMAT,
                           "there are tokens but no tokenizer.ggml.model that says of which kind: convert the model again");
    if (!found || is(name, "none") || is(name, "no_vocab")) {
        t->kind = TOKENIZER_NONE;
    } else if (is(name, "gpt2")) {
        t->kind = TOKENIZER_BPE;
    } else if (is(name, "llama")) {
        t->kind = TOKENIZER_SPM;
    } else {
        char shown[64];
        return status_fail(
            error, TERSE_E_UNSUPPORTED,
            "the tokenizer is of kind %s; terse knows gpt2 (byte-level BPE) and llama (SentencePiece): use a model with "
            "one of these",
            text_quote(shown, sizeof shown, name.data, name.size));
    }
    return TERSE_OK;
}

static enum terse_status load(struct tokenizer *t, const struct gguf *gguf, struct terse_error *error) {
    enum terse_status status = find_kind(t, gguf, error);
    if (status || t->kind == TOKENIZER_NONE) return status;
    if ((status = vocabulary_load(&t->vocabulary, gguf, error))) return status;
    status = t->kind == TOKENIZER_BPE ? bpe_load(t, gguf, error) : spm_load(t, gguf, error);
    if (status) return status;
    if ((status = load_special_ids(t, gguf, error))) return status;
    if ((status = collect_specials(t, gguf, error))) return status;
    if ((status = collect_bytes(t, error))) return status;
    bool found;
    if ((status = gguf_get_string(gguf, "tokenizer.chat_template.tool_use", &t->tools_template, &found, error))) return status;
    return gguf_get_string(gguf, "tokenizer.chat_template", &t->chat_template, &found, error);
}

enum terse_status tokenizer_new(const struct gguf *gguf, struct tokenizer **tokenizer, struct terse_error *error) {
    *tokenizer = NULL;
    struct tokenizer *t = calloc(1, sizeof *t);
    if (!t) return status_no_memory(error, sizeof *t, "the tokenizer");
    t->bos = t->eos = t->unknown = -1;
    for (size_t i = 0; i < N_FIM_MARKS; i++) t->fim[i] = -1;
    enum terse_status status = load(t, gguf, error);
    if (status) {
        tokenizer_free(t);
        return status;
    }
    *tokenizer = t;
    return TERSE_OK;
}

void tokenizer_free(struct tokenizer *t) {
    if (!t) return;
    vocabulary_destroy(&t->vocabulary);
    bpe_destroy(&t->bpe);
    spm_destroy(&t->spm);
    memory_free(t->bytes);
    memory_free(t->first);
    memory_free(t->specials);
    memory_free(t->ends);
    free(t);
}
