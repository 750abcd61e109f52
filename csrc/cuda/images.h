// Images that are cropped, flipped, laid out anew and cast by one kernel.
#pragma once

#include <cstddef>

#include "cast/image.h"
#include "cuda/rule.h"

namespace memload::cuda {

// Cuts and casts images that lie one behind the other at src, to dst, asynchronously on `stream` (a cudaStream_t of
// `device`) and without allocating. Image i was drawn draws[i / images_per_draw], an array on the host that is read
// before the call returns; each cut lies within its image. The constants of the rule are by channel of the image.
// An image has fewer than 2^31 elements. src and dst are aligned to
// their elements. Throws CudaError if a launch fails.
void augment_images(const void* src, void* dst, std::size_t images, std::size_t images_per_draw, const ImageDraw* draws,
                    const ImageShape& shape, const DeviceRule& rule, int device, void* stream);

}  // namespace memload::cuda
