/* Writes tools as chat formats declare them (tool_form.h: `declare`). */
#ifndef TERSE_TEXT_TOOL_DECLARE_H
#define TERSE_TEXT_TOOL_DECLARE_H

#include "text/text_buffer.h"

#include <cjson/cJSON.h>

/* As a line of JSON. */
enum terse_status tool_declare_line(struct text_buffer *to, const char *json, size_t n, const cJSON *parsed,
                                    struct terse_error *error);
/* As JSON, indented by 4. */
enum terse_status tool_declare_indented(struct text_buffer *to, const char *json, size_t n, const cJSON *parsed,
                                        struct terse_error *error);
/* As a line of what is nearly JSON: the function's own strings, as its description, are not escaped. */
enum terse_status tool_declare_unescaped(struct text_buffer *to, const char *json, size_t n, const cJSON *parsed,
                                         struct terse_error *error);
/* Its function as a line of JSON. */
enum terse_status tool_declare_function(struct text_buffer *to, const char *json, size_t n, const cJSON *parsed,
                                        struct terse_error *error);
/* As a block of JSON. */
enum terse_status tool_declare_block(struct text_buffer *to, const char *json, size_t n, const cJSON *parsed,
                                     struct terse_error *error);
/* As a heading with a description and parameters. */
enum terse_status tool_declare_heading(struct text_buffer *to, const char *json, size_t n, const cJSON *parsed,
                                       struct terse_error *error);
/* As a line of JSON with a member "responses", the function's own strings not escaped. */
enum terse_status tool_declare_responses(struct text_buffer *to, const char *json, size_t n, const cJSON *parsed,
                                         struct terse_error *error);
/* As a function of Python. */
enum terse_status tool_declare_python(struct text_buffer *to, const char *json, size_t n, const cJSON *parsed,
                                      struct terse_error *error);
/* As a type of TypeScript. */
enum terse_status tool_declare_typescript(struct text_buffer *to, const char *json, size_t n, const cJSON *parsed,
                                          struct terse_error *error);

/* Adds JSON json[n] indented by 4, all lines but the first by `within` more. */
enum terse_status tool_add_indented(struct text_buffer *to, const char *json, size_t n, size_t within, struct terse_error *error);

#endif
