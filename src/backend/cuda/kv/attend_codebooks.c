/* Chooses MILLION's own way to read its codes where that is faster. */
#include "backend/cuda/kv/attend_codebooks.h"

#include "backend/cuda/kv/attend_centroids.h"
#include "backend/cuda/kv/attend_tables.h"

cudaError_t attend_codebooks(const struct attend_decode *attend, cudaStream_t stream) {
    return attend_tables_serves(attend) ? attend_tables(attend, stream) : attend_centroids(attend, stream);
}
