/* Holds the table of tensor types. */
#include "gguf/gguf.h"

static const struct tensor_type_info infos[TENSOR_TYPES] = {
    [TENSOR_F32] = {"F32", 1, 4},       [TENSOR_F16] = {"F16", 1, 2},         [TENSOR_BF16] = {"BF16", 1, 2},
    [TENSOR_Q4_0] = {"Q4_0", 32, 18},   [TENSOR_Q4_1] = {"Q4_1", 32, 20},     [TENSOR_Q5_0] = {"Q5_0", 32, 22},
    [TENSOR_Q5_1] = {"Q5_1", 32, 24},   [TENSOR_Q8_0] = {"Q8_0", 32, 34},     [TENSOR_Q4_K] = {"Q4_K", 256, 144},
    [TENSOR_Q5_K] = {"Q5_K", 256, 176}, [TENSOR_Q6_K] = {"Q6_K", 256, 210},   [TENSOR_Q2_K] = {"Q2_K", 256, 84},
    [TENSOR_Q3_K] = {"Q3_K", 256, 110}, [TENSOR_IQ4_NL] = {"IQ4_NL", 32, 18}, [TENSOR_IQ4_XS] = {"IQ4_XS", 256, 136},
    [TENSOR_MXFP4] = {"MXFP4", 32, 17},
};

/* Messages can name these types, with which terse cannot compute. The numbers are those of enum ggml_type of the ggml project; the
 * gaps were withdrawn. */
static const char *const other_names[] = {
    [9] = "Q8_1",   [15] = "Q8_K",  [16] = "IQ2_XXS", [17] = "IQ2_XS", [18] = "IQ3_XXS", [19] = "IQ1_S",
    [21] = "IQ3_S", [22] = "IQ2_S", [24] = "I8",      [25] = "I16",    [26] = "I32",     [27] = "I64",
    [28] = "F64",   [29] = "IQ1_M", [34] = "TQ1_0",   [35] = "TQ2_0",
};

const struct tensor_type_info *tensor_type_info(uint32_t type) {
    return type < TENSOR_TYPES && infos[type].name ? &infos[type] : NULL;
}

const char *tensor_type_name(uint32_t type) {
    if (tensor_type_info(type)) return infos[type].name;
    return type < sizeof other_names / sizeof *other_names ? other_names[type] : NULL;
}
