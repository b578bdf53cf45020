/* A slot_action is a request to save, restore or erase what a slot's last reply has left (llama-server's /slots/ID?action=...), and its answer. */
#ifndef TERSE_SERVE_SLOT_ACTION_H
#define TERSE_SERVE_SLOT_ACTION_H

#include "exchange.h"
#include "json.h"

enum slot_action_kind { SLOT_SAVE, SLOT_RESTORE, SLOT_ERASE };

struct slot_action {
    enum slot_action_kind kind;
    uint32_t slot;
    char *name; /* of the file, as the client says it; NULL: SLOT_ERASE */
    char *path;
    struct exchange *exchange; /* one owner's share */
    double began;              /* console_seconds: when its slot was free */
    struct slot_action *next;
};

/* Makes an action of the slot and the name that the end of an address says, "0", of the `action` of its query, NULL: none, and of a body[n], for files
 * in `folder`; NULL: there is none. Returns NULL, with *error, where one of them is wrong. */
struct slot_action *slot_action_read(const char *slot, const char *action, const char *body, size_t n, uint32_t slots,
                                     const char *folder, struct api_error *error);

/* Answers that so many tokens were saved, restored or erased, and `bytes` written or read; frees the action. */
void slot_action_done(struct slot_action *action, size_t tokens, uint64_t bytes);
void slot_action_fail(struct slot_action *action, int status, const char *message);
void slot_action_free(struct slot_action *action);

#endif
