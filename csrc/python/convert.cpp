#include "python/convert.h"

#include <unistd.h>

#include <atomic>
#include <memory>
#include <utility>

namespace memload::python {
namespace {

bool finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

// Objects that were let go without the GIL. A thread of the core must not wait for it: up to CPython 3.13, one that
// still waits when the interpreter ends has its stack unwound, which ends the process in the first destructor. So the
// next thread that has the GIL drops them.
struct LetGo {
  PyObject* object;
  LetGo* before;
};
std::atomic<LetGo*> last_let_go{nullptr};

// With the GIL. Also a pending call of the interpreter's, for a main thread that never comes here otherwise.
int drop_what_was_let_go(void* = nullptr) {
  LetGo* next = last_let_go.load() == nullptr ? nullptr : last_let_go.exchange(nullptr);
  while (next != nullptr) {
    const std::unique_ptr<LetGo> one(std::exchange(next, next->before));
    Py_DECREF(one->object);
  }
  return 0;
}

void let_go(void* object) {
  if (Py_IsInitialized() == 0) return;
  if (PyGILState_Check() != 0) {
    Py_DECREF(static_cast<PyObject*>(object));
    return;
  }
  if (finalizing()) return;  // nobody else can have the GIL any more: the object is left to the process's end
  LetGo* before = last_let_go.load();
  auto* const one = new LetGo{static_cast<PyObject*>(object), before};
  while (!last_let_go.compare_exchange_weak(before, one)) one->before = before;
  if (before == nullptr) static_cast<void>(Py_AddPendingCall(&drop_what_was_let_go, nullptr));
}

}  // namespace

WithoutGil::WithoutGil() : ending_(finalizing()), state_(PyEval_SaveThread()) {}

WithoutGil::~WithoutGil() noexcept(false) {
  while (!ending_ && finalizing()) ::pause();
  PyEval_RestoreThread(state_);
  drop_what_was_let_go();
}

std::shared_ptr<void> keep_alive(const pybind11::object& object) { return {object.inc_ref().ptr(), &let_go}; }

}  // namespace memload::python
