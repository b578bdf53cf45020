/* Owns the routes' memory and the order of an expert's work: gathers its rows, multiplies them, and adds the products. */
#include "backend/cpu/experts.h"

#include "backend/cpu/kernels/vector/ops.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/rows.h"
#include "base/memory.h"
#include "model/architecture.h"

#include <math.h>
#include <string.h>

/* ---- Memory */

void routes_free(struct routes *r) {
    void *all[] = {r->logits, r->chosen, r->share, r->first, r->choice, r->gathered, r->made};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) memory_free(all[i]);
    *r = (struct routes){0};
}

enum terse_status routes_reserve(struct routes *r, const struct terse_model *m, size_t rows, struct terse_error *error) {
    if (r->rows >= rows) return TERSE_OK;
    routes_free(r);
    r->logits = memory_array(rows, m->experts * sizeof *r->logits);
    r->chosen = memory_array(rows, m->experts_used * sizeof *r->chosen);
    r->share = memory_array(rows, m->experts_used * sizeof *r->share);
    r->first = memory_array(m->experts + 1, sizeof *r->first);
    r->choice = memory_array(rows, m->experts_used * sizeof *r->choice);
    r->gathered = memory_array(rows, m->width * sizeof *r->gathered);
    r->made = memory_array(rows, m->width * sizeof *r->made);
    if (r->logits && r->chosen && r->share && r->first && r->choice && r->gathered && r->made) {
        r->rows = rows;
        return TERSE_OK;
    }
    routes_free(r);
    return status_no_memory(error, rows * (2 * (size_t)m->width + m->experts) * sizeof(float), "activations");
}

/* ---- Routing */

static float sigmoid(float x) { return 1 / (1 + expf(-x)); }

static bool is_chosen(const uint32_t *chosen, uint32_t n, uint32_t expert) {
    for (uint32_t i = 0; i < n; i++)
        if (chosen[i] == expert) return true;
    return false;
}

/* Returns a number that orders experts, or groups of them, as their probabilities do, the bias included. */
static float merit(const float *logits, const struct routing *routing, const float *bias, uint32_t expert) {
    return routing->sigmoid ? sigmoid(logits[expert]) + (bias ? bias[expert] : 0) : logits[expert];
}

/* Writes to chosen[n] the largest of merits[count], the largest first. */
static void choose_largest(const float *merits, uint32_t count, uint32_t n, uint32_t *chosen) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t e = 0; e < count; e++)
            if (!is_chosen(chosen, i, e) && (best == UINT32_MAX || merits[e] > merits[best])) best = e;
        chosen[i] = best;
    }
}

/* Makes the merits of experts in groups that are not chosen the least. */
static void leave_out_groups(const struct routing *routing, uint32_t experts, float *merits) {
    const uint32_t size = experts / routing->groups;
    float best[MODEL_EXPERTS_MAX];
    uint32_t chosen[MODEL_EXPERTS_MAX];
    for (uint32_t g = 0; g < routing->groups; g++) {
        float first = -INFINITY, second = -INFINITY;
        for (uint32_t e = g * size; e < (g + 1) * size; e++) {
            if (merits[e] > first) {
                second = first;
                first = merits[e];
            } else if (merits[e] > second)
                second = merits[e];
        }
        best[g] = routing->sigmoid && size > 1 ? first + second : first;
    }
    choose_largest(best, routing->groups, routing->groups_used, chosen);
    for (uint32_t e = 0; e < experts; e++)
        if (!is_chosen(chosen, routing->groups_used, e / size)) merits[e] = -INFINITY;
}

void experts_choose(const float *logits, uint32_t experts, uint32_t used, const struct routing *routing, const float *bias,
                    uint32_t *chosen, float *share) {
    float merits[MODEL_EXPERTS_MAX], largest = -INFINITY, sum = 0;
    for (uint32_t e = 0; e < experts; e++) merits[e] = merit(logits, routing, bias, e);
    if (routing->groups) leave_out_groups(routing, experts, merits);
    choose_largest(merits, experts, used, chosen);
    for (uint32_t e = 0; e < experts; e++) largest = logits[e] > largest ? logits[e] : largest;
    for (uint32_t i = 0; i < used; i++)
        sum += share[i] = routing->sigmoid ? sigmoid(logits[chosen[i]]) : expf(logits[chosen[i]] - largest);
    for (uint32_t e = 0; e < experts && routing->of_all && !routing->sigmoid; e++)
        if (!is_chosen(chosen, used, e)) sum += expf(logits[e] - largest);
    const float scale = routing->scale / (routing->sigmoid && routing->of_all ? 1 : sum);
    for (uint32_t i = 0; i < used; i++) share[i] *= scale;
}

static void multiply(const struct experts_job *job, const struct linear_op *ops, size_t n_ops, const float *x, size_t n) {
    (job->each ? linear_each : linear)(ops, n_ops, x, n, job->tile);
}

void experts_route(const struct experts_job *job) {
    const struct terse_model *m = job->model;
    const struct routes *r = job->routes;
    const uint32_t used = m->experts_used;
    multiply(job, &(struct linear_op){&job->layer->experts.router, r->logits}, 1, job->x, job->n);
#pragma omp parallel for if (job->n >= PARALLEL_ROWS)
    for (size_t t = 0; t < job->n; t++)
        experts_choose(r->logits + t * m->experts, m->experts, used, &m->routing, job->layer->experts.choice_bias,
                       r->chosen + t * used, r->share + t * used);
    memset(r->first, 0, (m->experts + 1) * sizeof *r->first);
    for (size_t i = 0; i < job->n * used; i++) r->first[r->chosen[i] + 1]++;
    for (uint32_t e = 0; e < m->experts; e++) r->first[e + 1] += r->first[e];
    for (size_t i = 0; i < job->n * used; i++) r->choice[r->first[r->chosen[i]]++] = (uint32_t)i;
    memmove(r->first + 1, r->first, m->experts * sizeof *r->first); /* each has moved on to the next one's */
    r->first[0] = 0;
}

/* ---- Products */

struct expert expert_of(const struct terse_model *model, const struct layer *layer, uint32_t expert) {
    const struct experts *e = &layer->experts;
    const uint32_t inner = e->down.columns, width = model->width;
    return (struct expert){matrix_rows(&e->gate, expert * inner, inner), matrix_rows(&e->up, expert * inner, inner),
                           matrix_rows(&e->down, expert * width, width)};
}

/* Computes made[n][width] of x[n][width]; returns the number of multiplications. */
static double make(const struct experts_job *job, const struct expert *e, const float *x, size_t n, float *made) {
    const struct linear_op widen[] = {{&e->gate, job->inner}, {&e->up, job->factor}};
    multiply(job, widen, 2, x, n);
    activate_rows(job->model->architecture->activation, job->inner, job->factor, n, e->gate.rows);
    multiply(job, &(struct linear_op){&e->down, made}, 1, job->inner, n);
    return 3.0 * (double)n * job->model->width * e->gate.rows;
}

static double run_shared(const struct experts_job *job) {
    const struct experts *e = &job->layer->experts;
    const struct expert shared = {e->shared_gate, e->shared_up, e->shared_down};
    const size_t width = job->model->width;
    double multiplications = make(job, &shared, job->x, job->n, job->routes->made);
#pragma omp parallel for if (job->n >= PARALLEL_ROWS)
    for (size_t t = 0; t < job->n; t++) {
        float share = e->shared_router ? sigmoid(vector_ops()->dot(job->x + t * width, e->shared_router, width)) : 1;
        vector_ops()->axpy(share, job->routes->made + t * width, job->out + t * width, width);
    }
    return multiplications;
}

static double run_expert(const struct experts_job *job, uint32_t index) {
    const struct routes *r = job->routes;
    const struct expert expert = expert_of(job->model, job->layer, index);
    const size_t width = job->model->width, used = job->model->experts_used;
    const uint32_t *choice;
    const size_t n = routes_of_expert(r, index, &choice);
    if (!n) return 0;
#pragma omp parallel for if (n >= PARALLEL_ROWS)
    for (size_t i = 0; i < n; i++) memcpy(r->gathered + i * width, job->x + choice[i] / used * width, width * sizeof(float));
    double multiplications = make(job, &expert, r->gathered, n, r->made);
#pragma omp parallel for if (n >= PARALLEL_ROWS)
    for (size_t i = 0; i < n; i++)
        vector_ops()->axpy(r->share[choice[i]], r->made + i * width, job->out + choice[i] / used * width, width);
    return multiplications;
}

bool experts_some(const struct experts_job *job, uint32_t *item, double *left) {
    if (*item == 0) {
        experts_route(job);
        if (job->layer->experts.shared_gate.data) *left -= run_shared(job);
        ++*item;
    }
    for (; *item <= job->model->experts && *left > 0; ++*item) *left -= run_expert(job, *item - 1);
    return *item > job->model->experts;
}
