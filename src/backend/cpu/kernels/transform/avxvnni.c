/* Reads pages of the codec transform with AVX-VNNI: products of four bytes add themselves to a dword. */
#include "backend/cpu/kernels/lanes/avx2.h"

#include "backend/cpu/kernels/lanes/sums_template.h"

#undef ISA
#define ISA avxvnni

#include "backend/cpu/kernels/lanes/avxvnni_products.h"

#define SUM_RANGE 1000 /* no group of planes has more */
#define MIDDLE_LEVEL TRANSFORM_LEVEL_MAX
#define SMALL_OCTETS 4 /* what is added to a sum waits for it: two take turns */
#define MIDDLE_OCTETS 4
#define LARGE_OCTETS 4

#include "backend/cpu/kernels/transform/octets_template.h"

void transform_init_avxvnni(struct transform_ops *ops) { fill_octets(ops); }
