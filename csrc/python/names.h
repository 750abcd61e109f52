// The names by which Python speaks of dtypes (safetensors' codes), instruction sets and stores.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "cast/cast.h"

namespace memload::python {

// Throws std::invalid_argument for a dtype that can only be copied.
[[nodiscard]] DType dtype_named(std::string_view code);

// "" means the best there is. Throws std::invalid_argument naming the available ones.
[[nodiscard]] Isa isa_named(std::string_view name);

[[nodiscard]] inline Store store_of(bool streaming) { return streaming ? Store::streaming : Store::cached; }

}  // namespace memload::python
