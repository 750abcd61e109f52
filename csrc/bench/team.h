// Runs one function on several threads that start together, and times them from the common start to the last end.
#pragma once

#include <atomic>
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
template <typename Work>
TeamTime run_team(std::size_t threads, Work work) {
  std::barrier start(static_cast<std::ptrdiff_t>(threads) + 1);
  std::mutex mutex;  // guards cpu_seconds and error
  double cpu_seconds = 0;
  std::exception_ptr error;
  std::vector<std::jthread> team;
  const auto body = [&](std::size_t thread) {
    start.arrive_and_wait();
    const double before = thread_cpu_seconds();
    std::exception_ptr failure;
    try {
      work(thread);
    } catch (...) {
      failure = std::current_exception();
    }
    const double spent = thread_cpu_seconds() - before;
    const std::scoped_lock lock(mutex);
    cpu_seconds += spent;
    if (!error) error = failure;
  };
  for (std::size_t thread = 0; thread < threads; ++thread) team.emplace_back(body, thread);
  start.arrive_and_wait();
  const auto begin = Clock::now();
  team.clear();  // joins
  const double seconds = seconds_between(begin, Clock::now());
  if (error) std::rethrow_exception(error);
  return {seconds, cpu_seconds};
}

}  // namespace memload::bench
