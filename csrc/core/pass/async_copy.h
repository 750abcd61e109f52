// Asynchronous copies of batches to a device: finished parts are copied while later rows are still being gathered.
//
//   slot:    | passing: what is cast there | kept: what the loop gets as it is |
//   pieces:  | done | done | done |  ...  | done |  ...            each done in its turn, by any thread
//   copied:  | slice        | <- the thread that completes so much from the front on copies it
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "core/gather/gather.h"
#include "core/slots/device.h"
#include "core/slots/slot_pool.h"

namespace memload {

// How batches are copied to a device.
struct Route {
  std::shared_ptr<Device> device;
  Device::Stream copies = 0;  // the stream of the copies
  Device::Stream work = 0;    // the stream that waits for a batch's copies once the batch is handed out
  std::size_t kept_from = 0;  // the first field of the second part of the slot
};

// Memory for the two parts of a batch: of the device, or borrowed memory of the caller.
struct DestinationBuffer {
  std::byte* passing = nullptr;
  std::byte* kept = nullptr;
  Device::Event free = nullptr;  // the memory may be written to once it has come; null: now
};

// How many bytes of the slot, from its beginning on, are what they should be once the first `work` of it is done.
[[nodiscard]] std::size_t finished_bytes(const BatchLayout& layout, std::size_t work) noexcept;

// The copy of one batch. Any thread may call anything; one thread at a time issues copies, the first that finds a slice
// to copy, and goes on as long as there is one. Others do not wait for it: a copy from memory that is not pinned holds
// up its caller until the stream has come to it.
class AsyncCopy {
 public:
  // The first slice is short, so that the copy begins soon: a copy of so many bytes occupies the bus for longer than
  // its call takes. Each following one is twice as long, up to the longest, since what begins a copy costs the bus
  // time.
  static constexpr std::size_t kSlice = std::size_t{4} << 20;
  static constexpr std::size_t kLongestSlice = std::size_t{16} << 20;

  // ready: for each piece, how many bytes of the slot are finished when it and all before it are done. The slot must
  // stay as it is until event() has come, or, after cancel(), until everything in the stream is done.
  AsyncCopy(const Route& route, const std::byte* slot, std::size_t kept_begin, std::vector<std::size_t> ready);

  // Says where the batch goes; the call comes once. Throws DeviceError, as piece_done() does: then nothing more is
  // copied.
  void set_destination(const DestinationBuffer& destination);
  void piece_done(std::size_t piece);
  // After it returns, only copies that are in the stream already, or that a thread is issuing right now, write to the
  // destination. That thread is amid piece_done() or set_destination().
  void cancel();

  // Whether all copies are in the stream; event() then marks their end.
  [[nodiscard]] bool issued() const;
  [[nodiscard]] Device::Event event() const;
  [[nodiscard]] DestinationBuffer destination() const;
  [[nodiscard]] std::size_t copies() const;
  [[nodiscard]] std::size_t kept_begin() const noexcept { return kept_begin_; }

 private:
  // What can be copied now, from issued_bytes_ on.
  struct Slice {
    std::size_t end;
    bool last;
  };
  struct Issued {
    std::size_t copies = 0;
    Device::Event event;  // of the last slice
    std::exception_ptr error;
  };
  void advance(std::unique_lock<std::mutex> lock);
  [[nodiscard]] std::optional<Slice> next_slice();  // with mutex_ held
  // The only thread that issues calls these, without the mutex.
  [[nodiscard]] Issued issue(std::size_t begin, const Slice& slice, const DestinationBuffer& to) const noexcept;
  [[nodiscard]] std::size_t copy(std::size_t begin, std::size_t end, std::size_t part_begin, std::byte* part) const;

  const Route route_;
  const std::byte* const slot_;
  const std::size_t kept_begin_;
  const std::vector<std::size_t> ready_;

  mutable std::mutex mutex_;
  std::vector<bool> done_;  // guarded by mutex_, as all below
  std::size_t front_ = 0;   // the first piece that is not done
  std::size_t issued_bytes_ = 0;
  std::size_t slice_ = kSlice;  // how long the next slice is at least
  std::size_t copies_ = 0;
  DestinationBuffer destination_;
  bool has_destination_ = false;
  bool cancelled_ = false;
  bool issuing_ = false;  // a thread does, and looks for a further slice before it leaves
  Device::Event event_;
};

// Buffers of a device's memory, to which batches are copied in turn. What reads a batch there has to be in its stream
// before the buffer is released; the next copy to it waits for that. It is not synchronised.
class DeviceRing {
 public:
  // buffers: at least one, each of so many bytes; they follow one another in memory that outlives this.
  DeviceRing(std::byte* memory, std::size_t buffers, std::size_t bytes)
      : memory_(memory), bytes_(bytes), read_(buffers) {}

  [[nodiscard]] bool has_free() const noexcept { return taken_ - released_ < read_.size(); }
  // Gives the next buffer for a batch. The call is allowed only if has_free(). Throws std::length_error if the batch is
  // larger than a buffer.
  [[nodiscard]] DestinationBuffer take(std::size_t bytes);
  // Says when the batch was read whose buffer was taken first. The call is allowed once for each take().
  void release(Device::Event read) { read_[released_++ % read_.size()] = std::move(read); }
  [[nodiscard]] std::size_t released() const noexcept { return released_; }  // in all

 private:
  std::byte* const memory_;
  const std::size_t bytes_;
  std::vector<Device::Event> read_;  // of each buffer: when what it had last was read
  std::size_t taken_ = 0;            // in all
  std::size_t released_ = 0;
};

// The slots of batches that were handed out before their copies were done, in the order of the copies. It is not
// synchronised: a pass calls it with its mutex held.
class CopiesInFlight {
 public:
  void add(SlotPool::Lease slot, Device::Event copied) { slots_.push_back({std::move(slot), std::move(copied)}); }
  // Gives back the slots whose copies are done. Throws DeviceError.
  void reclaim(Device& device);

  [[nodiscard]] bool empty() const noexcept { return slots_.empty(); }
  // The event after which the next slot can be given back.
  [[nodiscard]] const Device::Event& next() const { return slots_.front().copied; }

 private:
  struct SlotInUse {
    SlotPool::Lease slot;
    Device::Event copied;
  };
  std::deque<SlotInUse> slots_;
};

}  // namespace memload
