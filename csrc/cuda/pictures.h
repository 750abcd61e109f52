// Pictures that are cropped, flipped, laid out anew and cast by one kernel.
#pragma once

#include <cstddef>

#include "cast/picture.h"
#include "cuda/rule.h"

namespace memload::cuda {

// Cuts and casts pictures that lie one behind the other at src, to dst, asynchronously on `stream` (a cudaStream_t of
// `device`) and without allocating. Picture i was drawn draws[i / pictures_per_draw], an array on the host that is read
// before the call returns; each cut lies within its picture. The constants of the rule are by channel of the picture.
// src and dst are aligned to their elements. Throws CudaError if a launch fails.
void place_pictures(const void* src, void* dst, std::size_t pictures, std::size_t pictures_per_draw,
                    const PictureDraw* draws, const PictureShape& shape, const DeviceRule& rule, int device,
                    void* stream);

}  // namespace memload::cuda
