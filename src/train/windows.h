/* Runs windows of a text through the backward pass, one after another. */
#ifndef TERSE_TRAIN_WINDOWS_H
#define TERSE_TRAIN_WINDOWS_H

#include "train/backward.h"

struct windows {
    uint32_t window; /* tokens of a window, 2 to the model's context */
    uint32_t most;   /* at most so many, taken evenly from the text; 0: all that it has */
    bool gradients;
    bool drawn;                     /* of labels drawn from the model's predictions (backward_draw_labels), not the text's */
    uint64_t seed;                  /* of the draws */
    struct terse_progress progress; /* "gradients" or "keys and values", in passes over a layer */
    const struct learning_ops *ops; /* by which windows run; NULL: the CPU's */
};

/* Receives a window's layers as struct backward_sink does. */
struct windows_sink {
    void (*begin)(void *user, size_t window); /* before the layers of the window-th one */
    void (*layer)(void *user, uint32_t layer, const struct captured *rows);
    void *user;
};

/* Returns TERSE_E_ARGUMENT when a text of n tokens has not even one window. */
enum terse_status windows_check(const struct terse_model *model, const struct windows *windows, size_t n,
                                struct terse_error *error);
/* Returns how many windows a text of n tokens has, at least `window`. */
size_t windows_count(const struct windows *windows, size_t n);

/* Runs the windows of tokens[n], BOS in place of the first token of each where the model's file asks for one. It uses the calling
 * thread's OpenMP threads, whose number changes no bit of the rows. */
enum terse_status windows_run(const struct terse_model *model, const struct windows *windows, const int32_t *tokens, size_t n,
                              const struct windows_sink *sink, struct terse_error *error);

#endif
