/* Holds the table of architectures. */
#include "model/architecture.h"
#include "base/text.h"
#include "format/codebook.h"

#include <stdio.h>
#include <string.h>

/* "llama" is the architecture of GGUF files of LLaMA 2 and 3, Mistral, Mixtral and their like; its converters permute q and k to
 * adjacent pairs. */
static const struct architecture architectures[] = {
    {"llama", .rotary = true, .pairing = ROPE_ADJACENT, .qkv_bias = PRESENCE_OPTIONAL, .experts = PRESENCE_OPTIONAL},
    {"qwen2", .rotary = true, .pairing = ROPE_HALF_SPLIT, .qkv_bias = PRESENCE_REQUIRED},
    {"qwen3", .rotary = true, .pairing = ROPE_HALF_SPLIT, .qk_norm = PRESENCE_REQUIRED},
    {"qwen2moe", .rotary = true, .pairing = ROPE_HALF_SPLIT, .qkv_bias = PRESENCE_REQUIRED, .experts = PRESENCE_REQUIRED,
     .shared_expert = true, .shares_of_all = true},
    {"qwen3moe", .rotary = true, .pairing = ROPE_HALF_SPLIT, .qk_norm = PRESENCE_REQUIRED, .experts = PRESENCE_REQUIRED},
    {"qwen3next", .rotary = true, .pairing = ROPE_HALF_SPLIT, .qk_norm = PRESENCE_REQUIRED, .gated_heads = true,
     .late_norm_name = true, .experts = PRESENCE_REQUIRED, .shared_expert = true, .recurrent = true},
    {"qwen35", .rotary = true, .pairing = ROPE_HALF_SPLIT, .qk_norm = PRESENCE_REQUIRED, .gated_heads = true,
     .late_norm_name = true, .recurrent = true, .tiled_heads = true, .next_layers = true},
    {"qwen35moe", .rotary = true, .pairing = ROPE_HALF_SPLIT, .qk_norm = PRESENCE_REQUIRED, .gated_heads = true,
     .late_norm_name = true, .experts = PRESENCE_REQUIRED, .shared_expert = true, .recurrent = true, .tiled_heads = true,
     .next_layers = true},
    {"deepseek2", .rotary = true, .pairing = ROPE_ADJACENT, .latents = true, .experts = PRESENCE_OPTIONAL, .routing_in_file = true,
     .shares_of_all = true, .next_layers = true},
    {"gpt-oss", .activation = ACTIVATION_SWIGLU_CLAMPED, .rotary = true, .pairing = ROPE_HALF_SPLIT, .yarn_unrounded = true,
     .qkv_bias = PRESENCE_REQUIRED, .bias = PRESENCE_REQUIRED, .learned_sinks = true, .late_norm_name = true,
     .experts = PRESENCE_REQUIRED, .window_pattern = 2},
    {"gpt2", NORM_LAYER, ACTIVATION_GELU_TANH, .positions = PRESENCE_REQUIRED, .fused_qkv = true, .qkv_bias = PRESENCE_REQUIRED,
     .bias = PRESENCE_REQUIRED, .norm_bias = true},
    {"mpt", NORM_LAYER, ACTIVATION_GELU, .alibi = true, .positions = PRESENCE_OPTIONAL, .fused_qkv = true,
     .qkv_bias = PRESENCE_OPTIONAL, .bias = PRESENCE_OPTIONAL, .norm_bias = true},
    {"phi3", .rotary = true, .pairing = ROPE_HALF_SPLIT, .fused_qkv = true, .fused_gate = true},
    {"starcoder2", NORM_LAYER, ACTIVATION_GELU_TANH, .rotary = true, .pairing = ROPE_HALF_SPLIT, .qkv_bias = PRESENCE_OPTIONAL,
     .bias = PRESENCE_OPTIONAL, .norm_bias = true},
    {"command-r", NORM_LAYER, .rotary = true, .pairing = ROPE_ADJACENT, .parallel = true, .qk_norm = PRESENCE_OPTIONAL,
     .norm_by_head = true},
    {"gemma2", .activation = ACTIVATION_GEGLU, .rotary = true, .pairing = ROPE_HALF_SPLIT, .post_norms = true,
     .scaled_embedding = true, .window = 4096, .window_pattern = 2, .attention_cap = 50, .logit_cap = 30, .scaled_by_width = 46},
    {"gemma3", .activation = ACTIVATION_GEGLU, .rotary = true, .pairing = ROPE_HALF_SPLIT, .qk_norm = PRESENCE_REQUIRED,
     .post_norms = true, .scaled_embedding = true, .window_pattern = 6, .sliding_base = 10000, .scaled_by_width = 62},
};
enum { N_ARCHITECTURES = sizeof architectures / sizeof architectures[0] };

enum terse_status architecture_find(const struct gguf *gguf, const struct architecture **architecture, struct terse_error *error) {
    struct gguf_string name = {0};
    bool found = false;
    enum terse_status status = gguf_get_string(gguf, "general.architecture", &name, &found, error);
    if (status) return status;
    if (!found)
        return status_fail(error, TERSE_E_FORMAT,
                           "the file has no general.architecture: it is not a model; convert it again with a current converter");
    char known[320] = "";
    for (size_t i = 0; i < N_ARCHITECTURES; i++) {
        if (name.size == strlen(architectures[i].name) && !memcmp(name.data, architectures[i].name, name.size)) {
            *architecture = &architectures[i];
            return TERSE_OK;
        }
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", architectures[i].name);
    }
    if (name.size == strlen(CODEBOOK_ARCHITECTURE) && !memcmp(name.data, CODEBOOK_ARCHITECTURE, name.size))
        return status_fail(
            error, TERSE_E_UNSUPPORTED,
            "it is a codebook, not a model: give it as --codebook, and as the model the one that it was learned from");
    char shown[64];
    struct text_line line = text_line_begin(shown, sizeof shown);
    text_line_string(&line, name.data, name.size, true);
    text_line_end(&line);
    return status_fail(error, TERSE_E_UNSUPPORTED, "architecture %s is not supported; supported are %s", shown, known);
}
