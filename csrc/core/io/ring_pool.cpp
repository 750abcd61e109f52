#include "core/io/ring_pool.h"

#include <cerrno>
#include <system_error>

namespace memload {

RingPool::Lease RingPool::acquire() {
  const auto give_back = [this](Uring* ring) {
    std::unique_ptr<Uring> owned(ring);
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(owned));
  };
  {
    const std::lock_guard lock(mutex_);
    if (refused_) return {};
    if (!free_.empty()) {
      Lease lease(free_.back().release(), give_back);
      free_.pop_back();
      return lease;
    }
  }
  try {
    return {std::make_unique<Uring>(entries_).release(), give_back};
  } catch (const std::system_error& error) {
    const int code = error.code().value();
    if (code == EMFILE || code == ENFILE) return {};  // no descriptors are left: it may pass
    const std::lock_guard lock(mutex_);
    refused_ = true;
    return {};
  }
}

}  // namespace memload
