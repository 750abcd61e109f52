// Devices that native threads copy to, and pinned slots.
#include <pybind11/stl.h>

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/slots/pinned.h"
#include "python/devices.h"
#include "python/register.h"

namespace memload::python {
namespace {

namespace py = pybind11;

std::byte* at(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

std::unique_ptr<PyDevice> device_of(const py::capsule& capsule) {
  if (std::string(capsule.name()) != Device::kCapsule) {
    throw py::type_error("expected a capsule called " + std::string(Device::kCapsule) + ", got one called " +
                         capsule.name() + ": memload._core and memload._cuda were built apart; build both again");
  }
  return std::make_unique<PyDevice>(*static_cast<std::shared_ptr<Device>*>(capsule.get_pointer()));
}

std::unique_ptr<PyPinnedSlots> pinned_slots(const PyDevice& device, std::optional<std::size_t> limit) {
  const std::size_t most = limit.value_or(std::numeric_limits<std::size_t>::max());
  return std::make_unique<PyPinnedSlots>(std::make_shared<PinnedSource>(device.get(), most));
}

double seconds_of(const PyDevice& device, Device::Stream stream, std::uintptr_t to, std::size_t nbytes) {
  const WithoutGil released;
  return copy_seconds(device.get(), stream, at(to), nbytes);
}

}  // namespace

void register_device(py::module_& m) {
  py::class_<PyDevice>(m, "Device", "A device that native threads copy to.")
      .def(py::init(&device_of), py::arg("capsule"), "From what memload._cuda.device() gives.");
  py::class_<PyPinnedSlots>(m, "PinnedSlots", "Where a pipeline's slots come from: memory that the device reads.")
      .def(py::init(&pinned_slots), py::arg("device"), py::arg("limit") = py::none(),
           "Huge pages that are registered with the driver; pageable memory beyond `limit` bytes.")
      .def_property_readonly("pinned_bytes", [](const PyPinnedSlots& s) { return s->pinned_bytes(); })
      .def_property_readonly(
          "refusal", [](const PyPinnedSlots& s) { return s->refusal(); },
          "Why slots are pageable; empty if they are not.");
  m.def("copy_seconds", &seconds_of, py::arg("device"), py::arg("stream"), py::arg("to"), py::arg("nbytes"),
        "Seconds of the fastest of a few copies from such slots to the device.");
}

}  // namespace memload::python
