/* Chooses which tokens of a prompt the rows of a decoding step read, for each KV head, where the method has an index
 * (format/index.h). Tokens and ties are those of the CPU (backend/cpu/kv/select.h): of the pages that a prompt's steps sealed the
 * best tokens by the mean query of a group, anchors left out, which are read besides; of equal scores the newest. All other pages
 * are read as without an index. Each row chooses for itself.
 *
 * A layer takes these launches, whose sizes do not change while a graph of them is replayed: mean queries; scores of all tokens of
 * a prompt, by the codec of keys; how many scores have which upper byte, then which lower byte, which tells the least that is chosen; and
 * the lists that attention then reads (struct sequence_view, `own`). Nothing goes to the host. Plain C. */
#ifndef TERSE_BACKEND_CUDA_KV_SELECT_H
#define TERSE_BACKEND_CUDA_KV_SELECT_H

#include "backend/cuda/kv/attend_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A selection is a launch's memory on the device. */
struct selection {
    uint32_t pages;           /* that there is room for, of each row and KV head */
    uint32_t parts;           /* that a row and KV head's pages are taken in, at most */
    float *q;                 /* [n_rows][Hk][hd], the group's mean query */
    uint16_t *scores;         /* [n_rows][Hk][pages][64] by entry of the sequence's list: 1 more than the score, at least 1 */
    uint16_t *best;           /* [n_rows][Hk][pages], the largest of an entry; read where rows choose among rope runs */
    struct read_list *lists;  /* [n_rows][Hk] */
    struct read_page *listed; /* [n_rows][Hk][pages] */
    /* These are the kernels' own (select.cu); any bytes may stand in them before a launch. */
    uint64_t *live;                 /* [n_rows][Hk][pages]: which tokens are read */
    uint8_t *closed;                /* [n_rows][Hk][pages] */
    uint32_t *counts;               /* [n_rows][Hk][parts] of scores, by byte */
    struct selection_state *states; /* [n_rows][Hk] */
};

/* Returns the bytes of a selection's memory. */
size_t selection_bytes(const struct head_view *heads, uint32_t n_rows, uint32_t pages);
/* Returns where its parts lie in memory[selection_bytes], of rows from `first` on. */
struct selection selection_at(void *memory, const struct head_view *heads, uint32_t n_rows, uint32_t pages, uint32_t first);

struct select_tokens {
    struct attend_decode attend; /* the attention that will read the lists */
    struct selection to;
    uint32_t index_bytes; /* of an index's page, where it has pages of its own */
};

/* Launches the scores of one codec; attend.q is the mean query of each KV head, of which there are no more queries. */
typedef cudaError_t score_launch(const struct select_tokens *select, cudaStream_t stream);

/* Launches all of it, where rows have lists of their own; the caller has allocated all memory. */
cudaError_t select_tokens_launch(const struct select_tokens *select, score_launch *score, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
