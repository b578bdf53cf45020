/* Implements q8_0, and q4_0 with weights of two bytes, with AVX-VNNI. */
#include "backend/cpu/kernels/lanes/avx2_i16.h"

#undef ISA
#define ISA avxvnni

#include "backend/cpu/kernels/scaled/words_template.h"
