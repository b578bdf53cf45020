/* The rules for special tokens, single tokens and texts that come as a stream; through the public functions. */
#include "model/model.h"
#include "support/tokenizer_sample.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { NORMAL = 1, UNKNOWN, CONTROL, USER, UNUSED, BYTE };
#define SPACE "\xe2\x96\x81"

/* A SentencePiece vocabulary with every type of token. */
static const char *const spm_tokens[] = {"<unk>",     "<s>",    "</s>",         SPACE,       "a",
                                         (SPACE "a"), "<|im|>", "<|im|>x",      "[tool]",    "<0x41>",
                                         "pad",       "",       "\xe2\x82\xac", ("b" SPACE), ""};
static const int32_t spm_types[] = {UNKNOWN, CONTROL, CONTROL, NORMAL, NORMAL, NORMAL, CONTROL, CONTROL,
                                    USER,    BYTE,    UNUSED,  NORMAL, NORMAL, USER,   NORMAL};
enum { UNK, S, END_S, SP, A, SP_A, IM, IM_X, TOOL, BYTE_A, PAD, EMPTY, EURO, B_SP, N_SPM = sizeof spm_tokens / sizeof *spm_tokens };

static void write_spm(struct gguf_writer *w) {
    static const float scores[N_SPM] = {0};
    gguf_writer_string(w, "tokenizer.ggml.model", "llama");
    gguf_writer_strings(w, "tokenizer.ggml.tokens", N_SPM, spm_tokens);
    gguf_writer_array(w, "tokenizer.ggml.token_type", GGUF_I32, N_SPM, spm_types);
    gguf_writer_array(w, "tokenizer.ggml.scores", GGUF_F32, N_SPM, scores);
}

/* A byte-level vocabulary: 256 bytes, then these. */
static const char *const bpe_more[] = {"<|begin_of_text|>", "<|eot_id|>", "ab",  "<|im_end|>",
                                       "\xe6\x97\xa5 raw",  "  ",         "<x>", "abc"};
static const int32_t bpe_types[] = {CONTROL, CONTROL, NORMAL, NORMAL, NORMAL, USER, CONTROL, NORMAL};
enum { BEGIN = 256, EOT, AB, IM_END, RAW, TWO, X, ABC, N_BPE };

static void write_bpe(struct gguf_writer *w, const char *pre) {
    const char *tokens[N_BPE];
    int32_t types[N_BPE];
    for (int i = 0; i < N_BPE; i++) {
        tokens[i] = i < 256 ? byte_letters[i] : bpe_more[i - 256];
        types[i] = i < 256 ? NORMAL : bpe_types[i - 256];
    }
    gguf_writer_string(w, "tokenizer.ggml.model", "gpt2");
    if (pre) gguf_writer_string(w, "tokenizer.ggml.pre", pre);
    gguf_writer_strings(w, "tokenizer.ggml.tokens", N_BPE, tokens);
    gguf_writer_array(w, "tokenizer.ggml.token_type", GGUF_I32, N_BPE, types);
    gguf_writer_strings(w, "tokenizer.ggml.merges", 1, (const char *const[]){"a b"});
}

static struct terse_model open_model(struct gguf_writer *w, struct tokenizer_sample *s) {
    struct terse_error error = {0};
    if (tokenizer_sample_open(w, s, &error)) fail_msg("%s", error.message);
    return (struct terse_model){.tokenizer = s->tokenizer};
}

#define CHECK(model, text, flags, ...) \
    check((model), (text), sizeof(text) - 1, (flags), (const int32_t[]){-1, __VA_ARGS__}, sizeof((int32_t[]){-1, __VA_ARGS__}) / 4)

/* `wanted` begins with a -1 of no meaning, so that it may be empty. */
static void check(const struct terse_model *model, const char *text, size_t n_bytes, unsigned flags, const int32_t *wanted,
                  size_t n_wanted) {
    int32_t tokens[256];
    size_t n;
    struct terse_error error = {0};
    if (terse_tokenize(model, text, n_bytes, flags, tokens, 256, &n, &error)) fail_msg("%s", error.message);
    if (n != n_wanted - 1 || memcmp(tokens, wanted + 1, n * sizeof *tokens) != 0) {
        for (size_t i = 0; i < n; i++) print_error("%d ", tokens[i]);
        fail_msg("is not what '%s' should give with flags %u", text, flags);
    }
}

enum { PLAIN = TERSE_TOKENIZE_PLAIN, ADD = TERSE_TOKENIZE_ADD_SPECIAL, PARSE = TERSE_TOKENIZE_PARSE_SPECIAL };

/* ---- SentencePiece ------------------------------------------------------------------------------------------------------- */

static void test_spm_special_tokens(void **state) {
    (void)state;
    struct gguf_writer w = {0};
    struct tokenizer_sample s;
    write_spm(&w);
    struct terse_model m = open_model(&w, &s);
    CHECK(&m, "", PLAIN, );
    CHECK(&m, "", ADD, S);
    CHECK(&m, "a", PLAIN, SP_A);
    CHECK(&m, "a", ADD, S, SP_A);
    /* A space goes before the text, and behind each special token. */
    CHECK(&m, "aa", PLAIN, SP_A, A);
    CHECK(&m, "<s>a</s> a", PARSE, S, SP_A, END_S, SP, SP_A);
    /* The longest wins; user-defined ones are found in any case, control ones are mere text (which this vocabulary cannot tell). */
    CHECK(&m, "<|im|>x<|im|>", PARSE, IM_X, IM);
    CHECK(&m, "a[tool]a", PLAIN, SP_A, TOOL, SP_A);
    CHECK(&m, "[tool][tool]", PARSE | ADD, S, TOOL, TOOL);
    CHECK(&m, "<s>", PLAIN, SP, UNK, UNK, UNK);
    CHECK(&m, "<unk>", PARSE, UNK);
    /* Unfinished ones are text. */
    CHECK(&m, "<|im|", PARSE, SP, UNK, UNK, UNK, UNK, UNK);
    /* A user-defined token is found as it is written, before spaces are replaced. */
    CHECK(&m, "b" SPACE, PLAIN, B_SP);
    /* Byte fallback: the only byte token is of 'A'; other characters are unknown, each once however many bytes it has. */
    CHECK(&m, "A", PLAIN, SP, BYTE_A);
    CHECK(&m, "\xc3\xa9\xe2\x82\xac", PLAIN, SP, UNK, EURO);
    CHECK(&m, "\xff\xfe", PLAIN, SP, UNK, UNK);
    bool added;
    assert_int_equal(terse_token_bos(&m, &added), S);
    assert_true(added);
    assert_true(terse_token_ends(&m, END_S));
    assert_false(terse_token_ends(&m, S) || terse_token_ends(&m, -1) || terse_token_ends(&m, N_SPM) ||
                 terse_token_ends(&m, INT32_MIN));
    tokenizer_sample_close(&s);
}

static void test_spm_options(void **state) {
    (void)state;
    struct gguf_writer w = {0};
    struct tokenizer_sample s;
    write_spm(&w);
    gguf_writer_bool(&w, "tokenizer.ggml.add_space_prefix", false);
    gguf_writer_bool(&w, "tokenizer.ggml.add_bos_token", false);
    gguf_writer_bool(&w, "tokenizer.ggml.add_eos_token", true);
    gguf_writer_u32(&w, "tokenizer.ggml.bos_token_id", IM);
    gguf_writer_u32(&w, "tokenizer.ggml.eos_token_id", TOOL);
    gguf_writer_u32(&w, "tokenizer.ggml.eot_token_id", PAD);
    gguf_writer_u32(&w, "tokenizer.ggml.eom_token_id", A);
    gguf_writer_u32(&w, "tokenizer.ggml.unknown_token_id", EURO);
    struct terse_model m = open_model(&w, &s);
    CHECK(&m, "a", ADD, A, TOOL);
    CHECK(&m, "z", PLAIN, EURO);
    bool added = true;
    assert_int_equal(terse_token_bos(&m, &added), IM);
    assert_false(added);
    assert_int_equal(terse_token_bos(&m, NULL), IM);
    assert_true(terse_token_ends(&m, TOOL) && terse_token_ends(&m, PAD) && terse_token_ends(&m, A));
    assert_true(terse_token_ends(&m, END_S)); /* a control token that is known to end replies */
    assert_false(terse_token_ends(&m, IM) || terse_token_ends(&m, EURO));
    tokenizer_sample_close(&s);
}

/* ---- Byte-level ---------------------------------------------------------------------------------------------------------- */

static void test_bpe_special_tokens(void **state) {
    (void)state;
    struct gguf_writer w = {0};
    struct tokenizer_sample s;
    write_bpe(&w, "gpt-2");
    struct terse_model m = open_model(&w, &s);
    bool added;
    CHECK(&m, "ab", ADD, AB); /* no BOS unless the file says so */
    assert_int_equal(terse_token_bos(&m, &added), -1);
    assert_false(added);
    CHECK(&m, "abc", PLAIN, AB, 'c'); /* no merge makes the whole word */
    CHECK(&m, "ab<|eot_id|>ab", PARSE, AB, EOT, AB);
    CHECK(&m, "<x>", PLAIN, '<', 'x', '>');
    CHECK(&m, "   ab", PLAIN, TWO, ' ', AB);
    CHECK(&m,
          "\xff"
          "ab",
          PLAIN, 0xff, AB);
    assert_true(terse_token_ends(&m, EOT));
    assert_false(terse_token_ends(&m, IM_END)); /* an ordinary token of that text does not end a reply */
    tokenizer_sample_close(&s);
}

/* The names of a kind bring its defaults; the file's own word counts more. */
static void test_bpe_defaults(void **state) {
    (void)state;
    bool added;
    struct tokenizer_sample s;
    struct gguf_writer w = {0};
    write_bpe(&w, "llama-bpe");
    gguf_writer_u32(&w, "tokenizer.ggml.bos_token_id", BEGIN);
    struct terse_model m = open_model(&w, &s);
    CHECK(&m, "abc", ADD, BEGIN, ABC); /* merges are ignored for a whole word */
    CHECK(&m, "abcab", PLAIN, AB, 'c', AB);
    CHECK(&m, "<x>", PLAIN, '<', 'x', '>');
    tokenizer_sample_close(&s);

    w = (struct gguf_writer){0};
    write_bpe(&w, "llama-bpe");
    m = open_model(&w, &s);
    CHECK(&m, "ab", ADD, AB); /* BOS is usual, but there is none */
    assert_int_equal(terse_token_bos(&m, &added), -1);
    assert_false(added);
    tokenizer_sample_close(&s);

    w = (struct gguf_writer){0};
    write_bpe(&w, NULL);
    gguf_writer_u32(&w, "tokenizer.ggml.bos_token_id", BEGIN);
    gguf_writer_u32(&w, "tokenizer.ggml.eos_token_id", EOT);
    gguf_writer_bool(&w, "tokenizer.ggml.add_bos_token", true);
    gguf_writer_bool(&w, "tokenizer.ggml.add_eos_token", true);
    m = open_model(&w, &s);
    CHECK(&m, "ab", ADD, BEGIN, AB, EOT);
    CHECK(&m, "", ADD, BEGIN, EOT);
    CHECK(&m, "", PLAIN, );
    tokenizer_sample_close(&s);
}

/* Marks of fill in the middle are found by the file's keys, today's before the older ones, and else by their texts. */
static void test_fim_marks(void **state) {
    (void)state;
    struct tokenizer_sample s;
    struct gguf_writer w = {0};
    write_bpe(&w, "gpt-2");
    gguf_writer_u32(&w, "tokenizer.ggml.fim_pre_token_id", X);
    gguf_writer_u32(&w, "tokenizer.ggml.prefix_token_id", TWO);
    gguf_writer_u32(&w, "tokenizer.ggml.suffix_token_id", TWO);
    gguf_writer_u32(&w, "tokenizer.ggml.fim_sep_token_id", RAW);
    gguf_writer_u32(&w, "tokenizer.ggml.fim_pad_token_id", AB);
    struct terse_model m = open_model(&w, &s);
    assert_int_equal(terse_token_fim(&m, TERSE_FIM_PREFIX), X);
    assert_int_equal(terse_token_fim(&m, TERSE_FIM_SUFFIX), TWO);
    assert_int_equal(terse_token_fim(&m, TERSE_FIM_MIDDLE), -1);
    assert_int_equal(terse_token_fim(&m, TERSE_FIM_REPOSITORY), -1);
    assert_int_equal(terse_token_fim(&m, TERSE_FIM_FILE), RAW);
    assert_true(terse_token_ends(&m, RAW) && terse_token_ends(&m, AB));
    assert_false(terse_token_ends(&m, X) || terse_token_ends(&m, TWO));
    tokenizer_sample_close(&s);

    static const char *const tokens[] = {
        "<s>", "<|fim_prefix|>", "<fim_suffix>", "<\357\275\234fim\342\226\201end\357\275\234>", "<|repo_name|>", "<|file_sep|>"};
    w = (struct gguf_writer){0};
    gguf_writer_string(&w, "tokenizer.ggml.model", "llama");
    gguf_writer_strings(&w, "tokenizer.ggml.tokens", 6, tokens);
    gguf_writer_array(&w, "tokenizer.ggml.token_type", GGUF_I32, 6, (int32_t[]){CONTROL, CONTROL, USER, CONTROL, USER, NORMAL});
    gguf_writer_array(&w, "tokenizer.ggml.scores", GGUF_F32, 6, (float[6]){0});
    m = open_model(&w, &s);
    for (int32_t mark = TERSE_FIM_PREFIX; mark <= TERSE_FIM_REPOSITORY; mark++)
        assert_int_equal(terse_token_fim(&m, (enum terse_fim_mark)mark), mark + 1);
    assert_int_equal(terse_token_fim(&m, TERSE_FIM_FILE), -1); /* letters that happen to be like a mark */
    assert_true(terse_token_ends(&m, 4));
    tokenizer_sample_close(&s);
}

/* ---- Arguments ----------------------------------------------------------------------------------------------------------- */

static void test_capacity(void **state) {
    (void)state;
    struct gguf_writer w = {0};
    struct tokenizer_sample s;
    write_bpe(&w, "gpt-2");
    struct terse_model m = open_model(&w, &s);
    int32_t tokens[4] = {-7, -7, -7, -7};
    size_t n = 99;
    struct terse_error error = {0};
    assert_int_equal(terse_tokenize(&m, "a.b", 3, PLAIN, tokens, 2, &n, &error), TERSE_E_ARGUMENT);
    assert_int_equal(n, 3);
    assert_int_equal(tokens[0], -7);
    assert_int_equal(terse_tokenize(&m, "a.b", 3, PLAIN, NULL, 0, &n, NULL), TERSE_E_ARGUMENT);
    assert_int_equal(n, 3);
    assert_int_equal(terse_tokenize(&m, "a.b", 3, PLAIN, tokens, 3, &n, &error), TERSE_OK);
    assert_int_equal(tokens[3], -7);
    assert_int_equal(terse_tokenize(&m, NULL, 0, PLAIN, NULL, 0, &n, &error), TERSE_OK);
    assert_int_equal(n, 0);
    assert_int_equal(terse_tokenize(&m, "a", 1, 4, tokens, 4, &n, &error), TERSE_E_ARGUMENT);
    assert_non_null(strstr(error.message, "flags"));
    assert_int_equal(terse_tokenize(&m, "a", (size_t)1 << 31, PLAIN, tokens, 4, &n, &error), TERSE_E_ARGUMENT);
    tokenizer_sample_close(&s);
}

/* The most tokens that a text may give: special tokens of one byte, each followed by a space that the text does not have. */
static void test_most_tokens(void **state) {
    (void)state;
    static const char *const tokens[] = {"<s>", SPACE, "a", "b"};
    struct gguf_writer w = {0};
    struct tokenizer_sample s;
    gguf_writer_string(&w, "tokenizer.ggml.model", "llama");
    gguf_writer_strings(&w, "tokenizer.ggml.tokens", 4, tokens);
    gguf_writer_array(&w, "tokenizer.ggml.token_type", GGUF_I32, 4, (int32_t[]){CONTROL, NORMAL, NORMAL, USER});
    gguf_writer_array(&w, "tokenizer.ggml.scores", GGUF_F32, 4, (float[4]){0});
    gguf_writer_u32(&w, "tokenizer.ggml.bos_token_id", 0);
    gguf_writer_u32(&w, "tokenizer.ggml.eos_token_id", 0);
    gguf_writer_bool(&w, "tokenizer.ggml.add_eos_token", true);
    struct terse_model m = open_model(&w, &s);
    CHECK(&m, "abab", ADD, 0, 1, 2, 3, 1, 2, 3, 0);
    tokenizer_sample_close(&s);
}

static void test_no_vocabulary(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct gguf_writer w = {0};
        struct tokenizer_sample s;
        gguf_writer_string(&w, "general.architecture", "llama");
        if (i) gguf_writer_string(&w, "tokenizer.ggml.model", i == 1 ? "none" : "no_vocab");
        struct terse_model m = open_model(&w, &s);
        size_t n;
        assert_int_equal(tokenizer_size(s.tokenizer), 0);
        CHECK(&m, "text", ADD | PARSE, );
        assert_int_equal(terse_token_bos(&m, NULL), -1);
        assert_false(terse_token_ends(&m, 0));
        tokenizer_bytes(s.tokenizer, 0, true, &n);
        assert_int_equal(n, 0);
        tokenizer_sample_close(&s);
    }
}

/* "<|end|>" ends a reply, but not where "<|return|>" does. */
static void test_ends_of_messages(void **state) {
    (void)state;
    static const char *const tokens[] = {"<s>", "<|end|>", "<|channel|>", "<|return|>"};
    for (int harmony = 0; harmony < 2; harmony++) {
        struct gguf_writer w = {0};
        struct tokenizer_sample s;
        gguf_writer_string(&w, "tokenizer.ggml.model", "llama");
        gguf_writer_strings(&w, "tokenizer.ggml.tokens", 4, tokens);
        gguf_writer_array(&w, "tokenizer.ggml.token_type", GGUF_I32, 4,
                          (int32_t[]){CONTROL, CONTROL, CONTROL, harmony ? CONTROL : NORMAL});
        gguf_writer_array(&w, "tokenizer.ggml.scores", GGUF_F32, 4, (float[4]){0});
        gguf_writer_u32(&w, "tokenizer.ggml.eos_token_id", 0);
        struct terse_model m = open_model(&w, &s);
        assert_int_equal(terse_token_ends(&m, 1), !harmony);
        assert_int_equal(terse_token_ends(&m, 3), harmony);
        assert_true(terse_token_ends(&m, 0));
        tokenizer_sample_close(&s);
    }
}

/* ---- Bytes and streams --------------------------------------------------------------------------------------------------- */

static void check_bytes(const struct tokenizer_sample *s, int32_t token, const char *shown, const char *hidden) {
    size_t n;
    const char *bytes = tokenizer_bytes(s->tokenizer, token, true, &n);
    if (n != strlen(shown) || memcmp(bytes, shown, n) != 0) fail_msg("token %d is '%.*s', not '%s'", token, (int)n, bytes, shown);
    bytes = tokenizer_bytes(s->tokenizer, token, false, &n);
    if (n != strlen(hidden) || memcmp(bytes, hidden, n) != 0)
        fail_msg("token %d is '%.*s', not '%s'", token, (int)n, bytes, hidden);
}

static void test_bytes(void **state) {
    (void)state;
    struct gguf_writer w = {0};
    struct tokenizer_sample s;
    write_spm(&w);
    open_model(&w, &s);
    check_bytes(&s, S, "<s>", "");
    check_bytes(&s, UNK, "<unk>", "");
    check_bytes(&s, PAD, "pad", "");
    check_bytes(&s, SP_A, " a", " a");
    check_bytes(&s, TOOL, "[tool]", "[tool]");
    check_bytes(&s, B_SP, "b" SPACE, "b" SPACE);
    check_bytes(&s, BYTE_A, "A", "A");
    check_bytes(&s, EMPTY, "", "");
    check_bytes(&s, -1, "", "");
    check_bytes(&s, N_SPM, "", "");
    assert_int_equal(tokenizer_longest(s.tokenizer), 7); /* "<|im|>x" */
    tokenizer_sample_close(&s);

    w = (struct gguf_writer){0};
    write_bpe(&w, "gpt-2");
    open_model(&w, &s);
    for (int i = 1; i < 256; i++) check_bytes(&s, i, (const char[]){(char)i, 0}, (const char[]){(char)i, 0});
    check_bytes(&s, AB, "ab", "ab");
    check_bytes(&s, EOT, "<|eot_id|>", "");
    check_bytes(&s, RAW, "\xe6\x97\xa5 raw", "\xe6\x97\xa5 raw"); /* what is no byte's letter stands for itself */
    tokenizer_sample_close(&s);
}

/* Decodes by the table of well-formed sequences in the Unicode standard, a U+FFFD for each maximal beginning of one or stray byte. */
static size_t replace(const unsigned char *in, size_t n, char *out) {
    static const struct {
        unsigned char first[2], second[2];
        int bytes;
    } forms[] = {{{0x00, 0x7f}, {0, 0}, 1},       {{0xc2, 0xdf}, {0x80, 0xbf}, 2}, {{0xe0, 0xe0}, {0xa0, 0xbf}, 3},
                 {{0xe1, 0xec}, {0x80, 0xbf}, 3}, {{0xed, 0xed}, {0x80, 0x9f}, 3}, {{0xee, 0xef}, {0x80, 0xbf}, 3},
                 {{0xf0, 0xf0}, {0x90, 0xbf}, 4}, {{0xf1, 0xf3}, {0x80, 0xbf}, 4}, {{0xf4, 0xf4}, {0x80, 0x8f}, 4}};
    size_t size = 0, at = 0;
    while (at < n) {
        size_t good = 0, whole = 0;
        for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
            if (in[at] < forms[f].first[0] || in[at] > forms[f].first[1]) continue;
            whole = (size_t)forms[f].bytes;
            for (good = 1; good < whole && at + good < n; good++) {
                unsigned char c = in[at + good];
                if (good == 1 ? c < forms[f].second[0] || c > forms[f].second[1] : (c & 0xc0) != 0x80) break;
            }
        }
        if (whole && good == whole) {
            memcpy(out + size, in + at, whole);
            size += whole;
        } else {
            memcpy(out + size, "\xef\xbf\xbd", 3);
            size += 3;
        }
        at += good ? good : 1;
    }
    return size;
}

static bool is_whole_text(const char *text, size_t n) {
    char again[1024];
    return replace((const unsigned char *)text, n, again) == n && memcmp(again, text, n) == 0;
}

/* Random bytes, one or two a token, come out as the whole stream decoded at once would, never with half a character. */
static void test_stream_of_random_bytes(void **state) {
    (void)state;
    struct gguf_writer w = {0};
    struct tokenizer_sample s;
    write_bpe(&w, "gpt-2");
    struct terse_model m = open_model(&w, &s);
    struct terse_detokenizer *d;
    struct terse_error error = {0};
    if (terse_detokenizer_new(&m, false, &d, &error)) fail_msg("%s", error.message);
    srand(5);
    for (int round = 0; round < 5000; round++) {
        static const unsigned char hot[] = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82\xed\xa0\xf4\x90\xc0\xff";
        unsigned char bytes[64];
        char out[1024], wanted[256];
        size_t n = 0, size = 0, got;
        const char *text;
        for (int tokens = rand() % 20; tokens > 0; tokens--) {
            int32_t token = rand() % 8 == 0   ? AB
                            : rand() % 9 == 0 ? EOT
                            : round % 2       ? rand() % 256
                                              : hot[(size_t)rand() % (sizeof hot - 1)];
            if (token == AB) {
                bytes[n++] = 'a';
                bytes[n++] = 'b';
            } else if (token < 256) {
                bytes[n++] = (unsigned char)token;
            }
            text = terse_detokenizer_push(d, token, &got);
            assert_int_equal(text[got], '\0');
            assert_true(is_whole_text(text, got));
            memcpy(out + size, text, got);
            size += got;
        }
        text = terse_detokenizer_finish(d, &got);
        assert_int_equal(text[got], '\0');
        memcpy(out + size, text, got);
        size += got;
        assert_int_equal(replace(bytes, n, wanted), size);
        assert_memory_equal(out, wanted, size);
    }
    terse_detokenizer_free(d);
    terse_detokenizer_free(NULL);
    tokenizer_sample_close(&s);
}

static void push(struct terse_detokenizer *d, int32_t token, const char *wanted) {
    size_t n;
    const char *text = terse_detokenizer_push(d, token, &n);
    assert_int_equal(n, strlen(wanted));
    assert_string_equal(text, wanted);
}

static void test_stream(void **state) {
    (void)state;
    struct gguf_writer w = {0};
    struct tokenizer_sample s;
    write_bpe(&w, "gpt-2");
    struct terse_model m = open_model(&w, &s);
    struct terse_detokenizer *d;
    size_t n;
    assert_int_equal(terse_detokenizer_new(&m, true, &d, NULL), TERSE_OK);
    push(d, 'x', "x");
    push(d, 0xe2, "");
    push(d, 0x82, "");
    push(d, 0xac, "\xe2\x82\xac");
    push(d, EOT, "<|eot_id|>");
    push(d, 0xe2, "");
    push(d, AB,
         "\xef\xbf\xbd"
         "ab");         /* the character did not go on */
    push(d, N_BPE, ""); /* no token */
    push(d, 0xf0, "");
    push(d, 0x9f, "");
    assert_string_equal(terse_detokenizer_finish(d, &n), "\xef\xbf\xbd");
    assert_string_equal(terse_detokenizer_finish(d, &n), "");
    assert_int_equal(n, 0);
    push(d, 0xac, "\xef\xbf\xbd"); /* a new stream knows nothing of the old one */
    terse_detokenizer_free(d);
    tokenizer_sample_close(&s);
}

static int set_up(void **state) {
    (void)state;
    byte_letters_fill();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spm_special_tokens),
        cmocka_unit_test(test_spm_options),
        cmocka_unit_test(test_bpe_special_tokens),
        cmocka_unit_test(test_bpe_defaults),
        cmocka_unit_test(test_fim_marks),
        cmocka_unit_test(test_capacity),
        cmocka_unit_test(test_most_tokens),
        cmocka_unit_test(test_no_vocabulary),
        cmocka_unit_test(test_ends_of_messages),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_stream_of_random_bytes),
        cmocka_unit_test(test_stream),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
