/* Builds nodes from a schema that cJSON has parsed. */
#include "base/memory.h"
#include "base/text.h"
#include "text/json_filter.h"
#include "text/json_ways.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    unsigned kinds;
} types[] = {{"object", JSON_OBJECT},   {"array", JSON_ARRAY},     {"string", JSON_STRING}, {"number", JSON_NUMBERS | JSON_INTEGER},
             {"integer", JSON_INTEGER}, {"boolean", JSON_BOOLEAN}, {"null", JSON_NULL}};
#define TYPES (sizeof types / sizeof *types)

/* These keywords say nothing about a value; definitions do so where they are referred to. */
static const char *const remarks[] = {"title", "description", "default", "examples",   "$schema",
                                      "$id",   "$comment",    "$defs",   "definitions"};
#define REMARKS (sizeof remarks / sizeof *remarks)

enum { MOST_NODES = 16384, MOST_PATTERNS = 256, MOST_DEFINITIONS = 256 };

/* ---- Counting, so that everything is allocated once */

struct counts {
    uint32_t nodes, properties, choices, patterns;
};

static void count(const cJSON *schema, struct counts *n) {
    const cJSON *properties = cJSON_GetObjectItemCaseSensitive(schema, "properties"), *one;
    const cJSON *choices = cJSON_GetObjectItemCaseSensitive(schema, "enum"),
                *union_of = cJSON_GetObjectItemCaseSensitive(schema, "anyOf");
    n->nodes++;
    n->choices += 1 + (cJSON_IsArray(choices) ? (uint32_t)cJSON_GetArraySize(choices) : 0);
    n->patterns += cJSON_HasObjectItem(schema, "pattern");
    if (cJSON_HasObjectItem(schema, "items")) count(cJSON_GetObjectItemCaseSensitive(schema, "items"), n);
    if (cJSON_IsArray(union_of)) cJSON_ArrayForEach(one, union_of) count(one, n);
    if (!cJSON_IsObject(properties)) return;
    cJSON_ArrayForEach(one, properties) {
        n->properties++;
        count(one, n);
    }
}

/* ---- Places in a schema, for messages */

struct place {
    const struct place *up;     /* NULL: the schema itself */
    const char *keyword, *name; /* name: NULL where the keyword has one value */
};

static void write_place(struct text_line *line, const struct place *place) {
    if (!place) {
        text_line_unit(line, "#", 1);
        return;
    }
    write_place(line, place->up);
    text_line_unit(line, "/", 1);
    text_line_string(line, place->keyword, strlen(place->keyword), false);
    if (!place->name) return;
    text_line_unit(line, "/", 1);
    text_line_string(line, place->name, strlen(place->name), false);
}

/* ---- Nodes */

/* A definition is a part of the schema that $ref may name. */
struct definition {
    const cJSON *schema;
    const char *keyword;
    uint32_t node; /* 0: none refers to it so far */
    bool built;
};

struct building {
    struct json_schema *schema;
    const struct place *place;
    struct definition definition[MOST_DEFINITIONS];
    uint32_t definitions;
    bool lenient;
    struct terse_error *error;
};

/* Refuses the schema. `keyword`: the message quotes the value of this keyword, if it is not NULL. */
static enum terse_status refuse(struct building *b, const char *what, const char *keyword) {
    char place[160], shown[80] = "";
    struct text_line line = text_line_begin(place, sizeof place);
    write_place(&line, b->place);
    text_line_end(&line);
    if (keyword) text_quote(shown, sizeof shown, keyword, strlen(keyword));
    return status_fail(b->error, TERSE_E_ARGUMENT, "JSON schema, at %s: %s%s%s", place, what, keyword ? " " : "", shown);
}

static enum terse_status build(struct building *b, const cJSON *from, uint32_t depth, uint32_t *node);

/* Builds the schema that a keyword has, or one of those that it has. */
static enum terse_status build_part(struct building *b, const cJSON *from, const char *keyword, const char *name, uint32_t depth,
                                    uint32_t *node) {
    const struct place place = {b->place, keyword, name};
    b->place = &place;
    enum terse_status status = build(b, from, depth + 1, node);
    b->place = place.up;
    return status;
}

static char *copy_of(const char *text, size_t n) {
    char *copy = memory_array(n + 1, 1);
    if (!copy) return NULL;
    memcpy(copy, text, n);
    copy[n] = 0;
    return copy;
}

/* Returns a value as it is written, without the quotes of a name; NULL when memory is refused. */
static char *written(const cJSON *value, bool name) {
    char *text = cJSON_PrintUnformatted(value);
    size_t n = text ? strlen(text) : 0;
    char *copy = !text ? NULL : name ? copy_of(text + 1, n - 2) : copy_of(text, n);
    cJSON_free(text);
    return copy;
}

static enum terse_status add_type(struct building *b, struct json_node *node, const cJSON *type) {
    for (size_t i = 0; i < TYPES; i++) {
        if (!cJSON_IsString(type) || strcmp(type->valuestring, types[i].name) != 0) continue;
        node->kinds |= types[i].kinds;
        return TERSE_OK;
    }
    return refuse(b, "there is no type", cJSON_IsString(type) ? type->valuestring : "(no string)");
}

static enum terse_status set_types(struct building *b, struct json_node *node, const cJSON *type) {
    const cJSON *one;
    enum terse_status status = TERSE_OK;
    node->kinds = 0;
    if (!cJSON_IsArray(type)) return add_type(b, node, type);
    cJSON_ArrayForEach(one, type) if (!status) status = add_type(b, node, one);
    return status;
}

static enum terse_status set_choices(struct building *b, struct json_node *node, const cJSON *values) {
    const cJSON *one;
    if (!cJSON_IsArray(values) || cJSON_GetArraySize(values) < 1 || cJSON_GetArraySize(values) > JSON_PROPERTIES)
        return refuse(b, "1 to 64 values are allowed in", "enum");
    node->choices = b->schema->choices;
    cJSON_ArrayForEach(one, values) {
        char *text = written(one, false);
        if (!text) return status_no_memory(b->error, 64, "a JSON schema");
        b->schema->choice[b->schema->choices++] = text;
        node->n_choices++;
    }
    return TERSE_OK;
}

static enum terse_status set_choice(struct building *b, struct json_node *node, const cJSON *value) {
    char *text = written(value, false);
    if (!text) return status_no_memory(b->error, 64, "a JSON schema");
    node->choices = b->schema->choices;
    node->n_choices = 1;
    b->schema->choice[b->schema->choices++] = text;
    return TERSE_OK;
}

static enum terse_status set_properties(struct building *b, uint32_t node, const cJSON *properties, uint32_t depth) {
    const cJSON *one;
    struct json_schema *s = b->schema;
    if (!cJSON_IsObject(properties) || cJSON_GetArraySize(properties) > JSON_PROPERTIES)
        return refuse(b, "an object of at most 64 names belongs to", "properties");
    uint32_t first = s->properties;
    s->node[node].properties = first;
    cJSON_ArrayForEach(one, properties) {
        if (cJSON_GetObjectItemCaseSensitive(properties, one->string) != one)
            return refuse(b, "a property stands twice:", one->string);
        cJSON *name = cJSON_CreateString(one->string);
        char *text = name ? written(name, true) : NULL;
        cJSON_Delete(name);
        if (!text) return status_no_memory(b->error, 64, "a JSON schema");
        s->property[s->properties++] = text;
        s->node[node].n_properties++;
    }
    cJSON_ArrayForEach(one, properties) {
        enum terse_status status = build_part(b, one, "properties", one->string, depth, &s->property_node[first++]);
        if (status) return status;
    }
    return TERSE_OK;
}

static enum terse_status set_required(struct building *b, uint32_t node, const cJSON *required, const cJSON *properties) {
    const cJSON *one, *each;
    if (!cJSON_IsArray(required)) return refuse(b, "an array of names belongs to", "required");
    cJSON_ArrayForEach(one, required) {
        uint64_t bit = 1, found = 0;
        cJSON_ArrayForEach(each, properties) {
            if (cJSON_IsString(one) && strcmp(each->string, one->valuestring) == 0) found = bit;
            bit <<= 1;
        }
        if (!found) return refuse(b, "a required name is not among the properties:", cJSON_IsString(one) ? one->valuestring : "");
        b->schema->node[node].required |= found;
    }
    return TERSE_OK;
}

static enum terse_status set_number(struct building *b, const cJSON *value, uint32_t *to) {
    if (!cJSON_IsNumber(value) || value->valuedouble < 0 || value->valuedouble > 1e6 ||
        value->valuedouble != (double)(uint32_t)value->valuedouble)
        return refuse(b, "a whole number belongs to", value->string);
    *to = (uint32_t)value->valuedouble;
    return TERSE_OK;
}

static enum terse_status set_pattern(struct building *b, uint32_t node, const cJSON *value) {
    struct terse_error why;
    struct json_schema *s = b->schema;
    if (!cJSON_IsString(value)) return refuse(b, "a regular expression belongs to", "pattern");
    if (s->patterns == MOST_PATTERNS) return refuse(b, "the schema has more than 256 patterns", NULL);
    enum terse_status status = pattern_new(value->valuestring, &s->pattern[s->patterns], &why);
    const struct place place = {b->place, "pattern", NULL};
    b->place = &place;
    if (status == TERSE_E_ARGUMENT)
        refuse(b, why.message, NULL);
    else if (!status)
        s->node[node].pattern = ++s->patterns;
    else if (b->error)
        *b->error = why;
    b->place = place.up;
    return status;
}

static enum terse_status set_union(struct building *b, uint32_t node, const cJSON *schemas, uint32_t depth) {
    const cJSON *one;
    struct json_schema *s = b->schema;
    if (!cJSON_IsArray(schemas) || cJSON_GetArraySize(schemas) < 1 || cJSON_GetArraySize(schemas) > JSON_WAYS)
        return refuse(b, "1 to 16 schemas are allowed in", "anyOf");
    if (s->node[node].is_union) return refuse(b, "$ref and anyOf stand side by side", NULL);
    s->node[node].is_union = true;
    cJSON_ArrayForEach(one, schemas) {
        char number[16];
        uint32_t way;
        snprintf(number, sizeof number, "%u", s->node[node].ways);
        enum terse_status status = build_part(b, one, "anyOf", number, depth, &way);
        if (status) return status;
        s->node[node].way[s->node[node].ways++] = way;
    }
    return TERSE_OK;
}

/* Returns whether a part of a JSON pointer is this name, in which it writes ~ and / as ~0 and ~1. */
static bool points_to(const char *pointer, const char *name) {
    for (; *name; name++, pointer++) {
        if (*name != '~' && *name != '/' ? *pointer != *name : pointer[0] != '~' || pointer[1] != (*name == '~' ? '0' : '1'))
            return false;
        pointer += *name == '~' || *name == '/';
    }
    return !*pointer;
}

static struct definition *find_definition(struct building *b, const char *pointer) {
    for (uint32_t i = 0; i < b->definitions; i++) {
        struct definition *d = &b->definition[i];
        size_t n = strlen(d->keyword);
        if (strncmp(pointer, "#/", 2) == 0 && strncmp(pointer + 2, d->keyword, n) == 0 && pointer[2 + n] == '/' &&
            points_to(pointer + n + 3, d->schema->string))
            return d;
    }
    return NULL;
}

/* Makes a reference a union of one schema. The definition that it refers to is built later, so that recursion ends. */
static enum terse_status set_reference(struct building *b, uint32_t node, const cJSON *value) {
    struct json_node *n = &b->schema->node[node];
    if (!cJSON_IsString(value)) return refuse(b, "a string belongs to", "$ref");
    struct definition *d = find_definition(b, value->valuestring);
    bool whole = strcmp(value->valuestring, "#") == 0;
    if (!d && !whole) return refuse(b, "$ref names neither # nor what the schema has in $defs:", value->valuestring);
    if (n->is_union) return refuse(b, "$ref and anyOf stand side by side", NULL);
    if (d && !d->node) d->node = b->schema->nodes++;
    n->is_union = true;
    n->way[n->ways++] = whole ? 1 : d->node;
    return TERSE_OK;
}

static bool is_remark(const char *keyword) {
    for (size_t i = 0; i < REMARKS; i++)
        if (strcmp(keyword, remarks[i]) == 0) return true;
    return false;
}

static enum terse_status set_keyword(struct building *b, uint32_t node, const cJSON *schema, const cJSON *one, uint32_t depth) {
    struct json_node *n = &b->schema->node[node];
    const char *name = one->string;
    if (is_remark(name)) return TERSE_OK;
    if (strcmp(name, "anyOf") == 0) return set_union(b, node, one, depth);
    if (strcmp(name, "$ref") == 0) return set_reference(b, node, one);
    if (strcmp(name, "type") == 0) return set_types(b, n, one);
    if (strcmp(name, "enum") == 0) return set_choices(b, n, one);
    if (strcmp(name, "const") == 0) return set_choice(b, n, one);
    if (strcmp(name, "pattern") == 0) return set_pattern(b, node, one);
    if (strcmp(name, "properties") == 0) return set_properties(b, node, one, depth);
    if (strcmp(name, "required") == 0) return set_required(b, node, one, cJSON_GetObjectItemCaseSensitive(schema, "properties"));
    if (strcmp(name, "minItems") == 0) return set_number(b, one, &n->items_least);
    if (strcmp(name, "maxItems") == 0) return set_number(b, one, &n->items_most);
    if (strcmp(name, "items") == 0) return build_part(b, one, "items", NULL, depth, &n->items);
    if (strcmp(name, "additionalProperties") == 0) {
        if (!cJSON_IsBool(one)) return refuse(b, "true or false is all that is understood in", name);
        n->additional = cJSON_IsTrue(one);
        return TERSE_OK;
    }
    return refuse(b, "this keyword is not understood:", name);
}

/* Refuses keywords that would otherwise be ignored. */
static enum terse_status check_node(struct building *b, struct json_node *n, const cJSON *from) {
    const cJSON *one;
    if (b->lenient) {
        if (n->items_least > n->items_most) n->items_least = 0;
        return TERSE_OK; /* choices come before a pattern, and unions before all else */
    }
    if (n->items_least > n->items_most) return refuse(b, "maxItems is below minItems", NULL);
    if (n->pattern && n->n_choices) return refuse(b, "enum or const stands beside a pattern", NULL);
    if (!n->is_union) return TERSE_OK;
    cJSON_ArrayForEach(one, from) if (!is_remark(one->string) && strcmp(one->string, "anyOf") != 0 &&
                                      strcmp(one->string, "$ref") !=
                                          0) return refuse(b, "beside anyOf or $ref this keyword is not understood:", one->string);
    return TERSE_OK;
}

static const struct json_node any_value = {.kinds = JSON_ANY, .additional = true, .items_most = UINT32_MAX};

/* Sets what one keyword asks for. In a lenient schema a keyword that is refused leaves the node as it was; *any_names: the names of an object's
 * properties were. */
static enum terse_status take_keyword(struct building *b, uint32_t node, const cJSON *from, const cJSON *one, uint32_t depth,
                                      bool *any_names) {
    const struct json_node before = b->schema->node[node];
    bool twice = cJSON_GetObjectItemCaseSensitive(from, one->string) != one;
    enum terse_status status = twice ? refuse(b, "a keyword stands twice:", one->string) : set_keyword(b, node, from, one, depth);
    if (status != TERSE_E_ARGUMENT || !b->lenient) return status;
    b->schema->node[node] = before;
    *any_names |= strcmp(one->string, "properties") == 0;
    return TERSE_OK;
}

static enum terse_status build_node(struct building *b, const cJSON *from, uint32_t depth, uint32_t node) {
    const cJSON *one;
    struct json_node *n = &b->schema->node[node];
    enum terse_status status = TERSE_OK;
    bool any_names = false;
    *n = any_value;
    if (cJSON_IsTrue(from) || (b->lenient && (!cJSON_IsObject(from) || depth >= JSON_DEPTH))) return TERSE_OK;
    if (!cJSON_IsObject(from)) return refuse(b, "a schema is an object or true", NULL);
    if (depth >= JSON_DEPTH) return refuse(b, "the schema is deeper than 64", NULL);
    cJSON_ArrayForEach(one, from) if (!status) status = take_keyword(b, node, from, one, depth, &any_names);
    if (any_names) n->additional = true, n->required = 0;
    return status ? status : check_node(b, n, from);
}

static enum terse_status build(struct building *b, const cJSON *from, uint32_t depth, uint32_t *node) {
    *node = cJSON_IsTrue(from) ? 0 : b->schema->nodes++; /* 0: any value */
    return *node ? build_node(b, from, depth, *node) : TERSE_OK;
}

/* Builds the definitions that something refers to, until none refers to another that is not built. */
static enum terse_status build_definitions(struct building *b) {
    for (uint32_t i = 0; i < b->definitions; i++) {
        struct definition *d = &b->definition[i];
        if (!d->node || d->built) continue;
        const struct place place = {NULL, d->keyword, d->schema->string};
        b->place = &place;
        d->built = true;
        enum terse_status status = build_node(b, d->schema, 1, d->node);
        b->place = NULL;
        if (status) return status;
        i = UINT32_MAX; /* from the first again */
    }
    return TERSE_OK;
}

static enum terse_status find_definitions(struct building *b, const cJSON *from, struct counts *n) {
    static const char *const keywords[] = {"$defs", "definitions"};
    for (size_t i = 0; i < 2; i++) {
        const cJSON *all = cJSON_GetObjectItemCaseSensitive(from, keywords[i]), *one;
        if (!cJSON_IsObject(all)) continue;
        cJSON_ArrayForEach(one, all) {
            if (b->definitions == MOST_DEFINITIONS) return refuse(b, "more than 256 definitions are in", keywords[i]);
            b->definition[b->definitions++] = (struct definition){.schema = one, .keyword = keywords[i]};
            count(one, n);
        }
    }
    return n->nodes < MOST_NODES ? TERSE_OK : refuse(b, "the schema has more than 16384 parts", NULL);
}

static enum terse_status fill(struct building *b, const cJSON *from) {
    struct counts n = {0};
    struct json_schema *s = b->schema;
    uint32_t root;
    count(from, &n);
    enum terse_status status = find_definitions(b, from, &n);
    if (status) return status;
    s->node = memory_zeros(n.nodes + 1, sizeof *s->node);
    s->property = memory_zeros(n.properties + 1, sizeof *s->property);
    s->property_node = memory_zeros(n.properties + 1, sizeof *s->property_node);
    s->choice = memory_zeros(n.choices + 1, sizeof *s->choice);
    s->pattern = memory_zeros(n.patterns + 1, sizeof *s->pattern);
    if (!s->node || !s->property || !s->property_node || !s->choice || !s->pattern)
        return status_no_memory(b->error, (uint64_t)n.nodes * sizeof *s->node, "a JSON schema");
    s->node[s->nodes++] = any_value;
    status = build(b, from, 1, &root);
    if (!status) status = build_definitions(b);
    return status ? status : json_ways_resolve(s, b->error);
}

enum terse_status json_schema_new(const char *text, enum json_strictness strictness, struct json_schema **schema,
                                  struct terse_error *error) {
    *schema = NULL;
    if (text && utf8_prefix(text, strlen(text)) < strlen(text))
        return status_fail(error, TERSE_E_ARGUMENT, "the JSON schema is not UTF-8");
    cJSON *from = cJSON_ParseWithOpts(text ? text : "{\"type\": \"object\"}", NULL, true);
    if (!from) return status_fail(error, TERSE_E_ARGUMENT, "the JSON schema is no JSON");
    if (!cJSON_IsObject(from)) {
        cJSON_Delete(from);
        return status_fail(error, TERSE_E_ARGUMENT, "the JSON schema is no object");
    }
    struct json_schema *s = memory_zeros(1, sizeof *s);
    struct building *b = memory_zeros(1, sizeof *b);
    enum terse_status status;
    if (s && b) {
        b->schema = s;
        b->error = error;
        b->lenient = strictness == JSON_LENIENT;
        status = fill(b, from);
    } else {
        status = status_no_memory(error, sizeof *b, "a JSON schema");
    }
    memory_free(b);
    cJSON_Delete(from);
    if (status)
        json_schema_free(s);
    else
        *schema = s;
    bool any_object = status == TERSE_E_ARGUMENT && strictness == JSON_LENIENT;
    return any_object ? json_schema_new(NULL, JSON_STRICT, schema, error) : status;
}

void json_schema_share(struct json_schema *s) { s->others++; }

void json_schema_free(struct json_schema *s) {
    if (!s || s->others--) return;
    for (uint32_t i = 0; i < s->properties; i++) memory_free(s->property[i]);
    for (uint32_t i = 0; i < s->choices; i++) memory_free(s->choice[i]);
    memory_free(s->node);
    memory_free(s->property);
    memory_free(s->property_node);
    for (uint32_t i = 0; i < s->patterns; i++) pattern_free(s->pattern[i]);
    memory_free(s->choice);
    memory_free(s->pattern);
    memory_free(s);
}
