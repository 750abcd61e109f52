// Devices that native threads copy to, pinned slots, and the device that tests run on.
#include <pybind11/stl.h>

#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/pinned.h"
#include "python/devices.h"
#include "python/dlpack.h"
#include "python/register.h"
#include "simulated/device.h"

namespace memload::python {
namespace {

namespace py = pybind11;

using PySimulated = Shared<SimulatedDevice>;

struct PyEvent {
  Device::Event event;
};

struct PyReading {
  std::shared_ptr<std::vector<std::byte>> bytes;
};

constexpr DlDataType kBytes{1, 8, 1};

std::byte* at(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

py::object lent(const SimulatedMemory::Lease& lease, std::size_t nbytes) {
  return to_capsule(lease, lease.get(), kBytes, {static_cast<std::int64_t>(nbytes)});
}

std::unique_ptr<PyDevice> device_of(const py::capsule& capsule) {
  if (std::string(capsule.name()) != Device::kCapsule) {
    throw py::type_error("expected a capsule called " + std::string(Device::kCapsule) + ", got one called " +
                         capsule.name() + ": memload._core and memload._cuda were built apart; build both again");
  }
  return std::make_unique<PyDevice>(*static_cast<std::shared_ptr<Device>*>(capsule.get_pointer()));
}

Pinning pinning(bool registered) { return registered ? Pinning::registered : Pinning::allocated; }

std::unique_ptr<PyPinnedSlots> pinned_slots(const PyDevice& device, bool registered, std::optional<std::size_t> limit) {
  const std::size_t most = limit.value_or(std::numeric_limits<std::size_t>::max());
  return std::make_unique<PyPinnedSlots>(std::make_shared<PinnedSource>(device.get(), pinning(registered), most));
}

double seconds_of(const PyDevice& device, Device::Stream stream, std::uintptr_t to, std::size_t nbytes,
                  bool registered) {
  const WithoutGil released;
  return copy_seconds(device.get(), stream, at(to), nbytes, pinning(registered));
}

std::unique_ptr<PySimulated> simulated(std::optional<std::size_t> pinnable) {
  return std::make_unique<PySimulated>(
      SimulatedDevice::create(pinnable.value_or(std::numeric_limits<std::size_t>::max())));
}

Device::Stream add_stream(const PySimulated& device, std::int64_t least, std::int64_t most, unsigned seed) {
  return device->add_stream({std::chrono::microseconds(least), std::chrono::microseconds(most)}, seed);
}

void copy_keeping(const PySimulated& device, std::uintptr_t to, std::uintptr_t from, std::size_t nbytes,
                  Device::Stream stream, const py::object& keeps) {
  std::shared_ptr<void> kept = keep_alive(keeps);
  const WithoutGil released;
  device->copy_keeping(at(to), at(from), nbytes, stream, std::move(kept));
}

void synchronise(const PySimulated& device, const PyEvent& event) {
  const WithoutGil released;
  device->await(event.event);
}

py::bytes bytes_of(const PyReading& reading) {
  return {reinterpret_cast<const char*>(reading.bytes->data()), reading.bytes->size()};
}

void register_simulated(py::module_& m) {
  py::class_<PyEvent>(m, "SimulatedEvent", "A point in a stream of a SimulatedDevice.");
  py::class_<PyReading>(m, "SimulatedReading", "What was read in a stream of a SimulatedDevice.")
      .def("bytes", &bytes_of, "To be asked for once an event has come that was recorded after the read.");
  py::class_<PySimulated>(m, "SimulatedDevice",
                          "A device for tests, whose memory is plain RAM and whose streams are late threads.")
      .def(py::init(&simulated), py::arg("pinnable") = py::none(), "At most so many bytes can be pinned at once.")
      .def_property_readonly(
          "device", [](const PySimulated& d) { return std::make_unique<PyDevice>(d.get()); },
          "The same, for native code.")
      .def("add_stream", &add_stream, py::arg("least"), py::arg("most"), py::arg("seed") = 0,
           "A stream that does each thing so many microseconds late.")
      .def(
          "empty",
          [](const PySimulated& d, std::size_t nbytes, Device::Stream s) { return lent(d->empty(nbytes, s), nbytes); },
          py::arg("nbytes"), py::arg("stream"), "A DLPack capsule of poisoned memory that belongs to a stream.")
      .def(
          "pinned", [](const PySimulated& d, std::size_t nbytes) { return lent(d->pinned(nbytes), nbytes); },
          py::arg("nbytes"), "A DLPack capsule of poisoned pinned memory.")
      .def(
          "hold", [](const PySimulated& d, std::uintptr_t base, Device::Stream s) { return d->hold(at(base), s); },
          py::arg("base"), py::arg("stream"), "Whether a block begins there, which the stream then uses.")
      .def(
          "note_copy",
          [](const PySimulated& d, std::uintptr_t base, Device::Stream s) { return d->note_copy(at(base), s); },
          py::arg("base"), py::arg("stream"), "Whether a pinned block begins there, which a copy then reads.")
      .def(
          "is_pinned", [](const PySimulated& d, std::uintptr_t base) { return d->is_pinned(at(base)); },
          py::arg("base"))
      .def(
          "is_there", [](const PySimulated& d, std::uintptr_t base) { return d->is_there(at(base)); }, py::arg("base"))
      .def(
          "copy",
          [](const PySimulated& d, std::uintptr_t to, std::uintptr_t from, std::size_t nbytes, Device::Stream s) {
            d->copy_async(at(to), at(from), nbytes, s);
          },
          py::arg("to"), py::arg("source"), py::arg("nbytes"), py::arg("stream"))
      .def("copy_keeping", &copy_keeping, py::arg("to"), py::arg("source"), py::arg("nbytes"), py::arg("stream"),
           py::arg("keeps"))
      .def(
          "record", [](const PySimulated& d, Device::Stream s) { return PyEvent{d->mark(s)}; }, py::arg("stream"))
      .def(
          "wait", [](const PySimulated& d, Device::Stream s, const PyEvent& e) { d->follow(s, e.event); },
          py::arg("stream"), py::arg("event"))
      .def(
          "done", [](const PySimulated& d, const PyEvent& e) { return d->has_come(e.event); }, py::arg("event"))
      .def("synchronise", &synchronise, py::arg("event"))
      .def(
          "read",
          [](const PySimulated& d, std::uintptr_t address, std::size_t nbytes, Device::Stream s) {
            return PyReading{d->read(at(address), nbytes, s)};
          },
          py::arg("address"), py::arg("nbytes"), py::arg("stream"), "Read memory of the device in a stream's order.")
      .def(
          "watch",
          [](const PySimulated& d, std::uintptr_t address, std::size_t nbytes, Device::Stream s) {
            d->watch(at(address), nbytes, s);
          },
          py::arg("address"), py::arg("nbytes"), py::arg("stream"), "A kernel reads this memory late.")
      .def(
          "leave_out", [](const PySimulated& d, const std::string& call) { d->leave_out(call); }, py::arg("call"),
          "From now on native code's \"record\", \"wait\", \"done\" or \"synchronise\" do nothing.")
      .def_property_readonly("violations", [](const PySimulated& d) { return d->violations(); })
      .def_property_readonly("pinned_bytes", [](const PySimulated& d) { return d->pinned_bytes(); })
      .def_property_readonly("counts", [](const PySimulated& d) { return d->counts(); });
}

}  // namespace

void register_device(py::module_& m) {
  py::class_<PyDevice>(m, "Device", "A device that native threads copy to.")
      .def(py::init(&device_of), py::arg("capsule"), "From what memload._cuda.device() gives.");
  py::class_<PyPinnedSlots>(m, "PinnedSlots", "Where a pipeline's slots come from: memory that the device reads.")
      .def(py::init(&pinned_slots), py::arg("device"), py::arg("registered"), py::arg("limit") = py::none(),
           "Registered huge pages, or what the driver allocates; pageable memory beyond `limit` bytes.")
      .def_property_readonly("pinned_bytes", [](const PyPinnedSlots& s) { return s->pinned_bytes(); })
      .def_property_readonly(
          "refusal", [](const PyPinnedSlots& s) { return s->refusal(); },
          "Why slots are pageable; empty if they are not.");
  m.def("copy_seconds", &seconds_of, py::arg("device"), py::arg("stream"), py::arg("to"), py::arg("nbytes"),
        py::arg("registered"), "Seconds of the fastest of a few copies from such pinned memory to the device.");
  register_simulated(m);
}

}  // namespace memload::python
