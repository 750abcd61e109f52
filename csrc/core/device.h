// What the transfer path asks of an accelerator. Knows neither CUDA nor torch: csrc/cuda implements it for GPUs, and
// csrc/simulated for tests.
//
//   slot (pinned) --copy_async(stream)--> device memory      record(stream) -> event      wait(stream, event)
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>

namespace memload {

// A call to the device failed; what() begins with the call's name, or says what is wrong in a sentence.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// One device. Any thread may call anything; whatever fails throws DeviceError, unless it is noexcept.
class Device {
 public:
  // What capsules that hold a std::shared_ptr<Device> are called. The number changes whenever a member is added,
  // removed or changed, so that modules which were built apart refuse each other.
  static constexpr const char* kCapsule = "memload.Device.1";

  using Stream = std::uintptr_t;  // the handle of a stream that outlives its use here; 0 is the default stream
  using Event = std::shared_ptr<void>;

  Device() = default;
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Host memory that the device reads by itself, not initialised; page-aligned.
  [[nodiscard]] virtual std::byte* allocate_pinned(std::size_t bytes) = 0;
  virtual void free_pinned(std::byte* memory) noexcept = 0;
  // The same for memory that is there already, until unregister_host().
  virtual void register_host(std::byte* memory, std::size_t bytes) = 0;
  virtual void unregister_host(std::byte* memory) noexcept = 0;

  // From host memory to the device, in the stream's order. Pinned memory has to stay as it is until the copy is done.
  virtual void copy_async(std::byte* to, const std::byte* from, std::size_t bytes, Stream stream) = 0;

  // Marks what is in the stream by now.
  [[nodiscard]] virtual Event record(Stream stream) = 0;
  // What is put into the stream from now on runs after the event. Does not hold up the caller.
  virtual void wait(Stream stream, const Event& event) = 0;
  [[nodiscard]] virtual bool done(const Event& event) = 0;
  // Holds up the caller until the event is done.
  virtual void synchronise(const Event& event) = 0;
};

}  // namespace memload
