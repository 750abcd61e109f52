// Reading a mapped file that somebody truncates raises SIGBUS. The guard turns that into a return value.
#pragma once

#include <setjmp.h>
#include <signal.h>

#include <cstddef>

namespace memload {

// Where a guarded read of this thread would come back to. Read by the signal handler only while `active`.
struct FaultFrame {
  sigjmp_buf escape;
  volatile sig_atomic_t active;
  const void* volatile address;
};

[[nodiscard]] FaultFrame& fault_frame() noexcept;

// Makes our SIGBUS handler the current one; the handler it finds is kept and gets every fault that is not ours.
// Cheap; called at the start of each pipeline and each gather, since others (Python's faulthandler) may come between.
void install_fault_handler();

// Calls body() and returns nullptr, or returns the faulting address if a mapped page could not be read.
// body may own nothing that needs a destructor: after a fault its frame is left by a jump.
// The signal mask is neither saved nor changed, so the guard costs a few nanoseconds.
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
