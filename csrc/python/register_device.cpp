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

// A point in a stream, which comes when all that was queued there before is done.
struct PyDeviceEvent {
  Device::Event event;
};

void register_host(const PyDevice& device, std::uintptr_t address, std::size_t nbytes) {
  const WithoutGil released;
  device->register_host(at(address), nbytes);
}

void unregister_host(const PyDevice& device, std::uintptr_t address) {
  const WithoutGil released;
  device->unregister_host(at(address));
}

Device::Stream create_stream(const PyDevice& device, bool urgent) {
  const WithoutGil released;
  return device->create_stream(urgent ? Device::Urgency::urgent : Device::Urgency::usual);
}

PyDeviceEvent record(const PyDevice& device, Device::Stream stream) {
  const WithoutGil released;
  return {device->record(stream)};
}

void wait(const PyDevice& device, Device::Stream stream, const PyDeviceEvent& event) {
  const WithoutGil released;
  device->wait(stream, event.event);
}

void follow(const PyDevice& device, Device::Stream stream, Device::Stream other) {
  const WithoutGil released;
  device->wait(stream, device->record(other));
}

bool done(const PyDevice& device, const PyDeviceEvent& event) {
  const WithoutGil released;
  return device->done(event.event);
}

void synchronise(const PyDevice& device, const PyDeviceEvent& event) {
  const WithoutGil released;
  device->synchronise(event.event);
}

std::unique_ptr<PyPinnedSlots> pinned_slots(const PyDevice& device, std::optional<std::size_t> limit,
                                            std::optional<int> node) {
  const std::size_t most = limit.value_or(std::numeric_limits<std::size_t>::max());
  return std::make_unique<PyPinnedSlots>(std::make_shared<PinnedSource>(device.get(), most, node));
}

double seconds_of(const PyDevice& device, Device::Stream stream, std::uintptr_t to, std::size_t nbytes) {
  const WithoutGil released;
  return copy_seconds(device.get(), stream, at(to), nbytes);
}

}  // namespace

void register_device(py::module_& m) {
  py::class_<PyDeviceEvent>(m, "DeviceEvent", "A point in a stream of a Device.");
  py::class_<PyDevice>(m, "Device", "A device that native threads copy to. Streams are their handles.")
      .def(py::init(&device_of), py::arg("capsule"), "From what memload._cuda.device() gives.")
      .def("register_host", &register_host, py::arg("address"), py::arg("nbytes"),
           "Pin memory of the host, until `unregister_host`; others may be capturing graphs meanwhile.")
      .def("unregister_host", &unregister_host, py::arg("address"), "Unpin memory that no stream reads any more.")
      .def("create_stream", &create_stream, py::arg("urgent"),
           "Make a stream that lives until the process ends; what is queued in urgent ones goes first.")
      .def("record", &record, py::arg("stream"), "An event that comes when all that is in the stream now is done.")
      .def("wait", &wait, py::arg("stream"), py::arg("event"),
           "Let what is queued in the stream from now on run after an event.")
      .def("follow", &follow, py::arg("stream"), py::arg("other"),
           "Let what is queued in the stream from now on run after all that is in the other one now.")
      .def("done", &done, py::arg("event"), "Whether an event has come.")
      .def("synchronise", &synchronise, py::arg("event"), "Wait, without the GIL, until an event has come.");
  py::class_<PyPinnedSlots>(m, "PinnedSlots", "Where a pipeline's slots come from: memory that the device reads.")
      .def(py::init(&pinned_slots), py::arg("device"), py::arg("limit") = py::none(), py::arg("node") = py::none(),
           "Huge pages that are registered with the driver, on a NUMA node if one is named; pageable memory beyond "
           "`limit` bytes.")
      .def_property_readonly("pinned_bytes", [](const PyPinnedSlots& s) { return s->pinned_bytes(); })
      .def_property_readonly(
          "refusal", [](const PyPinnedSlots& s) { return s->refusal(); },
          "Why slots are pageable; empty if they are not.");
  m.def("copy_seconds", &seconds_of, py::arg("device"), py::arg("stream"), py::arg("to"), py::arg("nbytes"),
        "Seconds of the fastest of a few copies from such slots to the device.");
}

}  // namespace memload::python
