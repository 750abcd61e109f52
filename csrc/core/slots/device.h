// The interface of an accelerator. It knows neither CUDA nor torch: csrc/cuda implements it for GPUs, and
// csrc/tests/simulated for tests.
//
//   slot (pinned) --copy_async(stream)--> device memory      record(stream) -> event      wait(stream, event)
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>

namespace memload {

// A call to the device failed. what() begins with the name of the call, or says in a sentence what is wrong.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// One device. Any thread may call anything. Calls that fail throw DeviceError, unless they are noexcept.
class Device {
 public:
  // The name of capsules that hold a std::shared_ptr<Device>. Its number changes whenever a member is added, removed or
  // changed, so that modules which were built apart refuse each other.
  static constexpr const char* kCapsule = "memload.Device.3";

  using Stream = std::uintptr_t;  // the handle of a stream that outlives its use here; 0 is the default stream
  using Event = std::shared_ptr<void>;
  enum class Urgency { usual, urgent };

  Device() = default;
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Pins host memory, which the device then reads by itself, until unregister_host().
  virtual void register_host(std::byte* memory, std::size_t bytes) = 0;
  virtual void unregister_host(std::byte* memory) noexcept = 0;

  // Makes a stream of its own, which does not wait for the default stream and is never destroyed: allocators remember
  // the streams of the memory that they gave. What is queued in urgent streams goes first where the device has to
  // choose.
  [[nodiscard]] virtual Stream create_stream(Urgency urgency) = 0;

  // Copies from host memory to the device, in the stream's order. Pinned memory has to stay as it is until the copy is
  // done.
  virtual void copy_async(std::byte* to, const std::byte* from, std::size_t bytes, Stream stream) = 0;

  // Gives an event that comes when all that is in the stream now is done.
  [[nodiscard]] virtual Event record(Stream stream) = 0;
  // What is put into the stream from now on runs after the event. Does not hold up the caller.
  virtual void wait(Stream stream, const Event& event) = 0;
  [[nodiscard]] virtual bool done(const Event& event) = 0;
  // Holds up the caller until the event is done.
  virtual void synchronise(const Event& event) = 0;
};

}  // namespace memload
