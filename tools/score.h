/* Scores how well rows of logits predict the tokens that came next, and how far they are from a base file's. */
#ifndef TERSE_TOOLS_SCORE_H
#define TERSE_TOOLS_SCORE_H

#include "kld_file.h"
#include "terse.h"

/* These are sums over all scored positions; nll is the negative log-likelihood of the token that came, in nats. */
struct score_totals {
    uint64_t count;
    double nll, nll_squared;
    /* The next members compare with a base. */
    double base_nll, base_nll_squared, nll_base_nll;
    double kld, kld_squared;
    uint64_t same_top;
    float *kld_values, *nll_values; /* [count] */
};

/* A row_divergence says how far the distribution of a row of logits is from that of a base row. */
struct row_divergence {
    double kld;          /* KL(base || logits), in nats: 0 of equal rows */
    double base_log_sum; /* log(sum(exp(base))): a token's logit in the base row less this is its log-probability */
    double base_entropy; /* the negative log-likelihood, by the base row, that a token drawn from it has on average */
};
struct row_divergence score_divergence(const float *base, const float *logits, uint32_t vocabulary);

struct scorer;

/* A scorer_base says what the rows are to a base of a KL divergence. At most one member is set; what it points to outlives the
 * scorer. */
struct scorer_base {
    struct kld_writer *writer; /* they become its rows */
    struct kld_reader *reader; /* they are compared with its rows */
    bool kept;                 /* they are what other scorers compare theirs with */
    /* They are compared with those that this one scored last, which keeps them as a file would; they are gathered in its memory, so
     * that it has scored its own before they come, and the scorers that compare with it take turns. */
    const struct scorer *scorer;
};

/* Makes a scorer of the second half of windows of `context` tokens, at most `windows` of them. Returns an exit status. */
int scorer_new(uint32_t vocabulary, uint32_t context, uint32_t windows, const struct scorer_base *base, int threads,
               struct scorer **scorer);
void scorer_free(struct scorer *scorer);

/* Tells that the next rows belong to this window, from position `first` on; call it before each call into the library. */
void scorer_expect(struct scorer *scorer, const int32_t *window, size_t first);
/* Takes a row, as a terse_logits_sink.row with the scorer as user. Rows are gathered, and scored when SCORER_ROWS of them are
 * there and one more comes. */
enum { SCORER_ROWS = 64 };
void scorer_row(void *scorer, size_t i, const float *logits);
/* Scores the gathered rows; a scorer that others compare with comes before them. Returns an exit status: that of the first failure, also of an earlier one. */
int scorer_flush(struct scorer *scorer);

const struct score_totals *scorer_totals(const struct scorer *scorer);

/* An estimate is a mean with its standard error, from a sum and a sum of squares. */
struct estimate {
    double mean, error;
};
struct estimate estimate_mean(double sum, double sum_of_squares, uint64_t count);
/* Returns exp of an estimate, with the error to first order. */
struct estimate estimate_exp(struct estimate e);
/* Returns the mean of log PPL - log PPL(base); its error is that of the difference of two correlated means. */
struct estimate score_log_ratio(const struct score_totals *totals);

/* Sorts the KL divergences once; then the next call returns that of any fraction 0..1 of the positions, between neighbours linearly. */
void scorer_sort_kld(struct scorer *scorer);
double scorer_kld_quantile(const struct scorer *scorer, double fraction);

#endif
