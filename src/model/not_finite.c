/* Reports numbers that are not finite: a damaged model says so wherever it is computed. */
#include "model/model.h"

#include "base/status.h"

#include <inttypes.h>
#include <stdio.h>

enum terse_status model_not_finite(const struct terse_model *model, uint32_t place, struct terse_error *error) {
    char where[80];
    if (place == MODEL_EMBEDDINGS)
        snprintf(where, sizeof where, "in the embeddings of its tokens");
    else if (place == MODEL_OUTPUT(model))
        snprintf(where, sizeof where, "in its output, the logits");
    else
        snprintf(where, sizeof where, "behind layer %" PRIu32 " (blk.%" PRIu32 " of %" PRIu32 " from 0 on)", place - 1, place - 1,
                 model->layers);
    return status_fail(
        error, TERSE_E_FORMAT,
        "the model's numbers are not finite (NaN or infinite), first seen %s: the file is damaged, or not a language "
        "model's; fetch it again",
        where);
}
