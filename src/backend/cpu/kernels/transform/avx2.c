/* Reads pages of the codec transform with AVX2: products of bytes are added in pairs to words of 16 bits. A key's products are at
 * most 127 times the level, counted from 0 on, each; a value's 255 times the level. */
#include "backend/cpu/kernels/lanes/avx2.h"

#include "backend/cpu/kernels/lanes/sums_template.h"

#include "backend/cpu/kernels/lanes/avx2_products.h"

#define SUM_RANGE 129 /* 2 * 127 * 129 < 2^15 */
#define MIDDLE_LEVEL 16
#define SMALL_OCTETS 8  /* 2 * 255 * 8 * 8 < 2^15 */
#define MIDDLE_OCTETS 4 /* 2 * 255 * 4 * 16 */
#define LARGE_OCTETS 3  /* 2 * 255 * 3 * 20 */

#include "backend/cpu/kernels/transform/octets_template.h"

void transform_init_avx2(struct transform_ops *ops) { fill_octets(ops); }
