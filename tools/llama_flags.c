/* docs/llama-cpp-users.md lists the same flags with the same reasons, and the same variables; tests/cli/cli_llama_flags.sh holds the two together. */
#include "llama_flags.h"

#include <stddef.h>
#include <string.h>

static const struct llama_flag flags[] = {
    {"-fa, --flash-attn", "on|off|auto|1|0", false, "attention never writes its matrix to memory"},
    {"--jinja", NULL, false, "chat templates are recognised, not run"},
    {"--no-jinja", NULL, false, "chat templates are recognised, not run"},
    {"-ub, --ubatch-size", "N", false, "a prompt's pieces are chosen by the engine"},
    {"-tb, --threads-batch", "N", false, "prompts are read with the threads of -t"},
    {"-cb, --cont-batching", NULL, false, "replies always share steps"},
    {"--metrics", NULL, false, "terse serve always has /metrics"},
    {"--slots", NULL, false, "terse serve always has /slots"},
    {"--no-context-shift", NULL, false, "a full context ends the text"},
    {"--keep", "N", false, "nothing is shifted out of a context; --kv streaming-N keeps the first 4 tokens"},
    {"--swa-full", NULL, false, "a layer that slides holds its window alone, and replies are the same"},
    {"--mmap", NULL, false, "files are mapped unless --no-mmap is given"},
    {"--no-escape", NULL, false, "escapes stay as they are unless -e is given"},
    {"--no-display-prompt", NULL, false, "the prompt is not written again"},
    {"--no-warmup", NULL, false, "there is no run to warm up"},
    {"--warmup", NULL, false, "there is no run to warm up"},
    {"--simple-io", NULL, false, "what is not a terminal is read by lines"},
    {"--offline", NULL, false, "nothing is downloaded"},
    {"-v, --verbose, --log-verbose", NULL, false, "there is no log: results go to stdout, progress and a summary to stderr"},
    {"-lv, --verbosity, --log-verbosity", "N", false, "there is no log"},
    {"--log-disable", NULL, false, "there is no log"},
    {"--log-colors", "on|off|auto", false, "there is no log"},
    {"--log-prefix", NULL, false, "there is no log"},
    {"--log-timestamps", NULL, false, "there is no log"},
    {"--perf", NULL, false, "the summary has the times"},
    {"--no-perf", NULL, false, "the summary has the times, on stderr: 2>/dev/null keeps it away"},
    {"--prio", "N", false, "the priority is that of the shell: nice terse ... lowers it"},
    {"--prio-batch", "N", false, "the priority is that of the shell: nice terse ... lowers it"},
    {"--poll", "N", false, "waiting threads are the engine's matter"},
    {"-dt, --defrag-thold", "N", false, "pages do not fragment"},

    {"-hf, -hfr, --hf-repo", "REPO", true, "terse downloads nothing: fetch a GGUF file of it yourself, and give it with -m FILE"},
    {"-mu, --model-url", "URL", true, "terse downloads nothing: fetch the GGUF file yourself, and give it with -m FILE"},
    {"-np, --parallel", "N", true, "one text is written at a time: terse serve takes -np"},
    {"-nocb, --no-cont-batching", NULL, true, "replies always share steps: -np 1 writes one at a time"},
    {"--context-shift", NULL, true, "a context is not shifted: --kv streaming-N writes without end"},
    {"-sm, --split-mode", "MODE", true, "a model is computed on one device: leave it out"},
    {"-ts, --tensor-split", "N,...", true, "a model is computed on one device: leave it out"},
    {"-mg, --main-gpu", "N", true, "a model is computed on one device: CUDA_VISIBLE_DEVICES=N chooses it"},
    {"--rope-freq-scale", "X", true, "say it the other way round: --rope-scale 1/X"},
    {"--log-file", "FILE", true, "there is no log: 2>FILE keeps what terse says"},
    {"--grammar", "TEXT", true, "there are no grammars: --json-schema asks for JSON"},
    {"--grammar-file", "FILE", true, "there are no grammars: --json-schema asks for JSON"},
    {"-md, --model-draft", "FILE", true, "there is no speculative decoding: leave it out"},
    {"--mirostat", "N", true, "there is no Mirostat sampling: --typical or --min-p choose by surprise, too"},
    {"--lora", "FILE", true, "adapters are not read: merge it into the model, and give that with -m"},
    {"-cml, --chatml", NULL, true, "say -cnv --chat-template chatml"},
};

const struct llama_flag *llama_flag_at(int i) { return i < (int)(sizeof flags / sizeof *flags) ? &flags[i] : NULL; }

static const struct llama_variable variables[] = {
    {"LLAMA_ARG_MODEL", "--model", "", NULL},
    {"LLAMA_ARG_CTX_SIZE", "--ctx-size", NULL, NULL},
    {"LLAMA_ARG_N_PREDICT", "--predict", NULL, NULL},
    {"LLAMA_ARG_THREADS", "--threads", NULL, NULL},
    {"LLAMA_ARG_BATCH", "--batch-size", NULL, NULL},
    {"LLAMA_ARG_N_GPU_LAYERS", "--n-gpu-layers", "--device", NULL},
    {"LLAMA_ARG_CACHE_TYPE_K", "--cache-type-k", "--kv", NULL},
    {"LLAMA_ARG_CACHE_TYPE_V", "--cache-type-v", "--kv", NULL},
    {"LLAMA_ARG_MLOCK", "--mlock", NULL, NULL},
    {"LLAMA_ARG_NO_MMAP", "--no-mmap", NULL, NULL},
    {"LLAMA_ARG_ROPE_SCALING_TYPE", "--rope-scaling", NULL, NULL},
    {"LLAMA_ARG_ROPE_SCALE", "--rope-scale", NULL, NULL},
    {"LLAMA_ARG_ROPE_FREQ_BASE", "--rope-freq-base", NULL, NULL},
    {"LLAMA_ARG_TEMPERATURE", "--temp", NULL, NULL},
    {"LLAMA_ARG_TOP_K", "--top-k", NULL, NULL},
    {"LLAMA_ARG_TOP_P", "--top-p", NULL, NULL},
    {"LLAMA_ARG_MIN_P", "--min-p", NULL, NULL},
    {"LLAMA_ARG_REPEAT_PENALTY", "--repeat-penalty", NULL, NULL},
    {"LLAMA_ARG_PRESENCE_PENALTY", "--presence-penalty", NULL, NULL},
    {"LLAMA_ARG_FREQUENCY_PENALTY", "--frequency-penalty", NULL, NULL},
    {"LLAMA_ARG_CHAT_TEMPLATE", "--chat-template", "--chat-template-file", "--chat,--conversation"},
    {"LLAMA_ARG_HOST", "--host", NULL, NULL},
    {"LLAMA_ARG_PORT", "--port", NULL, NULL},
    {"LLAMA_ARG_N_PARALLEL", "--parallel", NULL, NULL},
    {"LLAMA_ARG_ALIAS", "--alias", NULL, NULL},
    {"LLAMA_ARG_TIMEOUT", "--timeout", NULL, NULL},
    {"LLAMA_API_KEY", "--api-key", NULL, NULL},
    {"LLAMA_ARG_API_KEY_FILE", "--api-key-file", NULL, NULL},
    {"LLAMA_ARG_SLOT_SAVE_PATH", "--slot-save-path", NULL, NULL},
};

const struct llama_variable *llama_variable_at(int i) {
    return i < (int)(sizeof variables / sizeof *variables) ? &variables[i] : NULL;
}

const char *llama_template_name(const char *name) {
    static const char *const names[][2] = {
        {"llama2", "llama-2"}, {"llama2-sys", "llama-2"},      {"llama3", "llama-3"},        {"phi3", "phi-3"},
        {"phi4", "phi-4"},     {"deepseek", "deepseek-coder"}, {"deepseek2", "deepseek-v2"}, {"deepseek3", "deepseek-v3"},
    };
    for (size_t i = 0; name && i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i][0]) == 0) return names[i][1];
    return name;
}
