/* Searches for paths of the codec transform with AVX2. */
#define ISA avx2

#include "backend/cpu/kernels/transform/path_template.h"

void transform_init_avx2_path(struct transform_ops *ops) { ops->path_step = path_step_avx2; }
