#include "text/json_ways.h"

#include "base/memory.h"

#include <string.h>

enum { NEVER = JSON_DEPTH + 1 };

/* ---- Unions */

struct search {
    uint32_t *queue, n; /* unions that were met */
    bool *met;          /* nodes */
};

/* Replaces the ways of a union by all that are no unions and are reached through unions. */
static bool flatten(struct json_schema *schema, uint32_t root, struct search *search) {
    uint32_t way[JSON_WAYS], ways = 0;
    memset(search->met, 0, schema->nodes * sizeof *search->met);
    search->n = 0;
    search->queue[search->n++] = root;
    search->met[root] = true;
    for (uint32_t i = 0; i < search->n; i++) {
        const struct json_node *from = &schema->node[search->queue[i]];
        for (uint32_t j = 0; j < from->ways; j++) {
            uint32_t node = from->way[j];
            if (search->met[node]) continue;
            search->met[node] = true;
            if (schema->node[node].is_union) {
                search->queue[search->n++] = node;
            } else {
                if (ways == JSON_WAYS) return false;
                way[ways++] = node;
            }
        }
    }
    memcpy(schema->node[root].way, way, ways * sizeof *way);
    schema->node[root].ways = ways;
    return true;
}

static enum terse_status flatten_all(struct json_schema *schema, struct terse_error *error) {
    struct search search = {memory_array(schema->nodes, sizeof *search.queue), 0, memory_array(schema->nodes, sizeof *search.met)};
    enum terse_status status = search.queue && search.met ? TERSE_OK : status_no_memory(error, schema->nodes, "a JSON schema");
    for (uint32_t i = 0; i < schema->nodes && !status; i++)
        if (schema->node[i].is_union && !flatten(schema, i, &search))
            status = status_fail(error, TERSE_E_ARGUMENT, "JSON schema: an anyOf has, with what it refers to, more than %d schemas",
                                 JSON_WAYS);
    memory_free(search.queue);
    memory_free(search.met);
    return status;
}

/* ---- Levels */

static uint32_t object_levels(const struct json_schema *schema, const struct json_node *node) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < node->n_properties; i++) {
        uint32_t levels = schema->node[schema->property_node[node->properties + i]].levels;
        if (node->required >> i & 1 && levels > most) most = levels;
    }
    return most + 1;
}

/* Computes a node's levels from those of the other nodes that are known so far. */
static uint32_t levels_of(const struct json_schema *schema, const struct json_node *node) {
    uint32_t least = NEVER, levels;
    if (node->is_union) {
        for (uint32_t i = 0; i < node->ways; i++)
            if (schema->node[node->way[i]].levels < least) least = schema->node[node->way[i]].levels;
        return least;
    }
    if (node->n_choices || node->kinds & ~(unsigned)(JSON_OBJECT | JSON_ARRAY)) return 0;
    if (node->kinds & JSON_ARRAY && (levels = node->items_least ? 1 + schema->node[node->items].levels : 1) < least) least = levels;
    if (node->kinds & JSON_OBJECT && (levels = object_levels(schema, node)) < least) least = levels;
    return least;
}

/* Finds the levels of all nodes. Each round finds those of nodes that are one level deeper, so there are few rounds. */
static void find_levels(struct json_schema *schema) {
    for (uint32_t i = 0; i < schema->nodes; i++) schema->node[i].levels = NEVER;
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t i = 0; i < schema->nodes; i++) {
            uint32_t levels = levels_of(schema, &schema->node[i]);
            changed |= levels != schema->node[i].levels;
            schema->node[i].levels = levels;
        }
    }
}

enum terse_status json_ways_resolve(struct json_schema *schema, struct terse_error *error) {
    enum terse_status status = flatten_all(schema, error);
    if (status) return status;
    find_levels(schema);
    if (schema->node[1].levels < NEVER) return TERSE_OK;
    return status_fail(error, TERSE_E_ARGUMENT,
                       "JSON schema: no value fits it within %d levels: a required part of it needs itself", JSON_DEPTH);
}
