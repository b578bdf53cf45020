/* Declares how codebooks are learned from a model, and random stand-ins for benchmarks. It is a part of libterse; the conventions
 * of terse.h hold. */
#ifndef TERSE_CALIBRATE_H
#define TERSE_CALIBRATE_H

#include "terse.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Learning weights each sample by the norm of the loss's gradient with respect to it, to a power. */
enum terse_weighting {
    TERSE_WEIGHTING_DEFAULT,   /* the method's own */
    TERSE_WEIGHTING_NONE,      /* all alike */
    TERSE_WEIGHTING_SUBVECTOR, /* norm of the gradient of the sub-vector */
    TERSE_WEIGHTING_ROW        /* norm of the gradient of the whole head */
};

/* Says whether a head's mean row is subtracted from rows before they are normalized, by methods that normalize them (antkv, commvq). */
enum terse_mean {
    TERSE_MEAN_DEFAULT, /* as the method does: antkv-4 and commvq subtract it, antkv of fewer bits does not */
    TERSE_MEAN_NONE,
    TERSE_MEAN_SUBTRACTED
};

struct terse_calibration {
    size_t size;        /* of this struct: set by terse_calibration_defaults */
    const char *method; /* one that learns; default "antkv-1" */
    const char *corpus; /* a name for the text, kept in the codebook; or NULL */
    uint32_t window;    /* tokens of a sequence; default 2048, and the text must have as many */
    /* At most so many sequences, taken evenly from the text; default 0: 128, fewer of which suffice, or for terse-N as many as hold
     * 20,480 tokens. */
    uint32_t windows;
    bool shared; /* one set of centroids for the whole model */
    enum terse_weighting weighting;
    uint32_t power;   /* of the gradient's norm: 1 or 2; 0: the method's own */
    bool text_labels; /* gradients of the loss against the text; else against labels drawn from the model's own predictions */
    uint64_t seed;
    uint32_t threads; /* 0: one per processor */
    /* Where the heavy part is computed, as terse_engine_options.device says; NULL: "cpu". What a GPU does not compute, the processor
     * does beside it. Codebooks then differ from the processor's within rounding. */
    const char *device;
    struct terse_progress progress;
    enum terse_mean mean;
};
TERSE_API struct terse_calibration terse_calibration_defaults(void);

/* Learns a codebook for a method from tokens[n] of some text: captures keys, values and their gradients, then fits centroids; for
 * terse-N the profile that serves every N, without gradients. Beside the model it takes memory for samples of keys and values, in
 * half precision, and their weights: those of all windows, or of fewer tokens where that is more than 4 GiB. Progress names the
 * stage. */
TERSE_API enum terse_status terse_calibrate(const struct terse_model *model, const struct terse_calibration *options,
                                            const int32_t *tokens, size_t n, struct terse_codebook **codebook,
                                            struct terse_error *error);

/* Makes a codebook of random numbers for a method and a model, without a text. It is for benchmarks with terse_session_fill_random,
 * since encoding and reading cost the same whatever a codebook says. A session that uses it generates noise. */
TERSE_API enum terse_status terse_codebook_random(const struct terse_model *model, const char *method,
                                                  struct terse_codebook **codebook, struct terse_error *error);

/* ---- For benchmarks at depth -------------------------------------------------------------------------------------------- */

/* Fills the cache as if `n` tokens had been read, with normally distributed keys and values, for benchmarks at depth. In an empty
 * session layers become alike and pages may repeat, in as much memory, so that a step costs the same. */
TERSE_API enum terse_status terse_session_fill_random(struct terse_session *session, size_t n, uint64_t seed,
                                                      struct terse_error *error);

#ifdef __cplusplus
}
#endif
#endif
