#include "core/pass/workers.h"

#include <pthread.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/fork.h"
#include "core/base/signals.h"

namespace memload {
namespace {

struct Registry {
  std::mutex mutex;
  std::weak_ptr<Workers> workers;
  std::vector<Workers*> abandoned;  // ended, but kept for threads that may come back
};

Registry& registry() { return per_process<Registry>(); }

cpu_set_t those_near(const cpu_set_t& allowed, const std::vector<int>& near) noexcept {
  cpu_set_t chosen;
  CPU_ZERO(&chosen);
  for (const int cpu : near) {
    if (cpu >= 0 && cpu < CPU_SETSIZE && CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &chosen);
  }
  return chosen;
}

}  // namespace

std::shared_ptr<Workers> Workers::shared(int threads, const std::vector<int>& near) {
  Registry& here = registry();
  const std::lock_guard lock(here.mutex);
  std::shared_ptr<Workers> workers = here.workers.lock();
  if (!workers) {
    // In a forked child there is nobody to join: what was inherited is left as it is.
    workers.reset(new Workers, [born = fork_generation()](Workers* pool) {
      if (born == fork_generation()) end(pool);
    });
    here.workers = workers;
  }
  workers->run_where_caller_may(threads, near);
  workers->try_to_grow(threads);
  if (workers->threads() == 0) throw OutOfThreads("the system refuses the first thread that gathers");
  return workers;
}

Workers::~Workers() {
  for (std::jthread& thread : threads_) thread.request_stop();
}

void Workers::abandon(const TaskGroup& group) {
  {
    Registry& here = registry();
    const std::lock_guard lock(here.mutex);
    if (here.workers.lock().get() == this) here.workers.reset();
    if (!abandoned_.exchange(true)) here.abandoned.push_back(this);
  }
  int wanted = 0;
  {
    const std::lock_guard lock(mutex_);
    wanted = static_cast<int>(threads_.size()) + group.running;
  }
  try_to_grow(wanted);
}

void Workers::end(Workers* pool) {
  if (!pool->abandoned_) {
    delete pool;
    return;
  }
  for (std::jthread& thread : pool->threads_) {
    thread.request_stop();
    thread.detach();
  }
}

int Workers::threads() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(threads_.size());
}

void Workers::grow(int threads) {
  const std::lock_guard lock(mutex_);
  const SignalsBlocked blocked;
  while (static_cast<int>(threads_.size()) < threads) {
    threads_.emplace_back([this](const std::stop_token& stop) { work(stop); });
    const std::string name = "memload-" + std::to_string(threads_.size());
    ::pthread_setname_np(threads_.back().native_handle(), name.c_str());
    if (CPU_COUNT(&cpus_) != 0) ::pthread_setaffinity_np(threads_.back().native_handle(), sizeof cpus_, &cpus_);
  }
}

void Workers::try_to_grow(int threads) noexcept {
  try {
    grow(threads);
  } catch (const std::exception&) {  // no more threads, or no memory for them: those that there are do the work
  }
}

void Workers::run_where_caller_may(int threads, const std::vector<int>& near) noexcept {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;  // a machine with more CPUs than the set holds
  const cpu_set_t chosen = those_near(allowed, near);
  if (CPU_COUNT(&chosen) >= threads) allowed = chosen;
  const std::lock_guard lock(mutex_);
  if (CPU_EQUAL(&allowed, &cpus_)) return;
  cpus_ = allowed;
  for (std::jthread& thread : threads_) ::pthread_setaffinity_np(thread.native_handle(), sizeof allowed, &allowed);
}

template <class Predicate>
Workers::Piece Workers::take(const Predicate& may) {
  const auto found =
      std::find_if(queue_.begin(), queue_.end(), [&](const QueuedTask& e) { return may(*e.task->group()); });
  if (found == queue_.end()) return {};
  Piece piece{found->task, found->next++};
  if (found->next == found->task->pieces()) queue_.erase(found);
  ++piece.task->group()->running;
  return piece;
}

void Workers::perform(Piece piece) {
  piece.task->run(piece.index);
  const std::shared_ptr<TaskGroup> group = piece.task->group();
  piece.task.reset();
  const std::lock_guard lock(mutex_);
  if (group->running-- == group->limit && !queue_.empty()) queued_.notify_one();
  if (group->running == 0) idle_.notify_all();
}

void Workers::work(const std::stop_token& stop) {
  while (true) {
    Piece piece;
    std::size_t woken = 0;
    {
      std::unique_lock lock(mutex_);
      if (!queued_.wait(lock, stop, [&] { return static_cast<bool>((piece = take(below_limit)).task); })) return;
      woken = next_to_wake();
    }
    notify(woken);
    perform(std::move(piece));
  }
}

void Workers::submit(std::vector<std::shared_ptr<Task>> tasks, bool urgent, std::size_t most_woken) {
  std::erase_if(tasks, [](const std::shared_ptr<Task>& task) { return task->pieces() == 0; });
  if (tasks.empty()) return;
  std::size_t wanted = 0;
  {
    const std::lock_guard lock(mutex_);
    const std::shared_ptr<TaskGroup> group = tasks.front()->group();
    auto place = queue_.end();
    if (urgent) place = std::find_if(queue_.begin(), queue_.end(), [](const QueuedTask& e) { return !e.urgent; });
    for (std::shared_ptr<Task>& task : tasks) place = std::next(queue_.insert(place, {std::move(task), urgent}));
    wanted = begin_to_wake(std::min(missing_threads(*group), most_woken));
  }
  notify(wanted);
}

void Workers::wake(const TaskGroup& group) {
  std::size_t wanted = 0;
  {
    const std::lock_guard lock(mutex_);
    wanted = begin_to_wake(missing_threads(group));
  }
  notify(wanted);
}

bool Workers::steal(const TaskGroup& group, bool wake_others) {
  Piece piece;
  std::size_t wanted = 0;
  {
    const std::lock_guard lock(mutex_);
    piece = take([&group](const TaskGroup& owner) { return &owner == &group; });
    if (wake_others) wanted = begin_to_wake(missing_threads(group));
  }
  notify(wanted);
  if (!piece.task) return false;
  perform(std::move(piece));
  return true;
}

std::size_t Workers::missing_threads(const TaskGroup& group) const {
  if (!below_limit(group)) return 0;  // whoever ends a piece of it takes the next
  std::size_t pieces = 0;
  for (const QueuedTask& queued : queue_) {
    if (queued.task->group().get() == &group) pieces += queued.task->pieces() - queued.next;
  }
  return std::min(pieces, static_cast<std::size_t>(group.limit - group.running));
}

std::size_t Workers::begin_to_wake(std::size_t wanted) noexcept {
  const std::size_t mine = std::min(wanted, kWokenByOne);
  to_wake_ = std::max(to_wake_, wanted - mine);
  return mine;
}

std::size_t Workers::next_to_wake() noexcept {
  if (queue_.empty()) to_wake_ = 0;
  const std::size_t mine = std::min(to_wake_, kWokenByOne);
  to_wake_ -= mine;
  return mine;
}

// Not all threads: another group may have brought more of them into the pool than this one may use.
void Workers::notify(std::size_t threads) noexcept {
  for (std::size_t i = 0; i < threads; ++i) queued_.notify_one();
}

void Workers::set_limit(TaskGroup& group, int threads) noexcept {
  try_to_grow(threads);
  {
    const std::lock_guard lock(mutex_);
    group.limit = threads;
  }
  queued_.notify_all();
}

bool Workers::drain(const TaskGroup& group, std::chrono::milliseconds patience) {
  std::deque<QueuedTask> dropped;  // destroyed after the lock is let go
  std::unique_lock lock(mutex_);
  for (auto it = queue_.begin(); it != queue_.end();) {
    if (it->task->group().get() == &group) {
      dropped.push_back(std::move(*it));
      it = queue_.erase(it);
    } else {
      ++it;
    }
  }
  return idle_.wait_for(lock, patience, [&group] { return group.running == 0; });
}

}  // namespace memload
