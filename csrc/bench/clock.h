// The two clocks of a measurement: time that passed, and time that a thread spent computing.
#pragma once

#include <chrono>
#include <ctime>

namespace memload::bench {

using Clock = std::chrono::steady_clock;

[[nodiscard]] inline double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

[[nodiscard]] inline double cpu_clock(clockid_t which) {
  timespec now{};
  ::clock_gettime(which, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// What the calling thread has computed so far.
[[nodiscard]] inline double thread_cpu_seconds() { return cpu_clock(CLOCK_THREAD_CPUTIME_ID); }

// What all threads of the process, the kernel's work for them included, have computed so far.
[[nodiscard]] inline double process_cpu_seconds() { return cpu_clock(CLOCK_PROCESS_CPUTIME_ID); }

}  // namespace memload::bench
