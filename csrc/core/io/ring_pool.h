// Rings that threads use in turn.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "core/io/uring.h"

namespace memload {

// Rings are made when they are needed and used again. Any thread may call acquire().
class RingPool {
 public:
  // Makes rings with room for so many reads under way.
  explicit RingPool(std::size_t entries) noexcept : entries_(entries) {}

  // A ring goes back when its lease ends. Null where the system refuses io_uring: reads then wait one by one.
  using Lease = std::unique_ptr<Uring, std::function<void(Uring*)>>;

  [[nodiscard]] Lease acquire();

 private:
  const std::size_t entries_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Uring>> free_;  // guarded by mutex_, as the next
  bool refused_ = false;
};

}  // namespace memload
