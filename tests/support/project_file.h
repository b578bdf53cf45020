/* Files of the repository that a test reads and that do not come with its program when that is carried to another machine. */
#ifndef TESTS_SUPPORT_PROJECT_FILE_H
#define TESTS_SUPPORT_PROJECT_FILE_H

/* Returns the full path of the file `path` below the project: below the folder that the environment's TERSE_PROJECT names, else below the one that
 * the test was built from. Where there is no such file, the running cmocka test is skipped and says what it lacks. The result is valid until the next
 * call. One thread at a time. */
const char *must_find_project_file(const char *path);

#endif
