/* Angles are computed once for a window; layers of one kind share them. */
#include "train/window_rope.h"

#include "base/memory.h"

enum { OTHERS, SLIDING };

static bool turns_apart(const struct terse_model *m) { return m->sliding_rope.n_rot > 0; }

static size_t pairs_of(const struct window_turns *turns) { return turns->rope.n_rot / 2; }

enum terse_status window_rope_new(struct window_rope *window, const struct terse_model *model, size_t tokens,
                                  struct terse_error *error) {
    *window = (struct window_rope){.model = model, .tokens = tokens};
    window->turns[OTHERS].rope = model->rope;
    window->turns[SLIDING].rope = model->sliding_rope;
    for (int kind = 0; kind <= turns_apart(model); kind++) {
        struct window_turns *turns = &window->turns[kind];
        size_t row_bytes = pairs_of(turns) * sizeof(float);
        turns->cosine = memory_array(tokens, row_bytes);
        turns->sine = memory_array(tokens, row_bytes);
        turns->back = memory_array(tokens, row_bytes);
        if (turns->cosine && turns->sine && turns->back) continue;
        window_rope_free(window);
        return status_no_memory(error, 3 * tokens * row_bytes, "the angles of a window");
    }
    return TERSE_OK;
}

void window_rope_free(struct window_rope *window) {
    for (int kind = 0; kind < 2; kind++) {
        memory_free(window->turns[kind].cosine);
        memory_free(window->turns[kind].sine);
        memory_free(window->turns[kind].back);
    }
    *window = (struct window_rope){0};
}

static void set_turns(struct window_turns *turns, size_t tokens, size_t first, size_t run) {
    size_t pairs = pairs_of(turns);
#pragma omp parallel for schedule(static)
    for (size_t t = 0; t < tokens; t++) {
        size_t position = run ? (first + t) % run : first + t;
        rope_angles(&turns->rope, (int64_t)position, turns->cosine + t * pairs, turns->sine + t * pairs);
        for (size_t i = t * pairs; i < (t + 1) * pairs; i++) turns->back[i] = -turns->sine[i];
    }
}

void window_rope_set(struct window_rope *window, size_t first, size_t run) {
    for (int kind = 0; kind <= turns_apart(window->model); kind++) set_turns(&window->turns[kind], window->tokens, first, run);
}

const struct window_turns *window_turns_of(const struct window_rope *window, uint32_t layer) {
    return &window->turns[turns_apart(window->model) && model_slides(window->model, layer) ? SLIDING : OTHERS];
}

void window_turn_rows(const struct window_turns *turns, enum window_turn turn, size_t t, float *rows, uint32_t heads) {
    struct rope rope = turns->rope;
    size_t at = t * pairs_of(turns);
    if (turn == WINDOW_TURN_GRADIENTS) rope.magnitude = 1 / rope.magnitude;
    rope_rotate(&rope, turns->cosine + at, (turn == WINDOW_TURN_BACK ? turns->back : turns->sine) + at, rows, heads, rope.head_dim);
}
