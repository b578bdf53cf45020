/* Handles codebooks for the commands: where they are kept, loading one, and learning one that is missing. */
#ifndef TERSE_TOOLS_CODEBOOKS_H
#define TERSE_TOOLS_CODEBOOKS_H

#include "setup.h"

#include <terse_calibrate.h>

/* An entry is a codebook that is in use, in a list that setup_free releases. */
struct codebook_entry {
    char name[64]; /* terse_cache_codebook */
    struct terse_codebook *codebook;
    struct codebook_entry *next;
};
void codebooks_free(struct codebook_entry *entries);

/* Returns whether the method of *setup, with its types of keys and values, needs a codebook. */
bool codebooks_needed(const struct setup *setup);
/* Returns whether the codebook that the method of *setup needs is a profile. */
bool codebooks_is_profile(const struct setup *setup);

/* Sets options->cache.codebook to the one that the method needs for the model: that of --codebook, that in the user's cache
 * directory, the built-in one, or one that is learned now and kept there; it is learned unasked where that takes less than a minute
 * and it is no profile; where *setup asks for it, one of random numbers. It stays NULL where the method needs none, or is terse-N
 * and --codebook is none or there is no profile. Nothing is learned before a session of these options is known to be possible.
 * Returns an exit status. */
int codebooks_provide(struct setup *setup, struct terse_session_options *options);

/* Reads the text to learn or to measure from: a file's, or the built-in one (NULL); *name is its name, *tokens is released by free.
 * Returns an exit status. */
int codebooks_read_text(const struct setup *setup, const char *file, const char **name, int32_t **tokens, size_t *n_tokens);

/* These settings choose the text to learn from and how; 0 stands for the library's default. */
struct codebooks_calibration {
    const char *file; /* NULL: the built-in text */
    int64_t window, windows, seed, power;
    bool shared, text_labels;
    int weighting, mean; /* as enum terse_weighting and enum terse_mean */
    bool announced;      /* says beforehand what is learned, and how long it will take */
    double most_seconds; /* what would take longer is not learned; 0: any time */
    const char *kept_at; /* refuses to learn from fewer tokens than the codebook that is kept there; NULL: whatever it replaces */
};
/* Returns the library's defaults. */
struct codebooks_calibration codebooks_calibration_defaults(void);

/* Learns a codebook for the method and the model, with progress, and measures with a profile what rates cost. Returns an exit
 * status; *codebook is released by terse_codebook_free. It stays NULL where learning would take more than most_seconds; *needed,
 * which may be NULL, is then how many seconds. */
int codebooks_learn(struct setup *setup, const struct codebooks_calibration *calibration, struct terse_codebook **codebook,
                    double *needed);

/* Finds the codebook that there is for the method and the model: that of --codebook, in the user's cache directory, or built in; NULL where there is
 * none, or --codebook is none. It is loaded once, also for codebooks_provide, and lives as long as *setup. Returns an exit status. */
int codebooks_find(struct setup *setup, const struct terse_codebook **codebook);

/* A profile is learned in the time that it takes to read so many prompts of CODEBOOKS_WINDOW tokens. */
#define CODEBOOKS_WINDOW 2048
double codebooks_profile_windows(void);

/* Writes to path[capacity] where the codebook of the method for the model is looked for (terse_kept_path). Returns false
 * when the user has no such place. */
bool codebooks_path(const struct setup *setup, char *path, size_t capacity);

/* Complains where a file that is to be written after minutes of work cannot be written; makes the folders on the way to it first, where asked
 * to. Returns an exit status. */
int codebooks_check_place(const char *path, bool makes_folders);

/* Writes a codebook and the folders on the way to it. TERSE_E_IO says why not. */
enum terse_status codebooks_keep(const struct terse_codebook *codebook, const char *path, struct terse_error *error);

#endif
