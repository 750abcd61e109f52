// A pool of threads that takes work in pieces. All pipelines of a process share one.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace memload {

// How many threads may work for one pipeline at once, and how many do. Guarded by the Workers' mutex.
struct Crew {
  explicit Crew(int threads) : limit(threads) {}
  int limit;
  int running = 0;
};

// Work cut into pieces that may run in any order, on any threads, at once.
class Job {
 public:
  Job(std::shared_ptr<Crew> crew, std::size_t pieces) : crew_(std::move(crew)), pieces_(pieces) {}
  virtual ~Job() = default;
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  virtual void run(std::size_t piece) noexcept = 0;
  [[nodiscard]] std::size_t pieces() const noexcept { return pieces_; }
  [[nodiscard]] const std::shared_ptr<Crew>& crew() const noexcept { return crew_; }

 private:
  std::shared_ptr<Crew> crew_;
  std::size_t pieces_;
};

// First in, first out over all crews; a crew at its limit is passed over. Threads block when there is nothing to do.
class Workers {
 public:
  // The process's pool, made when the first asks and ended when the last lets go, with at least `threads` threads.
  static std::shared_ptr<Workers> shared(int threads);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // urgent: before all that is queued and not urgent. Wakes as many threads as the job has pieces, but at most so many.
  void submit(std::shared_ptr<Job> job, bool urgent = false, std::size_t most_woken = SIZE_MAX);
  // Wakes all threads, if any piece of this crew is queued.
  void wake(const Crew& crew);
  // Runs one queued piece of this crew on the calling thread, above the limit; false if there is none.
  bool help(const Crew& crew);
  // From now on so many threads may work for the crew. The pool grows to as many, or as the system grants.
  void set_limit(Crew& crew, int threads) noexcept;
  // Drops the crew's queued pieces and waits for those that run; returns whether they have ended within `patience`.
  bool drain(const Crew& crew, std::chrono::milliseconds patience);
  // A thread does not come back from its piece, since what it reads does not answer. Who asks for the process's pool
  // from now on gets another; this one serves those who have it, with new threads for those at work for the crew, and
  // ends without waiting for its threads: each ends when it comes back, if ever.
  void forsake(const Crew& crew);
  [[nodiscard]] int threads() const;

 private:
  struct Entry {
    std::shared_ptr<Job> job;
    bool urgent = false;
    std::size_t next = 0;
  };
  struct Piece {
    std::shared_ptr<Job> job;
    std::size_t index = 0;
  };

  Workers() = default;
  static void end(Workers* pool);
  void grow(int threads);
  void try_to_grow(int threads) noexcept;
  void work(const std::stop_token& stop);
  // The first piece whose crew satisfies `may`; empty job if none. Counts it as running. Call with mutex_ held.
  template <class Predicate>
  Piece take(const Predicate& may);
  // Runs it, lets go of the job, and only then counts the crew as having one less at work.
  void perform(Piece piece);
  static bool below_limit(const Crew& crew) noexcept { return crew.running < crew.limit; }

  mutable std::mutex mutex_;
  std::condition_variable_any queued_;  // a piece may be there to take
  std::condition_variable idle_;        // a crew's last running piece ended
  std::deque<Entry> queue_;             // guarded by mutex_
  std::atomic<bool> forsaken_{false};
  std::vector<std::jthread> threads_;  // guarded by mutex_; last: they end before what they use
};

}  // namespace memload
