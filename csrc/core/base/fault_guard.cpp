#include "core/base/fault_guard.h"

#include <ucontext.h>

#include <mutex>

#include "core/base/error.h"

namespace memload {
namespace {

// initial-exec: the handler must find the frame without allocating it.
__attribute__((tls_model("initial-exec"))) thread_local FaultFrame t_frame{};

struct sigaction g_previous{};

void on_fault(int signal, siginfo_t* info, void* context) {
  if (t_frame.active != 0) {
    t_frame.active = 0;
    t_frame.address = info->si_addr;
    // The jump must leave the mask that the interrupted code had, whatever whoever called this handler has blocked.
    ::pthread_sigmask(SIG_SETMASK, &static_cast<ucontext_t*>(context)->uc_sigmask, nullptr);
    siglongjmp(t_frame.escape, 1);
  }
  if ((g_previous.sa_flags & SA_SIGINFO) != 0) {
    g_previous.sa_sigaction(signal, info, context);
  } else if (g_previous.sa_handler != SIG_DFL && g_previous.sa_handler != SIG_IGN) {
    g_previous.sa_handler(signal);
  } else {
    ::sigaction(SIGBUS, &g_previous, nullptr);  // the instruction runs again and meets the default: the process ends
  }
}

}  // namespace

FaultFrame& fault_frame() noexcept { return t_frame; }

void install_fault_handler() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  struct sigaction current{};
  if (::sigaction(SIGBUS, nullptr, &current) != 0) throw_errno("sigaction(SIGBUS)");
  if ((current.sa_flags & SA_SIGINFO) != 0 && current.sa_sigaction == &on_fault) return;
  g_previous = current;
  struct sigaction ours{};
  ours.sa_sigaction = &on_fault;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  if (::sigaction(SIGBUS, &ours, nullptr) != 0) throw_errno("sigaction(SIGBUS)");
}

}  // namespace memload
