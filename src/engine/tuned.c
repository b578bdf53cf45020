/* Writes and reads the file of a tuned method, an object of JSON, so that people can look at it. */
#include "engine/tuned.h"

#include "base/mapped_file.h"
#include "base/new_file.h"
#include "base/text.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char format_name[] = "terse tuned method";
enum { VERSION = 1, MOST_BYTES = 1 << 16 /* of a file; one that was written has some hundred */ };

/* ---- Where it lies */

enum terse_status terse_kept_path(const struct terse_model *model, const char *name, const char *ending, char *path,
                                  size_t capacity, struct terse_error *error) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool own = cache && cache[0] == '/'; /* others are to be ignored, says the XDG Base Directory Specification */
    struct terse_model_info info;
    if (!own && (!home || home[0] != '/'))
        return status_fail(error, TERSE_E_ARGUMENT, "neither XDG_CACHE_HOME nor HOME names a place where files are kept: set one");
    terse_model_describe(model, &info);
    int length = snprintf(path, capacity, "%s%s/terse/%s-%016" PRIx64 "%s", own ? cache : home, own ? "" : "/.cache", name,
                          info.norms_fingerprint, ending);
    if (length > 0 && (size_t)length < capacity) return TERSE_OK;
    return status_fail(error, TERSE_E_ARGUMENT, "the path of the folder where files are kept is too long");
}

static void write_fingerprint(const struct terse_model *model, char text[17]) {
    struct terse_model_info info;
    terse_model_describe(model, &info);
    snprintf(text, 17, "%016" PRIx64, info.norms_fingerprint);
}

/* ---- Writing */

/* Returns the file's text, released by cJSON_free; NULL without memory. */
static char *text_of(const struct terse_model *model, const struct terse_tuned *t) {
    char fingerprint[17];
    cJSON *json = cJSON_CreateObject();
    write_fingerprint(model, fingerprint);
    bool whole =
        cJSON_AddStringToObject(json, "format", format_name) && cJSON_AddNumberToObject(json, "version", VERSION) &&
        cJSON_AddStringToObject(json, "norms_fingerprint", fingerprint) && cJSON_AddStringToObject(json, "method", t->method) &&
        cJSON_AddStringToObject(json, "corpus", t->corpus) && cJSON_AddNumberToObject(json, "context", t->context) &&
        cJSON_AddNumberToObject(json, "budget", (double)t->budget) &&
        cJSON_AddNumberToObject(json, "positions", (double)t->positions) &&
        cJSON_AddNumberToObject(json, "bits_per_value", t->bits) && cJSON_AddNumberToObject(json, "divergence", t->divergence) &&
        cJSON_AddNumberToObject(json, "speed_over_f16", t->speed);
    char *text = whole ? cJSON_Print(json) : NULL;
    cJSON_Delete(json);
    return text;
}

enum terse_status terse_tuned_save(const struct terse_model *model, const struct terse_tuned *tuned, const char *path,
                                   struct terse_error *error) {
    struct new_file file;
    if (strlen(tuned->method) >= sizeof((struct tuned_file *)0)->method)
        return status_fail(error, TERSE_E_ARGUMENT, "a method's name of %zu bytes is too long", strlen(tuned->method));
    char *text = text_of(model, tuned);
    if (!text) return status_no_memory(error, MOST_BYTES, "the file of a tuned method");
    enum terse_status status = new_file_open(&file, path, error);
    if (!status) {
        int reason = new_file_write(&file, text, strlen(text));
        if (!reason) reason = new_file_write(&file, "\n", 1);
        if (reason) {
            new_file_drop(&file);
            status = new_file_refuse(path, reason, error);
        } else {
            status = new_file_publish(&file, error);
        }
    }
    cJSON_free(text);
    return status;
}

/* ---- Reading */

static bool read_string(const cJSON *json, const char *key, char *text, size_t capacity) {
    const char *found = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, key));
    if (!found || strlen(found) >= capacity || !text_is_printable(found, strlen(found))) return false;
    memcpy(text, found, strlen(found) + 1);
    return true;
}

/* Reads a number from 0 to `most`. */
static bool read_number(const cJSON *json, const char *key, double most, double *number) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble <= most)) return false;
    *number = item->valuedouble;
    return true;
}

static bool read_members(const cJSON *json, struct tuned_file *f) {
    double context, budget, positions;
    struct terse_tuned *t = &f->tuned;
    bool whole = read_string(json, "method", f->method, sizeof f->method) && f->method[0] &&
                 read_string(json, "corpus", f->corpus, sizeof f->corpus) && read_number(json, "context", UINT32_MAX, &context) &&
                 read_number(json, "budget", 0x1p60, &budget) && read_number(json, "positions", 0x1p53, &positions) &&
                 read_number(json, "bits_per_value", 1e6, &t->bits) && read_number(json, "divergence", 1e6, &t->divergence) &&
                 read_number(json, "speed_over_f16", 1e6, &t->speed);
    if (!whole) return false;
    t->method = f->method;
    t->corpus = f->corpus;
    t->context = (uint32_t)context;
    t->budget = (uint64_t)budget;
    t->positions = (uint64_t)positions;
    return true;
}

static enum terse_status read_file(const cJSON *json, const struct terse_model *model, const char *path, struct tuned_file *file,
                                   struct terse_error *error) {
    char found[32], wanted[17];
    double version;
    if (!read_string(json, "format", found, sizeof found) || strcmp(found, format_name) != 0 ||
        !read_number(json, "version", UINT32_MAX, &version))
        return status_fail(error, TERSE_E_FORMAT, "%s is no file of a tuned method", path);
    if (version != VERSION)
        return status_fail(error, TERSE_E_UNSUPPORTED, "%s is of version %.0f, and this library reads %d", path, version, VERSION);
    write_fingerprint(model, wanted);
    if (!read_string(json, "norms_fingerprint", found, sizeof found) || strcmp(found, wanted) != 0)
        return status_fail(error, TERSE_E_FORMAT, "%s is of another model", path);
    if (!read_members(json, file))
        return status_fail(error, TERSE_E_FORMAT, "%s lacks something or has an impossible number", path);
    return TERSE_OK;
}

enum terse_status tuned_load(const struct terse_model *model, const char *path, struct tuned_file *file,
                             struct terse_error *error) {
    struct mapped_file bytes;
    enum terse_status status = mapped_file_open(path, &bytes, error);
    if (status) return status;
    cJSON *json = bytes.size && bytes.size <= MOST_BYTES ? cJSON_ParseWithLength(bytes.data, bytes.size) : NULL;
    status = json ? read_file(json, model, path, file, error)
                  : status_fail(error, TERSE_E_FORMAT, "%s is no file of a tuned method", path);
    cJSON_Delete(json);
    mapped_file_close(&bytes);
    return status;
}
