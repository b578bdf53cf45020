/* Tokenizers against the ids that other software gives (fixtures/tokens), against the definitions of both kinds written out as slow
 * loops, and by their rules for special tokens. */
#include "support/tokenizer_sample.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#define TOKENS TESTS_DIR "/fixtures/tokens/"
#define SPACE "\xe2\x96\x81"
#define LAB PROJECT_DIR "/models/lab-27m-q8_0.gguf"

static void fail_tokens(const char *text, const int32_t *got, size_t n_got, const int32_t *wanted, size_t n_wanted) {
    print_error("'%s' gives", text);
    for (size_t i = 0; i < n_got; i++) print_error(" %d", got[i]);
    print_error(" instead of");
    for (size_t i = 0; i < n_wanted; i++) print_error(" %d", wanted[i]);
    fail_msg("%s", "");
}

static void check_tokens(const struct tokenizer_sample *s, const char *text, size_t n_bytes, unsigned flags, const int32_t *wanted,
                         size_t n_wanted) {
    size_t n;
    int32_t *tokens = tokenizer_sample_encode(s, text, n_bytes, flags, &n);
    if (n != n_wanted || memcmp(tokens, wanted, n * sizeof *tokens) != 0) fail_tokens(text, tokens, n, wanted, n_wanted);
    free(tokens);
}

/* The bytes of the tokens, after `lead`, are the text. */
static void check_bytes(const struct tokenizer_sample *s, const char *lead, const char *text, size_t n_bytes, const int32_t *tokens,
                        size_t n) {
    char *bytes = malloc(n_bytes + strlen(lead) + 1);
    size_t size = 0, token_size;
    assert_non_null(bytes);
    for (size_t i = 0; i < n; i++) {
        const char *token = tokenizer_bytes(s->tokenizer, tokens[i], true, &token_size);
        assert_true(size + token_size <= n_bytes + strlen(lead));
        memcpy(bytes + size, token, token_size);
        size += token_size;
    }
    assert_int_equal(size, n_bytes + strlen(lead));
    assert_memory_equal(bytes, lead, strlen(lead));
    assert_memory_equal(bytes + strlen(lead), text, n_bytes);
    free(bytes);
}

/* ---- Ids of other software ----------------------------------------------------------------------------------------------- */

static size_t read_ids(const cJSON *row, int32_t *ids) {
    size_t n = 0;
    const cJSON *id;
    cJSON_ArrayForEach(id, cJSON_GetObjectItem(row, "ids")) ids[n++] = id->valueint;
    return n;
}

static cJSON *read_json(const char *path) {
    struct mapped_file file;
    struct terse_error error = {0};
    if (mapped_file_open(path, &file, &error)) fail_msg("%s", error.message);
    cJSON *json = cJSON_ParseWithLength(file.data, file.size);
    assert_non_null(json);
    mapped_file_close(&file);
    return json;
}

static void test_lab_model(void **state) {
    (void)state;
    struct tokenizer_sample s;
    tokenizer_sample_load(LAB, &s);
    assert_int_equal(tokenizer_size(s.tokenizer), 8192);
    cJSON *rows = read_json(TOKENS "lab-27m.json"), *row;
    assert_int_equal(cJSON_GetArraySize(rows), 40);
    cJSON_ArrayForEach(row, rows) {
        const char *text = cJSON_GetObjectItem(row, "text")->valuestring;
        int32_t wanted[1024];
        size_t n = read_ids(row, wanted);
        check_tokens(&s, text, strlen(text), TERSE_TOKENIZE_PARSE_SPECIAL, wanted, n);
        check_bytes(&s, "", text, strlen(text), wanted, n);
    }
    cJSON_Delete(rows);
    tokenizer_sample_close(&s);
}

/* A vocabulary with its texts (.inp, separated by a line) and their ids (.out, a line each). `lead`: what the kind puts before a text. */
static void check_vectors(const char *path, const char *lead) {
    static const char separator[] = "\n__ggml_vocab_test__\n";
    struct tokenizer_sample s;
    struct mapped_file input, output;
    struct terse_error error = {0};
    char name[512];
    tokenizer_sample_load(path, &s);
    snprintf(name, sizeof name, "%s.inp", path);
    if (mapped_file_open(name, &input, &error)) fail_msg("%s", error.message);
    snprintf(name, sizeof name, "%s.out", path);
    if (mapped_file_open(name, &output, &error)) fail_msg("%s", error.message);
    const char *text = input.data, *end = text + input.size, *line = output.data, *line_end = line + output.size;
    int count = 0;
    for (; text < end; count++) {
        const char *text_end = text;
        while (end - text_end >= (ptrdiff_t)sizeof separator - 1 && memcmp(text_end, separator, sizeof separator - 1) != 0)
            text_end++;
        int32_t wanted[256];
        size_t n = 0;
        for (; line < line_end && *line != '\n'; line += *line == ' ') {
            char *after;
            wanted[n] = (int32_t)strtol(line, &after, 10);
            if (after == line) break;
            n++;
            line = after;
        }
        while (line < line_end && *line++ != '\n') continue;
        check_tokens(&s, text, (size_t)(text_end - text), TERSE_TOKENIZE_PLAIN, wanted, n);
        check_bytes(&s, n ? lead : "", text, (size_t)(text_end - text), wanted, n);
        text = text_end + sizeof separator - 1;
    }
    assert_int_equal(count, 46);
    mapped_file_close(&input);
    mapped_file_close(&output);
    tokenizer_sample_close(&s);
}

static void test_gpt_2(void **state) {
    (void)state;
    check_vectors(TOKENS "ggml-vocab-gpt-2.gguf", "");
}

static void test_phi_3(void **state) {
    (void)state;
    check_vectors(TOKENS "ggml-vocab-phi-3.gguf", " ");
}

/* Most of Phi 3's special tokens take the white space behind them. */
static void test_phi_3_special_tokens(void **state) {
    (void)state;
    struct tokenizer_sample s;
    cJSON *rows = read_json(TOKENS "phi-3-special.json"), *row;
    tokenizer_sample_load(TOKENS "ggml-vocab-phi-3.gguf", &s);
    assert_int_equal(cJSON_GetArraySize(rows), 11);
    cJSON_ArrayForEach(row, rows) {
        const char *text = cJSON_GetObjectItem(row, "text")->valuestring;
        int32_t wanted[64];
        check_tokens(&s, text, strlen(text), TERSE_TOKENIZE_PARSE_SPECIAL, wanted, read_ids(row, wanted));
    }
    cJSON_Delete(rows);
    tokenizer_sample_close(&s);
}

/* No space before a text, tokens of bytes, runs of spaces and line ends as tokens: a SentencePiece vocabulary as Gemma's. */
static void test_gemma(void **state) {
    (void)state;
    enum { N = 700 };
    static const char *tokens[N];
    static float scores[N];
    static int32_t types[N];
    cJSON *json = read_json(TOKENS "gemma.json"), *row;
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(json, "tokens")), N);
    const cJSON *token = cJSON_GetObjectItem(json, "tokens")->child, *score = cJSON_GetObjectItem(json, "scores")->child;
    const cJSON *type = cJSON_GetObjectItem(json, "types")->child;
    for (int i = 0; i < N; i++, token = token->next, score = score->next, type = type->next) {
        tokens[i] = token->valuestring;
        scores[i] = (float)score->valuedouble;
        types[i] = type->valueint;
    }
    struct gguf_writer writer = {0};
    struct tokenizer_sample s;
    struct terse_error error = {0};
    gguf_writer_string(&writer, "tokenizer.ggml.model", "llama");
    gguf_writer_strings(&writer, "tokenizer.ggml.tokens", N, tokens);
    gguf_writer_array(&writer, "tokenizer.ggml.scores", GGUF_F32, N, scores);
    gguf_writer_array(&writer, "tokenizer.ggml.token_type", GGUF_I32, N, types);
    gguf_writer_bool(&writer, "tokenizer.ggml.add_space_prefix", false);
    if (tokenizer_sample_open(&writer, &s, &error)) fail_msg("%s", error.message);
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(json, "rows")) {
        const char *text = cJSON_GetObjectItem(row, "text")->valuestring;
        int32_t wanted[256];
        check_tokens(&s, text, strlen(text), TERSE_TOKENIZE_PLAIN, wanted, read_ids(row, wanted));
    }
    /* In a chat, too, runs of line ends are those tokens, although the format has them itself. */
    static const char chat[] = "<start_of_turn>user\n\na\n\nb<end_of_turn>\n";
    const struct text_span content = {21, 25};
    int32_t *around;
    size_t n_around, n_plain;
    int32_t *plain = tokenizer_sample_encode(&s, chat, strlen(chat), TERSE_TOKENIZE_PLAIN, &n_plain);
    assert_int_equal(tokenizer_encode_around(s.tokenizer, chat, strlen(chat), 0, &content, 1, &around, &n_around, NULL), TERSE_OK);
    assert_int_equal(n_around, n_plain);
    assert_memory_equal(around, plain, n_plain * sizeof *plain);
    free(plain);
    free(around);
    cJSON_Delete(json);
    tokenizer_sample_close(&s);
}

/* ---- The definitions, written out ---------------------------------------------------------------------------------------- */

enum { MAX_TEXTS = 600, MAX_BYTES = 12 };

/* A random vocabulary: single letters and what repeated merging of them gives. */
struct texts {
    char text[MAX_TEXTS][MAX_BYTES + 1];
    const char *pointers[MAX_TEXTS];
    float scores[MAX_TEXTS];
    int n;
};

static int find(const struct texts *v, const char *text) {
    for (int i = 0; i < v->n; i++)
        if (strcmp(v->text[i], text) == 0) return i;
    return -1;
}

static int add(struct texts *v, const char *text) {
    int found = find(v, text);
    if (found >= 0) return found;
    assert_true(v->n < MAX_TEXTS && strlen(text) <= MAX_BYTES);
    strcpy(v->text[v->n], text);
    v->pointers[v->n] = v->text[v->n];
    return v->n++;
}

/* The pieces of a text while it is merged by hand. */
struct pieces {
    char text[64][MAX_BYTES + 1];
    int n;
};

static void join(struct pieces *p, int at) {
    size_t n = strlen(p->text[at]);
    memmove(p->text[at] + n, p->text[at + 1], strlen(p->text[at + 1]) + 1);
    memmove(p->text[at + 1], p->text[at + 2], (size_t)(p->n - at - 2) * sizeof *p->text);
    p->n--;
}

static void split_letters(struct pieces *p, const char *text) {
    p->n = 0;
    for (; *text; text++) {
        p->text[p->n][0] = *text;
        p->text[p->n++][1] = '\0';
    }
}

static void random_text(char *text, int most) {
    int n = 1 + rand() % most;
    for (int i = 0; i < n; i++) text[i] = "aaabbc"[rand() % 6];
    text[n] = '\0';
}

enum { MAX_MERGES = 80 };

/* Merges, until no pair is left, the pair of neighbours that is earliest in the list, the leftmost first. */
static void merge_by_list(struct pieces *p, char merges[][2][MAX_BYTES + 1], int n_merges) {
    for (int rank = 0; rank < n_merges; rank++)
        for (int at = 0; at + 1 < p->n; at++)
            if (strcmp(p->text[at], merges[rank][0]) == 0 && strcmp(p->text[at + 1], merges[rank][1]) == 0) {
                join(p, at);
                rank = -1;
                break;
            }
}

static void check_pieces(const struct tokenizer_sample *s, const struct texts *v, const char *text, const struct pieces *p) {
    int32_t wanted[64];
    for (int i = 0; i < p->n; i++) wanted[i] = find(v, p->text[i]);
    check_tokens(s, text, strlen(text), TERSE_TOKENIZE_PLAIN, wanted, (size_t)p->n);
}

static void test_byte_level_against_its_definition(void **state) {
    (void)state;
    srand(2);
    for (int round = 0; round < 60; round++) {
        struct texts v = {.n = 0};
        char merges[MAX_MERGES][2][MAX_BYTES + 1], lines[MAX_MERGES][2 * MAX_BYTES + 2], text[64];
        const char *pointers[MAX_MERGES];
        int n = 0;
        for (int i = 0; i < 256; i++) add(&v, byte_letters[i]);
        int letters[] = {find(&v, "a"), find(&v, "b"), find(&v, "c")}, n_first = v.n;
        for (int tries = 0; tries < MAX_MERGES; tries++) {
            int pick[2];
            for (int k = 0; k < 2; k++)
                pick[k] = v.n > n_first && rand() % 3 ? n_first + rand() % (v.n - n_first) : letters[rand() % 3];
            if (strlen(v.text[pick[0]]) + strlen(v.text[pick[1]]) > MAX_BYTES) continue;
            snprintf(lines[n], sizeof *lines, "%s %s", v.text[pick[0]], v.text[pick[1]]);
            for (int k = 0; k < 2; k++) strcpy(merges[n][k], v.text[pick[k]]);
            snprintf(text, sizeof text, "%s%s", merges[n][0], merges[n][1]);
            add(&v, text);
            pointers[n] = lines[n];
            n++;
        }
        struct gguf_writer writer = {0};
        struct tokenizer_sample s;
        struct terse_error error = {0};
        gguf_writer_string(&writer, "tokenizer.ggml.model", "gpt2");
        gguf_writer_string(&writer, "tokenizer.ggml.pre", "gpt-2");
        gguf_writer_strings(&writer, "tokenizer.ggml.tokens", (uint64_t)v.n, v.pointers);
        gguf_writer_strings(&writer, "tokenizer.ggml.merges", (uint64_t)n, pointers);
        if (tokenizer_sample_open(&writer, &s, &error)) fail_msg("%s", error.message);
        for (int i = 0; i < 50; i++) {
            struct pieces p;
            random_text(text, 60);
            split_letters(&p, text);
            merge_by_list(&p, merges, n);
            check_pieces(&s, &v, text, &p);
        }
        tokenizer_sample_close(&s);
    }
}

/* Merges, until no pair is left, the pair of neighbours that makes the token with the highest score, the leftmost first. */
static void merge_by_score(struct pieces *p, const struct texts *v) {
    for (;;) {
        int best = -1;
        float score = 0;
        for (int at = 0; at + 1 < p->n; at++) {
            char text[2 * MAX_BYTES + 1];
            snprintf(text, sizeof text, "%s%s", p->text[at], p->text[at + 1]);
            int token = find(v, text);
            if (token < 0 || (best >= 0 && v->scores[token] <= score)) continue;
            best = at;
            score = v->scores[token];
        }
        if (best < 0) return;
        join(p, best);
    }
}

static void test_sentencepiece_against_its_definition(void **state) {
    (void)state;
    srand(3);
    for (int round = 0; round < 60; round++) {
        struct texts v = {.n = 0};
        char text[64];
        add(&v, "a");
        add(&v, "b");
        add(&v, "c");
        while (v.n < 60) {
            random_text(text, 6);
            add(&v, text);
        }
        /* Few different scores, of either sign, both zeros: ties are frequent. */
        for (int i = 0; i < v.n; i++) v.scores[i] = (float[]){-3.5f, -1, -0.0f, 0, 0.25f, 1e-40f, 7}[rand() % 7];
        struct gguf_writer writer = {0};
        struct tokenizer_sample s;
        struct terse_error error = {0};
        gguf_writer_string(&writer, "tokenizer.ggml.model", "llama");
        gguf_writer_strings(&writer, "tokenizer.ggml.tokens", (uint64_t)v.n, v.pointers);
        gguf_writer_array(&writer, "tokenizer.ggml.scores", GGUF_F32, (uint64_t)v.n, v.scores);
        gguf_writer_bool(&writer, "tokenizer.ggml.add_space_prefix", false);
        if (tokenizer_sample_open(&writer, &s, &error)) fail_msg("%s", error.message);
        for (int i = 0; i < 50; i++) {
            struct pieces p;
            random_text(text, 60);
            split_letters(&p, text);
            merge_by_score(&p, &v);
            check_pieces(&s, &v, text, &p);
        }
        tokenizer_sample_close(&s);
    }
}

/* A vocabulary in which a word's end merges with the next space does not allow to cut a text at its spaces. */
static void test_spaces_inside_of_tokens(void **state) {
    (void)state;
    static const char *const tokens[] = {"a", "b", SPACE, (SPACE "b"), ("a" SPACE), (SPACE SPACE)};
    static const float scores[] = {0, 0, 0, 1, 2, 3};
    for (int inner = 0; inner < 2; inner++) {
        struct gguf_writer writer = {0};
        struct tokenizer_sample s;
        struct terse_error error = {0};
        gguf_writer_string(&writer, "tokenizer.ggml.model", "llama");
        gguf_writer_strings(&writer, "tokenizer.ggml.tokens", 6,
                            inner ? tokens : (const char *const[]){"a", "b", tokens[2], tokens[3], "-", tokens[5]});
        gguf_writer_array(&writer, "tokenizer.ggml.scores", GGUF_F32, 6, scores);
        gguf_writer_bool(&writer, "tokenizer.ggml.add_space_prefix", false);
        if (tokenizer_sample_open(&writer, &s, &error)) fail_msg("%s", error.message);
        if (inner)
            check_tokens(&s, "a ba  b", 7, 0, (int32_t[]){4, 1, 0, 5, 1}, 5);
        else
            check_tokens(&s, "a ba  b", 7, 0, (int32_t[]){0, 3, 0, 5, 1}, 5);
        tokenizer_sample_close(&s);
    }
}

/* ---- Any bytes ----------------------------------------------------------------------------------------------------------- */

static void test_any_bytes_come_back(void **state) {
    (void)state;
    static const char *const paths[] = {LAB, TOKENS "ggml-vocab-gpt-2.gguf", TOKENS "ggml-vocab-phi-3.gguf"};
    srand(4);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct tokenizer_sample s;
        tokenizer_sample_load(paths[i], &s);
        for (int round = 0; round < 1500; round++) {
            char text[80];
            size_t n = 1 + (size_t)rand() % (sizeof text - 1), n_tokens;
            int kind = rand() % 3;
            for (size_t k = 0; k < n; k++)
                text[k] = (char)(kind == 0   ? rand() % 256
                                 : kind == 1 ? "a e\xc3\xa9\xe2\x96\x81 \xf0\x9f"[rand() % 11]
                                             : 0x80 + rand() % 128);
            int32_t *tokens = tokenizer_sample_encode(&s, text, n, TERSE_TOKENIZE_PLAIN, &n_tokens);
            if (i < 2) {
                check_bytes(&s, "", text, n, tokens, n_tokens);
            } else {
                /* SentencePiece's space cannot be told from a space. */
                char spaced[sizeof text];
                size_t size = 0;
                for (size_t k = 0; k < n; k++) {
                    bool space = n - k >= 3 && memcmp(text + k, SPACE, 3) == 0;
                    spaced[size++] = space ? ' ' : text[k];
                    k += space ? 2 : 0;
                }
                check_bytes(&s, " ", spaced, size, tokens, n_tokens);
            }
            free(tokens);
        }
        tokenizer_sample_close(&s);
    }
}

/* A million times the same letter is one word: quadratic time would show. */
static void test_long_runs(void **state) {
    (void)state;
    static const char *const paths[] = {LAB, TOKENS "ggml-vocab-phi-3.gguf"};
    enum { N = 1 << 20 };
    char *text = malloc(N);
    assert_non_null(text);
    for (size_t i = 0; i < 2; i++) {
        struct tokenizer_sample s;
        tokenizer_sample_load(paths[i], &s);
        for (const char *c = "a .\n\xff"; *c; c++) {
            size_t n;
            memset(text, *c, N);
            int32_t *tokens = tokenizer_sample_encode(&s, text, N, TERSE_TOKENIZE_PLAIN, &n);
            check_bytes(&s, i ? " " : "", text, N, tokens, n);
            free(tokens);
        }
        tokenizer_sample_close(&s);
    }
    free(text);
}

static int set_up(void **state) {
    (void)state;
    byte_letters_fill();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lab_model),
        cmocka_unit_test(test_gpt_2),
        cmocka_unit_test(test_phi_3),
        cmocka_unit_test(test_phi_3_special_tokens),
        cmocka_unit_test(test_gemma),
        cmocka_unit_test(test_byte_level_against_its_definition),
        cmocka_unit_test(test_sentencepiece_against_its_definition),
        cmocka_unit_test(test_spaces_inside_of_tokens),
        cmocka_unit_test(test_any_bytes_come_back),
        cmocka_unit_test(test_long_runs),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
