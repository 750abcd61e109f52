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

// Not PyGILState_Check: once a process has had a second interpreter, that says yes to everybody.
bool has_gil() {
  const PyThreadState* const mine = PyGILState_GetThisThreadState();
#if PY_VERSION_HEX >= 0x030D0000
  return mine != nullptr && mine == PyThreadState_GetUnchecked();
#else
  return mine != nullptr && mine == _PyThreadState_UncheckedGet();
#endif
}

// Objects that were let go without the GIL. A thread of the core must not wait for it: up to CPython 3.13, one that
// still waits when the interpreter ends has its stack unwound, which ends the process in the first destructor. So the
// next thread that has the GIL drops them.
struct Kept {
  PyObject* object;
  Kept* before = nullptr;  // let go before this one
};
std::atomic<Kept*> last_let_go{nullptr};
std::atomic<bool> drop_is_pending{false};

void drop(Kept* kept) {
  const std::unique_ptr<Kept> whole(kept);
  Py_DECREF(whole->object);
}

// With the GIL.
void drop_what_was_let_go() {
  Kept* next = last_let_go.load() == nullptr ? nullptr : last_let_go.exchange(nullptr);
  while (next != nullptr) drop(std::exchange(next, next->before));
}

// A pending call of the interpreter's, for a main thread that never comes here otherwise.
int drop_pending(void* /*nothing*/) {
  drop_is_pending = false;
  drop_what_was_let_go();
  return 0;
}

void let_go(Kept* kept) noexcept {
  if (Py_IsInitialized() == 0) return;
  if (has_gil()) {
    drop(kept);
    return;
  }
  if (finalizing()) return;  // nobody else can have the GIL any more: the object is left to the process's end
  kept->before = last_let_go.load();
  while (!last_let_go.compare_exchange_weak(kept->before, kept)) {
  }
  if (!drop_is_pending.exchange(true) && Py_AddPendingCall(&drop_pending, nullptr) != 0) drop_is_pending = false;
}

}  // namespace

WithoutGil::WithoutGil() : ending_(finalizing()), state_(PyEval_SaveThread()) {}

WithoutGil::~WithoutGil() noexcept(false) {
  while (!ending_ && finalizing()) ::pause();
  PyEval_RestoreThread(state_);
  drop_what_was_let_go();
}

std::shared_ptr<void> keep_alive(const pybind11::object& object) { return {new Kept{object.inc_ref().ptr()}, &let_go}; }

}  // namespace memload::python
