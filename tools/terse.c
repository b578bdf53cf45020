/* Implements the command `terse`: names its subcommands and calls the one asked for. */
#include "commands.h"
#include "console.h"
#include "local_ranks.h"
#include "pages.h"
#include "setup.h"
#include "version.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct command commands[] = {
    {"run", "terse run", "continue a text, answer a question, or chat", cmd_run, true},
    {"serve", "terse serve", "the OpenAI API over one engine, for many clients at once", cmd_serve, true},
    {"perplexity", "terse perplexity", "perplexity and KL divergence over a text, through the real cache", cmd_perplexity, true},
    {"compare", "terse compare", "which of two KV methods is better on a text, and whether the text decides it", cmd_compare, true},
    {"tune", "terse tune", "choose a model's KV method, by divergence, bytes and speed that are measured here", cmd_tune, true},
    {"bench", "terse bench", "tokens per second at depth, beside the machine's memory bandwidth", cmd_bench, true},
    {"inspect", "terse inspect", "what is in a GGUF file, and what its KV cache costs", cmd_inspect, true},
    {"calibrate", "terse calibrate", "learn a KV method's codebook for a model", cmd_calibrate, false},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void print_help(void) {
    printf("terse %s: long-context language models with a compressed KV cache\n\nusage: terse COMMAND [options]   (without "
           "COMMAND: run)\n\n",
           terse_version());
    for (size_t i = 0; i < N_COMMANDS; i++) printf("  %-12s %s\n", commands[i].name, commands[i].summary);
    puts("\n  terse COMMAND --help   the options of a command");
    puts("  terse --version        this version and its commit, the kernels chosen here, the backends that can be opened");
    puts("  terse --ranks N COMMAND   N processes share a context, each with a GPU of its own or a part of the processor");
    puts("\nWithout -m every command uses the built-in model.");
}

/* Begins the program anew, once, with OpenMP's threads set to poll briefly, unless the user has set it. Decoding's threads know how
 * long to poll (src/base/parallel.c). Those of GNU's OpenMP, which read prompts, poll for milliseconds before they sleep, even
 * where the thread that they wait for needs their processor; this can only be set before the program begins. Where the system
 * refuses, the program goes on as it is. */
static void begin_with_short_polls(char **argv) {
    static char path[4096];
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) return;
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n > 0 && n < (ssize_t)sizeof path - 1 && setenv("GOMP_SPINCOUNT", "1000", 1) == 0) execv(path, argv);
}

static int run_command(const struct command *command, int argc, char **argv) {
    console_begin(command->console);
    if (!command->over_ranks && console_ranks() > 1)
        return console_end(complain("%u ranks cannot do this together: start it as one process", console_ranks()));
    return console_end(command->main(argc, argv));
}

int main(int argc, char **argv) {
    begin_with_short_polls(argv);
    if (argc > 1 && strcmp(argv[1], "--ranks") == 0) {
        int status;
        console_begin("terse");
        if (!local_ranks_start(argc > 2 ? argv[2] : "", &status)) return console_end(status);
        argv += 2, argc -= 2;
    }
    const char *name = argc > 1 ? argv[1] : "";
    bool help = strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0,
         version = strcmp(name, "--version") == 0 || strcmp(name, "version") == 0;
    if ((name[0] == '-' || setup_names_model(name)) && !help && !version) /* terse -m MODEL -p TEXT; terse MODEL.gguf */
        return run_command(&commands[0], argc - 1, argv + 1);
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(name, commands[i].name) == 0) return run_command(&commands[i], argc - 2, argv + 2);
    console_begin("terse");
    int status = EXIT_OK;
    if (help)
        print_help();
    else if (version)
        status = version_print();
    else if (strcmp(name, "write-pages") == 0 && argc == 3) /* asked for by the build (cmake/pages.cmake) */
        status = pages_write(argv[2], commands, N_COMMANDS);
    else if (argc < 2)
        status = complain("no command given; try: terse run -p \"Once upon a time\", or terse --help");
    else
        status = complain("unknown command \"%s\"; see terse --help", name);
    return console_end(status);
}
