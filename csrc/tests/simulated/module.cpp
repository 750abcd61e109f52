// The extension _simulated: the simulated device for tests in Python, which compile it (tests/support/simulated.py).
#include <pybind11/stl.h>
#include <time.h>

#include <chrono>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "python/convert.h"
#include "python/devices.h"
#include "python/dlpack.h"
#include "tests/simulated/device.h"

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

py::object leased(const SimulatedMemory::Lease& lease, std::size_t nbytes) {
  return to_capsule(lease, lease.get(), kBytes, {static_cast<std::int64_t>(nbytes)});
}

py::capsule capsule_of(const std::shared_ptr<Device>& device) {
  auto held = std::make_unique<std::shared_ptr<Device>>(device);
  py::capsule capsule(held.get(), Device::kCapsule,
                      [](void* one) { delete static_cast<std::shared_ptr<Device>*>(one); });
  static_cast<void>(held.release());  // the capsule's from here on
  return capsule;
}

std::unique_ptr<PySimulated> simulated(std::optional<std::size_t> pinnable, bool at_once) {
  return std::make_unique<PySimulated>(
      SimulatedDevice::create(pinnable.value_or(std::numeric_limits<std::size_t>::max()), at_once));
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

double thread_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// What a pass over batches of one memory calls, made without it: the calls of its native code, and those of its Python.
constexpr std::size_t kBytesOfBatch = 512;

double bare_seconds(const PySimulated& device, int batches, std::size_t ahead, Device::Stream copies,
                    Device::Stream work, Device::Stream loop) {
  const WithoutGil released;
  const double begun = thread_seconds();
  std::deque<Device::Event> handed;
  const SimulatedMemory::Lease slot = device->pinned(kBytesOfBatch);
  for (int batch = 0; batch < batches; ++batch) {
    handed.push_back(device->mark(loop));
    for (; handed.size() > ahead; handed.pop_front()) device->await(handed.front());
    const SimulatedMemory::Lease memory = device->empty(kBytesOfBatch, copies);
    device->copy_async(memory.get(), slot.get(), kBytesOfBatch, copies);
    const Device::Event copied = device->record(copies);
    device->wait(work, copied);
    static_cast<void>(device->done(copied));
    device->follow(loop, device->mark(work));
    device->hold(memory.get(), loop);
  }
  return thread_seconds() - begun;
}

py::bytes bytes_of(const PyReading& reading) {
  return {reinterpret_cast<const char*>(reading.bytes->data()), reading.bytes->size()};
}

}  // namespace
}  // namespace memload::python

PYBIND11_MODULE(_simulated, m) {
  using namespace memload::python;
  using memload::Device;
  py::class_<PyEvent>(m, "SimulatedEvent", "A point in a stream of a SimulatedDevice.");
  py::class_<PyReading>(m, "SimulatedReading", "What was read in a stream of a SimulatedDevice.")
      .def("bytes", &bytes_of, "To be asked for once an event has come that was recorded after the read.");
  py::class_<PySimulated>(m, "SimulatedDevice",
                          "A device for tests, whose memory is plain RAM and whose streams are late threads.")
      .def(py::init(&simulated), py::arg("pinnable") = py::none(), py::arg("at_once") = false,
           "At most so many bytes can be pinned at once; nothing is late if all is done at once.")
      .def_property_readonly(
          "capsule", [](const PySimulated& d) { return capsule_of(d.get()); }, "What memload._core.Device takes.")
      .def("add_stream", &add_stream, py::arg("least"), py::arg("most"), py::arg("seed") = 0,
           "A stream that does each thing so many microseconds late.")
      .def(
          "empty",
          [](const PySimulated& d, std::size_t nbytes, Device::Stream s) {
            return leased(d->empty(nbytes, s), nbytes);
          },
          py::arg("nbytes"), py::arg("stream"), "A DLPack capsule of poisoned memory that belongs to a stream.")
      .def(
          "pinned", [](const PySimulated& d, std::size_t nbytes) { return leased(d->pinned(nbytes), nbytes); },
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
          "seconds_between",
          [](const PySimulated& d, const PyEvent& first, const PyEvent& second) {
            return d->seconds_between(first.event, second.event);
          },
          py::arg("first"), py::arg("second"), "The seconds from one event to another; None if one has not come.")
      .def(
          "gate", [](const PySimulated& d) { return PyEvent{d->gate()}; }, "An event that comes when it is opened.")
      .def(
          "open", [](const PySimulated& d, const PyEvent& gate) { d->open(gate.event); }, py::arg("gate"))
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
      .def("bare_seconds", &bare_seconds, py::arg("batches"), py::arg("ahead"), py::arg("copies"), py::arg("work"),
           py::arg("loop"),
           "CPU seconds of the calling thread for the calls that a pass makes for so many batches, made by C++ alone.")
      .def_property_readonly("violations", [](const PySimulated& d) { return d->violations(); })
      .def_property_readonly("pinned_bytes", [](const PySimulated& d) { return d->pinned_bytes(); })
      .def_property_readonly("counts", [](const PySimulated& d) { return d->counts(); });
}
