/* Rewrites and takes apart JSON text without reading its values, so that numbers and the order of names stay as they were written. */
#ifndef TERSE_TEXT_JSON_TEXT_H
#define TERSE_TEXT_JSON_TEXT_H

#include "text/tokenizer.h"

/* Returns JSON text[n], which must be well-formed, as Python's json.dumps(ensure_ascii=False) writes it, which is what chat templates call tojson:
 * one space behind commas and colons, characters instead of escapes. NULL where memory is refused; free releases it. */
char *json_spaced(const char *text, size_t n);

/* Returns a text as a JSON string, written the same way; NULL where memory is refused. */
char *json_quoted(const char *text);

/* Returns where the value of the member `name` of a JSON object lies in text[n], which must be well-formed: the first such member;
 * an empty span where there is none. */
struct text_span json_member(const char *text, size_t n, const char *name);

/* Moves *item, {0, 0} at first, to the next item of a JSON array in text[n], which must be well-formed; returns false behind the last. */
bool json_next_item(const char *text, size_t n, struct text_span *item);

/* Sets *end to the place behind the object or array that begins at text[begin]; returns false where its end is not there. What stands within need
 * not be well-formed. */
bool json_behind(const char *text, size_t n, size_t begin, size_t *end);

#endif
