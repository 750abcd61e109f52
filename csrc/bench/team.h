// Runs one function on several threads that start together, and times them from the first begin to the last end.
#pragma once

#include <algorithm>
#include <barrier>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "bench/clock.h"

namespace memload::bench {

struct TeamTime {
  double seconds = 0;
  double cpu_seconds = 0;  // of all threads together
};

// Calls work(thread) for each thread in [0, threads). Rethrows the first exception of a thread after all have ended.
// The clock is read by the threads themselves: on a busy machine the caller may sleep through their start.
template <typename Work>
TeamTime run_team(std::size_t threads, Work work) {
  std::barrier start(static_cast<std::ptrdiff_t>(threads));
  std::mutex mutex;  // guards all that follows
  auto first_begin = Clock::time_point::max();
  auto last_end = Clock::time_point::min();
  double cpu_seconds = 0;
  std::exception_ptr error;
  const auto body = [&](std::size_t thread) {
    start.arrive_and_wait();
    const auto begin = Clock::now();
    const double cpu_begin = thread_cpu_seconds();
    std::exception_ptr failure;
    try {
      work(thread);
    } catch (...) {
      failure = std::current_exception();
    }
    const double cpu_spent = thread_cpu_seconds() - cpu_begin;
    const auto end = Clock::now();
    const std::scoped_lock lock(mutex);
    first_begin = std::min(first_begin, begin);
    last_end = std::max(last_end, end);
    cpu_seconds += cpu_spent;
    if (!error) error = failure;
  };
  {
    std::vector<std::jthread> team;
    for (std::size_t thread = 0; thread < threads; ++thread) team.emplace_back(body, thread);
  }  // joins
  if (error) std::rethrow_exception(error);
  return {seconds_between(first_begin, last_end), cpu_seconds};
}

}  // namespace memload::bench
