// One large cast, shared by several threads.
#pragma once

#include "cast/affine.h"
#include "cast/cast.h"

namespace memload {

// Casts n elements with the calling thread and up to threads - 1 helpers that live as long as the call. Pieces are
// large enough to be worth a thread, so that a short cast stays in the caller. Results are published: no fence is left
// to do. May throw std::system_error if the machine gives no thread.
void cast_parallel(CastRule rule, Isa isa, Store store, const std::byte* src, std::byte* dst, std::size_t n,
                   std::size_t threads);

// The same with constants; element i of the n has those of element i of a row.
void affine_parallel(DType from, DType to, const Affine& rule, Isa isa, Store store, const std::byte* src,
                     std::byte* dst, std::size_t n, std::size_t threads);

}  // namespace memload
