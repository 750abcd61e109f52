// A pool of threads that runs tasks piece by piece. All pipelines of a process share one.
#pragma once

#include <sched.h>

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

// The tasks of one pipeline: how many threads may run them at once, and how many do. The mutex of Workers guards it.
struct TaskGroup {
  explicit TaskGroup(int threads) : limit(threads) {}
  int limit;
  int running = 0;
};

// Work that is cut into pieces. They may run in any order, on any threads, at once.
class Task {
 public:
  Task(std::shared_ptr<TaskGroup> group, std::size_t pieces) : group_(std::move(group)), pieces_(pieces) {}
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  virtual void run(std::size_t piece) noexcept = 0;
  [[nodiscard]] std::size_t pieces() const noexcept { return pieces_; }
  [[nodiscard]] const std::shared_ptr<TaskGroup>& group() const noexcept { return group_; }

 private:
  std::shared_ptr<TaskGroup> group_;
  std::size_t pieces_;
};

// The queue is first in, first out over all groups; a group at its limit is passed over. Threads block when there is
// nothing to do.
class Workers {
 public:
  // Gives the process's pool, with at least `threads` threads, or as many as the system grants. It is made for the
  // first caller and ends with the last holder. Its threads run on the CPUs of the caller from then on, as new ones
  // would; on those of them alone that are in `near`, if these are enough for a CPU each. Throws OutOfThreads if the
  // system grants no thread.
  static std::shared_ptr<Workers> shared(int threads, const std::vector<int>& near = {});
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Queues tasks of one group; urgent ones go before all that are not. A thread wakes for each piece that the group may
  // run now, but at most `most_woken` do: the caller wakes kWokenByOne, and each that takes a piece as many more.
  void submit(std::vector<std::shared_ptr<Task>> tasks, bool urgent = false, std::size_t most_woken = SIZE_MAX);
  // Wakes threads likewise for each queued piece that the group may run now.
  void wake(const TaskGroup& group);
  // Takes one queued piece of this group away from the threads and runs it on the calling thread, whatever the limit
  // is; with `wake_others` threads are woken first for the pieces that are left. Returns false if there is none.
  bool steal(const TaskGroup& group, bool wake_others);
  // Lets so many threads work for the group from now on. The pool grows to as many, or as the system grants.
  void set_limit(TaskGroup& group, int threads) noexcept;
  // Drops the group's queued pieces and waits for those that run. Returns whether they have ended within `patience`.
  bool drain(const TaskGroup& group, std::chrono::milliseconds patience);
  // Gives up threads of the group that do not come back from their pieces, since what they read does not answer. This
  // pool gets a new thread for each of them and goes on for those who hold it; shared() gives another pool from now on.
  // This pool ends without waiting for its threads: each ends when it comes back, if ever.
  void abandon(const TaskGroup& group);
  [[nodiscard]] int threads() const;

 private:
  struct QueuedTask {
    std::shared_ptr<Task> task;
    bool urgent = false;
    std::size_t next = 0;
  };
  struct Piece {
    std::shared_ptr<Task> task;
    std::size_t index = 0;
  };

  // To wake a thread takes microseconds, in which whoever queues, mostly the loop, holds the mutex of its pass.
  static constexpr std::size_t kWokenByOne = 4;

  Workers() = default;
  static void end(Workers* pool);
  void grow(int threads);
  void try_to_grow(int threads) noexcept;
  void run_where_caller_may(int threads, const std::vector<int>& near) noexcept;
  void work(const std::stop_token& stop);
  // Takes the first piece whose group satisfies `may` and counts it as running; without one, `task` is null. mutex_ is
  // held.
  template <class Predicate>
  Piece take(const Predicate& may);
  // Runs the piece, lets go of the task, and only then counts the group as having one thread less at work.
  void perform(Piece piece);
  // Number of threads that the group may still have for its queued pieces. mutex_ is held.
  [[nodiscard]] std::size_t missing_threads(const TaskGroup& group) const;
  // Returns how many of `wanted` threads the caller notifies; the others are left to those that take pieces. mutex_ is
  // held.
  [[nodiscard]] std::size_t begin_to_wake(std::size_t wanted) noexcept;
  // Returns how many of the threads that are left the caller notifies, who has taken a piece. mutex_ is held.
  [[nodiscard]] std::size_t next_to_wake() noexcept;
  void notify(std::size_t threads) noexcept;
  static bool below_limit(const TaskGroup& group) noexcept { return group.running < group.limit; }

  mutable std::mutex mutex_;
  std::condition_variable_any queued_;  // a piece may be there to take
  std::condition_variable idle_;        // a group's last running piece ended
  std::deque<QueuedTask> queue_;        // guarded by mutex_
  std::size_t to_wake_ = 0;             // guarded by mutex_; of all groups, none once the queue is empty
  std::atomic<bool> abandoned_{false};
  cpu_set_t cpus_{};                   // guarded by mutex_; for the latest caller of shared(), empty if unknown
  std::vector<std::jthread> threads_;  // guarded by mutex_; last: they end before what they use
};

}  // namespace memload
