/* Owns the files of the work folder, and the list of results in it. Its callers own the contents of a line. */
#include "fidelity_store.h"

#include "console.h"
#include "text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const table_names[STORE_TABLES] = {"perplexity.jsonl", "needles.jsonl", "memory.jsonl"};

struct store {
    char folder[768];
    cJSON *keys[STORE_TABLES]; /* objects with a member for each line */
};

static void path_of(const struct store *store, const char *name, char *path, size_t capacity) {
    snprintf(path, capacity, "%s/%s", store->folder, name);
}

static int make_folder(const char *path) {
    if (mkdir(path, 0777) == 0 || errno == EEXIST) return EXIT_OK;
    return complain("cannot make the folder %s: %s", path, strerror(errno));
}

static int write_file(const char *path, const char *mode, const void *data, size_t size) {
    FILE *file = fopen(path, mode);
    bool written = file && fwrite(data, 1, size, file) == size;
    if (file && fclose(file) != 0) written = false;
    return written ? EXIT_OK : complain("cannot write %s: %s", path, strerror(errno));
}

/* ---- Reading */

/* Reads the keys of complete lines, and cuts off a last line whose writing was interrupted, so that appended lines begin on their own. */
static int read_table(struct store *store, enum store_table table) {
    char path[1024], *text;
    size_t size, at = 0;
    path_of(store, table_names[table], path, sizeof path);
    if (access(path, F_OK) != 0) return EXIT_OK;
    int status = text_read(path, &text, &size);
    if (status != EXIT_OK) return status;
    for (size_t line = 1; status == EXIT_OK; line++) {
        char *end = memchr(text + at, '\n', size - at);
        if (!end) break;
        cJSON *object = cJSON_ParseWithLength(text + at, (size_t)(end - text) - at);
        const char *key = cJSON_GetStringValue(cJSON_GetObjectItem(object, "key"));
        if (!key) status = complain("%s: line %zu is not a result; remove it", path, line);
        if (key && !cJSON_HasObjectItem(store->keys[table], key)) cJSON_AddTrueToObject(store->keys[table], key);
        cJSON_Delete(object);
        at = (size_t)(end - text) + 1;
    }
    free(text);
    if (status == EXIT_OK && at < size && truncate(path, (off_t)at) != 0)
        status = complain("cannot cut the unfinished line off %s: %s", path, strerror(errno));
    return status;
}

/* Writes the setup whole or not at all: processes that measure side by side may begin together. */
static int write_setup(const char *path, const char *text) {
    char temporary[1024 + 32];
    snprintf(temporary, sizeof temporary, "%s.%ld", path, (long)getpid());
    int status = write_file(temporary, "w", text, strlen(text));
    if (status == EXIT_OK && rename(temporary, path) != 0) status = complain("cannot write %s: %s", path, strerror(errno));
    return status;
}

/* Checks that earlier results have the same setup. */
static int check_setup(struct store *store, const cJSON *setup, bool resume) {
    char path[1024], *text;
    size_t size;
    path_of(store, "setup.json", path, sizeof path);
    if (access(path, F_OK) != 0) {
        if (!(text = cJSON_Print(setup))) return complain("no memory for %s", path);
        int status = write_setup(path, text);
        cJSON_free(text);
        return status;
    }
    if (!resume)
        return complain("%s holds results already: add --resume to go on with it, or choose another folder", store->folder);
    int status = text_read(path, &text, &size);
    if (status != EXIT_OK) return status;
    cJSON *before = cJSON_Parse(text);
    free(text);
    for (const cJSON *item = setup->child; item && status == EXIT_OK; item = item->next)
        if (!cJSON_Compare(item, cJSON_GetObjectItem(before, item->string), true))
            status = complain("%s was measured with another %s: choose another folder", store->folder, item->string);
    cJSON_Delete(before);
    return status;
}

int store_open(const char *folder, cJSON *setup, bool resume, struct store **store) {
    char values[1024];
    int status = EXIT_FAILED;
    *store = NULL;
    struct store *s = calloc(1, sizeof *s);
    if (!s || strlen(folder) >= sizeof s->folder) {
        complain("no memory, or the folder's name is too long");
        goto done;
    }
    strcpy(s->folder, folder);
    path_of(s, "values", values, sizeof values);
    if ((status = make_folder(folder)) != EXIT_OK) goto done;
    if ((status = check_setup(s, setup, resume)) != EXIT_OK) goto done;
    if ((status = make_folder(values)) != EXIT_OK) goto done;
    for (enum store_table table = 0; table < STORE_TABLES && status == EXIT_OK; table++) {
        s->keys[table] = cJSON_CreateObject();
        status = read_table(s, table);
    }
    if (status != EXIT_OK) goto done;
    *store = s;
    s = NULL;
done:
    store_free(s);
    cJSON_Delete(setup);
    return status;
}

void store_free(struct store *store) {
    if (!store) return;
    for (size_t i = 0; i < STORE_TABLES; i++) cJSON_Delete(store->keys[i]);
    free(store);
}

bool store_has(const struct store *store, enum store_table table, const char *key) {
    return cJSON_GetObjectItemCaseSensitive(store->keys[table], key) != NULL;
}

/* ---- Writing */

int store_add(struct store *store, enum store_table table, const char *key, cJSON *line) {
    char path[1024];
    int status = EXIT_FAILED;
    path_of(store, table_names[table], path, sizeof path);
    cJSON_AddStringToObject(line, "key", key);
    char *text = cJSON_PrintUnformatted(line);
    size_t length = text ? strlen(text) : 0;
    if (!text) {
        complain("no memory for a line of %s", path);
        goto done;
    }
    text[length] = '\n'; /* replaces the terminating zero, which is not written */
    status = write_file(path, "a", text, length + 1);
    if (status == EXIT_OK) cJSON_AddTrueToObject(store->keys[table], key);
done:
    cJSON_free(text);
    cJSON_Delete(line);
    return status;
}

int store_values(struct store *store, const char *name, const float *values, size_t n) {
    char path[1024];
    snprintf(path, sizeof path, "%s/values/%s", store->folder, name);
    return write_file(path, "wb", values, n * sizeof *values);
}
