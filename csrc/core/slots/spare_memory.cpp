#include "core/slots/spare_memory.h"

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <list>
#include <mutex>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "core/base/fork.h"
#include "core/base/memory.h"
#include "core/base/signals.h"

namespace memload {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook{250};  // between two looks at what the machine has available

struct Spare {
  const Spares* identity = nullptr;  // of `loader`, which has expired when it releases its spares in its destructor
  std::weak_ptr<Spares> loader;
  HugeMemory memory;             // either this
  std::shared_ptr<void> shared;  // or this
  Clock::time_point until;
};

using SpareList = std::list<Spare>;  // its elements move to another list without an allocation

// All spares of a process, the oldest first. They end without the mutex, since their end joins threads and unmaps
// memory.
class Reserve {
 public:
  // Gives spare memory that fits, of whichever loader, or none. In that case as many bytes of spares go to `freed`, if
  // there are as many.
  Spare take(std::size_t bytes, SpareList& freed) {
    const std::lock_guard lock(mutex_);
    const auto best = fitting(bytes);
    if (best == spares_.end()) {
      free_oldest(bytes, freed);
      return {};
    }
    Spare found = std::move(*best);
    spares_.erase(best);
    return found;
  }

  // Throws std::system_error if there is no thread to free it in time, and leaves `spare` as it was.
  void put(SpareList& spare) {
    const std::lock_guard lock(mutex_);
    watch();
    if (spare.front().shared) {
      spares_.remove_if([&added = spare.front()](const Spare& one) {
        return one.identity == added.identity &&
               one.shared == added.shared;  // `added` holds it as well: nothing ends here
      });
    }
    const bool sooner = spare.front().until < next_;
    spares_.splice(spares_.end(), spare);
    if (sooner) changed_.notify_one();
  }

  // Gives what is kept of a loader, or of all for null.
  SpareList take_all(const Spares* loader) noexcept {
    const std::lock_guard lock(mutex_);
    SpareList taken = moved_if([loader](const Spare& one) { return loader == nullptr || one.identity == loader; });
    if (spares_.empty()) changed_.notify_one();
    return taken;
  }

  void free_below(std::size_t available) noexcept {
    const std::lock_guard lock(mutex_);
    least_available_ = available;
    changed_.notify_one();
  }

  std::size_t bytes() {
    const std::lock_guard lock(mutex_);
    std::size_t sum = 0;
    for (const Spare& one : spares_) sum += one.memory.size();
    return sum;
  }

 private:
  // The smallest, and of several the warmest.
  SpareList::iterator fitting(std::size_t bytes) {
    auto best = spares_.end();
    for (auto one = spares_.begin(); one != spares_.end(); ++one) {
      const std::size_t size = one->memory.size();
      const bool fits = size >= bytes && size / 2 <= bytes;
      if (fits && (best == spares_.end() || size <= best->memory.size())) best = one;
    }
    return best;
  }

  void free_oldest(std::size_t bytes, SpareList& freed) noexcept {
    std::size_t found = 0;
    freed = moved_if([&found, bytes](const Spare& one) {
      const bool goes = found < bytes && one.memory.size() != 0;
      found += goes ? one.memory.size() : 0;
      return goes;
    });
  }

  template <class Predicate>
  SpareList moved_if(Predicate goes) noexcept {
    SpareList moved;
    for (auto one = spares_.begin(); one != spares_.end();) {
      const auto next = std::next(one);
      if (goes(*one)) moved.splice(moved.end(), spares_, one);
      one = next;
    }
    return moved;
  }

  // The thread ends when nothing is left; the next spare then starts another one.
  void watch() {
    if (watched_) return;
    const SignalsBlocked blocked;
    std::thread thread([this] { free_in_time(); });
    ::pthread_setname_np(thread.native_handle(), "memload-spares");
    thread.detach();  // what it uses is never destroyed
    watched_ = true;
  }

  void free_in_time() {
    std::unique_lock lock(mutex_);
    while (!spares_.empty()) {
      const bool all = memory_is_short(lock);
      next_ = Clock::time_point::max();
      for (const Spare& one : spares_) next_ = std::min(next_, one.until);
      const Clock::time_point now = Clock::now();
      SpareList over = moved_if([&](const Spare& one) { return all || one.until <= now; });
      if (over.empty()) {
        if (!spares_.empty()) changed_.wait_until(lock, least_available_ == 0 ? next_ : std::min(next_, now + kLook));
        continue;
      }
      lock.unlock();
      over.clear();
      lock.lock();
    }
    watched_ = false;
  }

  // Lets go of the lock to look.
  bool memory_is_short(std::unique_lock<std::mutex>& lock) {
    if (least_available_ == 0) return false;
    lock.unlock();
    const std::size_t available = available_memory();
    lock.lock();
    return available < least_available_;
  }

  std::mutex mutex_;
  std::condition_variable changed_;  // a spare goes before next_, none is left, or least_available_ is another
  SpareList spares_;                 // guarded by mutex_, as all below
  bool watched_ = false;             // whether the thread runs
  Clock::time_point next_;           // when the first of them goes
  std::size_t least_available_ = 0;  // of the machine's memory; 0: it is not looked at
};

Reserve& reserve() { return per_process<Reserve>(); }

bool is_limited() noexcept {
  const auto limited = [](auto kind) {
    rlimit limit{};
    return ::getrlimit(kind, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  };
  return limited(RLIMIT_AS) || limited(RLIMIT_DATA);
}

// What cannot be kept is freed.
void put(Spare spare) noexcept {
  try {
    SpareList one;
    one.push_back(std::move(spare));
    reserve().put(one);
  } catch (const std::exception&) {  // neither memory nor a thread for it
  }
}

HugeMemory allocated(std::size_t bytes) {
  try {
    return HugeMemory(bytes);
  } catch (const OutOfMemory&) {
    free_spares();
    return HugeMemory(bytes);
  }
}

// Spare memory with its loader, or new memory of this one.
Spare taken(std::size_t bytes, const std::weak_ptr<Spares>& loader) {
  SpareList freed;
  Spare found = reserve().take(bytes, freed);
  if (found.memory.size() != 0) {
    found.memory.share_with_children();
    return found;
  }
  freed.clear();  // before anything is allocated
  found.loader = loader;
  found.memory = allocated(bytes);
  return found;
}

}  // namespace

std::shared_ptr<Spares> Spares::create(std::chrono::milliseconds time) {
  return std::shared_ptr<Spares>(new Spares(time));
}

Spares::~Spares() { release(); }

MemorySource Spares::source() {
  return [loader = weak_from_this()](std::size_t bytes) {
    Spare found = taken(mapped_bytes(bytes), loader);
    auto give_back = [loader = found.loader, born = fork_generation()](HugeMemory* one) noexcept {
      const std::unique_ptr<HugeMemory> owned(one);
      const std::shared_ptr<Spares> alive = loader.lock();
      if (!alive || born != fork_generation() || is_limited()) return;
      owned->withhold_from_children();
      put({alive.get(), alive, std::move(*owned), nullptr, Clock::now() + alive->time_});
    };
    std::byte* const data = found.memory.data();
    const std::size_t size = found.memory.size();
    const std::shared_ptr<HugeMemory> owner(new HugeMemory(std::move(found.memory)), give_back);
    return SlotMemory{data, size, owner};
  };
}

void Spares::keep(std::shared_ptr<void> shared) {
  if (!is_limited()) put({this, weak_from_this(), {}, std::move(shared), Clock::now() + time_});
}

void Spares::release() noexcept { reserve().take_all(this).clear(); }

MemorySource source_of(const std::weak_ptr<Spares>& spares) {
  const std::shared_ptr<Spares> found = spares.lock();
  return found ? found->source() : huge_memory;
}

std::size_t spare_bytes() { return reserve().bytes(); }

void free_spares() noexcept { reserve().take_all(nullptr).clear(); }

void free_spares_below(std::size_t available) noexcept { reserve().free_below(available); }

}  // namespace memload
