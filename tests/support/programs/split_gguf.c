/* split_gguf FILE PREFIX N: splits a GGUF file into N parts, for tests of the command. */
#include "support/gguf_split.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    struct terse_error error;
    if (argc == 4 && !gguf_split(argv[1], argv[2], (uint32_t)strtoul(argv[3], NULL, 10), NULL, &error)) return 0;
    fprintf(stderr, "%s\n", argc == 4 ? error.message : "usage: split_gguf FILE PREFIX N");
    return 1;
}
