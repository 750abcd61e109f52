#include "python/convert.h"

#include <unistd.h>

namespace memload::python {
namespace {

bool finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

void let_go(void* object) {
  // Once the interpreter ends, another thread can no longer take the GIL: then the object is left to the process's end.
  if (Py_IsInitialized() == 0 || (finalizing() && PyGILState_Check() == 0)) return;
  const PyGILState_STATE state = PyGILState_Ensure();
  Py_DECREF(static_cast<PyObject*>(object));
  PyGILState_Release(state);
}

}  // namespace

WithoutGil::WithoutGil() : ending_(finalizing()), state_(PyEval_SaveThread()) {}

WithoutGil::~WithoutGil() noexcept(false) {
  while (!ending_ && finalizing()) ::pause();
  PyEval_RestoreThread(state_);
}

std::shared_ptr<void> keep_alive(const pybind11::object& object) { return {object.inc_ref().ptr(), &let_go}; }

}  // namespace memload::python
