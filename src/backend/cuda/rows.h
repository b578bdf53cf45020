/* Computes on rows of activations on the device, a token or a head each: norms, activation functions and the like, and their forms
 * for products (weights.h). Plain C. Each function computes what the CPU's does (backend/cpu/rows.h), within rounding. */
#ifndef TERSE_BACKEND_CUDA_ROWS_H
#define TERSE_BACKEND_CUDA_ROWS_H

#include "backend/cuda/weights.h"
#include "model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows enter a product in one of these forms. gain and bias are device memory. */
enum row_kind { ROW_PLAIN, ROW_NORM, ROW_ACTIVATION };
struct row_form {
    enum row_kind kind;
    struct norm norm;           /* ROW_NORM; gain and bias on the device */
    enum activation activation; /* ROW_ACTIVATION: of x, and SwiGLU multiplies by `factor` */
    /* Where a row of ROW_NORM has a number that is not finite, *not_finite, on the device, is lowered to `place` (model/model.h)
     * unless it is less already. NULL: rows are not checked. */
    uint32_t *not_finite, place;
};

/* Writes rows x[n][width], after `form`, in all the forms that `to` has room for; at most EACH_MOST of them where `high` or `thirds` is
 * one. */
cudaError_t rows_prepare(struct row_form form, const float *x, const float *factor, uint32_t n, uint32_t width,
                         const struct device_vectors *to, cudaStream_t stream);

/* Writes rows of x, after `form`, to slots, of which EACH_ROWS follow one another as the rows of one rows_prepare do: to slot i <
 * n_slots row rows[i], on the device, or with `by_slot` row i itself, of x and factor; none where rows[i] is -1. */
cudaError_t rows_prepare_slots(struct row_form form, const float *x, const float *factor, const int32_t *rows, uint32_t n_slots,
                               bool by_slot, uint32_t width, const struct device_vectors *to, cudaStream_t stream);

/* Replaces x[n][width] by its norm; with most > 0, x is first kept within [-most, most]. */
cudaError_t rows_norm(struct norm norm, float *x, uint32_t n, uint32_t width, float most, cudaStream_t stream);
/* Adds the norm of x[n][width] to out[n][width]; norm.heads is 0. */
cudaError_t rows_add_norm(struct norm norm, const float *x, uint32_t n, uint32_t width, float *out, cudaStream_t stream);
/* Adds to *sum, on the device, log2 of the mean squares of x[n][width], each rounded to a multiple of `unit`, in units. */
cudaError_t rows_sum_log_squares(const float *x, uint32_t n, uint32_t width, float unit, int64_t *sum, cudaStream_t stream);
/* These change x[count] in place: keep it within [-most, most]; multiply it; make it cap tanh(x / cap). */
cudaError_t rows_clamp(float *x, float most, size_t count, cudaStream_t stream);
cudaError_t rows_scale(float *x, float factor, size_t count, cudaStream_t stream);
cudaError_t rows_cap(float *x, float cap, size_t count, cudaStream_t stream);

/* Lowers *not_finite, on the device, to `place` unless it is less already, where one of x[count] is not finite. */
cudaError_t rows_seek_not_finite(const float *x, size_t count, uint32_t *not_finite, uint32_t place, cudaStream_t stream);
/* Lowers *not_finite, on the device, to the least of noted[i * stride], i < n, unless it is less already. */
cudaError_t rows_lower_not_finite(const uint32_t *noted, size_t stride, uint32_t n, uint32_t *not_finite, cudaStream_t stream);

/* Computes, after a product of halves, out[n][width] = y[n][stride] size + bias, or with `add` adds that to out. bias NULL: none.
 * out may be y. */
cudaError_t rows_finish(const float *y, uint32_t n, uint32_t width, uint32_t stride, const float *sizes, const float *bias,
                        float *out, uint32_t out_stride, bool add, cudaStream_t stream);

/* Copies rows from[ids[i]][width], i < n, one after the other; ids on the device. */
cudaError_t rows_pick(const float *from, const uint32_t *ids, uint32_t n, uint32_t width, float *out, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
