/* Schemas, read by cJSON, as nodes. */
#include "base/memory.h"
#include "text/json_filter.h"

#include <cjson/cJSON.h>
#include <string.h>

static const struct {
    const char *name;
    unsigned kinds;
} types[] = {{"object", JSON_OBJECT},   {"array", JSON_ARRAY},     {"string", JSON_STRING}, {"number", JSON_NUMBERS | JSON_INTEGER},
             {"integer", JSON_INTEGER}, {"boolean", JSON_BOOLEAN}, {"null", JSON_NULL}};
#define TYPES (sizeof types / sizeof *types)

/* Keywords that say nothing about a value. */
static const char *const remarks[] = {"title", "description", "default", "examples", "$schema", "$id", "$comment"};
#define REMARKS (sizeof remarks / sizeof *remarks)

static enum terse_status refuse(struct terse_error *error, const char *what, const char *keyword) {
    return status_fail(error, TERSE_E_ARGUMENT, "JSON schema: %s \"%.60s\"", what, keyword);
}

/* ---- Counting, so that everything is allocated once */

struct counts {
    uint32_t nodes, properties, choices;
};

static void count(const cJSON *schema, struct counts *n) {
    const cJSON *properties = cJSON_GetObjectItemCaseSensitive(schema, "properties");
    const cJSON *items = cJSON_GetObjectItemCaseSensitive(schema, "items"), *one;
    const cJSON *choices = cJSON_GetObjectItemCaseSensitive(schema, "enum");
    n->nodes++;
    n->choices += 1 + (cJSON_IsArray(choices) ? (uint32_t)cJSON_GetArraySize(choices) : 0);
    if (cJSON_IsObject(items)) count(items, n);
    if (!cJSON_IsObject(properties)) return;
    cJSON_ArrayForEach(one, properties) {
        n->properties++;
        count(one, n);
    }
}

/* ---- Nodes */

struct building {
    struct json_schema *schema;
    struct terse_error *error;
};

static enum terse_status build(struct building *b, const cJSON *from, uint32_t depth, uint32_t *node);

static char *copy_of(const char *text, size_t n) {
    char *copy = memory_array(n + 1, 1);
    if (!copy) return NULL;
    memcpy(copy, text, n);
    copy[n] = 0;
    return copy;
}

/* A value as it is written, without the quotes of a name; NULL: no memory. */
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
    return refuse(b->error, "there is no type", cJSON_IsString(type) ? type->valuestring : "(no string)");
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
        return refuse(b->error, "1 to 64 values are allowed in", "enum");
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
        return refuse(b->error, "an object of at most 64 names belongs to", "properties");
    uint32_t first = s->properties;
    s->node[node].properties = first;
    cJSON_ArrayForEach(one, properties) {
        cJSON *name = cJSON_CreateString(one->string);
        char *text = name ? written(name, true) : NULL;
        cJSON_Delete(name);
        if (!text) return status_no_memory(b->error, 64, "a JSON schema");
        s->property[s->properties++] = text;
        s->node[node].n_properties++;
    }
    cJSON_ArrayForEach(one, properties) {
        enum terse_status status = build(b, one, depth, &s->property_node[first++]);
        if (status) return status;
    }
    return TERSE_OK;
}

static enum terse_status set_required(struct building *b, uint32_t node, const cJSON *required, const cJSON *properties) {
    const cJSON *one, *each;
    if (!cJSON_IsArray(required)) return refuse(b->error, "an array of names belongs to", "required");
    cJSON_ArrayForEach(one, required) {
        uint64_t bit = 1, found = 0;
        cJSON_ArrayForEach(each, properties) {
            if (cJSON_IsString(one) && strcmp(each->string, one->valuestring) == 0) found = bit;
            bit <<= 1;
        }
        if (!found)
            return refuse(b->error, "a required name is not among the properties:", cJSON_IsString(one) ? one->valuestring : "");
        b->schema->node[node].required |= found;
    }
    return TERSE_OK;
}

static enum terse_status set_number(struct building *b, const cJSON *value, uint32_t *to) {
    if (!cJSON_IsNumber(value) || value->valuedouble < 0 || value->valuedouble > 1e6 ||
        value->valuedouble != (double)(uint32_t)value->valuedouble)
        return refuse(b->error, "a whole number belongs to", value->string);
    *to = (uint32_t)value->valuedouble;
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
    if (strcmp(name, "type") == 0) return set_types(b, n, one);
    if (strcmp(name, "enum") == 0) return set_choices(b, n, one);
    if (strcmp(name, "const") == 0) return set_choice(b, n, one);
    if (strcmp(name, "properties") == 0) return set_properties(b, node, one, depth + 1);
    if (strcmp(name, "required") == 0) return set_required(b, node, one, cJSON_GetObjectItemCaseSensitive(schema, "properties"));
    if (strcmp(name, "minItems") == 0) return set_number(b, one, &n->items_least);
    if (strcmp(name, "maxItems") == 0) return set_number(b, one, &n->items_most);
    if (strcmp(name, "items") == 0) {
        uint32_t items;
        enum terse_status status = build(b, one, depth + 1, &items);
        b->schema->node[node].items = items;
        return status;
    }
    if (strcmp(name, "additionalProperties") == 0) {
        if (!cJSON_IsBool(one)) return refuse(b->error, "true or false is all that is understood in", name);
        n->additional = cJSON_IsTrue(one);
        return TERSE_OK;
    }
    return is_remark(name) ? TERSE_OK : refuse(b->error, "this keyword is not understood:", name);
}

static enum terse_status build(struct building *b, const cJSON *from, uint32_t depth, uint32_t *node) {
    const cJSON *one;
    enum terse_status status = TERSE_OK;
    *node = 0;
    if (cJSON_IsTrue(from)) return TERSE_OK; /* any value */
    if (!cJSON_IsObject(from)) return status_fail(b->error, TERSE_E_ARGUMENT, "JSON schema: a schema is an object or true");
    if (depth >= JSON_DEPTH) return status_fail(b->error, TERSE_E_ARGUMENT, "JSON schema: deeper than %d", JSON_DEPTH);
    uint32_t own = b->schema->nodes++;
    b->schema->node[own] = (struct json_node){.kinds = JSON_ANY, .additional = true, .items_most = UINT32_MAX};
    cJSON_ArrayForEach(one, from) {
        const cJSON *first = cJSON_GetObjectItemCaseSensitive(from, one->string);
        if (!status && first != one) status = refuse(b->error, "a keyword stands twice:", one->string);
        if (!status) status = set_keyword(b, own, from, one, depth);
    }
    if (!status && b->schema->node[own].items_least > b->schema->node[own].items_most)
        status = status_fail(b->error, TERSE_E_ARGUMENT, "JSON schema: minItems is above maxItems");
    *node = own;
    return status;
}

static enum terse_status fill(struct json_schema *s, const cJSON *from, struct terse_error *error) {
    struct counts n = {0};
    uint32_t root;
    count(from, &n);
    s->node = memory_zeros(n.nodes + 1, sizeof *s->node);
    s->property = memory_zeros(n.properties + 1, sizeof *s->property);
    s->property_node = memory_zeros(n.properties + 1, sizeof *s->property_node);
    s->choice = memory_zeros(n.choices + 1, sizeof *s->choice);
    if (!s->node || !s->property || !s->property_node || !s->choice)
        return status_no_memory(error, (uint64_t)n.nodes * sizeof *s->node, "a JSON schema");
    s->node[s->nodes++] = (struct json_node){.kinds = JSON_ANY, .additional = true, .items_most = UINT32_MAX};
    return build(&(struct building){s, error}, from, 1, &root);
}

enum terse_status json_schema_new(const char *text, struct json_schema **schema, struct terse_error *error) {
    *schema = NULL;
    cJSON *from = cJSON_ParseWithOpts(text ? text : "{\"type\": \"object\"}", NULL, true);
    if (!from) return status_fail(error, TERSE_E_ARGUMENT, "the JSON schema is no JSON");
    if (!cJSON_IsObject(from)) {
        cJSON_Delete(from);
        return status_fail(error, TERSE_E_ARGUMENT, "the JSON schema is no object");
    }
    struct json_schema *s = memory_zeros(1, sizeof *s);
    enum terse_status status = s ? fill(s, from, error) : status_no_memory(error, sizeof *s, "a JSON schema");
    cJSON_Delete(from);
    if (status)
        json_schema_free(s);
    else
        *schema = s;
    return status;
}

void json_schema_share(struct json_schema *s) { s->others++; }

void json_schema_free(struct json_schema *s) {
    if (!s || s->others--) return;
    for (uint32_t i = 0; i < s->properties; i++) memory_free(s->property[i]);
    for (uint32_t i = 0; i < s->choices; i++) memory_free(s->choice[i]);
    memory_free(s->node);
    memory_free(s->property);
    memory_free(s->property_node);
    memory_free(s->choice);
    memory_free(s);
}
