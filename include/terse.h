/* terse: long-context language-model inference with a compressed KV cache.
 *
 * An application needs this header; terse_calibrate.h learns codebooks, terse_gguf.h inspects GGUF files.
 *
 * Errors.   Every call that can fail returns `enum terse_status` and describes the failure in the caller's `struct terse_error`
 *           (which may be NULL, and is written by failures only). Output pointers are NULL after a failure. The library never
 *           prints, exits or aborts. Arguments that may be NULL are marked so.
 * Memory.   The `..._free` call of a noun releases the objects that its `..._new`, `..._load` or `..._open` call returns; it
 *           accepts NULL. Pointers returned as `const` belong to the object they came from.
 * Options.  Structs of options begin with their size and are made by their `..._defaults()`; then change what you need.
 * Threads.  Any number of threads and engines may share a model, which is immutable. An engine owns the threads that compute; one
 *           thread at a time may use it and all of its sessions (but for terse_session_cancel and _save), a detokenizer or a gguf.
 * Strings.  They are UTF-8, zero-terminated unless a length is given. */
#ifndef TERSE_H
#define TERSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(TERSE_BUILDING_LIBRARY) && defined(__GNUC__)
#define TERSE_API __attribute__((visibility("default")))
#else
#define TERSE_API
#endif

/* ---- Version, status, progress ------------------------------------------------------------------------------------------ */
#define TERSE_VERSION_MAJOR 0
#define TERSE_VERSION_MINOR 1
#define TERSE_VERSION_PATCH 0
TERSE_API const char *terse_version(void); /* "0.1.0" */
enum terse_status {
    TERSE_OK = 0,
    TERSE_E_ARGUMENT,    /* an argument is out of range or contradicts another */
    TERSE_E_IO,          /* a file could not be opened, read or written */
    TERSE_E_FORMAT,      /* a file is not what it claims to be: truncated, inconsistent, hostile */
    TERSE_E_UNSUPPORTED, /* a well-formed file asks for what terse cannot do */
    TERSE_E_MEMORY,      /* the system refused memory, or an engine's budget is spent */
    TERSE_E_CONTEXT,     /* more tokens than the session's context holds */
    TERSE_E_INTERRUPTED  /* a progress callback or terse_session_cancel asked to stop */
};
#define TERSE_NO_OFFSET UINT64_MAX
struct terse_error {
    enum terse_status code;
    uint64_t offset;   /* byte offset in the file the message speaks of, or TERSE_NO_OFFSET */
    char message[512]; /* one line: what is wrong, where, and what to do about it */
};
TERSE_API const char *terse_status_name(enum terse_status status); /* "TERSE_E_FORMAT" and so on; never NULL */

/* `report` is called during long work, up to thousands of times a second, on the caller's thread. `what` names the stage; done <=
 * total, in a unit of the stage (of a prompt, tokens times layers). Return false to stop the work with TERSE_E_INTERRUPTED. */
struct terse_progress {
    bool (*report)(void *user, const char *what, uint64_t done, uint64_t total); /* NULL: no reports */
    void *user;
};
/* Returns the kernels' instruction set: "scalar", "avx2", "avxvnni", "avx512" or "neon". The environment variable TERSE_CPU, read
 * once, may lower it; loading a model fails where it names one that the processor lacks. */
TERSE_API const char *terse_cpu_name(void);

/* ---- Model ------------------------------------------------------------------------------------------------------------- */
struct terse_model;
struct terse_model_info {
    const char *architecture; /* "llama", "qwen2", ... */
    const char *name;         /* general.name, or "" */
    const char *weights;      /* the file's mixture of types, "Q4_K_M", or the type of most weight bytes, "Q8_0" */
    uint32_t layers;
    uint32_t width;       /* hidden size */
    uint32_t query_heads; /* per layer */
    uint32_t kv_heads;    /* per layer */
    uint32_t head_dim;
    uint32_t feed_forward;                   /* of an expert, where there are any: the widest */
    uint32_t experts, experts_used;          /* of a layer, and of them those that a token goes through; 0: a layer has none */
    uint32_t vocabulary, merges;             /* merges of byte-level BPE; 0: other tokenizers have none */
    uint32_t context;                        /* tokens the model was trained for */
    uint32_t sliding_layers, sliding_window; /* layers whose queries see so many newest tokens alone, their own included; 0: none */
    uint32_t recurrent_layers;               /* layers that have a state of fixed size in place of keys and values: */
    uint32_t attention_interval;             /* all but every so many-th; 0: none */
    uint32_t latent;     /* channels of latents that keys end with, which are the values (latent attention); 0: there are none */
    uint64_t parameters; /* elements of all tensors */
    uint64_t bytes;      /* of all tensors as stored */
    uint64_t
        embedding_bytes; /* of them those of token embeddings of which steps read rows alone; 0: the output's weights are the same */
    uint64_t fingerprint;       /* tells models apart that look alike: of the shape and of samples of every tensor */
    uint64_t norms_fingerprint; /* of the shape and of norms and biases: the same whatever the other weights' quantization */
};
/* Loads a GGUF model; of one split into parts (NAME-00001-of-00003.gguf), which lie side by side, give the first. Files are
 * memory-mapped and must not change while the model lives. */
TERSE_API enum terse_status terse_model_load(const char *path, struct terse_model **model, struct terse_error *error);
/* Loads a model from data[size] in memory, which is 32-byte aligned, unchanged and outlives it. `name` is the path in messages. */
TERSE_API enum terse_status terse_model_load_memory(const void *data, size_t size, const char *name, struct terse_model **model,
                                                    struct terse_error *error);

/* These options replace the RoPE parameters of the model's file. A model that rotates otherwise counts as another model, with other
 * fingerprints. TERSE_E_ARGUMENT: a name or number that is impossible, or a model without RoPE. */
struct terse_model_options {
    size_t size;              /* of this struct: set by terse_model_options_defaults */
    const char *rope_scaling; /* "none", "linear" or "yarn"; NULL: the file's */
    float rope_scale;         /* how many times longer than trained, 1 and up; 0: the file's */
    float rope_freq_base;     /* above 1; 0: the file's. Not of sliding layers that have a base of their own */
};
TERSE_API struct terse_model_options terse_model_options_defaults(void);
/* These do the same as terse_model_load and terse_model_load_memory, with options. */
TERSE_API enum terse_status terse_model_load_with(const char *path, const struct terse_model_options *options,
                                                  struct terse_model **model, struct terse_error *error);
TERSE_API enum terse_status terse_model_load_memory_with(const void *data, size_t size, const char *name,
                                                         const struct terse_model_options *options, struct terse_model **model,
                                                         struct terse_error *error);
TERSE_API void terse_model_free(struct terse_model *model);
TERSE_API void terse_model_describe(const struct terse_model *model, struct terse_model_info *info);

/* ---- Text and tokens --------------------------------------------------------------------------------------------------- */
enum terse_tokenize_flags {
    TERSE_TOKENIZE_PLAIN = 0,
    TERSE_TOKENIZE_ADD_SPECIAL = 1,  /* add BOS and EOS where the model's file says so */
    TERSE_TOKENIZE_PARSE_SPECIAL = 2 /* "<|eot_id|>" in the text is the special token, not its letters */
};
/* Writes the tokens of text[n_bytes] to tokens[capacity] and their number to *n_tokens; `flags` is a sum. `2 * n_bytes + 4` always
 * suffices, `n_bytes + 4` unless the vocabulary has special tokens of one byte. Where `capacity` is too small: TERSE_E_ARGUMENT,
 * nothing written, *n_tokens is the number needed. Texts above 2^30 bytes are refused; what is not UTF-8 is tokenized as bytes. */
TERSE_API enum terse_status terse_tokenize(const struct terse_model *model, const char *text, size_t n_bytes, unsigned flags,
                                           int32_t *tokens, size_t capacity, size_t *n_tokens, struct terse_error *error);
TERSE_API bool terse_token_ends(const struct terse_model *model, int32_t token); /* a reply: EOS, EOT and the like */
/* Returns the model's BOS token, or -1; writes to *added (may be NULL) whether the file asks for it before each text. */
TERSE_API int32_t terse_token_bos(const struct terse_model *model, bool *added);
/* Marks of a prompt whose reply goes between two texts (fill in the middle): each part follows its mark. */
enum terse_fim_mark {
    TERSE_FIM_PREFIX,
    TERSE_FIM_SUFFIX,
    TERSE_FIM_MIDDLE,     /* where the reply begins */
    TERSE_FIM_REPOSITORY, /* a name, before other files */
    TERSE_FIM_FILE        /* a name and the text of a file */
};
/* Returns the model's token for it, or -1. The last two also end a reply (terse_token_ends). */
TERSE_API int32_t terse_token_fim(const struct terse_model *model, enum terse_fim_mark mark);
/* Returns [*n_bytes] of one token, special tokens as letters, perhaps a part of a character, not zero-terminated; owned by the
 * model. */
TERSE_API const char *terse_token_bytes(const struct terse_model *model, int32_t token, size_t *n_bytes);

struct terse_detokenizer; /* turns a stream of tokens into text without ever cutting a UTF-8 character */
/* `show_special`: special tokens are text as well ("<|eot_id|>") instead of nothing. */
TERSE_API enum terse_status terse_detokenizer_new(const struct terse_model *model, bool show_special,
                                                  struct terse_detokenizer **detokenizer, struct terse_error *error);
TERSE_API void terse_detokenizer_free(struct terse_detokenizer *detokenizer);
/* Returns the whole characters that `token` completes: [*n_bytes], zero-terminated, NULL for 0; valid until the next call. */
TERSE_API const char *terse_detokenizer_push(struct terse_detokenizer *detokenizer, int32_t token, size_t *n_bytes);
/* Returns the rest of the text, an unfinished character as U+FFFD; the detokenizer may then begin a new stream. */
TERSE_API const char *terse_detokenizer_finish(struct terse_detokenizer *detokenizer, size_t *n_bytes);

struct terse_stop; /* ends a text before the first of some strings, which may lie across tokens */
/* Copies strings[n], none of them empty. */
TERSE_API enum terse_status terse_stop_new(const char *const *strings, size_t n, struct terse_stop **stop,
                                           struct terse_error *error);
TERSE_API void terse_stop_free(struct terse_stop *stop);
/* Takes text[n_bytes] more. (*out)[*n_out], valid until the next call, can no longer be part of a stop string; once *stopped, it
 * ends before that string, and later text is dropped. */
TERSE_API enum terse_status terse_stop_push(struct terse_stop *stop, const char *text, size_t n_bytes, const char **out,
                                            size_t *n_out, bool *stopped, struct terse_error *error);
/* Returns the text that was held back, for a text that ends without a stop string; a new text may then begin. */
TERSE_API const char *terse_stop_finish(struct terse_stop *stop, size_t *n_out);

struct terse_message {
    const char *role; /* "system", "user", "assistant", "tool": what a tool that the assistant called has returned */
    const char *content;
};
/* Tokenizes a conversation in the model's chat format, with BOS where the format has it. Only the format's own special tokens are
 * special: contents of messages are text, "<|eot_id|>" too. `format` is one of terse_chat_format_name, or NULL to recognise the
 * model's own template; an unknown one is TERSE_E_UNSUPPORTED. In the model's own format a conversation without a system message
 * gets the template's, if that is a literal text; a system message without text prevents it. `after`: only what follows the content
 * of the after-th message, which a session has read; 0: all. `open_reply` ends where the assistant speaks next, or right behind its
 * own last message, white space and thoughts included, which goes on. *tokens is released by terse_tokens_free. */
TERSE_API enum terse_status terse_chat_tokenize(const struct terse_model *model, const char *format,
                                                const struct terse_message *messages, size_t n_messages, size_t after,
                                                bool open_reply, int32_t **tokens, size_t *n_tokens, struct terse_error *error);
TERSE_API void terse_tokens_free(int32_t *tokens);
/* Renders the same conversation, all of it, as text for people; *text is released by terse_string_free. */
TERSE_API enum terse_status terse_chat_render(const struct terse_model *model, const char *format,
                                              const struct terse_message *messages, size_t n_messages, bool open_reply, char **text,
                                              struct terse_error *error);
TERSE_API const char *terse_chat_format_name(size_t i); /* i = 0, 1, ...: "llama-3", "chatml", ...; NULL past the last */
TERSE_API void terse_string_free(char *string);

enum terse_thinking {
    TERSE_THINKING_USUAL, /* as the format or its template has it */
    TERSE_THINKING_OFF,   /* TERSE_E_UNSUPPORTED where the model always thinks */
    TERSE_THINKING_ON     /* TERSE_E_UNSUPPORTED where the format has no thoughts */
};
/* These options say how a conversation is written. Tools are functions that the assistant may call. */
struct terse_chat_options {
    size_t size;               /* of this struct: set by terse_chat_options_defaults */
    const char *format;        /* as of terse_chat_tokenize; NULL, the default: the model's own */
    const char *template_text; /* a Jinja template in the place of the model's own; NULL, the default: that */
    size_t after;              /* the same; default 0. Not of terse_chat_render_with */
    bool open_reply;           /* the same; default true. Behind a message with tool calls another begins */
    const char *tools; /* a JSON array as OpenAI's `tools`: {"type": "function", "function": {"name": ..., ...}}; NULL: none */
    /* [n_messages] or NULL: what each message of the assistant calls, a JSON array as OpenAI's `tool_calls`; an entry NULL: nothing. */
    const char *const *tool_calls;
    bool open_call; /* the open reply begins as a tool call, as far as a call begins before its name. Needs tools */
    /* [n_messages] or NULL: of a message of the role "tool" the id of the call that it answers; an entry NULL: it is the next one of the calls before. */
    const char *const *tool_call_ids;
    /* [n_messages] or NULL: what the assistant has thought before it said or called what the message has. The format leaves out what its
     * template does, most often all thoughts before the last question. */
    const char *const *thoughts;
    bool bare_reply; /* of an open reply only what later conversations have where it stands: marks of thoughts are left out */
    enum terse_thinking thinking; /* of the reply; default TERSE_THINKING_USUAL */
    const char
        *effort; /* "low", "medium" or "high": how much gpt-oss thinks; NULL, the default: "medium". Other formats have none */
};
TERSE_API struct terse_chat_options terse_chat_options_defaults(void);
/* These do the same as terse_chat_tokenize and terse_chat_render, with tools, tool calls and messages of the role "tool", which are
 * written as the model's template writes them. TERSE_E_UNSUPPORTED: the format, or the model's template, has no tools, or takes one call a
 * message; TERSE_E_ARGUMENT: JSON that is none, or is not as it shall be. */
TERSE_API enum terse_status terse_chat_tokenize_with(const struct terse_model *model, const struct terse_chat_options *options,
                                                     const struct terse_message *messages, size_t n_messages, int32_t **tokens,
                                                     size_t *n_tokens, struct terse_error *error);
TERSE_API enum terse_status terse_chat_render_with(const struct terse_model *model, const struct terse_chat_options *options,
                                                   const struct terse_message *messages, size_t n_messages, char **text,
                                                   struct terse_error *error);
struct terse_tool_call {
    const char *name;
    const char *arguments; /* a JSON object, as the reply wrote it */
};

/* A reply reader takes the text of a reply apart: what the model thinks, what it says, what it calls. */
struct terse_reply_reader;
struct terse_reply_piece {
    const char *text; /* [n_text] what the reply says; white space around thoughts and calls is left out. A broken call is text */
    size_t n_text;
    const char *thoughts; /* [n_thoughts] */
    size_t n_thoughts;
};
/* Makes a reader of the reply to a conversation that was written with these options. Without tools, calls are text. */
TERSE_API enum terse_status terse_reply_reader_new(const struct terse_model *model, const struct terse_chat_options *options,
                                                   struct terse_reply_reader **reader, struct terse_error *error);
TERSE_API void terse_reply_reader_free(struct terse_reply_reader *reader);
/* Takes text[n_bytes] more of the reply, as a detokenizer made for replies shows it. *piece, valid until the next call, is what can no longer be a
 * part of something else. */
TERSE_API enum terse_status terse_reply_reader_push(struct terse_reply_reader *reader, const char *text, size_t n_bytes,
                                                    struct terse_reply_piece *piece, struct terse_error *error);
/* Ends the reply, which also ends a whole call: does the same for the text that was held back. */
TERSE_API enum terse_status terse_reply_reader_finish(struct terse_reply_reader *reader, struct terse_reply_piece *piece,
                                                      struct terse_error *error);
/* Returns the calls[*n] that were found so far, in order; valid until the next push or finish, what they point to until the reader
 * is freed. */
TERSE_API const struct terse_tool_call *terse_reply_reader_calls(const struct terse_reply_reader *reader, size_t *n);
/* Makes a detokenizer as terse_detokenizer_new does, which of the special tokens shows those by which a reply reader tells things apart. */
TERSE_API enum terse_status terse_detokenizer_new_for_reply(const struct terse_model *model,
                                                            const struct terse_chat_options *options,
                                                            struct terse_detokenizer **detokenizer, struct terse_error *error);

/* ---- Cache ------------------------------------------------------------------------------------------------------------- */
#define TERSE_TAIL_DEFAULT UINT32_MAX
#define TERSE_SHALLOW_DEFAULT UINT32_MAX

/* The cache options say how the KV cache is kept. A method names a key codec, a value codec and a policy. */

/* Anchors are the tokens of a prompt with the highest scores: the attention that they get, times their quantization error. */
enum terse_anchor_score {
    TERSE_ANCHORS_SQUARED, /* the error is the squared L2 norm */
    TERSE_ANCHORS_L1,      /* the error is the L1 norm, as in AnTKV's theorem 3.1 */
    TERSE_ANCHORS_RANDOM   /* scores are random numbers: what anchors are worth is measured against this */
};

#define TERSE_FIRST_NONE UINT32_MAX
struct terse_cache_options {
    size_t size; /* of this struct: set by terse_cache_options_defaults */
    /* A name from terse_method_describe, with numbers for N, K or M: "f16", "q8_0", "antkv-1", "streaming-512"; NULL: "f16". */
    const char *method;
    /* Codecs of keys and of values: "f16", "q8_0", "q4_0", "kivi-4", "kivi-2" or "terse-N" (0.25 to 8 bits); NULL: the method's. */
    const char *key_type, *value_type;
    /* Newest tokens kept exact beside the sealed pages, at least: up to 63 more wait until they fill a page. TERSE_TAIL_DEFAULT:
     * the method's number (0 for f16, 128 for quantized codecs). Where pages hold codes, the first tokens are exact too. */
    uint32_t tail_tokens;
    /* Part of a prompt's tokens that stay exact; negative: the method's own (antkv: 1). A count not 0 is a number instead. */
    double anchor_percent;
    uint32_t anchor_count;
    /* Part of a prompt's tokens that a step reads, chosen by an index (terse-N: by the codes), with any method that keeps all
     * tokens; not above 0: the method's own (selfindex: 7.5; quest: its K; others read all). A count not 0 is a number instead. */
    double read_percent;
    uint32_t read_count;
    /* An evicting method, "mat-1024", "snapkv-1024" or "streaming-512", that chooses tokens for these codecs; NULL: its own. */
    const char *evict;
    uint32_t mat_anchors; /* mat: tokens that are kept beside the newest, token 0 among them; 0: 64, at most a quarter of all */
    uint32_t mat_shallow; /* mat: first layers that keep sinks instead; TERSE_SHALLOW_DEFAULT: 2 */
    /* For methods that learn, others ignore it; it must outlive the session. NULL: terse-N starts from what the model's weights
     * imply, which its engine computes once for all sessions; other methods are refused. */
    const struct terse_codebook *codebook;
    /* Of terse-N: where kv_budget has no room, the oldest pages are encoded again in fewer bits per value, by steps from N down to so
     * many (0.25 to N), before anything is refused; 0: pages stay as they are. */
    double least_rate;
    /* First tokens that stay exact beside pages of codes, of methods that keep all tokens; 0: 4; TERSE_FIRST_NONE: none. */
    uint32_t first_tokens;
    enum terse_anchor_score anchor_score;
};
/* terse-N fits itself to TERSE_FIT_TOKENS first tokens of a sequence, and in an exact prefill that brings TERSE_FIT_TOKENS_MOST to
 * these, unless kv_budget has no room for them. Without a codebook it compresses nothing before; with one it waits for them only in a
 * prompt that has as many, and goes by the codebook otherwise. So a cache takes more bytes at these lengths than at somewhat larger
 * ones; terse_cache_peak says what a budget must allow. */
#define TERSE_FIT_TOKENS 2052
#define TERSE_FIT_TOKENS_MOST 4036
TERSE_API struct terse_cache_options terse_cache_options_defaults(void);

/* Describes the i-th method, i = 0, 1, ...; returns false past the last. `name` is a pattern such as "streaming-N". */
struct terse_method_info {
    const char *name;
    const char *summary; /* one line */
    bool learns;         /* takes a codebook, which all but terse-N need */
};
TERSE_API bool terse_method_describe(size_t i, struct terse_method_info *info);
/* Writes to name[capacity] which codebook such caches need: "antkv-1", "terse" (for every terse-N), or "". TERSE_E_ARGUMENT: bad
 * names. */
TERSE_API enum terse_status terse_cache_codebook(const struct terse_cache_options *options, char *name, size_t capacity,
                                                 struct terse_error *error);

#define TERSE_RATES 9
/* A report counts bytes of one sequence's cache; resident = codes + exact + window + tables. Pages that sessions share
 * (terse_session_fork) count in each of them, but lie in memory once. */
struct terse_cache_report {
    uint64_t tokens;                   /* tokens seen by the sequence */
    uint64_t kept;                     /* tokens still readable, per layer and KV head (the largest) */
    uint64_t resident;                 /* bytes allocated for keys and values, and recurrent states, of all layers */
    uint64_t codes;                    /* sealed pages */
    uint64_t shared;                   /* of codes: pages that other sessions hold too */
    uint64_t exact;                    /* exact tokens */
    uint64_t window;                   /* recent window */
    uint64_t tables;                   /* page sets, positions, the policy's state */
    uint64_t codebook;                 /* memory of the codebook, shared by all sessions that use it: not a part of resident */
    uint64_t recurrent;                /* states of recurrent layers: the sequence's, and at most 8 that it can go back to */
    double bits_per_value;             /* resident * 8 / (values of all tokens seen) */
    uint32_t n_rates;                  /* at which pages are held where there is a least_rate; else 0 */
    float rates[TERSE_RATES];          /* bits per value, falling */
    uint64_t rate_tokens[TERSE_RATES]; /* tokens in sealed pages of each rate */
};
/* Computes what a cache of `tokens` tokens will allocate, before it does: the report of terse_session_cache after a prefill of as
 * many, on an engine of this device. Bytes grow with tokens, except as TERSE_FIT_TOKENS says. A session that generates holds more:
 * pages for tokens that wait in the window, and pages ahead, a 32nd of the cache's, at most 16 of each layer, KV head and side. */
TERSE_API enum terse_status terse_cache_bytes(const struct terse_model *model, const char *device,
                                              const struct terse_cache_options *options, uint64_t tokens,
                                              struct terse_cache_report *report, struct terse_error *error);

/* ---- Codebooks ---------------------------------------------------------------------------------------------------------- */
/* A rate's cost says how far a terse-N cache moves the probabilities of the next token from those with an f16 cache. */
struct terse_rate_cost {
    float bits;       /* N of terse-N */
    float divergence; /* mean KL divergence from f16's probabilities, nats */
    float error;      /* its standard error */
};
#define TERSE_RATE_COSTS 8 /* that a codebook has at most */

/* A codebook holds what a method learned about a model. It is immutable; any number of threads and sessions may share it. */
struct terse_codebook_info {
    const char *method;    /* "antkv-1" */
    const char *model;     /* general.name of the model it was learned from */
    const char *corpus;    /* the name of the text */
    const char *weighting; /* of the samples: "none", ... */
    uint64_t fingerprint;  /* of the model: its norms_fingerprint where of_norms, else its fingerprint */
    bool of_norms;         /* serves the model whatever its weights' quantization, as all do that terse_calibrate makes */
    bool profile;          /* of terse-N: serves every N */
    uint64_t tokens;       /* of the text that were looked at */
    uint64_t seed;
    bool shared;              /* one set of centroids for all layers and KV heads */
    double effective_samples; /* as many unweighted samples would have said as much, mean over all sub-vectors; 0: unknown */
    uint64_t bytes;           /* of memory */
    /* Of a profile: what was measured (terse_codebook_set_rate_costs), from the most bits to the fewest; owned by the codebook. */
    const struct terse_rate_cost *costs;
    size_t n_costs;           /* 0: nothing was measured */
    const char *costs_corpus; /* the name of the text */
    uint64_t costs_positions; /* of the text that were scored */
};
/* Loads a codebook file (docs/codebook-format.md). Making a session checks that it fits the model and the method. */
TERSE_API enum terse_status terse_codebook_load(const char *path, struct terse_codebook **codebook, struct terse_error *error);
/* Loads a codebook from memory, which need not be aligned or stay. `name` is the path in messages. */
TERSE_API enum terse_status terse_codebook_load_memory(const void *data, size_t size, const char *name,
                                                       struct terse_codebook **codebook, struct terse_error *error);
/* Writes a codebook file. It takes its place when it is whole; on failure the old file stays. */
TERSE_API enum terse_status terse_codebook_save(const struct terse_codebook *codebook, const char *path, struct terse_error *error);
TERSE_API void terse_codebook_free(struct terse_codebook *codebook);
TERSE_API void terse_codebook_describe(const struct terse_codebook *codebook, struct terse_codebook_info *info);
/* Notes in a profile what rates cost on its model, measured over `positions` positions of a text: costs[n], n <= TERSE_RATE_COSTS,
 * in falling order of bits. It is the only change of a codebook: no other thread may use it meanwhile. Sessions, states and codes
 * do not depend on it. TERSE_E_ARGUMENT: not a profile, or impossible costs. */
TERSE_API enum terse_status terse_codebook_set_rate_costs(struct terse_codebook *codebook, const struct terse_rate_cost *costs,
                                                          size_t n, const char *corpus, uint64_t positions,
                                                          struct terse_error *error);

/* ---- Engine ------------------------------------------------------------------------------------------------------------ */
struct terse_engine; /* one model on one backend, with the threads that compute it; makes any number of sessions */

struct terse_engine_options {
    size_t size;       /* of this struct: set by terse_engine_options_defaults */
    uint32_t threads;  /* 0: one per processor, with over_ranks of those that are this rank's; at most 1024 */
    uint32_t prefixes; /* sequences that terse_engine_keep_prefix keeps at most: 16 */
    /* Bytes that the KV caches of all sessions and prefixes may take together, as terse_cache_bytes counts them, shared pages once;
     * 0: no limit. Prefixes make room, as terse_engine_keep_prefix says; then the pages of sessions that have a least_rate, which may
     * change what these compute next. Beyond that a session, prompt, fork, loaded state or step that does not fit is refused with
     * TERSE_E_MEMORY and changes nothing. To put a session aside, save and free it, or truncate it to 0. */
    uint64_t kv_budget;
    /* A step works on prompts under way for so many milliseconds (terse_engine_step): 50. 0: for one piece of the work. */
    uint32_t prompt_ms;
    /* "cpu" (also NULL); another backend, such as "cuda", by libterse-NAME.so; "gpu": the first that there is; "auto": a GPU where
     * one serves the model, else the processor. */
    const char *device;
    /* The pages of KV caches are dealt to the ranks of the job that this process belongs to (docs/distributed.md), each of which makes one such
     * engine, of the same model. Rank 0 uses its engine as any other; what is told of a cache is told of rank 0's share. The other ranks call
     * terse_engine_follow. A rank that gives up calls exit with another status than 0, which ends the whole job; one that ends with 0 waits for the
     * others to do so. */
    bool over_ranks;
};
TERSE_API struct terse_engine_options terse_engine_options_defaults(void);
/* Says which rank of how many this process is, by what mpirun, srun or terse --ranks has told it, also on failure; 0 of 1 where it was started
 * alone. Enters the job, as terse_engine_new does otherwise: a program should come here first, since a rank that fails before may leave the
 * others waiting for it. TERSE_E_UNSUPPORTED says what is missing. */
TERSE_API enum terse_status terse_job(uint32_t *rank, uint32_t *ranks, struct terse_error *error);
/* Makes an engine. The model must outlive it, and it its sessions. `options` may be NULL. Callbacks run on the caller's thread. */
TERSE_API enum terse_status terse_engine_new(const struct terse_model *model, const struct terse_engine_options *options,
                                             struct terse_engine **engine, struct terse_error *error);
/* Computes, on a rank other than 0, what rank 0's engine does with its sessions, until that is freed. */
TERSE_API enum terse_status terse_engine_follow(struct terse_engine *engine, struct terse_error *error);
TERSE_API void terse_engine_free(struct terse_engine *engine);
TERSE_API uint64_t terse_engine_kv_bytes(const struct terse_engine *engine); /* taken now, as kv_budget counts them */
TERSE_API uint32_t terse_engine_threads(const struct terse_engine *engine);
TERSE_API const char *terse_engine_device(const struct terse_engine *engine); /* "cpu", "cuda" */
TERSE_API const struct terse_model *terse_engine_model(const struct terse_engine *engine);

/* ---- Session ----------------------------------------------------------------------------------------------------------- */
struct terse_session;
enum terse_prefill {
    TERSE_PREFILL_EXACT,      /* layer by layer; attention over full-precision rows, then the layer is sealed */
    TERSE_PREFILL_COMPRESSED, /* chunk by chunk; each chunk reads the compressed cache of what came before */
    TERSE_PREFILL_PAPER       /* every token reads compressed keys and values, its own included: the papers' perplexity protocol */
};

struct terse_session_options {
    size_t size;               /* of this struct: set by terse_session_options_defaults */
    uint32_t context;          /* most tokens the sequence may hold; 0: the model's. Reserves nothing */
    bool allow_longer_context; /* permit more than the model was trained for */
    enum terse_prefill prefill;
    uint32_t batch;                 /* tokens per chunk of a compressed prefill: 512, at least 1 */
    struct terse_progress progress; /* of prefills */
    struct terse_cache_options cache;
};
TERSE_API struct terse_session_options terse_session_options_defaults(void);
TERSE_API enum terse_status terse_session_new(struct terse_engine *engine, const struct terse_session_options *options,
                                              struct terse_session **session, struct terse_error *error);
TERSE_API void terse_session_free(struct terse_session *session);
TERSE_API void terse_session_reset(struct terse_session *session); /* forgets the sequence; the memory stays for the next one */
TERSE_API uint64_t terse_session_length(const struct terse_session *session); /* tokens seen so far */
/* Returns the tokens[*n] seen so far, valid until the session reads or forgets some; -1 of random keys and values. */
TERSE_API const int32_t *terse_session_tokens(const struct terse_session *session, size_t *n);
/* Forgets the tokens from the n-th on, n <= length; earlier ones stay as they are stored. Logits are gone until the next step,
 * unless n is the length; random numbers go on. n = 0 frees the cache's memory, and a JSON text goes on behind what is read next:
 * so a session makes room, and reads its tokens again. Where the model has recurrent layers, a state of some tokens fewer is taken, and
 * the session reads those up to n again, which it may do for all. TERSE_E_UNSUPPORTED, without a change, where tokens were evicted, sliding
 * layers lack tokens that they would see, anchors would stay in some heads only, or a JSON text would be cut. */
TERSE_API enum terse_status terse_session_truncate(struct terse_session *session, uint64_t n, struct terse_error *error);
/* Makes a second session of the same sequence, options and sampler on the same engine; then each goes its own way. They share
 * sealed pages; window, exact tokens and what was learned are copied. Counters begin at 0. */
TERSE_API enum terse_status terse_session_fork(const struct terse_session *session, struct terse_session **copy,
                                               struct terse_error *error);
/* Keeps a fork of the session for sessions that begin alike (prefix caching), as long as it is one of `prefixes` and the budget is not
 * needed; the same sequence once, and nothing of an empty one. Earlier turns of a conversation leave first, then the least recently used
 * of those that have not come back; of conversations that have come back, the one that is expected last. */
TERSE_API enum terse_status terse_engine_keep_prefix(struct terse_engine *engine, const struct terse_session *session,
                                                     struct terse_error *error);
TERSE_API void terse_engine_drop_prefixes(struct terse_engine *engine);
/* Drops the kept sequences that tokens[n] begin with, whatever their method. Returns how many tokens the longest had; 0: none was kept. */
TERSE_API size_t terse_engine_drop_prefix(struct terse_engine *engine, const int32_t *tokens, size_t n);
/* Makes a session for a prompt tokens[n] that already holds the first *held < n of them, where the engine has kept a sequence of
 * the same method, cache options and codebook that begins with them. Read the others next. A prompt that continues the whole kept
 * sequence holds all of it, with any method; docs/c-api.md says what a prompt holds that differs earlier. */
TERSE_API enum terse_status terse_session_new_with_prefix(struct terse_engine *engine, const struct terse_session_options *options,
                                                          const int32_t *tokens, size_t n, struct terse_session **session,
                                                          size_t *held, struct terse_error *error);
/* Writes the session to a file (docs/state-format.md): tokens, cache, sampler and logits. At any time the old file or the new one
 * is there, whole. TERSE_E_UNSUPPORTED for one that requires JSON. Another thread may call it beside work on others. */
TERSE_API enum terse_status terse_session_save(const struct terse_session *session, const char *path, struct terse_error *error);
/* Makes a session that goes on where the saved one was: same tokens, logits and random numbers; nothing is computed. Sealed pages
 * are read from the file, which is mapped and must not change while the session or a fork of it lives; saving over it makes another
 * file. `options` must have the saved method, cache options and codebook. TERSE_E_ARGUMENT: another model, method or codebook;
 * TERSE_E_FORMAT: damaged; TERSE_E_UNSUPPORTED: another version; TERSE_E_CONTEXT: more tokens than the context. */
TERSE_API enum terse_status terse_session_load(struct terse_engine *engine, const struct terse_session_options *options,
                                               const char *path, struct terse_session **session, struct terse_error *error);
/* Writes the method that a session was saved with, "terse-3", to name[capacity]. It reads no more of the file than that and fails
 * as terse_session_load does; TERSE_E_ARGUMENT: the name does not fit. */
TERSE_API enum terse_status terse_state_method(const char *path, char *name, size_t capacity, struct terse_error *error);

/* Receives logits[vocabulary] (natural-log units, not normalised) of the i-th token of the call; valid during the call. The same
 * call on the same machine gives the same bits; docs/c-api.md says how far calls agree that cut a text otherwise. */
struct terse_logits_sink {
    void (*row)(void *user, size_t i, const float *logits);
    void *user;
    size_t first; /* rows before this one are not computed */
};
/* Reads a prompt (or a later turn): tokens[n] are exact among themselves and reach earlier ones through the cache; then the policy
 * chooses and full pages are sealed. `sink` may be NULL. A failure leaves the session as it was, for which a later turn keeps a
 * fork of the cache while it runs; rows that the sink got count for nothing. */
TERSE_API enum terse_status terse_session_prefill(struct terse_session *session, const int32_t *tokens, size_t n,
                                                  const struct terse_logits_sink *sink, struct terse_error *error);
/* Begins a prompt under way: terse_engine_step reads it piece by piece, so that other sessions' next tokens need not wait.
 * tokens[n] are checked and, like `sink`, copied, and memory is reserved, but nothing is computed yet. Once finished, session and
 * rows of the sink are bit for bit those of terse_session_prefill, in any prefill mode, whichever sessions were in the steps. Until
 * then length and logits are those from before, and prefill, decode, truncate, fork, save and keep_prefix are refused
 * (TERSE_E_ARGUMENT). terse_session_free and terse_session_reset drop the prompt; terse_session_cancel lets the next step do so.
 * Beside the cache, and a fork of it where the session has earlier tokens, it holds n * (width + 2 * kv_heads * head_dim) * 4 bytes
 * (commvq: 3 instead of 2; compressed: n = batch), and some activations. */
TERSE_API enum terse_status terse_session_begin_prompt(struct terse_session *session, const int32_t *tokens, size_t n,
                                                       const struct terse_logits_sink *sink, struct terse_error *error);
/* Tells how far the prompt under way is, in tokens times layers, done < total; both are 0 where none is under way. */
TERSE_API void terse_session_prompt(const struct terse_session *session, uint64_t *done, uint64_t *total);
/* Ends the call in progress that reads tokens into the session, or the next one: it returns TERSE_E_INTERRUPTED after the current
 * piece, some hundredths of a second, and leaves the session as it was. So ends a prompt under way in its next step, whose item
 * gets the status. A decoding step of at most 64 tokens more than sessions is finished; the next call then ends. Any thread may
 * call it at any time. */
TERSE_API void terse_session_cancel(struct terse_session *session);
/* Appends tokens[n] in one decoding step (n = 1 while generating). `sink` may be NULL. A failure leaves the sequence as it was,
 * except TERSE_E_FORMAT, where the model's numbers are not finite: then the step's sessions only take terse_session_reset, and
 * other calls that read, change, copy or sample them fail in the same way. */
TERSE_API enum terse_status terse_session_decode(struct terse_session *session, const int32_t *tokens, size_t n,
                                                 const struct terse_logits_sink *sink, struct terse_error *error);

/* An item says what one of the sessions of a step reads in it. */
struct terse_step_item {
    struct terse_session *session;        /* of the step's engine; in no other item of the step */
    const int32_t *tokens;                /* [n] */
    size_t n;                             /* 0: goes on with the session's prompt under way */
    const struct terse_logits_sink *sink; /* or NULL; not of a prompt under way, which has its own */
    enum terse_status status;             /* written: the failure of this item, else TERSE_OK */
};
/* Computes one step of n >= 1 sessions together (continuous batching). First it decodes all items with tokens, as
 * terse_session_decode would, and reads the weights once for all. Sessions may have any methods and lengths; logits and cache are
 * bit for bit those of a step alone. Then it goes on with the prompts under way of the items without tokens (chunked prefill), by
 * turns of a piece each, until the engine's prompt_ms have passed or all are finished; one piece at least. terse_session_prompt
 * says when none is under way.
 *
 * All items are checked and all memory of the decoding is reserved first. A failure leaves every session as it was, and the step
 * can be taken again without the item at fault, whose number `error` says, from 1 on, unless memory for the batch itself is refused
 * (TERSE_E_ARGUMENT: a token outside the vocabulary, no tokens and no prompt under way, no session, a second item of a session,
 * another engine's session; TERSE_E_CONTEXT; TERSE_E_MEMORY; TERSE_E_INTERRUPTED: terse_session_cancel).
 *
 * A prompt that fails as it goes on (TERSE_E_INTERRUPTED; TERSE_E_MEMORY, of a compressed prefill alone) fails by itself: its
 * session is as before terse_session_begin_prompt, the others have taken the step, and the call returns TERSE_OK. So look at the
 * `status` of such items; `error` tells of the first. */
TERSE_API enum terse_status terse_engine_step(struct terse_engine *engine, struct terse_step_item *items, size_t n,
                                              struct terse_error *error);
/* Returns logits[vocabulary] after the last token, or NULL before the first; valid until the next call on the session. Those on a
 * GPU are fetched now: NULL where that fails. */
TERSE_API const float *terse_session_logits(const struct terse_session *session);

struct terse_logit_bias {
    int32_t token;
    float bias; /* added to the token's logit; -INFINITY: never */
};

/* Filters are applied in this order: biases, penalties, top-k, typical, top-p, min-p, temperature. */
struct terse_sampling {
    size_t size;                           /* of this struct: set by terse_sampling_defaults */
    float temperature;                     /* 0: greedy; default 0.8 */
    uint32_t top_k;                        /* 0: all; default 40 */
    float typical_p;                       /* 1: all, the default: locally typical sampling, Meister et al. 2022 */
    float top_p;                           /* 1: all; default 0.95 */
    float min_p;                           /* 0: all; default 0.05 */
    float repeat_penalty;                  /* 1: none, the default; positive logits are divided, others multiplied by it */
    float presence_penalty;                /* 0: none, the default; subtracted from the logit of a token that was there */
    float frequency_penalty;               /* 0: none, the default; subtracted as often as it was there */
    uint32_t repeat_last;                  /* newest tokens that penalties look at; default 64 */
    uint64_t seed;                         /* default 1, so that two runs are the same */
    const struct terse_logit_bias *biases; /* [n_biases], copied; those of one token are added */
    size_t n_biases;                       /* default 0 */
};
TERSE_API struct terse_sampling terse_sampling_defaults(void);
/* Sets how the session samples and restarts its random numbers from the seed. */
TERSE_API enum terse_status terse_session_set_sampling(struct terse_session *session, const struct terse_sampling *sampling,
                                                       struct terse_error *error);
/* Chooses the next token from the logits, by the defaults unless terse_session_set_sampling was called; does not append it. */
TERSE_API enum terse_status terse_session_sample(struct terse_session *session, int32_t *token, struct terse_error *error);
/* Makes terse_session_sample choose only tokens that continue a JSON text, which terse_session_decode appends; a whole text is
 * followed by a token that ends (terse_token_ends). `schema` is a JSON schema, or NULL: any object. It may have type, properties,
 * required, additionalProperties (true or false), items, minItems, maxItems, enum, const, pattern (groups, classes, quantifiers, ^
 * and $ at the ends), anyOf, and $ref to "#" or into $defs or definitions. TERSE_E_ARGUMENT names any other, with its place. */
TERSE_API enum terse_status terse_session_require_json(struct terse_session *session, const char *schema,
                                                       struct terse_error *error);
/* Makes terse_session_sample hold the tool calls of a reply, which terse_session_decode appends, to options->tools: where the text, which
 * is free, opens a call, only tokens follow that continue a call of one of the tools, with arguments of the JSON schema of its parameters; what
 * of that is not understood is not asked for. With options->open_call the reply begins within a call and ends behind it; what is
 * not understood is then TERSE_E_ARGUMENT, as above. Without tools it does nothing. Errors as of terse_chat_render_with. */
TERSE_API enum terse_status terse_session_hold_calls(struct terse_session *session, const struct terse_chat_options *options,
                                                     struct terse_error *error);
TERSE_API void terse_session_allow_any_text(struct terse_session *session); /* ends what these two began */

struct terse_logprob {
    int32_t token;
    float logprob; /* natural log of its probability by the model: no setting of sampling counts */
};
/* Computes from the logits *logprob (may be NULL) of `token`, and writes the likeliest tokens to top[n], n <= vocabulary, in order,
 * equally likely ones by their numbers. */
TERSE_API enum terse_status terse_session_logprobs(struct terse_session *session, int32_t token, float *logprob,
                                                   struct terse_logprob *top, size_t n, struct terse_error *error);
TERSE_API void terse_session_cache(const struct terse_session *session, struct terse_cache_report *report);

/* A share says how a part of the sequence is kept, over layers and KV heads. The first three members add up to 1; all are 0 in a
 * part without tokens and during a prompt. */
struct terse_token_share {
    float exact;      /* in 16 bits: exact tokens, anchors, the window, pages of f16 */
    float compressed; /* in codes */
    float evicted;
    float read; /* by the last decoding step, which an index may have guided; without an index all that is not evicted */
};
/* Writes shares[n] of n parts of the sequence, of equal length but for rounding, in order. The tokens that mat-N keeps beside the
 * window count as the first tokens. */
TERSE_API void terse_session_map(const struct terse_session *session, struct terse_token_share *shares, size_t n);

/* Counters count what the session has done since it was made or they were last cleared. */
struct terse_counters {
    uint64_t prefill_tokens, decode_tokens;
    double prefill_seconds, decode_seconds; /* of a step with others: an equal share of its time */
    double attention_seconds;               /* of decode steps */
    uint64_t attention_bytes;               /* keys and values read by decode steps, as stored */
};
TERSE_API void terse_session_counters(struct terse_session *session, struct terse_counters *counters, bool clear);

#ifdef __cplusplus
}
#endif
#endif
