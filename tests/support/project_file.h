/* Files of the repository that a test reads and that do not come with its program when that is carried to another machine. */
#ifndef TESTS_SUPPORT_PROJECT_FILE_H
#define TESTS_SUPPORT_PROJECT_FILE_H

/* Where such a file is, `path` below the project: the folder that the environment's TERSE_PROJECT names, else the one that the test was built
 * from. The running cmocka test is skipped where there is none, and says what it lacks. Until the next call, of one thread at a time. */
const char *must_find_project_file(const char *path);

#endif
