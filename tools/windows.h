/* Reads the windows of a text through KV caches side by side and scores the second half of each, as `terse perplexity`,
 * `terse compare` and `terse tune` do. Which caches these are, and what is made of their scores, is the commands'. */
#ifndef TERSE_TOOLS_WINDOWS_H
#define TERSE_TOOLS_WINDOWS_H

#include "score.h"

#include <terse.h>

enum {
    WINDOWS_CONTEXT = 512,      /* tokens of a window, where no other number is given */
    WINDOWS_STEP = SCORER_ROWS, /* the same of a decoding step */
    WINDOWS_CACHES = 17         /* at most */
};

struct windows {
    const struct terse_model *model;
    uint32_t context, step;
    bool paper;     /* the whole window is a prompt, in the papers' protocol: of one cache alone */
    uint32_t n;     /* windows to read */
    uint64_t asked; /* of the user: maybe more than there are */
    double until;   /* of console_seconds: then reading ends as by an interrupt; 0: never */

    /* These have to be set before windows_read. The windows own them. */
    size_t n_caches;
    struct terse_session *sessions[WINDOWS_CACHES]; /* of windows_progress */
    struct scorer *scorers[WINDOWS_CACHES];         /* with more than one, steps have WINDOWS_STEP tokens at most */

    const int32_t *tokens; /* of the text */
    uint32_t window;       /* being read */
    uint64_t done;         /* of the window in hand: tokens that a cache has read, over all caches */
};

/* Frees the sessions and scorers. */
void windows_free(struct windows *windows);

/* Takes the first windows of tokens[n_tokens], which outlive *windows: as many as there are, but `most` at most where that is not 0.
 * `name` says in messages where the text comes from. Returns an exit status, as all that follow. */
int windows_choose(struct windows *windows, const int32_t *tokens, size_t n_tokens, uint64_t most, const char *name);

/* Calls read(user, tokens[context]) for each window, in which BOS stands first where the model's file asks for it. It ends with the
 * first status other than EXIT_OK, and returns it. Before that it remarks where there are fewer windows than were asked for. */
int windows_each(struct windows *windows, int (*read)(void *user, const int32_t *tokens), void *user);

/* Reads one of these windows with each cache: prefills the first half of it, then decodes the second half, all caches by turns in each
 * step. The first cache's scorer is the one that the others compare with. */
int windows_read(struct windows *windows, const int32_t *tokens);

/* Returns what shows the progress of the sessions' prefills as a part of the whole. */
struct terse_progress windows_progress(struct windows *windows);

#endif
