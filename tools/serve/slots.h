/* Declares the slots of the server, in each of which one reply is written at a time. Only the scheduler's thread uses them. */
#ifndef TERSE_SERVE_SLOTS_H
#define TERSE_SERVE_SLOTS_H

#include "generation.h"

struct slots {
    uint32_t n;
    struct generation **of; /* [n], NULL: the slot is free */
    struct slot_sequence {
        int32_t *tokens; /* [n], with room for one more */
        size_t n;
    } * left; /* [n] the sequence that the slot's last reply has left as a prefix of the engine */
};

/* Makes n slots. Returns false when memory is refused. */
bool slots_init(struct slots *slots, uint32_t n);
void slots_free(struct slots *slots);

/* Returns the number of the slot that the generation, which must have one, is in. */
uint32_t slots_find(const struct slots *slots, const struct generation *g);
/* Puts first[n] into free slots, of which there must be as many. */
void slots_take(struct slots *slots, struct generation *first, size_t n);
void slots_leave(struct slots *slots, struct generation *g);

/* Remembers tokens[n] as what a slot has left; where there is no memory, nothing. */
void slots_remember(struct slots *slots, uint32_t slot, const int32_t *tokens, size_t n);

uint32_t slots_taken(const struct slots *slots);
/* Returns how many slots a client's replies have taken. */
uint32_t slots_taken_by(const struct slots *slots, uint64_t client);

/* Returns whether a generation (NULL: none) takes part in the engine's steps: it has a session, which reads the prompt or writes. */
bool generation_runs(const struct generation *g);
uint32_t slots_running(const struct slots *slots);
/* Return the reply that began last of those that run, and the one that began first of those that are preempted; NULL when there is
 * none. Of two replies to one prompt the later index is the newer. */
struct generation *slots_newest_running(const struct slots *slots);
struct generation *slots_oldest_preempted(const struct slots *slots);
/* Returns the generation that has this session, NULL if none has. */
struct generation *slots_with_session(const struct slots *slots, const struct terse_session *session);

#endif
