#include "python/register.h"

namespace memload::python {

void register_pipeline(pybind11::module_& m) { (void)m; }

}  // namespace memload::python
