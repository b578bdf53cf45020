/* Declares how a KV method is chosen for a model, as `--kv auto` of the command `terse` and kv="auto" of the Python package do, and
 * what is kept of a model for its user. It is a part of libterse; the conventions of terse.h hold. */
#ifndef TERSE_CHOICE_H
#define TERSE_CHOICE_H

#include "terse.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- What is kept for a user ---------------------------------------------------------------------------------------------- */
/* Writes to path[capacity] where a file about the model is kept for the user, whatever the quantization of the model's weights:
 * NAME-FINGERPRINT and `ending`, by its norms_fingerprint, in $XDG_CACHE_HOME/terse or ~/.cache/terse. Codebooks lie there by the
 * name that terse_cache_codebook gives, with ".gguf". TERSE_E_ARGUMENT: neither XDG_CACHE_HOME nor HOME names a place, or the path
 * does not fit. */
TERSE_API enum terse_status terse_kept_path(const struct terse_model *model, const char *name, const char *ending, char *path,
                                            size_t capacity, struct terse_error *error);

/* A tuned method is what `terse tune` has picked for a model, and what it measured of it. */
struct terse_tuned {
    const char *method; /* as terse_cache_options has it */
    const char *corpus; /* the name of the text */
    uint32_t context;   /* tokens of the cache that it was picked for */
    uint64_t budget;    /* bytes that such a cache was to take at most; 0: any */
    uint64_t positions; /* of the text that were scored */
    double bits;        /* per value of such a cache */
    double divergence;  /* mean KL divergence from f16's probabilities, nats */
    double speed;       /* tokens a second behind such a cache, times f16's; 0: not measured */
};
/* Writes the file of a model's tuned method (docs/choosing-a-method.md); terse_choose finds it where terse_kept_path has "tuned" and
 * ".json". It takes its place when it is whole. TERSE_E_ARGUMENT: a method's name of 64 bytes or more; TERSE_E_IO. */
TERSE_API enum terse_status terse_tuned_save(const struct terse_model *model, const struct terse_tuned *tuned, const char *path,
                                             struct terse_error *error);

/* ---- Bytes ---------------------------------------------------------------------------------------------------------------- */
/* Reads a size such as 512M or 4G (K, M, G, T: powers of 1024; MB and MiB mean M). Returns false, and writes nothing, where the text
 * is no size from 1 to 2^60 bytes. */
TERSE_API bool terse_parse_size(const char *text, uint64_t *bytes);

/* Computes how many bytes a budget must allow a cache on its way to so many tokens, which never shrink with more tokens
 * (TERSE_FIT_TOKENS). Where a budget allows more, or none is set, a prompt that brings TERSE_FIT_TOKENS_MOST takes for a moment what
 * terse_cache_bytes says of as many. Fails as terse_cache_bytes does. */
TERSE_API enum terse_status terse_cache_peak(const struct terse_model *model, const char *device,
                                             const struct terse_cache_options *options, uint64_t tokens, uint64_t *bytes,
                                             struct terse_error *error);

/* ---- The choice ----------------------------------------------------------------------------------------------------------- */
/* "auto" allows so much mean KL divergence from an f16 cache, in nats. */
#define TERSE_CHOICE_DIVERGENCE 0.005
/* It lets a budget lower pages to so many bits per value, unless the caller says how far. */
#define TERSE_CHOICE_LEAST 1.5

enum terse_choice_reason {
    TERSE_CHOICE_NAMED,    /* the caller named the method */
    TERSE_CHOICE_UNKNOWN,  /* terse-4, because nothing was measured */
    TERSE_CHOICE_TUNED,    /* the tuned method of the model */
    TERSE_CHOICE_MEASURED, /* the rate of terse-N by its cost on the model (terse_codebook_info.costs) */
    TERSE_CHOICE_BYTES,    /* the rate of terse-N by the bytes of a context */
    TERSE_CHOICE_STATE,    /* the method of a saved state, which the caller names */
    TERSE_CHOICE_LATENTS   /* q8_0, because the model has latents that terse-N does not serve */
};

struct terse_choice_options {
    size_t size; /* of this struct: set by terse_choice_options_defaults */
    /* A method's name, or what is allowed: "auto:0.02", a mean KL divergence from f16, 1e-6 to 10: the fewest bits of terse-N that keep to it;
     * "auto:2G", bytes of a context: the most bits of terse-N that keep to them; "auto": the tuned method of the model, where there is
     * one that was picked for as long a context, and whose cache keeps to kv_budget and to the bytes that it was picked for, else as
     * "auto:0.005". Behind each may stand ",min=terse-N", or ":min=terse-N" behind "auto" alone, where there is a kv_budget: to how many
     * bits it may lower pages, TERSE_CHOICE_LEAST where that is not said. NULL: "auto". */
    const char *kv;
    /* The method of a saved state, with which a session goes on: then only how far a budget may lower it is chosen; or NULL. */
    const char *state_method;
    const char *device; /* as of terse_cache_bytes */
    /* Tokens that a session may hold; 0: not said, which is the model's context, or the one that the tuned method was picked for. */
    uint32_t context;
    uint64_t kv_budget; /* bytes that the engine allows; 0: any */
    /* The other options of the cache; the codebook is the model's profile, or NULL where there is none. The method is not looked at. */
    struct terse_cache_options cache;
};
TERSE_API struct terse_choice_options terse_choice_options_defaults(void);

struct terse_choice {
    char method[64];
    enum terse_choice_reason reason;
    bool left_aside;   /* there is a tuned method of the model, and it is not taken */
    double least_rate; /* for terse_cache_options; 0 where there is no budget, or the method or the device lowers nothing */
    char why[512];     /* in words, for "KV cache terse-3: ..."; "" where the caller named the method */
};

/* Says in *chooses whether `kv` asks for a choice, or names a method, which is not looked at. TERSE_E_ARGUMENT: it begins as a choice
 * does, and is none. */
TERSE_API enum terse_status terse_choice_check(const char *kv, bool *chooses, struct terse_error *error);
/* Chooses. A file of a tuned method that is of no use is left aside; `why` says so. TERSE_E_ARGUMENT: as of terse_choice_check, and
 * no rate keeps to the bytes, or "min=" without a budget; TERSE_E_UNSUPPORTED: nothing lowers to the rate that the caller names; else
 * as terse_cache_bytes. */
TERSE_API enum terse_status terse_choose(const struct terse_model *model, const struct terse_choice_options *options,
                                         struct terse_choice *choice, struct terse_error *error);

#ifdef __cplusplus
}
#endif
#endif
