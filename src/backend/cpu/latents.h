/* Computes multi-head latent attention around the caches, which see one KV head of [rotated | latent] (model/model.h): keys as they are
 * stored, queries as these are multiplied by them, and the outputs of heads from those of attention. Rows are those of a panel. */
#ifndef TERSE_BACKEND_CPU_LATENTS_H
#define TERSE_BACKEND_CPU_LATENTS_H

#include "model/model.h"

/* These are the rows between products. */
struct latent_rows {
    float *ranked; /* [rows][query_rank] latents of queries; empty where there are none */
    float *heads;  /* [rows][Hq][plain, rotated] queries of the heads; then [rows][Hq][value], their outputs */
    float *in;     /* [rows][plain or rank], of a head */
    float *out;    /* [rows][rank or value], of a head */
};

/* Return the widths of these, by which memory is reserved. */
static inline size_t latent_heads_width(const struct terse_model *m) {
    const struct latent_shape *s = &m->latent;
    const size_t query = s->plain + m->rope.n_rot;
    return s->rank ? m->query_heads * (query > s->value ? query : s->value) : 0;
}
static inline size_t latent_head_width(const struct terse_model *m) {
    const struct latent_shape *s = &m->latent;
    const size_t widest = s->plain > s->value ? s->plain : s->value;
    return s->rank > widest || !s->rank ? s->rank : widest;
}

struct latents_job {
    const struct terse_model *model;
    const struct latents *layer;
    size_t n;
    bool each; /* rows each by itself: linear_each() */
    const struct latent_rows *rows;
    float *tile; /* linear()'s scratch, of the largest of the layer's matrices */
};

/* Makes keys[n][latent, rotated], as they leave their matrix, those of caches. */
void latents_finish_keys(const struct latents_job *job, float *keys);

/* Makes the caches' queries q[n][Hq][rotated, latent] of job->rows->heads. It goes on at *item, 0 at first, until about *left
 * multiplications are done, which it subtracts, and returns true when all is done. */
bool latents_absorb_some(const struct latents_job *job, float *q, uint32_t *item, double *left);

/* Makes the heads' outputs, job->rows->heads, of out[n][Hq][rotated, latent], in the same way. */
bool latents_expand_some(const struct latents_job *job, const float *out, uint32_t *item, double *left);

#endif
