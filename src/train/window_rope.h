/* Rotates a window's tokens: for most layers, and for sliding ones that have a rotation of their own. */
#ifndef TERSE_TRAIN_WINDOW_ROPE_H
#define TERSE_TRAIN_WINDOW_ROPE_H

#include "backend/learning.h"

struct window_turns {
    struct rope rope;
    float *cosine, *sine, *back; /* [tokens][n_rot / 2]; `back` is -sine */
};

struct window_rope {
    const struct terse_model *model;
    size_t tokens;
    struct window_turns turns[2]; /* the second one is of sliding layers that have a rotation of their own; else it has no memory */
};

/* Makes a rotation for windows of up to `tokens` tokens. TERSE_E_MEMORY; then there is nothing to free. */
enum terse_status window_rope_new(struct window_rope *window, const struct terse_model *model, size_t tokens,
                                  struct terse_error *error);
/* Accepts a zeroed struct. */
void window_rope_free(struct window_rope *window);

/* Places token t at position `first` + t or, with `run`, at its remainder modulo `run`. It uses the calling thread's OpenMP
 * threads. */
void window_rope_set(struct window_rope *window, size_t first, size_t run);

/* Returns the rotation of a layer. */
const struct window_turns *window_turns_of(const struct window_rope *window, uint32_t layer);
/* Rotates rows[heads][head_dim] of token t in place. */
void window_turn_rows(const struct window_turns *turns, enum window_turn turn, size_t t, float *rows, uint32_t heads);

#endif
