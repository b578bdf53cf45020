/* Writes a model with random weights in the shape of a well-known one, for measurements on weights larger than any processor cache:
 *
 *     make_model 1b q8_0 FILE [LAYERS]
 *
 * LAYERS: fewer layers than the model has. Every weight is drawn with standard deviation 1/sqrt(columns), so that activations keep
 * their size through the layers, and the file has a whole vocabulary, so that it loads and tokenizes like the model it imitates. Its
 * output is noise.
 */
#include "base/half.h"
#include "gguf/gguf_writer.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct shape {
    const char *name, *summary;
    uint32_t layers, width, query_heads, kv_heads, head_dim, feed_forward;
};

/* All are written as models of architecture llama, with LLaMA 3's vocabulary and output tied to the embedding (the two larger models have an output matrix of
 * their own, LLaMA 2 a quarter of the tokens, Qwen2.5 a fifth more, and biases). */
static const struct shape shapes[] = {
    {"0.5b", "Qwen2.5-0.5B", 24, 896, 14, 2, 64, 4864},
    {"1b", "LLaMA-3.2-1B", 16, 2048, 32, 8, 64, 8192},
    {"8b", "LLaMA-3.1-8B", 32, 4096, 32, 8, 128, 14336},
    {"7b", "LLaMA-2-7B", 32, 4096, 32, 32, 128, 11008},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };
enum { VOCABULARY = 128256, FIRST_SPECIAL = 128000, MOST_TENSORS = 2 + 32 * 9, LONGEST_TOKEN = 40 };

static const struct {
    const char *name;
    enum tensor_type type;
    uint32_t file_type; /* general.file_type */
} types[] = {{"q8_0", TENSOR_Q8_0, 7}, {"q4_0", TENSOR_Q4_0, 2}, {"q4_k", TENSOR_Q4_K, 14}};
enum { N_TYPES = sizeof types / sizeof *types };

/* ---- Vocabulary --------------------------------------------------------------------------------------------------------- */

/* Writes the letter by which byte-level vocabularies write a byte: itself where it is printable in Latin-1, else the next from
 * U+0100. */
static void write_letter(unsigned byte, char text[3]) {
    unsigned letter = 0x100;
    for (unsigned b = 0; b <= byte; b++) {
        bool printable = (b > 0x20 && b < 0x7f) || (b > 0xa0 && b != 0xad);
        if (b == byte)
            letter = printable ? b : letter;
        else if (!printable)
            letter++;
    }
    if (letter < 0x80)
        snprintf(text, 3, "%c", (int)letter);
    else
        snprintf(text, 3, "%c%c", (int)(0xc0 | letter >> 6), (int)(0x80 | (letter & 0x3f)));
}

static void write_token(uint32_t token, char text[LONGEST_TOKEN]) {
    static const char *const specials[] = {[0] = "<|begin_of_text|>",
                                           [1] = "<|end_of_text|>",
                                           [6] = "<|start_header_id|>",
                                           [7] = "<|end_header_id|>",
                                           [9] = "<|eot_id|>"};
    uint32_t special = token - FIRST_SPECIAL;
    if (token < 256)
        write_letter(token, text);
    else if (token < FIRST_SPECIAL)
        snprintf(text, LONGEST_TOKEN, "word%u", (unsigned)token);
    else if (special < sizeof specials / sizeof *specials && specials[special])
        strcpy(text, specials[special]);
    else
        snprintf(text, LONGEST_TOKEN, "<|reserved_special_token_%u|>", (unsigned)special);
}

/* Adds a vocabulary without merges, by which text becomes one token per byte. */
static bool add_vocabulary(struct gguf_writer *writer) {
    char(*texts)[LONGEST_TOKEN] = malloc(VOCABULARY * sizeof *texts);
    const char **tokens = malloc(VOCABULARY * sizeof *tokens);
    int32_t *kinds = malloc(VOCABULARY * sizeof *kinds);
    bool good = texts && tokens && kinds;
    for (uint32_t i = 0; good && i < VOCABULARY; i++) {
        write_token(i, texts[i]);
        tokens[i] = texts[i];
        kinds[i] = i < FIRST_SPECIAL ? 1 : 3; /* normal, control */
    }
    if (good) {
        gguf_writer_string(writer, "tokenizer.ggml.model", "gpt2");
        gguf_writer_string(writer, "tokenizer.ggml.pre", "llama-bpe");
        gguf_writer_strings(writer, "tokenizer.ggml.tokens", VOCABULARY, tokens);
        gguf_writer_array(writer, "tokenizer.ggml.token_type", GGUF_I32, VOCABULARY, kinds);
        gguf_writer_strings(writer, "tokenizer.ggml.merges", 0, NULL);
        gguf_writer_u32(writer, "tokenizer.ggml.bos_token_id", FIRST_SPECIAL);
        gguf_writer_u32(writer, "tokenizer.ggml.eos_token_id", FIRST_SPECIAL + 1);
        gguf_writer_bool(writer, "tokenizer.ggml.add_bos_token", true);
    }
    free(texts);
    free(tokens);
    free(kinds);
    return good;
}

/* ---- Weights ------------------------------------------------------------------------------------------------------------ */

struct weights {
    enum tensor_type type;
    uint32_t columns[MOST_TENSORS]; /* by tensor */
};

static uint64_t mix_bits(uint64_t x) { /* the finalizer of SplitMix64 */
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* A block of Q4_K has eight scales and eight offsets of six bits, here each 32 (scales[j] and scales[4 + j] hold the upper two bits of those from the
 * fourth on). */
static const uint8_t q4_k_scales[12] = {0xa0, 0xa0, 0xa0, 0xa0, 0xa0, 0xa0, 0xa0, 0xa0};

/* Fills one block of weights of standard deviation `deviation`: random codes, and a scale that is off by a quarter at most. */
static void fill_block(enum tensor_type type, float deviation, uint64_t seed, uint8_t *block) {
    /* Uniform codes -127 ... 127 have standard deviation 73.3, 0 ... 15 have 4.6. */
    float unit = deviation / (type == TENSOR_Q8_0 ? 73.3f : 4.6f) * (0.75f + (float)(seed & 255) / 512);
    uint8_t *codes = block + sizeof(uint16_t), *end = block + tensor_type_info(type)->bytes;
    if (type == TENSOR_Q4_K) {
        unit /= 32;
        uint16_t offset = half_from_float(7.5f * unit);
        memcpy(codes, &offset, sizeof offset);
        memcpy(codes + sizeof offset, q4_k_scales, sizeof q4_k_scales);
        codes += sizeof offset + sizeof q4_k_scales;
    }
    uint16_t scale = half_from_float(unit);
    memcpy(block, &scale, sizeof scale);
    for (uint8_t *at = codes; at < end; at += sizeof seed) {
        seed = mix_bits(seed + UINT64_C(0x9e3779b97f4a7c15));
        memcpy(at, &seed, sizeof seed);
    }
    if (type != TENSOR_Q8_0) return;
    for (uint8_t *at = codes; at < end; at++) *at = *at == 0x80 ? 0x81 : *at; /* no quantizer writes -128 */
}

static void fill(void *user, uint64_t tensor, uint64_t offset, void *bytes, size_t size) {
    const struct weights *weights = user;
    uint32_t block_bytes = tensor_type_info(weights->type)->bytes;
    float deviation = 1 / sqrtf((float)weights->columns[tensor]);
    int64_t n = (int64_t)(size / block_bytes);
    uint64_t first = offset / block_bytes;
#pragma omp parallel for
    for (int64_t i = 0; i < n; i++)
        fill_block(weights->type, deviation, mix_bits(tensor << 40 | (first + (uint64_t)i)),
                   (uint8_t *)bytes + (size_t)i * block_bytes);
}

/* ---- The file ----------------------------------------------------------------------------------------------------------- */

static void add_shape(struct gguf_writer *writer, const struct shape *shape, const char *name, uint32_t file_type) {
    gguf_writer_string(writer, "general.architecture", "llama");
    gguf_writer_string(writer, "general.name", name);
    gguf_writer_u32(writer, "general.file_type", file_type);
    gguf_writer_u32(writer, "general.quantization_version", 2);
    gguf_writer_u32(writer, "llama.block_count", shape->layers);
    gguf_writer_u32(writer, "llama.context_length", 131072);
    gguf_writer_u32(writer, "llama.embedding_length", shape->width);
    gguf_writer_u32(writer, "llama.feed_forward_length", shape->feed_forward);
    gguf_writer_u32(writer, "llama.attention.head_count", shape->query_heads);
    gguf_writer_u32(writer, "llama.attention.head_count_kv", shape->kv_heads);
    gguf_writer_u32(writer, "llama.attention.key_length", shape->head_dim);
    gguf_writer_u32(writer, "llama.attention.value_length", shape->head_dim);
    gguf_writer_f32(writer, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_writer_f32(writer, "llama.rope.freq_base", 500000);
    gguf_writer_u32(writer, "llama.rope.dimension_count", shape->head_dim);
    gguf_writer_u32(writer, "llama.vocab_size", VOCABULARY);
}

static void add_matrix(struct gguf_writer *writer, struct weights *weights, const char *name, uint32_t columns, uint32_t rows) {
    weights->columns[writer->n_tensors] = columns;
    gguf_writer_tensor(writer, name, weights->type, 2, (uint64_t[]){columns, rows}, NULL);
}

static void add_tensors(struct gguf_writer *writer, const struct shape *s, struct weights *weights, const float *ones) {
    const uint64_t width = s->width;
    const uint32_t q = s->query_heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    const struct {
        const char *name;
        uint32_t columns, rows;
    } matrices[] = {{"attn_q", s->width, q},
                    {"attn_k", s->width, kv},
                    {"attn_v", s->width, kv},
                    {"attn_output", q, s->width},
                    {"ffn_gate", s->width, s->feed_forward},
                    {"ffn_up", s->width, s->feed_forward},
                    {"ffn_down", s->feed_forward, s->width}};
    char name[64];
    add_matrix(writer, weights, "token_embd.weight", s->width, VOCABULARY);
    gguf_writer_tensor(writer, "output_norm.weight", TENSOR_F32, 1, &width, ones);
    for (uint32_t layer = 0; layer < s->layers; layer++) {
        snprintf(name, sizeof name, "blk.%u.attn_norm.weight", (unsigned)layer);
        gguf_writer_tensor(writer, name, TENSOR_F32, 1, &width, ones);
        snprintf(name, sizeof name, "blk.%u.ffn_norm.weight", (unsigned)layer);
        gguf_writer_tensor(writer, name, TENSOR_F32, 1, &width, ones);
        for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) {
            snprintf(name, sizeof name, "blk.%u.%s.weight", (unsigned)layer, matrices[i].name);
            add_matrix(writer, weights, name, matrices[i].columns, matrices[i].rows);
        }
    }
}

static volatile sig_atomic_t interrupted;

static void interrupt(int number) {
    (void)number;
    interrupted = 1;
}

static bool report(void *user, const char *what, uint64_t done, uint64_t total) {
    if (*(const bool *)user)
        fprintf(stderr, "\r%s %3u%%  %llu of %llu MiB%s", what, (unsigned)(done * 100 / total), (unsigned long long)(done >> 20),
                (unsigned long long)(total >> 20), done == total ? "\n" : "");
    return !interrupted;
}

static int usage(void) {
    fprintf(stderr, "usage: make_model SHAPE TYPE FILE [LAYERS]\n  SHAPE:");
    for (size_t i = 0; i < N_SHAPES; i++) fprintf(stderr, "%s %s (%s)", i ? "," : "", shapes[i].name, shapes[i].summary);
    fprintf(stderr, "\n  TYPE: q8_0, q4_0, q4_k\n");
    return 1;
}

int main(int argc, char **argv) {
    struct shape shape = {0};
    char name[64];
    struct gguf_writer writer = {0};
    struct terse_error error = {0};
    static struct weights weights;
    uint32_t file_type = 0;
    bool counted = argc == 4 || argc == 5;
    for (size_t i = 0; counted && i < N_SHAPES; i++)
        if (!strcmp(argv[1], shapes[i].name)) shape = shapes[i];
    for (size_t i = 0; counted && i < N_TYPES; i++) {
        if (strcmp(argv[2], types[i].name) != 0) continue;
        weights.type = types[i].type;
        file_type = types[i].file_type;
    }
    if (!shape.layers || !file_type) return usage();
    uint32_t whole = shape.layers;
    if (argc == 5) shape.layers = (uint32_t)strtoul(argv[4], NULL, 10);
    if (!shape.layers || shape.layers > whole) return usage();
    if (shape.layers == whole)
        snprintf(name, sizeof name, "%s", shape.summary);
    else
        snprintf(name, sizeof name, "%s, %u of its %u layers", shape.summary, (unsigned)shape.layers, (unsigned)whole);

    bool terminal = isatty(STDERR_FILENO);
    struct gguf_writer_source source = {fill, &weights};
    struct terse_progress progress = {report, &terminal};
    float *ones = malloc(shape.width * sizeof *ones);
    enum terse_status status = TERSE_E_MEMORY;
    for (uint32_t i = 0; ones && i < shape.width; i++) ones[i] = 1;
    signal(SIGINT, interrupt);
    signal(SIGTERM, interrupt);
    add_shape(&writer, &shape, name, file_type);
    if (ones && add_vocabulary(&writer)) {
        add_tensors(&writer, &shape, &weights, ones);
        status = gguf_writer_save(&writer, argv[3], &source, &progress, &error);
    } else {
        status_no_memory(&error, VOCABULARY * LONGEST_TOKEN, "the vocabulary");
    }
    if (status != TERSE_OK) fprintf(stderr, "%smake_model: %s\n", terminal ? "\n" : "", error.message);
    gguf_writer_free(&writer);
    free(ones);
    return status != TERSE_OK;
}
