/* Status names and the one place that writes struct terse_error. */
#include "base/status.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void fill(struct terse_error *error, enum terse_status code, uint64_t offset, const char *format, va_list arguments) {
    if (!error) return;
    error->code = code;
    error->offset = offset;
    vsnprintf(error->message, sizeof error->message, format, arguments);
}

enum terse_status status_fail(struct terse_error *error, enum terse_status code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fill(error, code, TERSE_NO_OFFSET, format, arguments);
    va_end(arguments);
    return code;
}

enum terse_status status_fail_at(struct terse_error *error, enum terse_status code, uint64_t offset, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fill(error, code, offset, format, arguments);
    va_end(arguments);
    return code;
}

enum terse_status status_no_memory(struct terse_error *error, uint64_t bytes, const char *what) {
    return status_fail(error, TERSE_E_MEMORY,
                       "no memory for %s (%" PRIu64 " bytes): use a smaller context, a smaller model or a smaller --kv method",
                       what, bytes);
}

void status_name_file(struct terse_error *error, const char *name) {
    char shown[160], message[sizeof error->message];
    if (!error) return;
    text_file_name(shown, sizeof shown, name);
    size_t length = strlen(shown);
    if (strncmp(error->message, shown, length) == 0 && error->message[length] == ':') return;
    memcpy(message, error->message, sizeof message);
    int space = (int)(sizeof message - 1 - length - 2);
    snprintf(error->message, sizeof error->message, "%s: %.*s", shown, space, message);
}

const char *terse_status_name(enum terse_status status) {
    switch (status) {
    case TERSE_OK: return "TERSE_OK";
    case TERSE_E_ARGUMENT: return "TERSE_E_ARGUMENT";
    case TERSE_E_IO: return "TERSE_E_IO";
    case TERSE_E_FORMAT: return "TERSE_E_FORMAT";
    case TERSE_E_UNSUPPORTED: return "TERSE_E_UNSUPPORTED";
    case TERSE_E_MEMORY: return "TERSE_E_MEMORY";
    case TERSE_E_CONTEXT: return "TERSE_E_CONTEXT";
    case TERSE_E_INTERRUPTED: return "TERSE_E_INTERRUPTED";
    }
    return "unknown status";
}
