/* Walks a codebook's sets of parameters and sends each. */
#include "backend/cuda/kv/learned.h"

#include "backend/cuda/device.h"
#include "base/memory.h"
#include "format/codebook.h"

#include <string.h>

/* Sends the numbers of `sets` sets, one for each of views[cache_heads_of(shape)] or one for all of them, to `device`. */
static enum terse_status send_sets(const struct learned_form *form, const struct cache_shape *shape, const struct method *method,
                                   enum codec_side side, size_t sets, uint8_t *device, uint8_t *views, struct terse_error *error) {
    const struct coding *coding = side == CODEC_VALUES ? &method->value : &method->key;
    const struct codebook_info *info = codebook_info(method->learned);
    const size_t bytes = form->bytes(coding, shape->head_dim);
    const size_t n = codec_parameters(coding->codec, codebook_shape(info, side));
    float *parameters = memory_array(n, sizeof *parameters);
    enum terse_status status = parameters ? TERSE_OK : status_no_memory(error, n * sizeof *parameters, "a codebook");
    for (size_t set = 0; set < sets && !status; set++) {
        codebook_parameters(method->learned, side, info->shared ? 0 : cache_shape_set(shape, set), parameters);
        status = form->send(coding, shape->head_dim, parameters, device + set * bytes, views + set * form->view_bytes, error);
    }
    for (size_t i = sets; i < cache_heads_of(shape) && !status; i++) memcpy(views + i * form->view_bytes, views, form->view_bytes);
    memory_free(parameters);
    return status;
}

enum terse_status learned_views_new(const struct learned_form *form, const struct cache_shape *shape, const struct method *method,
                                    enum codec_side side, void **views, struct terse_error *error) {
    const struct coding *coding = side == CODEC_VALUES ? &method->value : &method->key;
    const size_t n = cache_heads_of(shape), own = n * form->view_bytes, head = memory_round_up(own, 256);
    const size_t sets = codebook_info(method->learned)->shared ? 1 : n, bytes = head + sets * form->bytes(coding, shape->head_dim);
    uint8_t *host = memory_zeros(own, 1), *device = host ? device_alloc(NULL, bytes, "a codebook", error) : NULL;
    enum terse_status status = host ? device ? TERSE_OK : TERSE_E_MEMORY : status_no_memory(error, own, "a codebook");
    *views = NULL;
    if (!status) status = send_sets(form, shape, method, side, sets, device + head, host, error);
    if (!status) status = device_check(device_send(device, host, own), "sending a codebook", error);
    memory_free(host);
    if (status)
        device_free(NULL, device, bytes);
    else
        *views = device;
    return status;
}
