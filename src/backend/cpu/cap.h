/* Keeps logits within a soft bound. */
#ifndef TERSE_BACKEND_CPU_CAP_H
#define TERSE_BACKEND_CPU_CAP_H

#include <stddef.h>

/* Replaces x[n] by cap tanh(x / cap), cap > 0, within 2e-7 cap. */
void cap_row(float *x, float cap, size_t n);

#endif
