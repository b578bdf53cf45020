/* Reads JSON text byte by byte and tells whether it can still be continued to a value that a schema allows. It is for sampling that only lets such
 * text through: from every state that is reached some text leads to a whole value.
 *
 * Whitespace runs to JSON_SPACES bytes and numbers to JSON_NUMBER, so that a text cannot go on without saying anything. Strings are
 * UTF-8 and hold no lone surrogates (RFC 8259 with the restrictions of RFC 7493).
 *
 * These keywords of JSON Schema are understood: type (one or several), properties, required, additionalProperties (true or false), items,
 * minItems, maxItems, enum, const, pattern (text/pattern.h; such strings have no \u), anyOf, and $ref to the whole schema ("#") or to what it
 * has in $defs or definitions; title, description, default, examples, $schema, $id and $comment say nothing about a value, also beside anyOf
 * and $ref. Any other keyword is refused by name, with its place, unless the schema is read leniently. Properties stand in any order, each once.
 *
 * Where a text may be a value of several schemas of an anyOf, all of them are followed, JSON_WAYS at a time; where there are more, which takes
 * anyOf within anyOf, the first JSON_WAYS are. */
#ifndef TERSE_TEXT_JSON_FILTER_H
#define TERSE_TEXT_JSON_FILTER_H

#include "base/status.h"
#include "text/pattern.h"
#include "text/utf8.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JSON_DEPTH 64      /* of objects and arrays within one another */
#define JSON_PROPERTIES 64 /* of an object, and choices of an enum */
#define JSON_WAYS 16       /* kinds of values of an anyOf */
#define JSON_SPACES 20
#define JSON_NUMBER 40

/* Kinds of values are bits, so that a node may allow several. */
enum {
    JSON_OBJECT = 1,
    JSON_ARRAY = 2,
    JSON_STRING = 4,
    JSON_NUMBERS = 8,
    JSON_INTEGER = 16,
    JSON_BOOLEAN = 32,
    JSON_NULL = 64,
    JSON_ANY = 127
};

/* A node says which values a schema allows in one place. Names and choices are as they are written, names without quotes. */
struct json_node {
    unsigned kinds;
    uint32_t properties, n_properties; /* the first one's number */
    uint64_t required;                 /* of them, as bits */
    bool additional;                   /* names beside them are allowed, with any value */
    uint32_t items;                    /* node */
    uint32_t items_least, items_most;
    uint32_t choices, n_choices; /* 0: any value of the kinds */
    uint32_t pattern;            /* of strings, its number from 1 on; 0: none */
    bool is_union;               /* the value is that of one of the nodes way[ways], which are no unions; nothing else counts */
    uint32_t ways, way[JSON_WAYS];
    uint32_t levels; /* objects and arrays within one another that it takes at least; above JSON_DEPTH: there is no such value */
};

struct json_schema {
    struct json_node *node; /* node 0 is any value, node 1 the whole text */
    char **property;        /* names */
    uint32_t *property_node;
    char **choice;
    struct pattern **pattern;
    uint32_t nodes, properties, choices, patterns;
    uint32_t others; /* owners beside the first: json_schema_share */
};

/* A strict schema is refused where it asks for what is not understood. A lenient one leaves that out: it then allows more values than it should,
 * and any object where it has no values at all. */
enum json_strictness { JSON_STRICT, JSON_LENIENT };
/* Makes a schema from its text; NULL: any object. */
enum terse_status json_schema_new(const char *text, enum json_strictness strictness, struct json_schema **schema,
                                  struct terse_error *error);
/* Adds one owner, who frees it too; not thread-safe. */
void json_schema_share(struct json_schema *schema);
void json_schema_free(struct json_schema *schema);

struct json_frame {
    uint32_t node, count; /* items of an array so far */
    uint64_t seen;        /* properties of an object so far */
    bool object;
};

/* A way is one reading of the text so far. */
struct json_way {
    uint8_t where, step, spaces, word;
    struct utf8_rest rest; /* of a character of a string */
    bool low_surrogate;    /* must come next */
    uint16_t unit;         /* of an escape \u so far */
    uint32_t character;    /* of a string with a pattern, so far */
    uint32_t node, at;     /* of the value that is next or being written; bytes of it so far */
    uint64_t possible;     /* names or choices that begin with these bytes */
    struct pattern_state pattern;
    uint32_t depth;
    struct json_frame frame[JSON_DEPTH];
};

/* A state holds all ways to read the text so far. It is plain data and may be copied. */
struct json_state {
    uint32_t ways;
    struct json_way way[JSON_WAYS];
};

struct json_state json_begin(void);
/* Copies a state, of which only the ways in use need to be set. */
void json_copy(struct json_state *to, const struct json_state *from);
/* Takes text[n]. Returns false where it cannot be continued to an allowed value; the state is then of no more use. */
bool json_push(const struct json_schema *schema, struct json_state *state, const char *text, size_t n);
/* Returns whether json_push would return true. */
bool json_allows(const struct json_schema *schema, const struct json_state *state, const char *text, size_t n);
/* Returns whether the text may end here. */
bool json_may_end(const struct json_schema *schema, const struct json_state *state);

#endif
