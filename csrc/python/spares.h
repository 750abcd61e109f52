// What Python's loaders keep between their passes.
#pragma once

#include "core/slots/spare_memory.h"
#include "python/devices.h"

namespace memload::python {

using PySpares = Shared<Spares>;

}  // namespace memload::python
