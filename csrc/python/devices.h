// What Python holds of devices.
#pragma once

#include <memory>

#include "core/slots/device.h"
#include "core/slots/pinned.h"
#include "python/convert.h"

namespace memload::python {

// Shares something whose end may wait for threads that want the GIL.
template <class T>
class Shared {
 public:
  explicit Shared(std::shared_ptr<T> held) : held_(std::move(held)) {}
  ~Shared() {
    const WithoutGil released;
    held_.reset();
  }
  Shared(Shared&&) = delete;
  Shared& operator=(Shared&&) = delete;

  [[nodiscard]] const std::shared_ptr<T>& get() const noexcept { return held_; }
  T* operator->() const noexcept { return held_.get(); }

 private:
  std::shared_ptr<T> held_;
};

using PyDevice = Shared<Device>;
using PyPinnedSlots = Shared<PinnedSource>;

}  // namespace memload::python
