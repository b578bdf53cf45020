/* Searches for paths of the codec transform with NEON. */
#define ISA neon

#include "backend/cpu/kernels/transform/path_template.h"

void transform_init_neon_path(struct transform_ops *ops) { ops->path_step = path_step_neon; }
