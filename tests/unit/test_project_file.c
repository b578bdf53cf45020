/* The helper by which tests find files of the repository (tests/support): a test whose file is not there is skipped and says so. */
#include "support/project_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void find_model(void **state) {
    (void)state;
    must_find_project_file("models/lab-27m-q8_0.gguf");
    fail_msg("found it");
}

/* Runs a program by itself in a process, with find_model as its only test. Returns its exit status. */
static int run_alone(const char *project, char *output, size_t size) {
    int ends[2], status;
    size_t n = 0;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        const struct CMUnitTest tests[] = {cmocka_unit_test(find_model)};
        dup2(ends[1], STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
        setenv("TERSE_PROJECT", project, 1);
        int failed = cmocka_run_group_tests(tests, NULL, NULL);
        fflush(NULL);
        _exit(failed);
    }
    close(ends[1]);
    for (ssize_t got; n < size - 1 && (got = read(ends[0], output + n, size - 1 - n)) > 0;) n += (size_t)got;
    output[n] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void a_test_without_its_file_is_skipped_and_says_so(void **state) {
    (void)state;
    char output[4096];
    assert_int_equal(run_alone("/nowhere", output, sizeof output), 0);
    if (!strstr(output, "[  SKIPPED ]") || !strstr(output, "skipped: there is no /nowhere/models/lab-27m-q8_0.gguf"))
        fail_msg("it said: %s", output);
}

static void a_test_with_its_file_goes_on(void **state) {
    (void)state;
    char output[4096];
    assert_int_equal(run_alone(PROJECT_DIR, output, sizeof output), 1);
    if (!strstr(output, "found it")) fail_msg("it said: %s", output);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_test_without_its_file_is_skipped_and_says_so),
                                       cmocka_unit_test(a_test_with_its_file_goes_on)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
