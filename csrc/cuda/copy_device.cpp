#include "cuda/copy_device.h"

#include <cuda_runtime.h>

#include <exception>
#include <string>

#include "cuda/launch.h"

namespace memload::cuda {
namespace {

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

// Where calls are made: on a device, and allowed although another thread may be capturing a graph, as torch's
// allocators make theirs. None of them is for a stream that is captured.
class Here {
 public:
  explicit Here(int device) : device_(device) { exchange(); }
  ~Here() { exchange(); }
  Here(const Here&) = delete;
  Here& operator=(const Here&) = delete;

 private:
  void exchange() noexcept { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }

  DeviceGuard device_;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Calls for one device, of which nobody is told if they fail: what gives something back.
template <typename Call>
void quietly(int device, const Call& call) noexcept {
  try {
    const Here here(device);
    if (call() != cudaSuccess) static_cast<void>(cudaGetLastError());
  } catch (const std::exception&) {  // without the device there is nothing to give back
  }
}

cudaStream_t handle_of(Device::Stream stream) { return reinterpret_cast<cudaStream_t>(stream); }
cudaEvent_t event_of(const Device::Event& event) { return static_cast<cudaEvent_t>(event.get()); }

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int index) : index_(index) {
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

  void copy_async(std::byte* to, const std::byte* from, std::size_t bytes, Stream stream) override {
    const Here here(index_);
    checked(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, handle_of(stream)), "cudaMemcpyAsync");
  }

  Event record(Stream stream) override {
    const Here here(index_);
    cudaEvent_t made = nullptr;
    checked(cudaEventCreateWithFlags(&made, cudaEventDisableTiming | cudaEventBlockingSync),
            "cudaEventCreateWithFlags");
    Event event(made, [device = index_](void* one) {
      quietly(device, [one] { return cudaEventDestroy(static_cast<cudaEvent_t>(one)); });
    });
    checked(cudaEventRecord(made, handle_of(stream)), "cudaEventRecord");
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
    checked(cudaEventSynchronize(event_of(event)), "cudaEventSynchronize");
  }

 private:
  const int index_;
};

}  // namespace

std::shared_ptr<Device> copy_device(int index) { return std::make_shared<CudaDevice>(index); }

}  // namespace memload::cuda
