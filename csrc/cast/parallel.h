// Shares one large cast among several threads.
#pragma once

#include <cstddef>
#include <functional>

#include "cast/affine.h"
#include "cast/cast.h"

namespace memload {

// Runs run(0) ... run(pieces - 1), the first on the calling thread and each other on its own thread. The threads have
// ended when this returns. Pieces for which the system refuses a thread also run on the calling thread.
void run_pieces(std::size_t pieces, const std::function<void(std::size_t)>& run);

// How many of so many images, with so many bytes of results each, a thread makes at once.
std::size_t images_per_piece(std::size_t images, std::size_t image_bytes, std::size_t threads);

// Casts n elements with the calling thread and up to threads - 1 helpers that live as long as the call. Pieces are
// large enough to be worth a thread, so that a short cast stays in the caller. The results are published, so the caller
// needs no fence.
void cast_parallel(CastRule rule, Isa isa, Store store, const std::byte* src, std::byte* dst, std::size_t n,
                   std::size_t threads);

// The same with constants; element i of the n has the constants of element i of a row.
void affine_parallel(DType from, DType to, const Affine& rule, Isa isa, Store store, const std::byte* src,
                     std::byte* dst, std::size_t n, std::size_t threads);

}  // namespace memload
