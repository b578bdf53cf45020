/* Learns a profile beside the work of another command, in a process of its own, `terse calibrate`, at the lowest priority: no command waits for it,
 * and answers take the processors first. */
#ifndef TERSE_TOOLS_LEARNER_H
#define TERSE_TOOLS_LEARNER_H

#include "setup.h"

#include <sys/types.h>

enum learner_start {
    LEARNER_STARTED,
    LEARNER_ELSEWHERE, /* another process learns this profile now */
    LEARNER_IMPOSSIBLE /* no place to keep a profile, or no process */
};

/* Begins to learn the profile of setup's model into the file `path`; setup->learner is the process then. */
enum learner_start learner_start(struct setup *setup, const char *path);
/* A remark once the process has ended, with what that means for the next start; nothing before. */
void learner_look(struct setup *setup);
/* At the end of a command. A process that still learns is left to go on, with a remark that says how to end it, or ended. */
void learner_leave(struct setup *setup, bool goes_on);

#endif
