/* Declares the inside of struct tokenizer for tokenizer_load.c (makes it), tokenizer.c (finds special tokens and hands the text
 * between them to one of the two kinds), tokenizer_bpe.c and tokenizer_spm.c (those kinds). */
#ifndef TERSE_TEXT_TOKENIZER_PRIVATE_H
#define TERSE_TEXT_TOKENIZER_PRIVATE_H

#include "text/encoder.h"
#include "text/merge.h"
#include "text/pretokenize.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

/* A special is a token that is looked for in the text before it is cut into words. */
struct special {
    struct gguf_string text;
    int32_t token;
    bool always;      /* user-defined */
    bool takes_space; /* white space behind it belongs to it */
};

/* A bpe_merge joins two tokens of a byte-level BPE vocabulary. */
struct bpe_merge {
    uint64_t pair; /* left token << 32 | right token; UINT64_MAX: a free bucket */
    struct merge merge;
};

struct bpe {
    struct pretokenizer *pretokenizer;
    struct bpe_merge *merges; /* hash table */
    uint64_t mask;
};

struct spm {
    uint32_t *priority;    /* [n] of merging to this token: the higher its score, the smaller */
    bool add_space_prefix; /* a text begins with a space, also behind a special token */
    bool cut_at_spaces;    /* no token has U+2581 behind another character: what stands before one never merges with it */
};

enum { N_FIM_MARKS = TERSE_FIM_FILE + 1 };

enum tokenizer_kind { TOKENIZER_NONE, TOKENIZER_BPE, TOKENIZER_SPM };

struct tokenizer {
    enum tokenizer_kind kind;
    struct vocabulary vocabulary;
    struct bpe bpe;           /* of TOKENIZER_BPE */
    struct spm spm;           /* of TOKENIZER_SPM */
    char *bytes;              /* of all tokens, one after another */
    size_t *first;            /* [n + 1] where in `bytes` a token begins */
    size_t longest;           /* bytes of the token that has most */
    int32_t byte_token[256];  /* the token of a byte that no other token covers, or -1 */
    struct special *specials; /* sorted by text */
    size_t n_specials;
    bool begins_special[256];  /* some special token begins with this byte */
    bool *ends;                /* [n] */
    int32_t bos, eos, unknown; /* or -1 */
    int32_t fim[N_FIM_MARKS];  /* by enum terse_fim_mark, or -1 */
    bool add_bos, add_eos;
    struct gguf_string chat_template, tools_template;
};

/* Returns whether merges of ordinary text may give the token. A user-defined token is found before anything merges, or is not found
 * at all. */
static inline bool token_is_text(const struct vocabulary *v, int32_t token) {
    return v->type[token] == TOKEN_NORMAL || v->type[token] == TOKEN_UNUSED;
}

/* For each kind, ..._load reads what it needs besides the vocabulary (byte_token included), ..._encode encodes text[n > 0] without
 * special tokens, and ..._bytes writes the bytes of an ordinary token, at most as many as its text has, and returns their
 * number. */
enum terse_status bpe_load(struct tokenizer *tokenizer, const struct gguf *gguf, struct terse_error *error);
void bpe_destroy(struct bpe *bpe);
enum terse_status bpe_encode(struct encoder *encoder, const char *text, size_t n);
size_t bpe_bytes(struct gguf_string text, char *bytes);

enum terse_status spm_load(struct tokenizer *tokenizer, const struct gguf *gguf, struct terse_error *error);
void spm_destroy(struct spm *spm);
enum terse_status spm_encode(struct encoder *encoder, const char *text, size_t n);
size_t spm_bytes(struct gguf_string text, char *bytes);

#endif
