#include "core/workers.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <string>
#include <utility>

#include "core/fork.h"

namespace memload {
namespace {

// Threads inherit the signal mask: block all but faults, so that Ctrl-C and timers interrupt the user's threads only.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGABRT}) sigdelset(&all, fault);
    ::pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

// Never destroyed: threads may outlive static destruction. A forked child starts a registry of its own, since the
// parent's mutex may be held and its threads are not there.
struct Registry {
  std::mutex mutex;
  std::weak_ptr<Workers> workers;
  std::vector<Workers*> forsaken;  // ended, but kept for threads that may come back
  std::uint64_t born = fork_generation();
};

Registry& registry() {
  static std::atomic<Registry*> current{new Registry};
  Registry* found = current.load();
  if (found->born == fork_generation()) return *found;
  auto* fresh = new Registry;
  if (!current.compare_exchange_strong(found, fresh)) {
    delete fresh;
    return *found;
  }
  return *fresh;
}

}  // namespace

std::shared_ptr<Workers> Workers::shared(int threads) {
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
  workers->grow(threads);
  return workers;
}

Workers::~Workers() {
  for (std::jthread& thread : threads_) thread.request_stop();
}

void Workers::forsake(const Crew& crew) {
  {
    Registry& here = registry();
    const std::lock_guard lock(here.mutex);
    if (here.workers.lock().get() == this) here.workers.reset();
    if (!forsaken_.exchange(true)) here.forsaken.push_back(this);
  }
  int wanted = 0;
  {
    const std::lock_guard lock(mutex_);
    wanted = static_cast<int>(threads_.size()) + crew.running;
  }
  try_to_grow(wanted);
}

void Workers::end(Workers* pool) {
  if (!pool->forsaken_) {
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
  }
}

void Workers::try_to_grow(int threads) noexcept {
  try {
    grow(threads);
  } catch (const std::exception&) {  // no more threads to be had: those that there are do the work
  }
}

template <class Predicate>
Workers::Piece Workers::take(const Predicate& may) {
  const auto found = std::find_if(queue_.begin(), queue_.end(), [&](const Entry& e) { return may(*e.job->crew()); });
  if (found == queue_.end()) return {};
  Piece piece{found->job, found->next++};
  if (found->next == found->job->pieces()) queue_.erase(found);
  ++piece.job->crew()->running;
  return piece;
}

void Workers::perform(Piece piece) {
  piece.job->run(piece.index);
  const std::shared_ptr<Crew> crew = piece.job->crew();
  piece.job.reset();
  const std::lock_guard lock(mutex_);
  if (crew->running-- == crew->limit) queued_.notify_one();
  if (crew->running == 0) idle_.notify_all();
}

void Workers::work(const std::stop_token& stop) {
  while (true) {
    Piece piece;
    {
      std::unique_lock lock(mutex_);
      if (!queued_.wait(lock, stop, [&] { return static_cast<bool>((piece = take(below_limit)).job); })) return;
    }
    perform(std::move(piece));
  }
}

void Workers::submit(std::shared_ptr<Job> job, bool urgent, std::size_t most_woken) {
  if (job->pieces() == 0) return;
  std::size_t wanted = std::min(job->pieces(), most_woken);
  {
    const std::lock_guard lock(mutex_);
    wanted = std::min(wanted, static_cast<std::size_t>(job->crew()->limit));
    auto place = queue_.end();
    if (urgent) place = std::find_if(queue_.begin(), queue_.end(), [](const Entry& e) { return !e.urgent; });
    queue_.insert(place, {std::move(job), urgent});
  }
  // Not all: another crew may have brought more threads into the pool than this one may use.
  for (std::size_t i = 0; i < wanted; ++i) queued_.notify_one();
}

void Workers::wake(const Crew& crew) {
  {
    const std::lock_guard lock(mutex_);
    const auto ours = [&crew](const Entry& e) { return e.job->crew().get() == &crew; };
    if (std::none_of(queue_.begin(), queue_.end(), ours)) return;
  }
  queued_.notify_all();
}

bool Workers::help(const Crew& crew) {
  Piece piece;
  {
    const std::lock_guard lock(mutex_);
    piece = take([&crew](const Crew& owner) { return &owner == &crew; });
  }
  if (!piece.job) return false;
  perform(std::move(piece));
  return true;
}

void Workers::set_limit(Crew& crew, int threads) noexcept {
  try_to_grow(threads);
  {
    const std::lock_guard lock(mutex_);
    crew.limit = threads;
  }
  queued_.notify_all();
}

bool Workers::drain(const Crew& crew, std::chrono::milliseconds patience) {
  std::deque<Entry> dropped;  // destroyed after the lock is let go
  std::unique_lock lock(mutex_);
  for (auto it = queue_.begin(); it != queue_.end();) {
    if (it->job->crew().get() == &crew) {
      dropped.push_back(std::move(*it));
      it = queue_.erase(it);
    } else {
      ++it;
    }
  }
  return idle_.wait_for(lock, patience, [&crew] { return crew.running == 0; });
}

}  // namespace memload
