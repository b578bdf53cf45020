/* Searches for paths of the codec transform with AVX-512. */
#define ISA avx512

#include "backend/cpu/kernels/transform/path_template.h"

void transform_init_avx512_path(struct transform_ops *ops) { ops->path_step = path_step_avx512; }
