/* Declares the part of kv_storage (kv/cache.h) that gives and takes a cache's bytes as they are saved. */
#ifndef TERSE_BACKEND_CUDA_KV_SAVED_H
#define TERSE_BACKEND_CUDA_KV_SAVED_H

#include "backend/cuda/kv/state.h"

int kv_export_piece(const struct cache *cache, enum cache_piece piece, const struct cache_sink *sink);
int kv_export_pages(const struct cache *cache, void *to, const void *from, size_t bytes);
enum terse_status kv_import_pages(struct cache *cache, const uint8_t *pages, const uint8_t *rates, size_t n,
                                  struct terse_error *error);
enum terse_status kv_import_pieces(struct cache *cache, const uint8_t *const pieces[CACHE_PIECES], struct terse_error *error);

#endif
