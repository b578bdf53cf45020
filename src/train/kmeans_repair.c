/* Gives empty clusters the points that contribute most to the objective as their new centroids. */
#include "train/kmeans_private.h"

/* Orders the heap: more error first, then the lower index, so that the choice is the same everywhere. */
static bool before(const double *errors, size_t a, size_t b) { return errors[a] != errors[b] ? errors[a] > errors[b] : a < b; }

static void sift_down(size_t *heap, size_t n, size_t at, const double *errors) {
    size_t moved = heap[at];
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && before(errors, heap[child + 1], heap[child])) child++;
        if (!before(errors, heap[child], moved)) break;
        heap[at] = heap[child];
    }
    heap[at] = moved;
}

static bool same_point(const struct kmeans_points *points, size_t a, size_t b) {
    const float *x = points->rows + a * points->stride, *y = points->rows + b * points->stride;
    for (size_t i = 0; i < points->d; i++) {
        if (x[i] != y[i]) return false; /* by value: -0 is 0 */
    }
    return true;
}

uint32_t kmeans_repair(const struct kmeans_points *points, size_t k, const double *errors, uint64_t *members, uint16_t *codes,
                       size_t *heap, size_t *next, size_t *head) {
    const size_t none = points->n;
    size_t n = 0, cluster = 0;
    uint32_t repaired = 0;
    for (size_t i = 0; i < points->n; i++) {
        if (errors[i] > 0) heap[n++] = i;
    }
    for (size_t at = n / 2; at-- > 0;) sift_down(heap, n, at, errors);
    /* Equal points share their cluster, so a candidate is compared only with what its own cluster has given away: head, next. */
    for (size_t c = 0; c < k; c++) head[c] = none;
    for (;;) {
        while (cluster < k && members[cluster]) cluster++;
        if (cluster == k || n == 0) return repaired;
        size_t point = heap[0], donor = codes[point], twin;
        heap[0] = heap[--n];
        if (n) sift_down(heap, n, 0, errors);
        for (twin = head[donor]; twin != none && !same_point(points, point, twin);) twin = next[twin];
        if (twin != none || members[donor] < 2) continue;
        next[point] = head[donor];
        head[donor] = point;
        members[donor]--;
        members[cluster] = 1;
        codes[point] = (uint16_t)cluster;
        repaired++;
    }
}
