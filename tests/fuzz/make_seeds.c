/* Writes the seeds of the fuzz targets: small sound files that between them have everything a GGUF file can have. */
#include "base/memory.h"
#include "support/codebook_sample.h"
#include "support/gguf_sample.h"
#include "support/state_sample.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static int failures;

static void write_file(const char *folder, const char *name, const void *data, size_t size) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = data ? fopen(path, "wb") : NULL;
    bool good = file && fwrite(data, 1, size, file) == size;
    if (file && fclose(file)) good = false;
    if (good) return;
    fprintf(stderr, "%s: cannot be written\n", path);
    failures++;
}

static void write_gguf(const char *folder, const char *name, struct gguf_writer *writer) {
    size_t size;
    void *file = gguf_writer_build(writer, &size);
    write_file(folder, name, file, size);
    memory_free(file);
    gguf_writer_free(writer);
}

static void gguf_seeds(const char *folder) {
    struct gguf_writer writer;
    gguf_sample_write(&writer, 2);
    write_gguf(folder, "seed-everything-v2", &writer);
    gguf_sample_write(&writer, 3);
    write_gguf(folder, "seed-everything-v3", &writer);
    write_gguf(folder, "seed-nothing", &writer);
    writer = (struct gguf_writer){.version = 3};
    gguf_writer_u32(&writer, "k", 1);
    write_gguf(folder, "seed-one-key", &writer);
    gguf_writer_tensor(&writer, "t", TENSOR_F32, 1, (uint64_t[]){1}, NULL);
    write_gguf(folder, "seed-one-tensor", &writer);
    gguf_writer_align(&writer, 8);
    gguf_writer_tensor(&writer, "a", TENSOR_F16, 3, (uint64_t[]){1, 2, 3}, NULL);
    gguf_writer_tensor(&writer, "b", TENSOR_Q4_K, 1, (uint64_t[]){256}, NULL);
    gguf_writer_tensor(&writer, "c", TENSOR_Q5_1, 2, (uint64_t[]){32, 2}, NULL);
    write_gguf(folder, "seed-aligned", &writer);
    gguf_writer_strings(&writer, "s", 4, (const char *const[]){"one", "two", "three", "four"});
    gguf_writer_array(&writer, "n", GGUF_I16, 4, (int16_t[]){1, 2, 3, 4});
    write_gguf(folder, "seed-arrays", &writer);
}

/* ---- Models ------------------------------------------------------------------------------------------------------------- */

enum { WIDTH = 32, HEADS = 2, HEAD = 32, FORWARD = 32, TOKENS = 24, POSITIONS = 64, QKV = (HEADS + 2) * HEAD };

#define LLAMA_3_TEMPLATE "<|start_header_id|>{{ message['role'] }}<|end_header_id|><|eot_id|>"
#define MISTRAL_TEMPLATE "[INST] {{ message['content'] }} [/INST]"

/* Weights of any type: small numbers, and half floats of about 1/4 where a block has its scale. */
static const uint8_t *weights(void) {
    static uint8_t bytes[QKV * WIDTH / 32 * 34]; /* the largest matrix of 8 bits */
    for (size_t i = 0; i < sizeof bytes; i += 2) {
        bytes[i] = (uint8_t)(i * 37 % 61);
        bytes[i + 1] = 0x34;
    }
    return bytes;
}

static const float *ones(void) {
    static float values[QKV];
    for (size_t i = 0; i < QKV; i++) values[i] = 1;
    return values;
}

static void add_shape(struct gguf_writer *writer, const char *architecture) {
    static const char *const names[] = {"block_count",          "context_length",        "embedding_length",
                                        "feed_forward_length",  "attention.head_count",  "attention.head_count_kv",
                                        "attention.key_length", "attention.value_length"};
    static const uint32_t values[] = {1, POSITIONS, WIDTH, FORWARD, HEADS, 1, HEAD, HEAD};
    char key[64];
    *writer = (struct gguf_writer){0};
    gguf_writer_string(writer, "general.architecture", architecture);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        snprintf(key, sizeof key, "%s.%s", architecture, names[i]);
        gguf_writer_u32(writer, key, values[i]);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", architecture);
    gguf_writer_f32(writer, key, 1e-5f);
    snprintf(key, sizeof key, "%s.rope.freq_base", architecture);
    gguf_writer_f32(writer, key, 10000);
}

static void add_vector(struct gguf_writer *writer, const char *name, uint64_t n) {
    gguf_writer_tensor(writer, name, TENSOR_F32, 1, &n, ones());
}

static void add_matrix(struct gguf_writer *writer, const char *name, uint32_t type, uint64_t columns, uint64_t rows) {
    gguf_writer_tensor(writer, name, type, 2, (uint64_t[]){columns, rows}, weights());
}

static void add_layer(struct gguf_writer *writer, uint32_t type) {
    add_vector(writer, "output_norm.weight", WIDTH);
    add_vector(writer, "blk.0.attn_norm.weight", WIDTH);
    add_vector(writer, "blk.0.ffn_norm.weight", WIDTH);
    add_matrix(writer, "token_embd.weight", type, WIDTH, TOKENS);
    add_matrix(writer, "blk.0.attn_q.weight", type, WIDTH, HEADS * HEAD);
    add_matrix(writer, "blk.0.attn_k.weight", type, WIDTH, HEAD);
    add_matrix(writer, "blk.0.attn_v.weight", type, WIDTH, HEAD);
    add_matrix(writer, "blk.0.attn_output.weight", type, HEADS * HEAD, WIDTH);
    add_matrix(writer, "blk.0.ffn_gate.weight", type, WIDTH, FORWARD);
    add_matrix(writer, "blk.0.ffn_up.weight", type, WIDTH, FORWARD);
    add_matrix(writer, "blk.0.ffn_down.weight", type, FORWARD, WIDTH);
}

/* LayerNorm, fused queries, keys and values, no gate. */
static void add_fused_layer(struct gguf_writer *writer, uint32_t type) {
    add_vector(writer, "output_norm.weight", WIDTH);
    add_vector(writer, "blk.0.attn_norm.weight", WIDTH);
    add_vector(writer, "blk.0.ffn_norm.weight", WIDTH);
    add_matrix(writer, "token_embd.weight", type, WIDTH, TOKENS);
    add_matrix(writer, "blk.0.attn_qkv.weight", type, WIDTH, QKV);
    add_matrix(writer, "blk.0.attn_output.weight", type, HEADS * HEAD, WIDTH);
    add_matrix(writer, "blk.0.ffn_up.weight", type, WIDTH, FORWARD);
    add_matrix(writer, "blk.0.ffn_down.weight", type, FORWARD, WIDTH);
}

static void add_fused_biases(struct gguf_writer *writer) {
    add_vector(writer, "output_norm.bias", WIDTH);
    add_vector(writer, "blk.0.attn_norm.bias", WIDTH);
    add_vector(writer, "blk.0.ffn_norm.bias", WIDTH);
    add_vector(writer, "blk.0.attn_qkv.bias", QKV);
    add_vector(writer, "blk.0.attn_output.bias", WIDTH);
    add_vector(writer, "blk.0.ffn_up.bias", FORWARD);
    add_vector(writer, "blk.0.ffn_down.bias", WIDTH);
}

/* Writes the strings that `list` has between commas. */
static void add_list(struct gguf_writer *writer, const char *key, const char *list) {
    static char copy[512];
    const char *strings[TOKENS];
    uint64_t n = 0;
    snprintf(copy, sizeof copy, "%s", list);
    for (char *at = strtok(copy, ","); at && n < TOKENS; at = strtok(NULL, ",")) strings[n++] = at;
    gguf_writer_strings(writer, key, n, strings);
}

/* `pre` NULL: without the key. `ids`: names BOS and EOS. */
static void add_bpe(struct gguf_writer *writer, const char *pre, bool ids) {
    static const char tokens[] = "t,h,e,c,a,\xc4\xa0,1,2,3,4,5,i,s,',th,the,at,cat,\xc4\xa0"
                                 "cat,z,\xc4\x8a,'s,<|begin_of_text|>,<|eot_id|>";
    int32_t types[TOKENS];
    for (int i = 0; i < TOKENS; i++) types[i] = i < TOKENS - 2 ? 1 : 3;
    gguf_writer_string(writer, "tokenizer.ggml.model", "gpt2");
    if (pre) gguf_writer_string(writer, "tokenizer.ggml.pre", pre);
    add_list(writer, "tokenizer.ggml.tokens", tokens);
    gguf_writer_array(writer, "tokenizer.ggml.token_type", GGUF_I32, TOKENS, types);
    add_list(writer, "tokenizer.ggml.merges", "t h,th e,a t,c at,\xc4\xa0 cat,' s");
    if (ids) {
        gguf_writer_u32(writer, "tokenizer.ggml.bos_token_id", TOKENS - 2);
        gguf_writer_u32(writer, "tokenizer.ggml.eos_token_id", TOKENS - 1);
        gguf_writer_bool(writer, "tokenizer.ggml.add_bos_token", true);
    }
    gguf_writer_string(writer, "tokenizer.chat_template", ids ? LLAMA_3_TEMPLATE : MISTRAL_TEMPLATE);
}

static void add_spm(struct gguf_writer *writer) {
    static const char tokens[] =
        "<unk>,<s>,</s>,<0x31>,<0x32>,<0x0A>,<0xE2>,<0x82>,<0xAC>,t,h,e,c,a,th,the,\xe2\x96\x81,\xe2\x96\x81"
        "t,at,cat,z,s,it,'";
    int32_t types[TOKENS];
    float scores[TOKENS];
    for (int i = 0; i < TOKENS; i++) {
        types[i] = i == 0 ? 2 : i < 3 ? 3 : i < 9 ? 6 : 1;
        scores[i] = (float)-i;
    }
    gguf_writer_string(writer, "tokenizer.ggml.model", "llama");
    add_list(writer, "tokenizer.ggml.tokens", tokens);
    gguf_writer_array(writer, "tokenizer.ggml.token_type", GGUF_I32, TOKENS, types);
    gguf_writer_array(writer, "tokenizer.ggml.scores", GGUF_F32, TOKENS, scores);
    gguf_writer_string(writer, "tokenizer.chat_template", MISTRAL_TEMPLATE);
}

static void model_seeds(const char *folder) {
    struct gguf_writer writer;
    add_shape(&writer, "llama");
    add_bpe(&writer, "llama-bpe", true);
    add_layer(&writer, TENSOR_Q8_0);
    write_gguf(folder, "seed-llama-bpe", &writer);

    add_shape(&writer, "llama");
    gguf_writer_string(&writer, "llama.rope.scaling.type", "yarn");
    gguf_writer_f32(&writer, "llama.rope.scaling.factor", 4);
    gguf_writer_u32(&writer, "llama.rope.scaling.original_context_length", 16);
    add_spm(&writer);
    add_layer(&writer, TENSOR_Q4_0);
    add_vector(&writer, "rope_freqs.weight", HEAD / 2);
    write_gguf(folder, "seed-llama-spm", &writer);

    add_shape(&writer, "qwen2");
    add_bpe(&writer, "qwen2", true);
    add_layer(&writer, TENSOR_Q5_1);
    add_vector(&writer, "blk.0.attn_q.bias", HEADS * HEAD);
    add_vector(&writer, "blk.0.attn_k.bias", HEAD);
    add_vector(&writer, "blk.0.attn_v.bias", HEAD);
    add_matrix(&writer, "output.weight", TENSOR_F16, WIDTH, TOKENS);
    write_gguf(folder, "seed-qwen2", &writer);

    add_shape(&writer, "qwen3");
    add_bpe(&writer, "gpt-2", true);
    add_layer(&writer, TENSOR_Q4_1);
    add_vector(&writer, "blk.0.attn_q_norm.weight", HEAD);
    add_vector(&writer, "blk.0.attn_k_norm.weight", HEAD);
    write_gguf(folder, "seed-qwen3", &writer);

    add_shape(&writer, "gpt2");
    gguf_writer_f32(&writer, "gpt2.attention.layer_norm_epsilon", 1e-5f);
    add_bpe(&writer, "gpt-2", true);
    add_fused_layer(&writer, TENSOR_Q4_0);
    add_fused_biases(&writer);
    add_matrix(&writer, "position_embd.weight", TENSOR_Q8_0, WIDTH, POSITIONS);
    write_gguf(folder, "seed-gpt2", &writer);

    add_shape(&writer, "mpt");
    gguf_writer_f32(&writer, "mpt.attention.layer_norm_epsilon", 1e-5f);
    gguf_writer_f32(&writer, "mpt.attention.max_alibi_bias", 8);
    gguf_writer_f32(&writer, "mpt.attention.clamp_kqv", 2);
    add_bpe(&writer, "mpt", true);
    add_fused_layer(&writer, TENSOR_Q8_0);
    write_gguf(folder, "seed-mpt", &writer);
}

/* Inputs that crashed once, made small. */
static void model_crashes(const char *folder) {
    struct gguf_writer writer;
    add_shape(&writer, "llama");
    add_bpe(&writer, NULL, true);
    write_gguf(folder, "crash-no-pretokenizer", &writer);

    writer = (struct gguf_writer){0};
    gguf_writer_string(&writer, "general.architecture", "\x1b[2J");
    write_gguf(folder, "crash-escape-in-message", &writer);

    add_shape(&writer, "llama");
    add_bpe(&writer, "default", false);
    add_layer(&writer, TENSOR_Q4_0);
    write_gguf(folder, "crash-no-eos", &writer);
}

/* ---- Codebooks ---------------------------------------------------------------------------------------------------------- */

static void write_codebook(const char *folder, const char *name, const struct codebook_info *info) {
    struct terse_codebook *codebook = NULL;
    struct terse_error error = {0};
    size_t size = 0;
    void *file = codebook_sample_new(info, &codebook, &error) == TERSE_OK ? codebook_sample_build(codebook, &size) : NULL;
    if (!file) fprintf(stderr, "%s\n", error.message);
    write_file(folder, name, file, size);
    memory_free(file);
    terse_codebook_free(codebook);
}

static void codebook_seeds(const char *folder) {
    struct codebook_info info = codebook_sample_info();
    write_codebook(folder, "seed-heads", &info);
    info.shared = true;
    info.kv_heads = 3;
    info.head_dim = 64;
    info.value = (struct coding){.codec = &codec_vq, .width = 4, .bits = 4};
    write_codebook(folder, "seed-shared", &info);
    info.key.codec = NULL;
    write_codebook(folder, "seed-values", &info);
    info = codebook_sample_info();
    info.layers = 1;
    info.value.codec = NULL;
    info.key = (struct coding){.codec = &codec_pq, .width = 2, .bits = 5};
    write_codebook(folder, "seed-keys", &info);
    info.key = (struct coding){.codec = &codec_gain_shape, .width = 16, .bits = 4};
    write_codebook(folder, "seed-frame", &info);
}

/* ---- Saved states ------------------------------------------------------------------------------------------------------- */

/* A prompt with and without a page of generated tokens behind it. */
static void state_seeds(const char *folder) {
    for (size_t i = 0; i < 2 * STATE_SAMPLES; i++) {
        char path[1024];
        struct terse_error error;
        struct cache *cache = state_sample_cache(i / 2);
        snprintf(path, sizeof path, "%s/seed-%zu", folder, i);
        bool good = state_sample_step(cache, CACHE_STEP_PREFILL, i % 2 ? 75 : 150) == TERSE_OK &&
                    (i % 2 == 0 || state_sample_step(cache, CACHE_STEP_DECODE, 40) == TERSE_OK) &&
                    state_sample_save(cache, i / 2, path, &error) == TERSE_OK;
        failures += !good;
        cache_destroy(cache);
    }
}

/* Writes the seed of the session that fuzz_state loads. */
static void session_seed(const char *folder) {
    struct terse_model *model = NULL;
    struct terse_engine *engine = NULL;
    struct terse_session *session = NULL;
    struct terse_session_options options = terse_session_options_defaults();
    const int32_t tokens[] = {5, 4, 3, 2, 1};
    char path[1024];
    options.cache.tail_tokens = 0;
    snprintf(path, sizeof path, "%s/seed-session", folder);
    failures += terse_model_load(TESTS_DIR "/fixtures/models/qwen3.gguf", &model, NULL) ||
                terse_engine_new(model, NULL, &engine, NULL) || terse_session_new(engine, &options, &session, NULL) ||
                terse_session_prefill(session, tokens, 5, NULL, NULL) || terse_session_save(session, path, NULL);
    terse_session_free(session);
    terse_engine_free(engine);
    terse_model_free(model);
}

/* ---- Texts --------------------------------------------------------------------------------------------------------------- */

/* A conversation in each format, and a template with one. */
static void chat_seeds(const char *folder) {
    static const char talk[] = "\002be brief\x1f"
                               "\004hello<|eot_id|> [INST]\x1f"
                               "\001<think>so</think>\n\nyes\x1f"
                               "\004why?\n";
    static const char template[] =
        "{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m['role'] }}<|im_end|>{% endfor %}\x1f";
    char seed[512], name[32];
    size_t formats = 0;
    while (terse_chat_format_name(formats)) formats++;
    for (size_t i = 0; i <= formats; i++) {
        size_t n = (size_t)snprintf(seed, sizeof seed, "%c%c%s%s", (char)(i % 4), (char)i, i == formats ? template : "", talk);
        snprintf(name, sizeof name, "seed-%zu", i);
        write_file(folder, name, seed, n);
    }
}

/* A text for each tokenizer. */
static void tokenizer_seeds(const char *folder) {
    static const char text[] =
        "..The caf\xc3\xa9's 1234 \xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e\n\n  <|eot_id|>[INST] and\xff\tTHE `x`";
    char seed[sizeof text], name[32];
    for (int i = 0; i < 17; i++) {
        memcpy(seed, text, sizeof text);
        seed[0] = (char)i;
        seed[1] = (char)(i % 4);
        snprintf(name, sizeof name, "seed-%d", i);
        write_file(folder, name, seed, sizeof seed - 1);
    }
}

int main(int argc, char **argv) {
    char folder[1000];
    if (argc != 2) {
        fprintf(stderr, "usage: make_seeds FOLDER\n");
        return 1;
    }
    mkdir(argv[1], 0777);
    snprintf(folder, sizeof folder, "%s/gguf", argv[1]);
    mkdir(folder, 0777);
    gguf_seeds(folder);
    snprintf(folder, sizeof folder, "%s/model", argv[1]);
    mkdir(folder, 0777);
    model_seeds(folder);
    model_crashes(folder);
    snprintf(folder, sizeof folder, "%s/codebook", argv[1]);
    mkdir(folder, 0777);
    codebook_seeds(folder);
    snprintf(folder, sizeof folder, "%s/state", argv[1]);
    mkdir(folder, 0777);
    state_seeds(folder);
    session_seed(folder);
    snprintf(folder, sizeof folder, "%s/chat", argv[1]);
    mkdir(folder, 0777);
    chat_seeds(folder);
    snprintf(folder, sizeof folder, "%s/tokenizer", argv[1]);
    mkdir(folder, 0777);
    tokenizer_seeds(folder);
    return failures != 0;
}
