#include "core/pass/async_copy.h"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

namespace memload {

std::size_t finished_bytes(const BatchLayout& layout, std::size_t work) noexcept {
  if (work >= layout.work) return layout.bytes;
  const auto next = std::upper_bound(layout.shares.begin(), layout.shares.end(), work,
                                     [](std::size_t at, const BatchLayout::Share& share) { return at < share.work; });
  if (next == layout.shares.begin()) return 0;
  const BatchLayout::Share& share = *std::prev(next);
  const FieldPlan& plan = *share.plan;
  const std::size_t inside = work - share.work;
  if (inside >= plan.work) return next == layout.shares.end() ? layout.bytes : next->offset;
  return share.offset + (plan.in_order ? std::min(inside, plan.bytes) : 0);
}

AsyncCopy::AsyncCopy(const Route& route, const std::byte* slot, std::size_t kept_begin, std::vector<std::size_t> ready)
    : route_(route), slot_(slot), kept_begin_(kept_begin), ready_(std::move(ready)), done_(ready_.size(), false) {}

void AsyncCopy::set_destination(const DestinationBuffer& destination) {
  std::unique_lock lock(mutex_);
  destination_ = destination;
  has_destination_ = true;
  advance(std::move(lock));
}

void AsyncCopy::piece_done(std::size_t piece) {
  std::unique_lock lock(mutex_);
  done_[piece] = true;
  advance(std::move(lock));
}

void AsyncCopy::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
}

bool AsyncCopy::issued() const {
  const std::lock_guard lock(mutex_);
  return event_ != nullptr;
}

Device::Event AsyncCopy::event() const {
  const std::lock_guard lock(mutex_);
  return event_;
}

DestinationBuffer AsyncCopy::destination() const {
  const std::lock_guard lock(mutex_);
  return destination_;
}

std::size_t AsyncCopy::copies() const {
  const std::lock_guard lock(mutex_);
  return copies_;
}

void AsyncCopy::advance(std::unique_lock<std::mutex> lock) {
  if (issuing_) return;
  issuing_ = true;
  std::exception_ptr failed;
  while (const std::optional<Slice> slice = next_slice()) {
    const std::size_t begin = issued_bytes_;
    const DestinationBuffer to = destination_;
    lock.unlock();
    Issued issued = issue(begin, *slice, to);
    lock.lock();
    copies_ += issued.copies;
    issued_bytes_ = slice->end;
    slice_ = std::min(2 * slice_, kLongestSlice);
    event_ = std::move(issued.event);
    failed = issued.error;
    if (failed) cancelled_ = true;
  }
  issuing_ = false;
  if (failed) std::rethrow_exception(failed);
}

std::optional<AsyncCopy::Slice> AsyncCopy::next_slice() {
  while (front_ < done_.size() && done_[front_]) ++front_;
  if (!has_destination_ || cancelled_ || event_) return std::nullopt;
  const bool whole = front_ == done_.size();
  const std::size_t ready = front_ == 0 ? 0 : ready_[front_ - 1];
  if (!whole && ready < issued_bytes_ + slice_) return std::nullopt;
  return Slice{ready, whole};
}

AsyncCopy::Issued AsyncCopy::issue(std::size_t begin, const Slice& slice, const DestinationBuffer& to) const noexcept {
  Issued issued;
  try {
    if (begin == 0 && to.free) route_.device->wait(route_.copies, to.free);
    issued.copies = copy(begin, std::min(slice.end, kept_begin_), 0, to.passing) +
                    copy(std::max(begin, kept_begin_), slice.end, kept_begin_, to.kept);
    if (slice.last) issued.event = route_.device->record(route_.copies);
  } catch (...) {
    issued.error = std::current_exception();
  }
  return issued;
}

// What lies in [begin, end) of the slot; `part` is where the byte at part_begin goes. Returns the number of copies.
std::size_t AsyncCopy::copy(std::size_t begin, std::size_t end, std::size_t part_begin, std::byte* part) const {
  if (begin >= end) return 0;
  route_.device->copy_async(part + (begin - part_begin), slot_ + begin, end - begin, route_.copies);
  return 1;
}

DestinationBuffer DeviceRing::take(std::size_t bytes) {
  if (bytes > bytes_) {
    throw std::length_error("a batch of " + std::to_string(bytes) + " bytes is larger than its buffer on the device, " +
                            std::to_string(bytes_) + " bytes");
  }
  const std::size_t at = taken_++ % read_.size();
  return {memory_ + at * bytes_, nullptr, std::exchange(read_[at], nullptr)};
}

void CopiesInFlight::reclaim(Device& device) {
  while (!slots_.empty() && device.done(slots_.front().copied)) slots_.pop_front();
}

}  // namespace memload
