#include "slot_action.h"

#include "console.h"
#include "json_send.h"
#include "store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST_NAME = 128 };

/* ---- Reading */

static bool find_kind(const char *word, enum slot_action_kind *kind, struct api_error *error) {
    static const char *const words[] = {"save", "restore", "erase"};
    for (size_t i = 0; word && i < sizeof words / sizeof *words; i++) {
        if (strcmp(word, words[i]) != 0) continue;
        *kind = (enum slot_action_kind)i;
        return true;
    }
    return api_fail(error, 400, NULL, "action", "say ?action=save, ?action=restore or ?action=erase");
}

static bool find_slot(const char *text, uint32_t slots, uint32_t *slot, struct api_error *error) {
    size_t n = strspn(text, "0123456789");
    unsigned long number = n && n < 10 && !text[n] ? strtoul(text, NULL, 10) : slots;
    *slot = (uint32_t)number;
    return number < slots || api_fail(error, 400, NULL, "id_slot", "the slots are 0 to %u", slots - 1);
}

/* A file's name is one of the folder, in which it hides neither from a listing nor among what the server itself keeps there. */
static bool check_name(const char *name, struct api_error *error) {
    bool plain = *name && *name != '.' && strlen(name) <= LONGEST_NAME;
    for (const char *c = name; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f || *c == '/' || *c == '\\') plain = false;
    if (plain && !store_owns(name)) return true;
    return api_fail(error, 400, NULL, "filename",
                    "\"filename\" is one of the server's folder: up to %d bytes, without / and \\, not beginning with a dot, and "
                    "not as --state-dir names its own files",
                    LONGEST_NAME);
}

static bool read_name(struct slot_action *action, const cJSON *body, const char *folder, struct api_error *error) {
    const char *name = NULL;
    if (!folder)
        return api_fail(error, 501, NULL, NULL,
                        "the server has no folder for slots: start it with --slot-save-path or --state-dir");
    if (!json_text(body, "filename", &name, error)) return false;
    if (!name) return api_fail(error, 400, NULL, "filename", "\"filename\" is missing");
    if (!check_name(name, error)) return false;
    size_t size = strlen(folder) + strlen(name) + 2;
    action->name = strdup(name);
    action->path = malloc(size);
    if (!action->name || !action->path) return api_fail(error, 503, NULL, NULL, "no memory");
    snprintf(action->path, size, "%s/%s", folder, name);
    return true;
}

static bool read_all(struct slot_action *a, const char *slot, const char *word, const char *body, size_t n, uint32_t slots,
                     const char *folder, struct api_error *error) {
    if (!find_slot(slot, slots, &a->slot, error) || !find_kind(word, &a->kind, error)) return false;
    if (a->kind == SLOT_ERASE) return true; /* it needs no body */
    cJSON *json = json_read_object(body, n, error);
    bool good = json && read_name(a, json, folder, error);
    cJSON_Delete(json);
    return good;
}

struct slot_action *slot_action_read(const char *slot, const char *action, const char *body, size_t n, uint32_t slots,
                                     const char *folder, struct api_error *error) {
    struct slot_action *a = calloc(1, sizeof *a);
    if (a && read_all(a, slot, action, body, n, slots, folder, error) && (a->exchange = exchange_new())) return a;
    api_fail(error, 503, NULL, NULL, "no memory");
    slot_action_free(a);
    return NULL;
}

/* ---- Answering */

static void add_time(cJSON *json, const char *name, double began) {
    cJSON_AddNumberToObject(cJSON_AddObjectToObject(json, "timings"), name, 1e3 * (console_seconds() - began));
}

void slot_action_done(struct slot_action *a, size_t tokens, uint64_t bytes) {
    static const struct {
        const char *tokens, *bytes, *time;
    } names[] = {[SLOT_SAVE] = {"n_saved", "n_written", "save_ms"},
                 [SLOT_RESTORE] = {"n_restored", "n_read", "restore_ms"},
                 [SLOT_ERASE] = {"n_erased", NULL, NULL}};
    cJSON *json = cJSON_CreateObject();
    cJSON_AddNumberToObject(json, "id_slot", a->slot);
    if (a->name) cJSON_AddStringToObject(json, "filename", a->name);
    cJSON_AddNumberToObject(json, names[a->kind].tokens, (double)tokens);
    if (names[a->kind].bytes) cJSON_AddNumberToObject(json, names[a->kind].bytes, (double)bytes);
    if (names[a->kind].time) add_time(json, names[a->kind].time, a->began);
    json_send(a->exchange, 200, json);
    slot_action_free(a);
}

void slot_action_fail(struct slot_action *a, int status, const char *message) {
    struct api_error error = {0};
    api_fail(&error, status, NULL, NULL, "%s", message);
    json_send(a->exchange, status, api_error_json(&error));
    slot_action_free(a);
}

void slot_action_free(struct slot_action *a) {
    if (!a) return;
    if (a->exchange) exchange_close(a->exchange);
    if (a->exchange) exchange_release(a->exchange);
    free(a->name);
    free(a->path);
    free(a);
}
