// The part of a pass that has to do with where its batches go: memory of others, and buffers of a device.
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "core/pass/pass.h"

namespace memload {

std::optional<DestinationSize> Pass::needed_destination() {
  const std::lock_guard lock(mutex_);
  pump();
  const std::shared_ptr<BatchTask> wants = in_flight_.without_destination();
  if (!wants || closed_ || broken_) return std::nullopt;
  return DestinationSize{wants->first_part(), wants->layout.bytes - wants->first_part()};
}

void Pass::set_destination(const DestinationBuffer& memory, std::shared_ptr<void> owner) {
  std::shared_ptr<BatchTask> task;
  {
    const std::lock_guard lock(mutex_);
    task = in_flight_.without_destination();
    if (!task) throw std::logic_error("no batch needs memory");
    task->has_destination = true;
    if (options_.borrowed) {
      task->slot = SlotPool::Lease(std::move(owner), memory.passing);
      try {
        if (!closed_) workers_->submit({task});
      } catch (...) {
        stop_by_itself();
      }
      return;
    }
  }
  std::exception_ptr failed;
  try {
    task->copy->set_destination(memory);
  } catch (...) {
    failed = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  if (failed) task->fail(std::move(failed));
  if (task->remaining == 0) ready_.notify_all();  // another thread may wait for the last copy, which was made here
}

void Pass::release() {
  if (!options_.route || !device_ring_) throw std::logic_error("the pipeline has no buffers of a device");
  Device::Event read = options_.route->device->record(options_.route->work);
  const std::lock_guard lock(mutex_);
  if (device_ring_->released() == stats_.batches) throw std::logic_error("every batch that was handed out is released");
  device_ring_->release(std::move(read));
}

}  // namespace memload
