/* Holds what the commands that run a model share: their options, loading the model, and the options of a session. */
#ifndef TERSE_TOOLS_SETUP_H
#define TERSE_TOOLS_SETUP_H

#include "console.h"
#include "options.h"

#include <terse_gguf.h>

enum {
    SETUP_MODEL = 2,  /* the first of the common rows: all that a command without a session needs */
    SETUP_DEVICE = 4, /* these, and those that choose a device */
    SETUP_COMMON = 26
};

struct codebook_entry; /* codebooks.h */

struct setup {
    const char *model_path; /* NULL: the built-in model */
    const char *method, *key_type, *value_type;
    const char *choice;                /* what --kv auto was given with, NULL: a method was named (rate_choice.h) */
    char chosen[64];                   /* the method that it chose */
    double least_rate;                 /* to which --kv-budget may lower its pages, bits per value; 0: they stay as they are */
    char why[4096 + 640];              /* the reason, in words */
    bool tuned;                        /* which is the model's tuned method, or why that one is not taken */
    int64_t tail_tokens, first_tokens; /* -1: the method's own number */
    int64_t context, threads, batch;
    const char *device; /* its name */
    int64_t gpu_layers; /* -1: as `device` says */
    uint64_t kv_budget;
    uint32_t prefixes; /* that the engine keeps; 0: the library's number */
    int prefill;       /* as enum terse_prefill */
    bool allow_longer;
    struct amount anchors, read;      /* read {0, 0}: the method's own */
    int anchor_score;                 /* as enum terse_anchor_score */
    const char *evict;                /* NULL: the method's own choice of tokens */
    int64_t mat_anchors, mat_shallow; /* 0 and -1: the method's own numbers */
    const char *codebook_path;        /* NULL: it is looked for, or learned */
    bool by_default;                  /* the user named neither the method nor a type of keys or values */
    uint64_t text_tokens; /* that the command's text has at most, reply and all; 0: as many as its context has room for */
    bool auto_calibrate, no_auto_calibrate;
    bool lock, no_mapping;    /* llama.cpp's --mlock and --no-mmap */
    const char *rope_scaling; /* NULL, and 0 of the numbers: as the model's file says */
    double rope_scale, rope_base;
    void *model_bytes;                  /* of --no-mmap */
    bool random_codebooks;              /* of random numbers, whatever is there: only for timing */
    struct option common[SETUP_COMMON]; /* rows for struct option_set that set what stands above, but for method and context */
    char methods[512];                  /* lists the known ones */
    char method_help[1024];             /* for the command's own row for `method` */

    struct terse_model *model;   /* from setup_load, released by setup_free */
    struct terse_engine *engine; /* from setup_engine, released by setup_free */
    struct terse_model_info info;
    struct codebook_entry *codebooks; /* of the methods that were asked for so far */
};

/* This is the method of a command that is given none, where no measured costs guide --kv auto. */
#define METHOD_DEFAULT "terse-4"
/* Returns whether an argument can be meant as a model's file: NAME.gguf. */
bool setup_names_model(const char *argument);

/* Sets the library's defaults. The options point into *setup, which must stay where it is. */
void setup_init(struct setup *setup);
/* Loads the model at model_path. Returns an exit status. On a rank other than 0 it does not return: the rank computes what rank 0 does, and ends. */
int setup_load(struct setup *setup);
/* Does the same without a message: *error says why it failed. */
enum terse_status setup_try_load(struct setup *setup, struct terse_error *error);
/* Makes the engine that the loaded model runs on, once. Returns an exit status. */
int setup_engine(struct setup *setup);
void setup_free(struct setup *setup);

/* Chooses the device from --device or -ngl, which is llama.cpp's way to say it. Returns an exit status. */
int setup_choose_device(const struct setup *setup, const char **device);
/* Returns the name of the device that the engine is on or will be made on, as terse_cache_bytes takes it. */
const char *setup_device(const struct setup *setup);
/* Does what terse_cache_bytes does, of the loaded model on that device. */
enum terse_status setup_cache_bytes(const struct setup *setup, const struct terse_cache_options *options, uint64_t tokens,
                                    struct terse_cache_report *report, struct terse_error *error);

/* Returns the session options, but for the codebook, which codebooks_provide adds; progress is reported by progress_show. */
struct terse_session_options setup_session_options(const struct setup *setup);

/* Returns TERSE_OK when a cache with these options can serve the model, with whatever codebook. */
enum terse_status setup_try_cache(const struct setup *setup, struct terse_error *error);

/* Remarks where --evict keeps so few tokens of a sequence that all of them are exact, so that the method compresses nothing. */
void setup_remark_eviction(const struct setup *setup);

/* Refuses options without effect: a file as --codebook with a method that learns nothing. Returns an exit status. */
int setup_check_codebook(const struct setup *setup);

/* Writes "terse calibrate -m FILE --kv METHOD", which learns what the method needs of the model, on the device of *setup, to
 * text[capacity]; returns it. */
const char *setup_calibrate_command(const struct setup *setup, const char *method, char *text, size_t capacity);

/* Writes a text such as "q8_0", "f16, keys q8_0", or "antkv-1, anchors 2%" into buffer[capacity]; returns it. */
const char *setup_method_text(const struct setup *setup, char *buffer, size_t capacity);

/* Writes "; 512 tokens at terse-4, 1024 at terse-3", as a cache holds them whose pages may be lowered, to text[capacity]; nothing where
 * none may be, or none are sealed. Returns it. */
const char *setup_rates_text(const struct terse_cache_report *cache, char *text, size_t capacity);

/* Opens the file at `path` for inspection; NULL: the built-in model. */
enum terse_status setup_open_gguf(const char *path, struct terse_gguf **gguf, struct terse_error *error);

#endif
