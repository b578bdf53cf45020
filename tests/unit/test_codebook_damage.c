/* Codebook files that are damaged, forged, foreign or impossible: each is refused in one line that says what is wrong, nothing is read
 * past the file's end, and what a file claims costs nothing before it is known to fit. Sound files: test_codebook.c. */
#include "base/memory.h"
#include "gguf/gguf_writer.h"
#include "support/codebook_sample.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct terse_codebook *make(void) {
    struct codebook_info info = codebook_sample_info();
    struct terse_codebook *codebook;
    struct terse_error error = {0};
    if (codebook_sample_new(&info, &codebook, &error)) fail_msg("%s", error.message);
    return codebook;
}

static struct terse_codebook *load(const void *file, size_t size) {
    struct terse_codebook *codebook;
    struct terse_error error = {0};
    if (terse_codebook_load_memory(file, size, "a.codebook", &codebook, &error)) fail_msg("%s", error.message);
    return codebook;
}

/* One line that begins with the file's name. */
static void check_message(const struct terse_error *error, enum terse_status status, const char *words) {
    assert_int_equal(error->code, status);
    assert_int_equal(strncmp(error->message, "bad.codebook: ", 14), 0);
    assert_null(strpbrk(error->message, "\n\r\x1b"));
    if (strstr(error->message + 14, "bad.codebook")) fail_msg("'%s' names the file twice", error->message);
    if (words && !strstr(error->message, words)) fail_msg("'%s' lacks '%s'", error->message, words);
}

/* From a copy of exactly `size` bytes, so that a memory checker sees a read past the end. */
static enum terse_status load_copy(const void *data, size_t size, struct terse_codebook **codebook, struct terse_error *error) {
    uint8_t *copy = memory_array(size, 1);
    assert_non_null(copy);
    if (size) memcpy(copy, data, size);
    enum terse_status status = terse_codebook_load_memory(copy, size, "bad.codebook", codebook, error);
    assert_int_equal(*codebook != NULL, status == TERSE_OK);
    memory_free(copy);
    return status;
}

/* ---- Damage --------------------------------------------------------------------------------------------------------------- */

static void refused(const void *file, size_t size, enum terse_status wanted, const char *words) {
    struct terse_codebook *codebook;
    struct terse_error error = {0};
    enum terse_status status = load_copy(file, size, &codebook, &error);
    if (status != wanted) fail_msg("status %d, not %d: '%s'; wanted '%s'", status, wanted, error.message, words ? words : "");
    check_message(&error, wanted, words);
}

static void test_truncated(void **state) {
    (void)state;
    struct terse_codebook *codebook = make();
    size_t size;
    uint8_t *file = codebook_sample_build(codebook, &size);
    for (size_t cut = 0; cut < size; cut++) refused(file, cut, TERSE_E_FORMAT, NULL);
    uint8_t *longer = calloc(size + 64, 1);
    memcpy(longer, file, size);
    refused(longer, size + 1, TERSE_E_FORMAT, "checksum");
    refused(longer, size + 64, TERSE_E_FORMAT, "checksum");
    free(longer);
    memory_free(file);
    terse_codebook_free(codebook);
}

static void test_bits_flipped(void **state) {
    (void)state;
    struct terse_codebook *codebook = make();
    size_t size, mismatches = 0;
    uint8_t *file = codebook_sample_build(codebook, &size);
    for (size_t bit = 0; bit < size * 8; bit++) {
        struct terse_codebook *loaded;
        struct terse_error error = {0};
        file[bit / 8] ^= (uint8_t)(1 << bit % 8);
        enum terse_status status = load_copy(file, size, &loaded, &error);
        if (status == TERSE_OK) fail_msg("bit %zu flipped and not noticed", bit);
        check_message(&error, status, NULL);
        mismatches += strstr(error.message, "checksum does not match") != NULL;
        file[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    assert_true(mismatches > size * 4); /* most of it is data */
    memory_free(file);
    terse_codebook_free(codebook);
}

/* Changes that the checksum agrees with: refused for what they are, or a codebook like any other. */
static void test_bytes_forged(void **state) {
    (void)state;
    struct terse_codebook *codebook = make();
    size_t size, loaded_ones = 0;
    uint8_t *file = codebook_sample_build(codebook, &size), *changed = malloc(size);
    for (size_t at = 0; at < size; at += at < 2000 ? 1 : 37) {
        const uint8_t values[] = {0, 0xff, 0x7f, file[at] ^ 1, file[at] ^ 0x80, file[at] + 1, file[at] * 2};
        for (size_t v = 0; v < sizeof values; v++) {
            struct terse_codebook *loaded;
            struct terse_error error = {0};
            memcpy(changed, file, size);
            changed[at] = values[v];
            codebook_sample_seal(changed, size);
            enum terse_status status = load_copy(changed, size, &loaded, &error);
            if (status) {
                check_message(&error, status, NULL);
                continue;
            }
            size_t first_size, second_size;
            uint8_t *first = codebook_sample_build(loaded, &first_size);
            struct terse_codebook *reloaded = load(first, first_size);
            uint8_t *second = codebook_sample_build(reloaded, &second_size);
            assert_int_equal(first_size, second_size);
            assert_memory_equal(first, second, first_size);
            loaded_ones++;
            memory_free(second);
            terse_codebook_free(reloaded);
            memory_free(first);
            terse_codebook_free(loaded);
        }
    }
    assert_true(loaded_ones > 500);
    free(changed);
    memory_free(file);
    terse_codebook_free(codebook);
}

/* ---- Files of others ------------------------------------------------------------------------------------------------------ */

enum { LEFT_OUT = 99 }; /* no GGUF type */

struct key {
    const char *name;
    uint32_t type;
    const char *text;
    uint64_t number;
};

static const struct key keys[] = {
    {"general.architecture", GGUF_STRING, "terse-codebook", 0},
    {"codebook.version", GGUF_U32, NULL, 1},
    {"codebook.method", GGUF_STRING, "m", 0},
    {"codebook.keys.codec", GGUF_STRING, "pq", 0},
    {"codebook.keys.width", GGUF_U32, NULL, 16},
    {"codebook.keys.bits", GGUF_U32, NULL, 4},
    {"codebook.keys.rope", GGUF_STRING, "after", 0},
    {"codebook.values.codec", GGUF_STRING, "vq", 0},
    {"codebook.values.width", GGUF_U32, NULL, 8},
    {"codebook.values.bits", GGUF_U32, NULL, 5},
    {"codebook.scope", GGUF_STRING, "head", 0},
    {"codebook.layers", GGUF_U32, NULL, 1},
    {"codebook.kv_heads", GGUF_U32, NULL, 2},
    {"codebook.head_dim", GGUF_U32, NULL, 32},
    {"codebook.model.name", GGUF_STRING, "", 0},
    {"codebook.model.fingerprint", GGUF_U64, NULL, 1},
    {"codebook.corpus.name", GGUF_STRING, "", 0},
    {"codebook.corpus.tokens", GGUF_U64, NULL, 0},
    {"codebook.seed", GGUF_U64, NULL, 0},
    {"codebook.weighting", GGUF_STRING, "", 0},
    {"codebook.effective_samples", GGUF_F64, NULL, 0},
};
enum {
    N_KEYS = sizeof keys / sizeof *keys,
    NUMBERS = 2 * (32 * (32 + 3) + 5) /* of a profile's two sets; the others have fewer */
};

static uint16_t numbers[NUMBERS]; /* zeros but for what a test puts there */

static void write_key(struct gguf_writer *w, const struct key *key) {
    if (key->type == GGUF_STRING) gguf_writer_string(w, key->name, key->text);
    if (key->type == GGUF_U32) gguf_writer_u32(w, key->name, (uint32_t)key->number);
    if (key->type == GGUF_U64 || key->type == GGUF_F64 || key->type == GGUF_I64)
        gguf_writer_value(w, key->name, key->type, &key->number, 8);
}

/* All keys, `changes[n]` in the place of those of their names. */
static void write_keys(struct gguf_writer *w, const struct key *changes, size_t n) {
    *w = (struct gguf_writer){0};
    for (size_t i = 0; i < N_KEYS; i++) {
        const struct key *key = &keys[i];
        for (size_t c = 0; c < n; c++)
            if (strcmp(changes[c].name, key->name) == 0) key = &changes[c];
        write_key(w, key);
    }
    gguf_writer_checksum(w, "codebook.checksum");
}

static void write_tensors(struct gguf_writer *w) {
    gguf_writer_tensor(w, "keys", TENSOR_F16, 4, (uint64_t[]){16, 16, 2, 2}, numbers);
    gguf_writer_tensor(w, "values", TENSOR_F16, 4, (uint64_t[]){8, 32, 4, 2}, numbers);
}

static void *finish(struct gguf_writer *w, size_t *size) {
    void *file = gguf_writer_build(w, size);
    assert_non_null(file);
    gguf_writer_free(w);
    return file;
}

static void refused_writer(struct gguf_writer *w, enum terse_status status, const char *words) {
    size_t size;
    void *file = finish(w, &size);
    refused(file, size, status, words);
    memory_free(file);
}

static void accepted(struct gguf_writer *w) {
    size_t size;
    void *file = finish(w, &size);
    terse_codebook_free(load(file, size));
    memory_free(file);
}

static void refused_key(const char *name, uint32_t type, const char *text, uint64_t number, enum terse_status status,
                        const char *words) {
    struct gguf_writer w;
    write_keys(&w, &(struct key){name, type, text, number}, 1);
    write_tensors(&w);
    refused_writer(&w, status, words);
}

static void test_keys(void **state) {
    (void)state;
    struct gguf_writer w;
    write_keys(&w, NULL, 0);
    write_tensors(&w);
    accepted(&w);
    write_keys(&w, NULL, 0); /* an unknown key does not matter, nor do smaller or larger integers */
    gguf_writer_string(&w, "codebook.news", "x");
    write_tensors(&w);
    accepted(&w);
    write_keys(&w, (struct key[]){{"codebook.layers", GGUF_U64, NULL, 1}, {"codebook.seed", GGUF_U32, NULL, 1}}, 2);
    write_tensors(&w);
    accepted(&w);

    for (size_t i = 0; i < N_KEYS; i++) {
        if (strstr(keys[i].name, ".codec")) continue; /* such a side learns nothing: test_tensors */
        refused_key(keys[i].name, LEFT_OUT, NULL, 0, TERSE_E_FORMAT, keys[i].name);
    }
    for (size_t i = 0; i < N_KEYS; i++) { /* strings for numbers and numbers for strings */
        bool string = keys[i].type == GGUF_STRING;
        refused_key(keys[i].name, string ? GGUF_U32 : GGUF_STRING, "1", 1, TERSE_E_FORMAT, keys[i].name);
    }
    uint64_t nan_bits = UINT64_C(0x7ff8000000000000);
    refused_key("codebook.effective_samples", GGUF_F64, NULL, nan_bits, TERSE_E_FORMAT, "finite");
    refused_key("codebook.seed", GGUF_F64, NULL, 0, TERSE_E_FORMAT, "codebook.seed");
    refused_key("codebook.seed", GGUF_I64, NULL, UINT64_MAX, TERSE_E_FORMAT, "codebook.seed");
    refused_key("codebook.layers", GGUF_U64, NULL, UINT64_C(1) << 32, TERSE_E_FORMAT, "codebook.layers");

    refused_key("general.architecture", GGUF_STRING, "llama", 0, TERSE_E_FORMAT,
                "a model of architecture \"llama\", not a codebook");
    refused_key("general.architecture", GGUF_STRING, "\x1b[2J\n", 0, TERSE_E_FORMAT, "not a codebook");
    refused_key("codebook.version", GGUF_U32, NULL, 0, TERSE_E_UNSUPPORTED, "version 0");
    refused_key("codebook.version", GGUF_U32, NULL, 2, TERSE_E_UNSUPPORTED, "version 2");
    refused_key("codebook.keys.codec", GGUF_STRING, "zq\n", 0, TERSE_E_UNSUPPORTED, "the codec \"zq\\n\"");
    refused_key("codebook.keys.codec", GGUF_STRING, "q8_0", 0, TERSE_E_UNSUPPORTED, "\"q8_0\"");
    refused_key("codebook.keys.codec", GGUF_STRING, "", 0, TERSE_E_UNSUPPORTED, "\"\"");
    refused_key("codebook.keys.rope", GGUF_STRING, "before", 0, TERSE_E_FORMAT, "before rotation");
    refused_key("codebook.keys.rope", GGUF_STRING, "run", 0, TERSE_E_FORMAT, "in a run");
    refused_key("codebook.keys.rope", GGUF_STRING, "between", 0, TERSE_E_FORMAT, "\"between\"");
    refused_key("codebook.scope", GGUF_STRING, "heads", 0, TERSE_E_FORMAT, "\"heads\"");
    refused_key("codebook.scope", GGUF_STRING, "model", 0, TERSE_E_FORMAT,
                "16 x 16 x 2 x 2, the keys ask for F16 of 16 x 16 x 2 x 1");
}

/* Shapes that do not fit each other, or whose sizes would overflow. */
static void test_shapes(void **state) {
    (void)state;
    static const char *const names[] = {"codebook.keys.width",  "codebook.keys.bits", "codebook.values.width",
                                        "codebook.values.bits", "codebook.layers",    "codebook.kv_heads",
                                        "codebook.head_dim"};
    static const uint32_t values[] = {0, 3, 64, 1u << 16, 1u << 31, UINT32_MAX};
    struct gguf_writer w;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            struct terse_codebook *codebook;
            struct terse_error error = {0};
            size_t size;
            write_keys(&w, &(struct key){names[i], GGUF_U32, NULL, values[v]}, 1);
            write_tensors(&w);
            void *file = finish(&w, &size);
            enum terse_status status = load_copy(file, size, &codebook, &error);
            assert_true(status == TERSE_E_FORMAT || status == TERSE_E_UNSUPPORTED);
            check_message(&error, status, NULL);
            memory_free(file);
        }
    /* The largest shape that is possible costs nothing before the tensors are looked at. */
    write_keys(&w,
               (struct key[]){{"codebook.layers", GGUF_U32, NULL, 1024},
                              {"codebook.kv_heads", GGUF_U32, NULL, 4096},
                              {"codebook.head_dim", GGUF_U32, NULL, 256},
                              {"codebook.keys.bits", GGUF_U32, NULL, 12}},
               4);
    write_tensors(&w);
    refused_writer(&w, TERSE_E_FORMAT, "ask for F16 of 16 x 4096 x 16 x 4194304");
}

static void test_tensors(void **state) {
    (void)state;
    struct gguf_writer w;
    const struct key no_keys = {"codebook.keys.codec", LEFT_OUT, NULL, 0}, no_values = {"codebook.values.codec", LEFT_OUT, NULL, 0};
    const uint64_t key_dims[4] = {16, 16, 2, 2}, value_dims[4] = {8, 32, 4, 2};

    write_keys(&w, &no_values, 1); /* one side alone */
    gguf_writer_tensor(&w, "keys", TENSOR_F16, 4, key_dims, numbers);
    accepted(&w);
    write_keys(&w, &no_keys, 1);
    gguf_writer_tensor(&w, "values", TENSOR_F16, 4, value_dims, numbers);
    accepted(&w);
    write_keys(&w, &no_keys, 1); /* a tensor that no key speaks of */
    write_tensors(&w);
    refused_writer(&w, TERSE_E_FORMAT, "2 tensors where its keys ask for 1");
    write_keys(&w, (struct key[]){no_keys, no_values}, 2);
    refused_writer(&w, TERSE_E_FORMAT, "neither keys nor values");
    write_keys(&w, NULL, 0);
    gguf_writer_tensor(&w, "keys", TENSOR_F16, 4, key_dims, numbers);
    refused_writer(&w, TERSE_E_FORMAT, "'values' is missing");
    write_keys(&w, NULL, 0);
    write_tensors(&w);
    gguf_writer_tensor(&w, "more", TENSOR_F16, 1, (uint64_t[]){1}, numbers);
    refused_writer(&w, TERSE_E_FORMAT, "3 tensors");

    static const uint64_t others[][4] = {{16, 16, 2, 1}, {16, 16, 4, 1}, {32, 16, 2, 2},
                                         {16, 16, 2, 3}, {16, 32, 2, 2}, {2, 2, 16, 16}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        write_keys(&w, NULL, 0);
        gguf_writer_tensor(&w, "keys", TENSOR_F16, 4, others[i], NULL);
        gguf_writer_tensor(&w, "values", TENSOR_F16, 4, value_dims, numbers);
        refused_writer(&w, TERSE_E_FORMAT, "the tensor 'keys' is F16 of");
    }
    write_keys(&w,
               (struct key[]){
                   no_values, {"codebook.keys.codec", GGUF_STRING, "gain-shape", 0}, {"codebook.keys.rope", GGUF_STRING, "run", 0}},
               3);
    gguf_writer_tensor(&w, "keys", TENSOR_F16, 4, key_dims, numbers);
    refused_writer(&w, TERSE_E_FORMAT, "'keys.frame' is missing");
    write_keys(&w, &no_values, 1);
    gguf_writer_tensor(&w, "keys", TENSOR_F16, 4, key_dims, numbers);
    gguf_writer_tensor(&w, "keys.frame", TENSOR_F16, 2, (uint64_t[]){33, 2}, numbers);
    refused_writer(&w, TERSE_E_FORMAT, "2 tensors where its keys ask for 1");

    static const uint32_t types[] = {TENSOR_F32, TENSOR_BF16, 27 /* I64 */, 4000000000u};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        write_keys(&w, NULL, 0);
        gguf_writer_tensor(&w, "keys", TENSOR_F16, 4, key_dims, numbers);
        gguf_writer_tensor(&w, "values", types[i], 4, value_dims, NULL);
        refused_writer(&w, TERSE_E_FORMAT, "the tensor 'values' is");
    }
    static const uint16_t bad[] = {0x7c00, 0xfc00, 0x7e00, 0xffff};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_keys(&w, &no_values, 1);
        gguf_writer_tensor(&w, "keys", TENSOR_F16, 4, key_dims, numbers);
        numbers[600] = bad[i];
        refused_writer(&w, TERSE_E_FORMAT, "number 88 of the centroids of layer 0, KV head 1 in the codebook's keys");
        numbers[600] = 0;
    }
}

/* Writes the keys of a profile of keys alone, and what its kind of fingerprint is called. */
static void write_profile_keys(struct gguf_writer *w, const char *fingerprint_of) {
    write_keys(w,
               (struct key[]){{"codebook.values.codec", LEFT_OUT, NULL, 0},
                              {"codebook.keys.codec", GGUF_STRING, "transform", 0},
                              {"codebook.keys.width", GGUF_U32, NULL, 0},
                              {"codebook.keys.bits", GGUF_U32, NULL, 0},
                              {"codebook.keys.rope", GGUF_STRING, "run", 0}},
               5);
    if (fingerprint_of) gguf_writer_string(w, "codebook.model.fingerprint_of", fingerprint_of);
}

static void write_profile(struct gguf_writer *w, const char *fingerprint_of) {
    write_profile_keys(w, fingerprint_of);
    gguf_writer_tensor(w, "keys", TENSOR_F16, 2, (uint64_t[]){NUMBERS / 2, 2, 1, 1}, numbers);
}

static void test_profiles(void **state) {
    (void)state;
    enum { HD = 32, SET = NUMBERS / 2, SIZES = SET + 2 * HD, GAINS = NUMBERS - 5 };
    static const struct {
        size_t at;
        uint16_t half;
        const char *words;
    } bad[] = {{SIZES + HD - 1, 0xbc00, "the sizes of a transform's components do not fall at component 31"},
               {SIZES + 5, 0x3c00, "do not fall at component 5"},
               {GAINS, 0xbc00, "gains reach from -1 to 0"},
               {GAINS, 0x3c00, "gains reach from 1 to 0"},
               {GAINS + 1, 0xbc00, "gains reach from 0 to -1"},
               {GAINS + 2, 0xbc00, "gains reach from 0 to 0, about -1"},
               {GAINS + 4, 0x7c00, "is not finite"},
               {SIZES + 2 * HD, 0x7e00, "is not finite"}};
    struct gguf_writer w;
    write_profile(&w, NULL);
    accepted(&w);
    write_profile(&w, "weights");
    accepted(&w);
    write_profile(&w, "norms");
    accepted(&w);
    write_profile(&w, "name");
    refused_writer(&w, TERSE_E_FORMAT, "is \"name\", not \"weights\" or \"norms\"");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_profile(&w, "norms");
        numbers[bad[i].at] = bad[i].half;
        refused_writer(&w, TERSE_E_FORMAT, bad[i].words);
        numbers[bad[i].at] = 0;
    }
}

/* Tests that a profile of the first layout, which has no mean before rotation, is refused, and that one of today's layout is taken
 * though it was made when codes went through a trellis: it says of rows what it says now. What rates cost then stands under other
 * keys, and is not read. */
static void test_old_profiles(void **state) {
    (void)state;
    enum { HD = 32, FIRST = HD * (HD + 2) + 3 };
    struct gguf_writer w;
    struct terse_codebook_info info;
    size_t size;
    write_profile_keys(&w, "norms");
    gguf_writer_tensor(&w, "keys", TENSOR_F16, 2, (uint64_t[]){FIRST, 2, 1, 1}, numbers);
    refused_writer(&w, TERSE_E_FORMAT, "the keys ask for F16 of 1125 x 2 x 1 x 1: make the file again with terse calibrate");
    write_profile_keys(&w, "norms");
    gguf_writer_array(&w, "codebook.costs.bits", GGUF_F32, 1, (float[]){4});
    gguf_writer_array(&w, "codebook.costs.divergence", GGUF_F32, 1, (float[]){0.001f});
    gguf_writer_array(&w, "codebook.costs.error", GGUF_F32, 1, (float[]){0.0001f});
    gguf_writer_tensor(&w, "keys", TENSOR_F16, 2, (uint64_t[]){NUMBERS / 2, 2, 1, 1}, numbers);
    void *file = finish(&w, &size);
    struct terse_codebook *profile = load(file, size);
    terse_codebook_describe(profile, &info);
    assert_int_equal(info.n_costs, 0);
    terse_codebook_free(profile);
    memory_free(file);
}

static void test_other_files(void **state) {
    (void)state;
    struct terse_codebook *codebook;
    struct terse_error error = {0};
    struct gguf_writer w = {0};
    refused("", 0, TERSE_E_FORMAT, "empty");
    refused("GGU", 3, TERSE_E_FORMAT, "not a codebook");
    refused("# A text\n", 9, TERSE_E_FORMAT, "not a codebook (it does not begin with \"GGUF\")");
    refused_writer(&w, TERSE_E_FORMAT, "no general.architecture");
    write_keys(&w, NULL, 0); /* without a checksum */
    w.checksum_at = 0;
    write_tensors(&w);
    refused_writer(&w, TERSE_E_FORMAT, "checksum does not match");
    assert_int_equal(terse_codebook_load(TESTS_DIR "/fixtures/models/llama.gguf", &codebook, &error), TERSE_E_FORMAT);
    assert_null(codebook);
    assert_non_null(strstr(error.message, "llama.gguf: it is a model of architecture \"llama\", not a codebook"));
    /* Names as long as a path can be, or that are no text, leave room for the reason. */
    char name[4001] = "";
    memset(name, 'x', sizeof name - 1);
    memcpy(name + 2000, "\n\x1b", 2);
    assert_int_equal(terse_codebook_load_memory("abc", 3, name, &codebook, &error), TERSE_E_FORMAT);
    assert_non_null(strstr(error.message, "x: not a codebook"));
    assert_int_equal(terse_codebook_load_memory("abc", 3, "n", &codebook, &error), TERSE_E_FORMAT); /* as "not a codebook" begins */
    assert_int_equal(strncmp(error.message, "n: not a codebook", 17), 0);
    assert_int_equal(terse_codebook_load_memory("abc", 3, "new\nline", &codebook, &error), TERSE_E_FORMAT);
    assert_int_equal(strncmp(error.message, "new\\nline: not a codebook", 25), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_truncated), cmocka_unit_test(test_bits_flipped), cmocka_unit_test(test_bytes_forged),
        cmocka_unit_test(test_keys),      cmocka_unit_test(test_shapes),       cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_profiles),  cmocka_unit_test(test_old_profiles), cmocka_unit_test(test_other_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
