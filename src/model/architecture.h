/* The architectures that terse runs: what tells one from another is a row of data. */
#ifndef TERSE_MODEL_ARCHITECTURE_H
#define TERSE_MODEL_ARCHITECTURE_H

#include "base/gguf.h"
#include "kernels/rope.h"

/* Whether an architecture has a kind of tensor. */
enum presence { PRESENCE_NONE, PRESENCE_OPTIONAL, PRESENCE_REQUIRED };

struct architecture {
    const char *name; /* general.architecture, and the prefix of its metadata keys */
    enum rope_pairing pairing;
    enum presence qkv_bias; /* attn_{q,k,v}.bias */
    enum presence qk_norm;  /* attn_{q,k}_norm.weight: RMSNorm of each head of q and k before rotation */
};

/* Reads general.architecture. An unknown one is TERSE_E_UNSUPPORTED, and the message names those that are supported. */
enum terse_status architecture_find(const struct gguf *gguf, const struct architecture **architecture, struct terse_error *error);

#endif
