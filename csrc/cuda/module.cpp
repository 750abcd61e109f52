// memload._cuda: addresses, sizes and stream handles in, launches out. Knows no torch.
#include <pybind11/pybind11.h>

#include "cuda/cast_stim.h"
#include "cuda/copy_device.h"

namespace py = pybind11;

namespace memload::cuda {
namespace {

Target target_named(const std::string& code) {
  if (code == "BF16") return Target::bf16;
  if (code == "F16") return Target::f16;
  if (code == "F32") return Target::f32;
  throw py::value_error("no CUDA cast to dtype " + code + " (known: BF16, F16, F32)");
}

void cast_stim_at(std::uintptr_t src, std::uintptr_t dst, std::size_t n, const std::string& to, bool norm_removed,
                  int device, std::uintptr_t stream) {
  const Target target = target_named(to);
  const py::gil_scoped_release nogil;  // a launch may wait for room in the stream's queue
  cast_stim(reinterpret_cast<const void*>(src), reinterpret_cast<void*>(dst), n, target, norm_removed, device,
            reinterpret_cast<void*>(stream));
}

py::capsule device(int index) {
  auto made = std::make_unique<std::shared_ptr<Device>>(copy_device(index));
  py::capsule capsule(made.get(), Device::kCapsule,
                      [](void* held) { delete static_cast<std::shared_ptr<Device>*>(held); });
  static_cast<void>(made.release());  // the capsule's from here on
  return capsule;
}

}  // namespace
}  // namespace memload::cuda

PYBIND11_MODULE(_cuda, m) {
  m.doc() = "memload's CUDA kernels.";
  m.attr("version") = MEMLOAD_VERSION;
  m.attr("architectures") = MEMLOAD_CUDA_ARCHITECTURES;
  m.attr("toolkit") = MEMLOAD_CUDA_TOOLKIT;
  m.def("cast_stim", memload::cuda::cast_stim_at, py::arg("src_address"), py::arg("dst_address"), py::arg("n"),
        py::arg("to_code"), py::arg("norm_removed"), py::arg("device"), py::arg("stream"),
        "Cast n uint8 pixels on a device, asynchronously on the stream with this handle.");
  m.def("device", memload::cuda::device, py::arg("index"),
        "What memload._core.Device takes, for a device that exists. Raises RuntimeError.");
  m.def("unusable_reason", memload::cuda::unusable_reason, py::arg("device"),
        "Why the kernels do not run on this device with this driver; \"\" if they do.");
}
