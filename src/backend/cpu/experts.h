/* Computes feed-forward layers of experts: which tokens go to which experts, and the products. An expert's weights are read once
 * for all of a panel's tokens that go to it; those of experts that no token goes to are not read. */
#ifndef TERSE_BACKEND_CPU_EXPERTS_H
#define TERSE_BACKEND_CPU_EXPERTS_H

#include "model/model.h"

/* The routes of the rows of a panel hold what stays the same from the first expert of a layer to the last. */
struct routes {
    size_t rows;      /* capacity */
    float *logits;    /* [rows][experts] */
    uint32_t *chosen; /* [rows][experts_used] */
    float *share;     /* the same */
    uint32_t *first;  /* [experts + 1]: the choices of expert e are choice[first[e]] .. choice[first[e + 1] - 1] */
    uint32_t *choice; /* [rows * experts_used]: row * experts_used + i, by expert, in order */
    float *gathered;  /* [rows][width], of an expert */
    float *made;      /* the same */
};

/* Reserves routes for panels of up to `rows` rows; returns TERSE_E_MEMORY without memory, and there are then no routes. */
enum terse_status routes_reserve(struct routes *routes, const struct terse_model *model, size_t rows, struct terse_error *error);
void routes_free(struct routes *routes);

struct experts_job {
    const struct terse_model *model;
    const struct layer *layer;
    const float *x; /* [n][width], normed */
    size_t n;
    bool each;             /* rows each by itself: linear_each() */
    float *out;            /* [n][width], to which what the layer makes of x is added */
    float *inner, *factor; /* [n][feed_forward] */
    float *tile;           /* linear()'s scratch, of the largest of the layer's matrices */
    struct routes *routes;
};

/* Fills the routes except for `gathered` and `made`. It is the first step of all. */
void experts_route(const struct experts_job *job);
/* Returns an expert's number of rows, of which the i-th is row choice[i] / experts_used. */
static inline size_t routes_of_expert(const struct routes *r, uint32_t expert, const uint32_t **choice) {
    *choice = r->choice + r->first[expert];
    return r->first[expert + 1] - r->first[expert];
}
/* An expert holds the matrices of one expert of a layer. */
struct expert {
    struct matrix gate, up, down;
};
struct expert expert_of(const struct terse_model *model, const struct layer *layer, uint32_t expert);

/* Goes on at *item, 0 at first, until about *left multiplications are done, which it subtracts. Returns true when all is done.
 * Neither the parts nor the number of threads change a result. */
bool experts_some(const struct experts_job *job, uint32_t *item, double *left);

/* Chooses the experts of a row by its logits, as the routing says (model/model.h). Writes the `used` best experts to chosen[used], the best first
 * and of equal ones the one with the lower number, and their shares to share[used]. `bias` is struct experts' choice_bias. */
void experts_choose(const float *logits, uint32_t experts, uint32_t used, const struct routing *routing, const float *bias,
                    uint32_t *chosen, float *share);

#endif
