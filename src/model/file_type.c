/* The table names mixtures by their numbers in general.file_type (ggml's). Numbers that are named after one type (7, "mostly Q8_0") are not in it:
 * a tensor whose rows do not fit the type's blocks has another type, and so does the embedding, but most of such a file has the type it names. */
#include "model/file_type.h"

const char *file_type_mixture(const struct gguf *gguf) {
    static const char *const names[] = {[10] = "Q2_K",   [11] = "Q3_K_S", [12] = "Q3_K_M", [13] = "Q3_K_L", [14] = "Q4_K_S",
                                        [15] = "Q4_K_M", [16] = "Q5_K_S", [17] = "Q5_K_M", [21] = "Q2_K_S", [22] = "IQ3_XS",
                                        [26] = "IQ3_S",  [27] = "IQ3_M",  [28] = "IQ2_S",  [29] = "IQ2_M",  [38] = "MXFP4_MOE"};
    uint32_t type = 0;
    bool found = false;
    if (gguf_get_u32(gguf, "general.file_type", &type, &found, NULL) || !found) return NULL;
    return type < sizeof names / sizeof *names ? names[type] : NULL;
}
