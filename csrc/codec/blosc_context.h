// A context of c-blosc2, freed at the end of its scope; for blosc.cpp and encode.cpp.
#pragma once

#include <memory>

#include "blosc2.h"

namespace memload::filters {

struct FreeBlosc {
  void operator()(blosc2_context* context) const noexcept { blosc2_free_ctx(context); }
};
using BloscContext = std::unique_ptr<blosc2_context, FreeBlosc>;

}  // namespace memload::filters
