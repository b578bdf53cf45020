/* Runs parallel work of the command's own, beside an engine's. */
#ifndef TERSE_TOOLS_APART_H
#define TERSE_TOOLS_APART_H

/* Runs work(user) on a thread of its own and waits for it. The OpenMP threads that it starts end with it. Left waiting, they would count
 * against the engine's: where there are more threads than processors, OpenMP's waiting threads sleep sooner, and between the many short
 * loops of a decoding step that costs half of its speed. */
void run_apart(void (*work)(void *user), void *user);

#endif
