/* Declares the loading of multi-head latent attention. */
#ifndef TERSE_MODEL_LOAD_LATENTS_H
#define TERSE_MODEL_LOAD_LATENTS_H

#include "model/loader.h"

/* Loads the shape of attention: of queries, latents and values (struct latent_shape), and the head that caches see. */
enum terse_status load_latents_shape(struct loader *l);

/* Loads a layer's attention but for its output matrix. */
enum terse_status load_latents(struct loader *l, uint32_t index);

#endif
