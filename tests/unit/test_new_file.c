/* Files that take their place when they are whole: racing processes, failures, what must not be replaced. */
#include "base/new_file.h"
#include "support/temporary.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* stays behind the four above */
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROCESSES 4
#define ROUNDS 200
#define WORDS_MOST 40000

static char folder[TEMPORARY_PATH], path[TEMPORARY_PATH + 8];

static int make_folder(void **state) {
    (void)state;
    temporary_template("new-file", folder);
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/file", folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    unlink(path);
    return rmdir(folder); /* nothing is left behind */
}

static size_t files_in_folder(void) {
    size_t n = 0;
    DIR *listing = opendir(folder);
    assert_non_null(listing);
    for (const struct dirent *entry; (entry = readdir(listing));) n += entry->d_name[0] != '.';
    closedir(listing);
    return n;
}

/* `n` words, the first is `n`, the others `mark`. */
static enum terse_status write_words(uint32_t n, uint32_t mark, struct terse_error *error) {
    static uint32_t words[WORDS_MOST];
    struct new_file file;
    enum terse_status status = new_file_open(&file, path, error);
    if (status) return status;
    for (uint32_t i = 0; i < n; i++) words[i] = i ? mark : n;
    for (uint32_t i = 0; i < n; i += n / 3) { /* in pieces, so that a file could be seen half-written */
        uint32_t count = n - i < n / 3 ? n - i : n / 3;
        int failed = new_file_write(&file, words + i, count * sizeof *words);
        if (failed) {
            new_file_drop(&file);
            return new_file_refuse(path, failed, error);
        }
    }
    return new_file_publish(&file, error);
}

static void read_whole(void) {
    static uint32_t words[WORDS_MOST + 1];
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t n = fread(words, sizeof *words, WORDS_MOST + 1, file);
    fclose(file);
    assert_true(n > 1);
    assert_int_equal(words[0], n);
    for (size_t i = 2; i < n; i++) assert_int_equal(words[i], words[1]);
}

static void processes_that_race_leave_whole_files(void **state) {
    (void)state;
    pid_t children[PROCESSES];
    assert_int_equal(write_words(10, 0, NULL), TERSE_OK);
    for (uint32_t c = 0; c < PROCESSES; c++) {
        children[c] = fork();
        assert_true(children[c] >= 0);
        if (children[c]) continue;
        for (uint32_t i = 0; i < ROUNDS; i++)
            if (write_words(100 + (i * 7919 + c * 104729) % (WORDS_MOST - 100), c, NULL)) _exit(1);
        _exit(0);
    }
    for (int left = PROCESSES, status; left;) {
        read_whole();
        pid_t child = waitpid(-1, &status, WNOHANG);
        assert_true(child >= 0);
        if (!child) continue;
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        left--;
    }
    read_whole();
    assert_int_equal(files_in_folder(), 1);
}

static void a_failure_leaves_what_was_there(void **state) {
    (void)state;
    struct terse_error error;
    struct rlimit before;
    assert_int_equal(write_words(50, 7, NULL), TERSE_OK);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){1000, before.rlim_max}), 0);
    assert_int_equal(write_words(30000, 8, &error), TERSE_E_IO);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
    char line[TEMPORARY_PATH + 256];
    snprintf(line, sizeof line, "%s: cannot be written: %s: free some space or choose another folder", path, strerror(EFBIG));
    assert_string_equal(error.message, line);
    read_whole();
    assert_int_equal(files_in_folder(), 1);

    struct new_file file;
    assert_int_equal(new_file_open(&file, path, &error), TERSE_OK);
    assert_int_equal(new_file_write(&file, "half", 4), 0);
    new_file_drop(&file);
    new_file_drop(&file);
    read_whole();
    assert_int_equal(files_in_folder(), 1);
    assert_int_equal(new_file_open(&file, "/nowhere/file", &error), TERSE_E_IO);
    assert_non_null(strstr(error.message, "/nowhere/file: cannot be written: No such file or directory"));
}

static void links_are_replaced_and_devices_are_not(void **state) {
    (void)state;
    struct terse_error error;
    struct new_file file;
    struct stat there;
    char other[TEMPORARY_PATH + 16];
    snprintf(other, sizeof other, "%s/other", folder);
    assert_int_equal(write_words(50, 7, NULL), TERSE_OK);
    assert_int_equal(rename(path, other), 0);
    assert_int_equal(symlink(other, path), 0);
    assert_int_equal(write_words(60, 8, NULL), TERSE_OK);
    assert_int_equal(lstat(path, &there), 0);
    assert_true(S_ISREG(there.st_mode) && there.st_size == 60 * sizeof(uint32_t));
    assert_int_equal(stat(other, &there), 0);
    assert_int_equal(there.st_size, 50 * sizeof(uint32_t));
    assert_int_equal(unlink(other), 0);

    const char *const refused[] = {"/dev/null", folder};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(new_file_open(&file, refused[i], &error), TERSE_E_IO);
        assert_non_null(strstr(error.message, "it is there already and not a regular file"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(processes_that_race_leave_whole_files),
                                       cmocka_unit_test(a_failure_leaves_what_was_there),
                                       cmocka_unit_test(links_are_replaced_and_devices_are_not)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
