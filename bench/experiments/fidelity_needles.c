/* Generates tasks and their prompts. fidelity_retrieval.c runs them. */
#include "fidelity_needles.h"

#include "base/random.h"
#include "console.h"
#include "text.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEED 20250801u
#define MULTIKEY_LINES 16
#define OVERHEAD 64 /* tokens for the question, the chat format and line ends */

struct line {
    const char *text;
    size_t size; /* with its newline */
    size_t tokens;
};

struct haystack {
    const struct terse_model *model;
    struct line *lines;
    size_t n_lines;
    cJSON *words;
    const cJSON *adjectives, *nouns;
};

static const char *const kind_names[NEEDLE_KINDS] = {"single", "multikey", "kv"};
const char *needle_kind_name(enum needle_kind kind) { return kind_names[kind]; }

/* ---- The haystack */

static int count_tokens(const struct terse_model *model, const char *text, size_t size, size_t *n) {
    int32_t *tokens;
    int status = text_tokenize(model, text, size, TERSE_TOKENIZE_PLAIN, &tokens, n);
    if (status == EXIT_OK) free(tokens);
    return status;
}

static int read_words(const char *path, struct haystack *h) {
    char *text;
    size_t size;
    int status = text_read(path, &text, &size);
    if (status != EXIT_OK) return status;
    h->words = cJSON_Parse(text);
    free(text);
    h->adjectives = cJSON_GetObjectItem(h->words, "adjectives");
    h->nouns = cJSON_GetObjectItem(h->words, "nouns");
    if (cJSON_GetArraySize(h->adjectives) > 0 && cJSON_GetArraySize(h->nouns) > 0) return EXIT_OK;
    return complain("%s has no \"adjectives\" and \"nouns\"", path);
}

static int read_lines(const char *text, size_t n_bytes, struct haystack *h) {
    size_t n = 0;
    for (size_t i = 0; i < n_bytes; i++) n += text[i] == '\n';
    if (!n) return complain("the text has no lines to plant anything between");
    if (!(h->lines = calloc(n, sizeof *h->lines))) return complain("no memory for %zu lines", n);
    for (const char *at = text; h->n_lines < n; h->n_lines++) {
        struct line *line = &h->lines[h->n_lines];
        line->text = at;
        line->size = (size_t)((const char *)memchr(at, '\n', n_bytes - (size_t)(at - text)) - at) + 1;
        at += line->size;
        int status = count_tokens(h->model, line->text, line->size, &line->tokens);
        if (status != EXIT_OK) return status;
    }
    return EXIT_OK;
}

int haystack_new(const struct terse_model *model, const char *text, size_t n_bytes, const char *words, struct haystack **haystack) {
    *haystack = NULL;
    struct haystack *h = calloc(1, sizeof *h);
    if (!h) return complain("no memory for retrieval tasks");
    h->model = model;
    int status = read_words(words, h);
    if (status == EXIT_OK) status = read_lines(text, n_bytes, h);
    if (status != EXIT_OK)
        haystack_free(h);
    else
        *haystack = h;
    return status;
}

void haystack_free(struct haystack *haystack) {
    if (!haystack) return;
    cJSON_Delete(haystack->words);
    free(haystack->lines);
    free(haystack);
}

/* ---- Planted lines */

static uint64_t below(uint64_t *state, uint64_t n) { return random_next(state) % n; }

struct key {
    const char *adjective, *noun;
    uint32_t digits;
};

static struct key random_key(const struct haystack *h, uint64_t *state) {
    int adjective = (int)below(state, (uint64_t)cJSON_GetArraySize(h->adjectives));
    int noun = (int)below(state, (uint64_t)cJSON_GetArraySize(h->nouns));
    return (struct key){cJSON_GetStringValue(cJSON_GetArrayItem(h->adjectives, adjective)),
                        cJSON_GetStringValue(cJSON_GetArrayItem(h->nouns, noun)), 10 + (uint32_t)below(state, 90)};
}

/* Returns a key that differs from keys[n]; without `digits`, in its adjective or noun. */
static struct key new_key(const struct haystack *h, const struct key *keys, size_t n, bool digits, uint64_t *state) {
    for (;;) {
        struct key key = random_key(h, state);
        bool known = false;
        for (size_t i = 0; i < n && !known; i++)
            known = keys[i].adjective == key.adjective && keys[i].noun == key.noun && (!digits || keys[i].digits == key.digits);
        if (!known) return key;
    }
}

static unsigned long long number_of_7(uint64_t *state) { return 1000000 + below(state, 9000000); }

/* ---- Contexts */

struct text {
    char *bytes;
    size_t size, capacity;
    bool refused;
};

static void add(struct text *t, const char *bytes, size_t size) {
    if (t->refused) return;
    if (size >= t->capacity - t->size) {
        size_t capacity = 2 * (t->size + size + 1);
        char *larger = realloc(t->bytes, capacity);
        if (!larger) {
            t->refused = true;
            return;
        }
        t->bytes = larger;
        t->capacity = capacity;
    }
    memcpy(t->bytes + t->size, bytes, size);
    t->size += size;
    t->bytes[t->size] = 0;
}

static int by_size(const void *a, const void *b) {
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x > y) - (x < y);
}

/* Writes lines of the haystack from a random one on, wrapping around, with `n` planted lines between them. */
static void write_prose(const struct haystack *h, size_t budget, size_t n, uint64_t *state, struct text *t, char *question,
                        size_t capacity, char *answer) {
    struct key keys[MULTIKEY_LINES];
    char planted[MULTIKEY_LINES][128];
    size_t at[MULTIKEY_LINES], start = below(state, h->n_lines), count = 0, tokens = 0;
    for (size_t i = 0; i < n; i++) {
        keys[i] = new_key(h, keys, i, false, state);
        snprintf(planted[i], sizeof planted[i], "The access code for the %.40s %.40s is %llu.\n", keys[i].adjective, keys[i].noun,
                 number_of_7(state));
        tokens += 24; /* a planted line has about 20 */
    }
    for (; count < h->n_lines; count++) {
        tokens += h->lines[(start + count) % h->n_lines].tokens;
        if (tokens > budget) break;
    }
    for (size_t i = 0; i < n; i++) at[i] = below(state, count + 1);
    qsort(at, n, sizeof at[0], by_size);
    for (size_t i = 0, next = 0; i <= count; i++) {
        for (; next < n && at[next] == i; next++) add(t, planted[next], strlen(planted[next]));
        if (i < count) add(t, h->lines[(start + i) % h->n_lines].text, h->lines[(start + i) % h->n_lines].size);
    }
    size_t asked = below(state, n);
    snprintf(question, capacity, "What is the access code for the %.40s %.40s?", keys[asked].adjective, keys[asked].noun);
    snprintf(answer, sizeof((struct needle *)0)->answer, "%.*s", (int)strlen(planted[asked]) - 1, planted[asked]);
}

/* Writes lines such as "amber acorn 12: 3456789", up to `budget` tokens. */
static int write_list(const struct haystack *h, size_t budget, uint64_t *state, struct text *t, char *question, size_t capacity,
                      char *answer) {
    size_t limit = budget / 8, count = 0, tokens = 0, asked = 0; /* every such line has more than 8 tokens */
    struct key *keys = calloc(limit + 1, sizeof *keys);
    if (!keys) return complain("no memory for a list of %zu lines", limit);
    int status = EXIT_OK;
    for (; count < limit; count++) {
        char line[128];
        size_t n;
        keys[count] = new_key(h, keys, count, true, state);
        int size = snprintf(line, sizeof line, "%.40s %.40s %u: %llu\n", keys[count].adjective, keys[count].noun,
                            keys[count].digits, number_of_7(state));
        if ((status = count_tokens(h->model, line, (size_t)size, &n)) != EXIT_OK) break;
        if ((tokens += n) > budget) break;
        if (below(state, count + 1) == 0) { /* reservoir sampling: every line is asked for with the same probability */
            asked = count;
            snprintf(answer, sizeof((struct needle *)0)->answer, "%.*s", size - 1, line);
        }
        add(t, line, (size_t)size);
    }
    snprintf(question, capacity, "What is the value of %.40s %.40s %u?", keys[asked].adjective, keys[asked].noun,
             keys[asked].digits);
    free(keys);
    return status;
}

/* ---- Prompts */

static int tokenize_prompt(const struct haystack *h, const struct text *t, struct needle *needle) {
    struct terse_error error;
    char *prompt;
    const struct terse_message message = {"user", t->bytes};
    if (terse_chat_render(h->model, NULL, &message, 1, true, &prompt, &error) != TERSE_OK) return complain_error(&error);
    int status = text_tokenize(h->model, prompt, strlen(prompt), TERSE_TOKENIZE_PARSE_SPECIAL, &needle->tokens, &needle->n_tokens);
    terse_string_free(prompt);
    return status;
}

int needle_new(const struct haystack *haystack, enum needle_kind kind, uint32_t length, uint32_t number, struct needle *needle) {
    struct text text = {0};
    char question[160];
    uint64_t state = random_mix(SEED + length * 64u + (uint64_t)kind) + number;
    *needle = (struct needle){0};
    if (length < 2 * OVERHEAD + 24 * MULTIKEY_LINES) return complain("a retrieval task of %u tokens is too short", length);
    int status = EXIT_OK;
    if (kind == NEEDLE_KV)
        status = write_list(haystack, length - OVERHEAD, &state, &text, question, sizeof question, needle->answer);
    else
        write_prose(haystack, length - OVERHEAD, kind == NEEDLE_SINGLE ? 1 : MULTIKEY_LINES, &state, &text, question,
                    sizeof question, needle->answer);
    if (status != EXIT_OK) goto done;
    add(&text, "\n", 1); /* after the last line's own: an empty line before the question */
    add(&text, question, strlen(question));
    status =
        text.refused ? complain("no memory for a retrieval task of %u tokens", length) : tokenize_prompt(haystack, &text, needle);
    if (status == EXIT_OK && needle->n_tokens > length) {
        status = complain("a retrieval task of %u tokens came out with %zu", length, needle->n_tokens);
        needle_free(needle);
    }
done:
    free(text.bytes);
    return status;
}

void needle_free(struct needle *needle) {
    free(needle->tokens);
    *needle = (struct needle){0};
}
