// A guard for reads of mapped files. A read of a file that somebody truncates raises SIGBUS; the guard turns that into
// a return value.
#pragma once

#include <setjmp.h>
#include <signal.h>

#include <cstddef>

namespace memload {

// The point to which a guarded read of this thread returns. The signal handler reads it only while `active`.
struct FaultFrame {
  sigjmp_buf escape;
  volatile sig_atomic_t active;
  const void* volatile address;
};

[[nodiscard]] FaultFrame& fault_frame() noexcept;

// Makes our SIGBUS handler the current one. The handler that it replaces gets every fault that is not ours. Each
// pipeline and each gather calls this first, since others (Python's faulthandler) may have replaced ours; the call is
// cheap.
void install_fault_handler();

// Calls body() and returns nullptr, or returns the faulting address if a mapped page could not be read. body may own
// nothing that needs a destructor: after a fault a jump leaves its frame. The guard costs a few nanoseconds, since it
// neither saves nor changes the signal mask.
template <class Body>
[[nodiscard]] const void* guarded(Body&& body) noexcept {
  FaultFrame& frame = fault_frame();
  if (sigsetjmp(frame.escape, 0) != 0) return frame.address;
  frame.active = 1;
  body();
  frame.active = 0;
  return nullptr;
}

}  // namespace memload
