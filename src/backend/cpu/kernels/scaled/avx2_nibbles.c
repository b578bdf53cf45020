/* Implements q4_0 with AVX2, by products of bytes. */
#include "backend/cpu/kernels/lanes/avx2_i16.h"
#include "backend/cpu/kernels/lanes/avx2_products.h"

#include "backend/cpu/kernels/scaled/nibbles_template.h"
