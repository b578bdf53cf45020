/* Implements q4_0 with AVX-VNNI, by products of bytes. */
#include "backend/cpu/kernels/lanes/avx2_i16.h"
#include "backend/cpu/kernels/lanes/avxvnni_products.h"

#undef ISA
#define ISA avxvnni

#include "backend/cpu/kernels/scaled/nibbles_template.h"
