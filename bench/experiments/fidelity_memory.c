/* Measures resident memory: the process prefills a prompt exactly and decodes some tokens with one cache, and records its resident
 * sizes as the system counts them. The report compares them with f16's: model and prefill workspace are the same for all methods,
 * so that the difference is the cache. */
#include "fidelity.h"

#include "console.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DECODED 32

/* Returns VmHWM or VmRSS of this process in bytes; 0 where the system does not report it. */
static double status_bytes(const char *field) {
    char line[256];
    double kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    size_t length = strlen(field);
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, field, length) == 0 && line[length] == ':') kib = strtod(line + length + 1, NULL);
    if (file) fclose(file);
    return kib * 1024;
}

/* Resets VmHWM to the current size. */
static void forget_peak(void) {
    FILE *file = fopen("/proc/self/clear_refs", "w");
    if (!file) return;
    fputs("5", file);
    fclose(file);
}

static int measure(const struct fidelity *f, const struct run *run, cJSON *line) {
    struct terse_session_options options = fidelity_session_options(run, (uint32_t)f->memory_tokens);
    struct terse_session *session = NULL;
    struct terse_cache_report predicted, prefilled;
    struct terse_error error;
    size_t n = (size_t)f->memory_tokens - DECODED;
    int status = EXIT_OK;
    if (terse_cache_bytes(f->model, NULL, &run->cache, n, &predicted, &error) != TERSE_OK) return complain_error(&error);
    cJSON_AddNumberToObject(line, "before", status_bytes("VmRSS"));
    if (terse_session_new(f->engine, &options, &session, &error) != TERSE_OK) return complain_error(&error);
    if (terse_session_prefill(session, f->tokens, n, NULL, &error) != TERSE_OK) status = complain_error(&error);
    cJSON_AddNumberToObject(line, "prefill_peak", status_bytes("VmHWM"));
    cJSON_AddNumberToObject(line, "after_prefill", status_bytes("VmRSS"));
    terse_session_cache(session, &prefilled);
    forget_peak();
    for (size_t i = 0; i < DECODED && status == EXIT_OK; i++)
        if (terse_session_decode(session, f->tokens + n + i, 1, NULL, &error) != TERSE_OK) status = complain_error(&error);
    cJSON_AddNumberToObject(line, "decode_peak", status_bytes("VmHWM"));
    cJSON_AddNumberToObject(line, "predicted", (double)predicted.resident);
    fidelity_add_report(line, &prefilled);
    terse_session_free(session);
    return status;
}

static double mib(const cJSON *line, const char *name) { return cJSON_GetNumberValue(cJSON_GetObjectItem(line, name)) / 0x1p20; }

int fidelity_memory(struct fidelity *f) {
    const struct run *run = &f->runs[0];
    char key[256], what[32];
    if (f->n_runs != 1) return complain("--parts memory: a process measures its own memory, so give one method");
    if (f->n_tokens < (size_t)f->memory_tokens)
        return complain("%s has %zu tokens, fewer than --memory-tokens asks for", f->file, f->n_tokens);
    snprintf(what, sizeof what, "memory|%lld", (long long)f->memory_tokens);
    if (store_has(f->store, STORE_MEMORY, fidelity_key(run, what, key, sizeof key))) return EXIT_OK;
    cJSON *line = fidelity_line(run);
    cJSON_AddNumberToObject(line, "tokens", (double)f->memory_tokens);
    int status = measure(f, run, line);
    if (status != EXIT_OK) {
        cJSON_Delete(line);
        return status;
    }
    progress_clear();
    printf("memory  %-36s  prefill peak %7.1f MiB  decode peak %7.1f MiB  cache %7.1f MiB\n", run->spec, mib(line, "prefill_peak"),
           mib(line, "decode_peak"), mib(line, "resident"));
    return store_add(f->store, STORE_MEMORY, key, line);
}
