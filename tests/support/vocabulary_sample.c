#include "support/vocabulary_sample.h"

#include <stdio.h>
#include <string.h>

#define BAR "\xef\xbd\x9c"
#define SPACE "\xe2\x96\x81"

const char *const vocabulary_sample_marks[VOCABULARY_SAMPLE_MARKS] = {
    "<s>", "</s>", "<unk>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|im_start|>", "<|im_end|>", "<|im_sep|>",
    "<start_of_turn>", "<end_of_turn>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|START_OF_TURN_TOKEN|>",
    "<|END_OF_TURN_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|start|>", "<|message|>", "<|channel|>",
    "<|return|>", "<|call|>", "<" BAR "User" BAR ">", "<" BAR "Assistant" BAR ">", "<|EOT|>", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "<<SYS>>", "<</SYS>>", "### Instruction:", "### Response:", "User:", "Assistant:",
    /* user-defined */
    "[INST]", "[/INST]", "<think>", "</think>", "system", "developer", "assistantfinal", "<|im_", "<tool>"};

static const char *const pairs[] = {"t h",
                                    "i n",
                                    "th e",
                                    "a n",
                                    "an d",
                                    "1 2",
                                    "12 3",
                                    "\xc4\xa0 t",
                                    "\xc4\xa0t h",
                                    "\xc4\xa0th e",
                                    "\xc4\xa0 \xc4\xa0",
                                    "\xc4\xa0\xc4\xa0 \xc4\xa0\xc4\xa0",
                                    "\xc4\x8a \xc4\x8a",
                                    "' s",
                                    "\xc3\x83 \xc2\xa9",
                                    "e r",
                                    "< |",
                                    "| >",
                                    "< s",
                                    "<s >"};
enum { N_PAIRS = sizeof pairs / sizeof *pairs };

static void write_ids(struct gguf_writer *w) {
    gguf_writer_u32(w, "tokenizer.ggml.bos_token_id", VOCABULARY_SAMPLE_BOS);
    gguf_writer_u32(w, "tokenizer.ggml.eos_token_id", VOCABULARY_SAMPLE_EOS);
    gguf_writer_u32(w, "tokenizer.ggml.unknown_token_id", VOCABULARY_SAMPLE_UNKNOWN);
    gguf_writer_bool(w, "tokenizer.ggml.add_bos_token", true);
}

static int32_t type_of_mark(int i) { return i == VOCABULARY_SAMPLE_UNKNOWN ? 2 : i >= VOCABULARY_SAMPLE_USER_DEFINED ? 4 : 3; }

void vocabulary_sample_bpe(struct gguf_writer *writer, const char *pre) {
    enum { N = VOCABULARY_SAMPLE_MARKS + 256 + N_PAIRS };
    static char made[N_PAIRS][16];
    const char *texts[N];
    int32_t types[N];
    int n = 0;
    byte_letters_fill();
    for (; n < VOCABULARY_SAMPLE_MARKS; n++) {
        texts[n] = vocabulary_sample_marks[n];
        types[n] = type_of_mark(n);
    }
    for (int i = 0; i < 256; i++, n++) {
        texts[n] = byte_letters[i];
        types[n] = 1;
    }
    for (int i = 0; i < N_PAIRS; i++) {
        const char *space = strchr(pairs[i] + 1, ' ');
        snprintf(made[i], sizeof made[i], "%.*s%s", (int)(space - pairs[i]), pairs[i], space + 1);
        if (strcmp(made[i], "<s>") == 0) continue; /* merges to a control token, which text never gives */
        texts[n] = made[i];
        types[n++] = 1;
    }
    gguf_writer_string(writer, "tokenizer.ggml.model", "gpt2");
    gguf_writer_string(writer, "tokenizer.ggml.pre", pre);
    gguf_writer_strings(writer, "tokenizer.ggml.tokens", (uint64_t)n, texts);
    gguf_writer_array(writer, "tokenizer.ggml.token_type", GGUF_I32, (uint64_t)n, types);
    gguf_writer_strings(writer, "tokenizer.ggml.merges", N_PAIRS, pairs);
    write_ids(writer);
}

void vocabulary_sample_spm(struct gguf_writer *writer, unsigned flags) {
    static const char *const words[] = {
        "t",       "h",       "e",         "a",        "n",        "d",         "s",         SPACE,
        SPACE "t", SPACE "a", "th",        "the",      SPACE "th", SPACE "the", SPACE SPACE, SPACE SPACE SPACE SPACE,
        "an",      "and",     SPACE "and", "\xc3\xa9", "<s",       "|>"};
    static const char *const runs[] = {"  ", "   ", "    ", "\n", "\n\n"};
    enum {
        N_WORDS = sizeof words / sizeof *words,
        N_RUNS = sizeof runs / sizeof *runs,
        N = VOCABULARY_SAMPLE_MARKS + 256 + N_WORDS + N_RUNS + 1
    };
    static char bytes[256][8];
    const char *texts[N];
    int32_t types[N];
    float scores[N];
    int n = 0;
    for (; n < VOCABULARY_SAMPLE_MARKS; n++) {
        texts[n] = vocabulary_sample_marks[n];
        types[n] = type_of_mark(n);
    }
    for (int i = 0; i < 256 && !(flags & SPM_NO_BYTES); i++, n++) {
        snprintf(bytes[i], sizeof bytes[i], "<0x%02X>", (unsigned)i);
        texts[n] = bytes[i];
        types[n] = 6;
    }
    for (int i = 0; i < N_WORDS; i++, n++) {
        texts[n] = words[i];
        types[n] = 1;
    }
    for (int i = 0; i < N_RUNS && flags & SPM_SPACE_RUNS; i++, n++) {
        texts[n] = runs[i];
        types[n] = 4;
    }
    if (flags & SPM_INNER_SPACES) {
        texts[n] = "e" SPACE "a";
        types[n++] = 1;
    }
    for (int i = 0; i < n; i++) scores[i] = (float)(i % 7);
    gguf_writer_string(writer, "tokenizer.ggml.model", "llama");
    gguf_writer_strings(writer, "tokenizer.ggml.tokens", (uint64_t)n, texts);
    gguf_writer_array(writer, "tokenizer.ggml.token_type", GGUF_I32, (uint64_t)n, types);
    gguf_writer_array(writer, "tokenizer.ggml.scores", GGUF_F32, (uint64_t)n, scores);
    gguf_writer_bool(writer, "tokenizer.ggml.add_space_prefix", flags & SPM_SPACE_PREFIX);
    write_ids(writer);
}
