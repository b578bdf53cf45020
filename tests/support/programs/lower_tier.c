/* lower_tier TIER PROGRAM: runs PROGRAM with TERSE_CPU=TIER. Where PROGRAM takes that tier unasked, or the processor lacks it, there is nothing more
 * to test: says so and exits 77, which ctest counts as skipped. */
#include "backend/cpu/kernels/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    struct terse_error error;
    if (argc != 3) {
        fprintf(stderr, "usage: lower_tier TIER PROGRAM\n");
        return 2;
    }
    if (strcmp(cpu_isa_name(cpu_isa()), argv[1]) == 0) {
        printf("skipped: %s is the tier that this processor takes unasked\n", argv[1]);
        return 77;
    }
    setenv("TERSE_CPU", argv[1], 1);
    if (cpu_check(&error)) {
        printf("skipped: %s\n", error.message);
        return 77;
    }
    execl(argv[2], argv[2], (char *)NULL);
    perror(argv[2]);
    return 1;
}
