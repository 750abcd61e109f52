// Batches on their way to a device: finished parts are copied while later rows are still being gathered.
//
//   slot:    | passing: what is cast there | kept: what the loop gets as it is |
//   pieces:  | done | done | done |  ...  | done |  ...            each done in its turn, by any thread
//   copied:  | slice        | <- the thread that completes so much from the front on copies it
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/gather.h"
#include "core/slot_pool.h"

namespace memload {

// How batches get to the device.
struct Route {
  std::shared_ptr<Device> device;
  Device::Stream copies = 0;  // in which they are copied
  Device::Stream work = 0;    // what is put into it once a batch is handed out runs after the batch's copies
  std::size_t kept_from = 0;  // the first field of the second part of the slot
};

// Memory of the device for the two parts of a batch.
struct Landing {
  std::byte* passing = nullptr;
  std::byte* kept = nullptr;
};

// How many bytes of the slot, from its beginning on, are what they should be once the first `work` of it is done.
[[nodiscard]] std::size_t finished_bytes(const BatchLayout& layout, std::size_t work) noexcept;

// One batch. Any thread may call anything; copies are issued one at a time, by the thread that makes them possible.
class Shipment {
 public:
  // Enough to occupy the bus for longer than it takes to ask for the copy.
  static constexpr std::size_t kSlice = std::size_t{4} << 20;

  // ready: for each piece, how many bytes of the slot are finished when it and all before it are done. The slot stays
  // as it is until the event has come, or, of a shipment that was cancelled, until everything in the stream is done.
  Shipment(const Route& route, const std::byte* slot, std::size_t kept_begin, std::vector<std::size_t> ready);

  // Where it goes; called once. Throws DeviceError, as the next one does: then nothing more is copied.
  void land(const Landing& landing);
  void piece_done(std::size_t piece);
  // Once this returns, nothing is being copied to the landing that is not in the stream already.
  void cancel();

  // Whether all copies are in the stream, and event() marks their end.
  [[nodiscard]] bool shipped() const;
  [[nodiscard]] Device::Event event() const;
  [[nodiscard]] std::size_t copies() const;
  [[nodiscard]] std::size_t kept_begin() const noexcept { return kept_begin_; }

 private:
  void advance();  // with mutex_ held, as the next one
  void copy(std::size_t begin, std::size_t end, std::size_t part_begin, std::byte* part);

  const Route route_;
  const std::byte* const slot_;
  const std::size_t kept_begin_;
  const std::vector<std::size_t> ready_;

  mutable std::mutex mutex_;
  std::vector<bool> done_;  // guarded by mutex_, as all below
  std::size_t front_ = 0;   // the first piece that is not done
  std::size_t issued_ = 0;  // bytes
  std::size_t copies_ = 0;
  Landing landing_;
  bool landed_ = false;
  bool cancelled_ = false;
  Device::Event event_;
};

// The slots whose batches were handed out while they were still being copied, in the order of their copies. Not
// synchronised: a pass calls it with its mutex held.
class Departures {
 public:
  void add(SlotPool::Lease slot, Device::Event copied) { slots_.push_back({std::move(slot), std::move(copied)}); }
  // Gives back the slots whose copies are done. Throws DeviceError.
  void reclaim(Device& device);

  [[nodiscard]] bool empty() const noexcept { return slots_.empty(); }
  // What marks that the next slot can be given back.
  [[nodiscard]] const Device::Event& next() const { return slots_.front().copied; }

 private:
  struct Departed {
    SlotPool::Lease slot;
    Device::Event copied;
  };
  std::deque<Departed> slots_;
};

}  // namespace memload
