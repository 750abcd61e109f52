#include "cuda/copy_device.h"

#include <cuda_runtime.h>

#include <chrono>
#include <exception>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cuda/launch.h"

namespace memload::cuda {
namespace {

constexpr std::chrono::microseconds kAwake{50};  // that a thread looks for an event before it sleeps

// Errors after which no call of the process succeeds any more. They are told by whichever call comes next.
bool sticks(cudaError_t status) {
  switch (status) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchTimeout:
    case cudaErrorECCUncorrectable:
      return true;
    default:
      return false;
  }
}

void checked(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  std::string what =
      std::string(call) + " failed: " + cudaGetErrorName(status) + " (" + cudaGetErrorString(status) + ")";
  if (sticks(status)) {
    what +=
        "; a kernel that ran before this call failed, most likely one of the loop's own, and the process cannot use "
        "the device any more: run it again with CUDA_LAUNCH_BLOCKING=1 to see which";
  } else {
    static_cast<void>(cudaGetLastError());  // so that the next call of somebody else does not report it
  }
  throw DeviceError(what);
}

cudaStream_t handle_of(Device::Stream stream) { return reinterpret_cast<cudaStream_t>(stream); }
cudaEvent_t event_of(const Device::Event& event) { return static_cast<cudaEvent_t>(event.get()); }

// Events that are recorded again and again, since to make one and to destroy it costs more than to record it. What
// waits for an event waits for what it was recorded for by then, so that it may be recorded again at once. Any thread
// may call anything; events may outlive the device.
class EventPool : public std::enable_shared_from_this<EventPool> {
 public:
  explicit EventPool(int device) : device_(device) {}
  ~EventPool() {
    for (cudaEvent_t one : free_) destroy(one);
  }
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  // The device is the current one.
  Device::Event take() {
    cudaEvent_t taken = reused();
    if (taken == nullptr) {
      checked(cudaEventCreateWithFlags(&taken, cudaEventDisableTiming | cudaEventBlockingSync),
              "cudaEventCreateWithFlags");
    }
    return {taken, [pool = shared_from_this()](void* one) { pool->give_back(static_cast<cudaEvent_t>(one)); }};
  }

 private:
  cudaEvent_t reused() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return nullptr;
    cudaEvent_t const last = free_.back();
    free_.pop_back();
    return last;
  }

  void give_back(cudaEvent_t one) noexcept {
    try {
      const std::lock_guard lock(mutex_);
      free_.push_back(one);
    } catch (const std::exception&) {  // there is no memory to keep it
      destroy(one);
    }
  }

  void destroy(cudaEvent_t one) noexcept {
    quietly(device_, [one] { return cudaEventDestroy(one); });
  }

  const int device_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;  // guarded by mutex_
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int index) : index_(index), events_(std::make_shared<EventPool>(index)) {
    int devices = 0;
    checked(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
    if (index < 0 || index >= devices) {
      throw DeviceError("there is no CUDA device " + std::to_string(index) + " among " + std::to_string(devices));
    }
  }

  void register_host(std::byte* memory, std::size_t bytes) override {
    const Here here(index_);
    checked(cudaHostRegister(memory, bytes, cudaHostRegisterPortable), "cudaHostRegister");
  }

  void unregister_host(std::byte* memory) noexcept override {
    quietly(index_, [memory] { return cudaHostUnregister(memory); });
  }

  Stream create_stream(Urgency urgency) override {
    const Here here(index_);
    int least = 0;
    int greatest = 0;
    checked(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
    cudaStream_t made = nullptr;
    checked(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, urgency == Urgency::urgent ? greatest : least),
            "cudaStreamCreateWithPriority");
    return reinterpret_cast<Stream>(made);
  }

  void copy_async(std::byte* to, const std::byte* from, std::size_t bytes, Stream stream) override {
    const Here here(index_);
    checked(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, handle_of(stream)), "cudaMemcpyAsync");
  }

  Event record(Stream stream) override {
    const Here here(index_);
    Event event = events_->take();
    checked(cudaEventRecord(event_of(event), handle_of(stream)), "cudaEventRecord");
    return event;
  }

  void wait(Stream stream, const Event& event) override {
    const Here here(index_);
    checked(cudaStreamWaitEvent(handle_of(stream), event_of(event), 0), "cudaStreamWaitEvent");
  }

  bool done(const Event& event) override {
    const Here here(index_);
    const cudaError_t status = cudaEventQuery(event_of(event));
    if (status == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());
      return false;
    }
    checked(status, "cudaEventQuery");
    return true;
  }

  void synchronise(const Event& event) override {
    const Here here(index_);
    // A thread that sleeps wakes tens of microseconds after the event, which is as long as a batch of 1 MB is copied.
    const auto asleep = std::chrono::steady_clock::now() + kAwake;
    while (!done(event)) {
      if (std::chrono::steady_clock::now() < asleep) continue;
      checked(cudaEventSynchronize(event_of(event)), "cudaEventSynchronize");
      return;
    }
  }

 private:
  const int index_;
  const std::shared_ptr<EventPool> events_;
};

}  // namespace

std::shared_ptr<Device> copy_device(int index) { return std::make_shared<CudaDevice>(index); }

}  // namespace memload::cuda
