/* Reads a request's JSON text (by cJSON) and its fields, whose types it checks. Errors have OpenAI's form. */
#ifndef TERSE_SERVE_JSON_H
#define TERSE_SERVE_JSON_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A failed request is answered with this error. */
struct api_error {
    int status;       /* HTTP's; 0: none so far */
    const char *code; /* "model_not_found", or NULL */
    char param[48];   /* the field at fault, or "" */
    char message[640];
};

/* Sets *error unless it has one already. `param` and `code` may be NULL. Returns false. */
__attribute__((format(printf, 5, 6))) bool api_fail(struct api_error *error, int status, const char *code, const char *param,
                                                    const char *format, ...);
/* Returns {"error": {...}}; NULL when memory is refused. */
cJSON *api_error_json(const struct api_error *error);

/* Parses a text of JSON. Returns NULL, with *error, where text[n] is no UTF-8, no JSON, has strings with NUL characters, more than a million values,
 * or is deeper than cJSON goes (1,000). Released by cJSON_Delete. */
cJSON *json_read(const char *text, size_t n, struct api_error *error);
/* Does the same with a body that must be an object. */
cJSON *json_read_object(const char *text, size_t n, struct api_error *error);

/* Returns the name of a value's type for messages: "a string". */
const char *json_kind(const cJSON *value);

/* Returns an object's field, NULL where it is missing or null. */
const cJSON *json_field(const cJSON *object, const char *name);

/* Each writes the field's value to *value, which stays as it is where the field is missing or null. Returns false, with *error, where it is of
 * another type or out of range. */
bool json_flag(const cJSON *object, const char *name, bool *value, struct api_error *error);
bool json_whole(const cJSON *object, const char *name, int64_t least, int64_t most, int64_t *value, struct api_error *error);
bool json_number(const cJSON *object, const char *name, double least, double most, double *value, struct api_error *error);
bool json_text(const cJSON *object, const char *name, const char **value, struct api_error *error);

#endif
