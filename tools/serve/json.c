#include "json.h"

#include "text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- Errors */

bool api_fail(struct api_error *error, int status, const char *code, const char *param, const char *format, ...) {
    va_list arguments;
    if (error->status) return false;
    error->status = status;
    error->code = code;
    snprintf(error->param, sizeof error->param, "%s", param ? param : "");
    va_start(arguments, format);
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    text_make_printable(error->message); /* it may quote the client, and be cut within a character */
    return false;
}

static const char *error_type(int status) {
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 501: return "not_supported_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

cJSON *api_error_json(const struct api_error *error) {
    cJSON *whole = cJSON_CreateObject(), *inner = cJSON_AddObjectToObject(whole, "error");
    cJSON_AddStringToObject(inner, "message", error->message);
    cJSON_AddStringToObject(inner, "type", error_type(error->status));
    if (error->param[0])
        cJSON_AddStringToObject(inner, "param", error->param);
    else
        cJSON_AddNullToObject(inner, "param");
    if (error->status == 501) /* llama-server's code, for those who look for it */
        cJSON_AddNumberToObject(inner, "code", 501);
    else if (error->code)
        cJSON_AddStringToObject(inner, "code", error->code);
    else
        cJSON_AddNullToObject(inner, "code");
    return whole;
}

/* ---- Texts */

enum { MOST_VALUES = 1 << 20 }; /* each takes cJSON some 100 bytes */

/* Looks for what cJSON neither bounds nor keeps: counts the characters outside of strings that separate values, and returns the offset of the first
 * escaped NUL character, at which cJSON would end a string, or n. */
static size_t find_nul_escape(const char *text, size_t n, size_t *separators) {
    bool in_string = false;
    *separators = 0;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (c == '"') in_string = !in_string;
        if (!in_string && (c == ',' || c == '[' || c == '{')) ++*separators;
        if (!in_string || c != '\\') continue;
        if (n - i >= 6 && memcmp(text + i, "\\u0000", 6) == 0) return i;
        i++; /* whatever is escaped */
    }
    return n;
}

cJSON *json_read(const char *text, size_t n, struct api_error *error) {
    size_t at = text_valid(text, n), separators;
    if (at < n) {
        api_fail(error, 400, NULL, NULL, "the body is not UTF-8 text: byte %zu", at);
        return NULL;
    }
    at = find_nul_escape(text, n, &separators);
    if (at < n) {
        api_fail(error, 400, NULL, NULL, "a string of the body has the character U+0000, at byte %zu: text has none", at);
        return NULL;
    }
    if (separators > MOST_VALUES) {
        api_fail(error, 400, NULL, NULL, "the body has more than %d values", MOST_VALUES);
        return NULL;
    }
    const char *end = text;
    cJSON *value = cJSON_ParseWithLengthOpts(text, n, &end, false);
    while (value && end < text + n && strchr(" \t\r\n", *end)) end++;
    if (value && end == text + n) return value;
    cJSON_Delete(value);
    api_fail(error, 400, NULL, NULL, "the body is not JSON, or deeper than %d: byte %zu", CJSON_NESTING_LIMIT,
             (size_t)(end - text));
    return NULL;
}

cJSON *json_read_object(const char *text, size_t n, struct api_error *error) {
    cJSON *body = json_read(text, n, error);
    if (!body || cJSON_IsObject(body)) return body;
    api_fail(error, 400, NULL, NULL, "the body must be an object, not %s", json_kind(body));
    cJSON_Delete(body);
    return NULL;
}

/* ---- Fields */

const char *json_kind(const cJSON *value) {
    if (cJSON_IsString(value)) return "a string";
    if (cJSON_IsNumber(value)) return "a number";
    if (cJSON_IsBool(value)) return "a boolean";
    if (cJSON_IsArray(value)) return "an array";
    return cJSON_IsObject(value) ? "an object" : "null";
}

const cJSON *json_field(const cJSON *object, const char *name) {
    const cJSON *field = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNull(field) ? NULL : field;
}

bool json_flag(const cJSON *object, const char *name, bool *value, struct api_error *error) {
    const cJSON *field = json_field(object, name);
    if (!field) return true;
    if (!cJSON_IsBool(field))
        return api_fail(error, 400, NULL, name, "\"%s\" must be true or false, not %s", name, json_kind(field));
    *value = cJSON_IsTrue(field);
    return true;
}

bool json_whole(const cJSON *object, const char *name, int64_t least, int64_t most, int64_t *value, struct api_error *error) {
    const cJSON *field = json_field(object, name);
    if (!field) return true;
    if (!cJSON_IsNumber(field))
        return api_fail(error, 400, NULL, name, "\"%s\" must be a whole number, not %s", name, json_kind(field));
    double number = field->valuedouble;
    if (!(number >= (double)least && number <= (double)most) || number != floor(number))
        return api_fail(error, 400, NULL, name, "\"%s\" must be a whole number from %lld to %lld, not %.17g", name,
                        (long long)least, (long long)most, number);
    *value = (int64_t)number;
    return true;
}

bool json_number(const cJSON *object, const char *name, double least, double most, double *value, struct api_error *error) {
    const cJSON *field = json_field(object, name);
    if (!field) return true;
    if (!cJSON_IsNumber(field)) return api_fail(error, 400, NULL, name, "\"%s\" must be a number, not %s", name, json_kind(field));
    double number = field->valuedouble;
    if (!(number >= least && number <= most))
        return api_fail(error, 400, NULL, name, "\"%s\" must be a number from %g to %g, not %g", name, least, most, number);
    *value = number;
    return true;
}

bool json_text(const cJSON *object, const char *name, const char **value, struct api_error *error) {
    const cJSON *field = json_field(object, name);
    if (!field) return true;
    if (!cJSON_IsString(field)) return api_fail(error, 400, NULL, name, "\"%s\" must be a string, not %s", name, json_kind(field));
    *value = field->valuestring;
    return true;
}
