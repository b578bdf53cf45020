/* Orders are what rank 0 tells the other ranks to do, where an engine computes over several: lead.h has rank 0's side, follow.c the
 * others'. Each order is a broadcast of fixed size, followed by another one where it brings more than fits. What may fail on one rank
 * alone is agreed on (collective_agree), so that all go on alike. */
#ifndef TERSE_ENGINE_ORDERS_H
#define TERSE_ENGINE_ORDERS_H

#include "backend/backend.h"
#include "dist/collective.h"

enum order_kind {
    ORDER_END,      /* the engine is freed */
    ORDER_CREATE,   /* a cache; brings order_create, then perhaps a codebook; agreed on */
    ORDER_RENEW,    /* the cache becomes an empty one of the same kind */
    ORDER_FORK,     /* the cache `other` becomes a fork of `cache`; agreed on */
    ORDER_DESTROY,  /* the cache, if there is one */
    ORDER_TRUNCATE, /* to n tokens */
    ORDER_RESET,    /* the cache */
    ORDER_FILL,     /* n random tokens of `seed`; agreed on */
    ORDER_SAVE,     /* give the pages of the cache to rank 0, which saves it; agreed on before the first page */
    ORDER_LOAD,     /* the cache, which is new, from the file of the order's name, of checksum `seed`; agreed on */
    ORDER_STEP, /* begin a step of n parts and compute it to its end; brings order_part[n], then their tokens; agreed on when it has begun */
    ORDER_BEGIN,   /* the same, and do no more; the cache of the first part names the pass */
    ORDER_ADVANCE, /* the pass, by a piece */
    ORDER_STOP     /* the pass, finished or not */
};

#define ORDER_INLINE 216 /* bytes that an order brings in its own broadcast; more come in a second one */

struct order {
    uint32_t kind;         /* enum order_kind */
    uint32_t bytes;        /* that it brings */
    uint64_t cache, other; /* numbers of rank 0's caches, from 1 on */
    uint64_t n, seed;
    uint8_t data[ORDER_INLINE];
};

#define ORDER_NAME 64

/* An order_create says what the session's options do, with names in the place of pointers; "": none. */
struct order_create {
    struct terse_cache_options options; /* pointers mean nothing here */
    char method[ORDER_NAME], key_type[ORDER_NAME], value_type[ORDER_NAME], evict[ORDER_NAME];
    uint64_t codebook; /* its hash; 0: there is none */
    uint32_t context;
    uint32_t brings; /* 1: the codebook's file lies behind, since no order has brought it before */
};

struct order_part {
    uint64_t cache, n, first_row;
    uint32_t kind;              /* enum cache_step_kind */
    uint32_t last_logits, rows; /* 1: they are wanted, on rank 0 */
};

/* Rank 0 sends an order that brings data[order->bytes], which may lie in order->data already; the others receive it: *data is then
 * released by memory_free. */
enum terse_status order_send(struct collective *ranks, struct order *order, const void *data, struct terse_error *error);
enum terse_status order_receive(struct collective *ranks, struct order *order, void **data, struct terse_error *error);

#endif
