#include "slot_work.h"

#include "console.h"
#include "task_end.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static void fail_with(struct slot_action *action, enum terse_status status, const char *message) {
    slot_action_fail(action, status == TERSE_E_MEMORY ? 503 : 400, message);
}

/* ---- Saving */

static bool give(struct scheduler *s, struct slot_action *action, struct terse_session *session) {
    struct saving *saving = malloc(sizeof *saving);
    if (!saving) return false;
    *saving = (struct saving){.session = session, .action = action};
    saving->tokens = terse_session_tokens(session, &saving->n);
    s->saving++;
    saver_give(s->slot_saver, saving);
    return true;
}

/* Makes a session of what the slot has left, as far as the engine still keeps it, and gives it to the saver. */
static void save(struct scheduler *s, struct slot_action *action) {
    const struct slot_sequence *left = &s->slots.left[action->slot];
    struct terse_session *session = NULL;
    struct terse_error error;
    enum terse_status status = TERSE_OK;
    size_t held = 0;
    if (left->n) {
        left->tokens[left->n] = 0; /* a prompt is longer than what it holds */
        status = terse_session_new_with_prefix(s->options.engine, &s->options.session, left->tokens, left->n + 1, &session, &held,
                                               &error);
    }
    if (status)
        fail_with(action, status, error.message);
    else if (held && give(s, action, session))
        return;
    else if (held)
        slot_action_fail(action, 503, "no memory");
    else
        slot_action_fail(action, 400, "the slot holds nothing to save: it has written no reply that is still kept");
    terse_session_free(session);
}

/* ---- Restoring and erasing */

static void restore(struct scheduler *s, struct slot_action *action) {
    struct terse_session *session;
    struct terse_error error;
    struct stat about;
    if (stat(action->path, &about) || !S_ISREG(about.st_mode)) {
        char message[256];
        snprintf(message, sizeof message, "there is no file \"%s\" of a saved slot", action->name);
        slot_action_fail(action, 400, message);
        return;
    }
    enum terse_status status = terse_session_load(s->options.engine, &s->options.session, action->path, &session, &error);
    if (!status) status = terse_engine_keep_prefix(s->options.engine, session, &error);
    if (status) {
        fail_with(action, status, error.message);
    } else {
        size_t n;
        const int32_t *tokens = terse_session_tokens(session, &n);
        slots_remember(&s->slots, action->slot, tokens, n);
        slot_action_done(action, n, (uint64_t)about.st_size);
    }
    terse_session_free(session);
}

static void erase(struct scheduler *s, struct slot_action *action) {
    const struct slot_sequence *left = &s->slots.left[action->slot];
    size_t n = terse_engine_drop_prefix(s->options.engine, left->tokens, left->n);
    slots_remember(&s->slots, action->slot, NULL, 0);
    s->blocked = false; /* there may be room now */
    slot_action_done(action, n, 0);
}

void work_on_slots(struct scheduler *s) {
    struct slot_action *action, **at = &s->actions;
    while ((action = *at)) {
        if (s->slots.of[action->slot]) {
            at = &action->next;
            continue;
        }
        *at = action->next;
        action->began = console_seconds();
        switch (action->kind) {
        case SLOT_SAVE: save(s, action); break;
        case SLOT_RESTORE: restore(s, action); break;
        case SLOT_ERASE: erase(s, action); break;
        }
    }
}
