/* Checks which head sizes the KV cache serves. */
#include "format/shape.h"

#include "format/page_layout.h"

enum terse_status codec_check_head_dim(uint32_t head_dim, struct terse_error *error) {
    if (head_dim && head_dim % SCALE_GROUP == 0 && head_dim <= CODEC_HEAD_DIM_MAX) return TERSE_OK;
    return status_fail(
        error, TERSE_E_UNSUPPORTED,
        "the model's heads have %u channels, the KV cache serves multiples of %d up to %d: this model cannot run in terse",
        head_dim, SCALE_GROUP, CODEC_HEAD_DIM_MAX);
}
