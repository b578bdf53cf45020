/* Asks the library for the choice, with what there is of the model: a profile, or one that is learned now. */
#include "rate_choice.h"

#include "codebooks.h"

#include <terse_choice.h>

#include <stdio.h>
#include <string.h>

int rate_choice_take(struct setup *setup) {
    struct terse_error error;
    const bool types = setup->key_type || setup->value_type;
    bool chooses;
    setup->by_default = !setup->method && !types;
    setup->least_rate = 0;
    if (!setup->method) setup->method = types ? METHOD_DEFAULT : terse_choice_options_defaults().kv;
    if (terse_choice_check(setup->method, &chooses, &error) != TERSE_OK) return complain("--kv %s", error.message);
    if (!chooses) return EXIT_OK;
    if (types) return complain("--kv %s chooses for keys and values: omit -ctk and -ctv, or name a method", setup->method);
    setup->choice = setup->method;
    setup->method = METHOD_DEFAULT;
    return EXIT_OK;
}

/* Learns a profile, and what rates cost, where there is none. */
static int learn(struct setup *setup) {
    int status = setup_engine(setup);
    struct terse_session_options options = setup_session_options(setup);
    return status == EXIT_OK ? codebooks_provide(setup, &options) : status;
}

/* Keeps the method and the reason, which is printed when all else is ready: a run that is refused prints only the refusal. */
static void keep(struct setup *setup, const struct terse_choice *choice) {
    char command[4096 + 64];
    snprintf(setup->chosen, sizeof setup->chosen, "%s", choice->method);
    setup->method = setup->chosen;
    setup->least_rate = choice->least_rate;
    setup->tuned = choice->reason == TERSE_CHOICE_TUNED || choice->left_aside;
    setup_calibrate_command(setup, METHOD_DEFAULT, command, sizeof command);
    if (choice->reason == TERSE_CHOICE_UNKNOWN)
        snprintf(setup->why, sizeof setup->why, "%s (%s does)", choice->why, command);
    else if (choice->reason == TERSE_CHOICE_STATE)
        snprintf(setup->why, sizeof setup->why, "that of the saved state");
    else
        snprintf(setup->why, sizeof setup->why, "%s", choice->why);
}

int rate_choice_make(struct setup *setup, const char *state) {
    struct terse_choice_options options = terse_choice_options_defaults();
    struct terse_choice choice;
    struct terse_error error;
    char state_method[64];
    if (!setup->choice) return EXIT_OK;
    if (state && terse_state_method(state, state_method, sizeof state_method, &error) != TERSE_OK) return complain_error(&error);
    if (state) options.state_method = state_method;
    int status = setup->auto_calibrate && !state ? learn(setup) : EXIT_OK;
    options.cache = setup_session_options(setup).cache;
    if (status == EXIT_OK) status = codebooks_find(setup, &options.cache.codebook);
    if (status != EXIT_OK) return status;
    options.kv = setup->choice;
    options.device = setup_device(setup);
    options.context = (uint32_t)setup->context;
    options.kv_budget = setup->kv_budget;
    enum terse_status failed = terse_choose(setup->model, &options, &choice, &error);
    if (failed == TERSE_E_ARGUMENT) return complain("--kv %s", error.message);
    if (failed) return complain_error(&error);
    keep(setup, &choice);
    return EXIT_OK;
}

void rate_choice_say(const struct setup *setup) {
    bool usual = setup->by_default && !setup->tuned && strcmp(setup->method, METHOD_DEFAULT) == 0;
    char lowered[96] = "";
    if (setup->least_rate > 0)
        snprintf(lowered, sizeof lowered, "; lowered to terse-%g at least where --kv-budget has no room", setup->least_rate);
    if (setup->why[0] && !usual) remark("KV cache %s: %s%s", setup->method, setup->why, lowered);
}
