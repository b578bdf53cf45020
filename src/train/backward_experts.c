/* Computes the gradients of experts, which need their activations computed again. */
#include "train/backward_experts.h"

#include "backend/cpu/linear.h"
#include "backend/cpu/rows.h"
#include "backend/cpu/vector.h"
#include "base/memory.h"
#include "model/architecture.h"
#include "train/backward_ops.h"

#include <math.h>
#include <string.h>

void backward_experts_free(struct backward_experts *e) {
    float *all[] = {e->inner, e->factor, e->active, e->d_active, e->dx, e->d_share};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) memory_free(all[i]);
    routes_free(&e->routes);
    *e = (struct backward_experts){0};
}

enum terse_status backward_experts_reserve(struct backward_experts *e, const struct terse_model *m, size_t rows,
                                           struct terse_error *error) {
    size_t inner = m->feed_forward * sizeof(float);
    *e = (struct backward_experts){.model = m};
    enum terse_status status = routes_reserve(&e->routes, m, rows, error);
    if (status) return status;
    e->inner = memory_array(rows, inner);
    e->factor = memory_array(rows, inner);
    e->active = memory_array(rows, inner);
    e->d_active = memory_array(rows, inner);
    e->dx = memory_array(rows, m->width * sizeof(float));
    e->d_share = memory_array(rows, m->experts_used * sizeof(float));
    if (e->inner && e->factor && e->active && e->d_active && e->dx && e->d_share) return TERSE_OK;
    backward_experts_free(e);
    return status_no_memory(error, rows * 4 * inner, "the gradients of a window");
}

static struct experts_job job_of(struct backward_experts *e, const struct layer *layer, const float *x, size_t n, float *out,
                                 float *scratch) {
    return (struct experts_job){e->model, layer, x, n, false, out, e->inner, e->factor, scratch, &e->routes};
}

void backward_experts_forward(struct backward_experts *e, const struct layer *layer, const float *x, size_t n, float *out,
                              float *scratch) {
    struct experts_job job = job_of(e, layer, x, n, out, scratch);
    experts_some(&job, &(uint32_t){0}, &(double){INFINITY});
}

/* Computes one expert's output made[n][width] for x[n][width]. */
static void make(struct backward_experts *e, const struct expert *expert, const float *x, size_t n, float *made, float *scratch) {
    const struct linear_op widen[] = {{&expert->gate, e->inner}, {&expert->up, e->factor}};
    const size_t inner = expert->gate.rows;
    linear(widen, 2, x, n, scratch);
    memcpy(e->active, e->inner, n * inner * sizeof *e->active);
    activate_rows(e->model->architecture->activation, e->active, e->factor, n, inner);
    linear(&(struct linear_op){&expert->down, made}, 1, e->active, n, scratch);
}

/* Computes dx[n][width], the gradient with respect to the x of make(), from the gradient with respect to its output. */
static void unmake(struct backward_experts *e, const struct expert *expert, const float *d_made, size_t n, float *dx,
                   float *scratch) {
    linear_backward(&expert->down, d_made, n, false, e->d_active, scratch);
    activation_backward(e->model->architecture->activation, e->inner, e->factor, e->d_active, n, expert->gate.rows);
    linear_backward(&expert->gate, e->inner, n, false, dx, scratch);
    linear_backward(&expert->up, e->factor, n, true, dx, scratch);
}

static void multiply_row(float *row, float factor, const float *by, size_t width) {
    for (size_t i = 0; i < width; i++) row[i] = factor * by[i];
}

/* Adds to dx the gradients through one expert, and computes those of its shares. */
static void run_expert(struct backward_experts *e, const struct layer *layer, uint32_t index, const float *x, const float *d,
                       float *scratch) {
    const struct routes *r = &e->routes;
    const struct expert expert = expert_of(e->model, layer, index);
    const size_t width = e->model->width, used = e->model->experts_used;
    const uint32_t *choice;
    const size_t n = routes_of_expert(r, index, &choice);
    if (!n) return;
    for (size_t i = 0; i < n; i++) memcpy(r->gathered + i * width, x + choice[i] / used * width, width * sizeof(float));
    make(e, &expert, r->gathered, n, r->made, scratch);
    for (size_t i = 0; i < n; i++) {
        const float *own = d + choice[i] / used * width;
        e->d_share[choice[i]] = vector_dot(own, r->made + i * width, width);
        multiply_row(r->made + i * width, r->share[choice[i]], own, width);
    }
    unmake(e, &expert, r->made, n, r->gathered, scratch);
    for (size_t i = 0; i < n; i++) add_rows(e->dx + choice[i] / used * width, r->gathered + i * width, 1, width);
}

/* Does the same for the expert of all rows, whose share is a sigmoid. */
static void run_shared(struct backward_experts *e, const struct layer *layer, const float *x, const float *d, size_t n,
                       float *scratch) {
    const struct experts *of = &layer->experts;
    const struct expert shared = {of->shared_gate, of->shared_up, of->shared_down};
    const struct routes *r = &e->routes;
    const size_t width = e->model->width;
    make(e, &shared, x, n, r->made, scratch);
    for (size_t t = 0; t < n; t++) {
        float *made = r->made + t * width, *dx = e->dx + t * width;
        float share = 1 / (1 + expf(-vector_dot(x + t * width, of->shared_router, width)));
        float d_product = vector_dot(d + t * width, made, width) * share * (1 - share);
        for (size_t i = 0; i < width; i++) dx[i] += d_product * of->shared_router[i];
        multiply_row(made, share, d + t * width, width);
    }
    unmake(e, &shared, r->made, n, r->gathered, scratch);
    add_rows(e->dx, r->gathered, n, width);
}

/* Replaces the router's logits of a row by their gradients. With shares s_i, a softmax p over all experts or over the chosen ones, and gradients
 * d_i of the shares: d logit_j = p_j (d_j - sum_i s_i d_i), where d_j is 0 for those that are not chosen. */
static void shares_backward(const struct backward_experts *e, size_t row) {
    const uint32_t experts = e->model->experts, used = e->model->experts_used;
    const uint32_t *chosen = e->routes.chosen + row * used;
    const float *share = e->routes.share + row * used, *d = e->d_share + row * used;
    float *logits = e->routes.logits + row * experts, first = logits[chosen[0]], along = 0;
    for (uint32_t i = 0; i < used; i++) along += share[i] * d[i];
    bool over_all = e->model->architecture->shares_of_all;
    for (uint32_t j = 0; j < experts; j++) logits[j] = over_all ? -share[0] * expf(logits[j] - first) * along : 0;
    for (uint32_t i = 0; i < used; i++) logits[chosen[i]] = share[i] * (d[i] - along);
}

void backward_experts_run(struct backward_experts *e, const struct layer *layer, float *x, const float *d, size_t n,
                          float *scratch) {
    const struct terse_model *m = e->model;
    struct experts_job job = job_of(e, layer, x, n, NULL, scratch);
    experts_route(&job);
    memset(e->dx, 0, n * m->width * sizeof *e->dx);
    for (uint32_t i = 0; i < m->experts; i++) run_expert(e, layer, i, x, d, scratch);
    if (layer->experts.shared_router) run_shared(e, layer, x, d, n, scratch);
    for (size_t t = 0; t < n; t++) shares_backward(e, t);
    linear_backward(&layer->experts.router, e->routes.logits, n, true, e->dx, scratch);
    memcpy(x, e->dx, n * m->width * sizeof *x);
}
