/* Fuzz target of JSON schemas and the texts that they let through: the input is a schema, a NUL and the beginning of a text. What is wrong with
 * a schema must be said in a printable line; a text may be pushed byte by byte or at once; and from where it comes to something must always
 * lead on to an end. Run it with the corpus in corpus/schema; see CMakeLists.txt. */
#include "base/text.h"
#include "text/json_filter.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) abort();
}

static struct json_schema *read_schema(const uint8_t *data, size_t n) {
    struct terse_error error = {0};
    struct json_schema *schema;
    char *text = malloc(n + 1);
    require(text != NULL);
    if (n) memcpy(text, data, n);
    text[n] = 0;
    enum terse_status status = json_schema_new(text, JSON_STRICT, &schema, &error);
    free(text);
    require((status == TERSE_OK) == (schema != NULL));
    require(!status || (error.message[0] && text_is_printable(error.message, strlen(error.message))));
    return schema;
}

/* The bytes that end things come first; some bytes of whatever is left over choose among them. */
static bool end_it(const struct json_schema *schema, struct json_state *state, unsigned seed) {
    static const char first[] = "\"}]0,:{[1tfn";
    for (int steps = 0; steps < 3000; steps++) {
        char c;
        bool found = false;
        if (json_may_end(schema, state)) return true;
        seed = seed * 1103515245 + 12345;
        for (size_t i = 0; i + 1 < sizeof first && !found; i++)
            found = json_allows(schema, state, &first[i], 1) && (c = first[i], true);
        for (unsigned i = 0; i < 256 && (!found || (i == 0 && seed >> 28 == 0)); i++) {
            char other = (char)(i + (seed >> 16));
            if (json_allows(schema, state, &other, 1)) {
                c = other;
                found = true;
            }
        }
        require(found);
        require(json_push(schema, state, &c, 1));
    }
    return false; /* strings may be long; a text of 3,000 bytes need not end */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t n = nul ? (size_t)(nul - data) : size;
    struct json_schema *schema = read_schema(data, n);
    struct json_state state = json_begin();
    if (!schema) return 0;
    const char *text = (const char *)data + n + 1;
    size_t length = nul ? size - n - 1 : 0, taken = 0;
    while (taken < length && json_allows(schema, &state, text + taken, 1)) require(json_push(schema, &state, text + taken++, 1));
    struct json_state whole = json_begin();
    require(json_push(schema, &whole, text, taken));
    require(json_may_end(schema, &whole) == json_may_end(schema, &state));
    (void)end_it(schema, &state, (unsigned)size * 2654435761u);
    json_schema_free(schema);
    return 0;
}
