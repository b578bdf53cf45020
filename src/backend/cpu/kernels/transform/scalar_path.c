/* Has the reference of the search for paths of the codec transform. */
#define ISA scalar

#include "backend/cpu/kernels/transform/path_template.h"

void transform_init_scalar_path(struct transform_ops *ops) { ops->path_step = path_step_scalar; }
