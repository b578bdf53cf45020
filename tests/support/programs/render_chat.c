/* render_chat MODEL: of each conversation in an array of JSON on standard input, [["role", "content"], ...], prints what a session would read of it,
 * the assistant speaking next, as an array of {"text", "tokens"}. For tests of models that are not part of the repository. */
#include "terse.h"

#include <stdio.h>
#include <stdlib.h>

#include <cjson/cJSON.h>

enum { MOST_MESSAGES = 16, MOST_BYTES = 1 << 20 };

static cJSON *read_conversations(void) {
    char *text = malloc(MOST_BYTES);
    size_t n = text ? fread(text, 1, MOST_BYTES, stdin) : 0;
    cJSON *json = cJSON_ParseWithLength(text, n);
    free(text);
    return json;
}

/* Adds the conversation to `all`; false with `error` filled. */
static bool render(const struct terse_model *model, const cJSON *conversation, cJSON *all, struct terse_error *error) {
    struct terse_message messages[MOST_MESSAGES];
    size_t n = 0, n_tokens;
    char *text = NULL;
    int32_t *tokens = NULL;
    const cJSON *message;
    cJSON_ArrayForEach(message, conversation) {
        const char *role = cJSON_GetStringValue(cJSON_GetArrayItem(message, 0));
        const char *content = cJSON_GetStringValue(cJSON_GetArrayItem(message, 1));
        if (n < MOST_MESSAGES && role && content) messages[n++] = (struct terse_message){role, content};
    }
    bool done = !terse_chat_render(model, NULL, messages, n, true, &text, error) &&
                !terse_chat_tokenize(model, NULL, messages, n, 0, true, &tokens, &n_tokens, error);
    if (done) {
        cJSON *rendered = cJSON_CreateObject();
        cJSON_AddStringToObject(rendered, "text", text);
        cJSON_AddItemToObject(rendered, "tokens", cJSON_CreateIntArray(tokens, (int)n_tokens));
        cJSON_AddItemToArray(all, rendered);
    }
    terse_string_free(text);
    terse_tokens_free(tokens);
    return done;
}

int main(int argc, char **argv) {
    struct terse_model *model = NULL;
    struct terse_error error;
    if (argc != 2) {
        fprintf(stderr, "usage: render_chat MODEL\n");
        return 1;
    }
    cJSON *conversations = read_conversations(), *all = cJSON_CreateArray();
    const cJSON *conversation;
    bool done = cJSON_IsArray(conversations);
    if (!done) snprintf(error.message, sizeof error.message, "standard input is not an array of conversations");
    done = done && !terse_model_load(argv[1], &model, &error);
    cJSON_ArrayForEach(conversation, conversations) done = done && render(model, conversation, all, &error);
    char *text = done ? cJSON_PrintUnformatted(all) : NULL;
    if (text)
        puts(text);
    else
        fprintf(stderr, "%s\n", error.message);
    cJSON_free(text);
    cJSON_Delete(all);
    cJSON_Delete(conversations);
    terse_model_free(model);
    return done ? 0 : 1;
}
