/* Declares the loading of feed-forward layers of experts. */
#ifndef TERSE_MODEL_LOAD_EXPERTS_H
#define TERSE_MODEL_LOAD_EXPERTS_H

#include "model/loader.h"

/* Loads how many experts a layer has, how wide they are and how a token's are chosen. The model's feed_forward is that of layers without
 * experts before, and the widest of all behind. */
enum terse_status load_experts_shape(struct loader *l);

/* Loads a layer's experts. */
enum terse_status load_experts(struct loader *l, uint32_t index);

#endif
