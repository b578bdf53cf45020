/* Chooses MILLION's tables or centroids, whichever is faster. */
#include "backend/cuda/kv/attend_pq.h"

#include "backend/cuda/kv/attend_centroids.h"
#include "backend/cuda/kv/attend_tables.h"

cudaError_t attend_pq(const struct attend_decode *attend, cudaStream_t stream) {
    return attend_tables_serves(attend) ? attend_tables(attend, stream) : attend_centroids(attend, stream);
}
