/* Asks for each backend by opening an engine on the built-in model, which tells a plug-in without a GPU from one that computes. */
#include "version.h"

#include "commit.h"
#include "setup.h"

#include <stdio.h>

static const char *const backends[] = {"cpu", "cuda"};
enum { N_BACKENDS = sizeof backends / sizeof backends[0] };

static enum terse_status try_backend(const struct setup *setup, const char *name, struct terse_error *error) {
    struct terse_engine_options options = terse_engine_options_defaults();
    struct terse_engine *engine;
    options.device = name;
    options.threads = 1;
    enum terse_status status = terse_engine_new(setup->model, &options, &engine, error);
    if (!status) terse_engine_free(engine);
    return status;
}

int version_print(void) {
    struct setup setup;
    struct terse_error errors[N_BACKENDS];
    bool fails[N_BACKENDS];
    printf("terse %s (kernels for %s)\ncommit %s\n", terse_version(), terse_cpu_name(), build_commit());
    setup_init(&setup);
    struct terse_error error;
    if (setup_try_load(&setup, &error) != TERSE_OK) return complain_error(&error);
    printf("backends:");
    for (int i = 0; i < N_BACKENDS; i++) {
        fails[i] = try_backend(&setup, backends[i], &errors[i]) != TERSE_OK;
        if (!fails[i]) printf(" %s", backends[i]);
    }
    printf("\n");
    for (int i = 0; i < N_BACKENDS; i++)
        if (fails[i]) printf("not %s: %s\n", backends[i], errors[i].message);
    setup_free(&setup);
    return EXIT_OK;
}
