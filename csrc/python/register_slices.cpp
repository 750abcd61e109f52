// Slices of time: clocks, and the columns of frames and events that are sliced by them.
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "core/columns/event_items.h"
#include "core/columns/slices.h"
#include "python/columns.h"
#include "python/names.h"
#include "python/register.h"

namespace memload::python {
namespace {

namespace py = pybind11;

using Numbers = std::vector<std::int64_t>;
using PyRate = std::pair<std::int64_t, std::int64_t>;
// (samples, (count, seconds), offset)
using PyGrid = std::tuple<std::int64_t, PyRate, std::int64_t>;
// (clock, first frame, padding)
using PyRecording = std::tuple<std::shared_ptr<Clock>, std::int64_t, std::int64_t>;

Numbers numbers(const Indices& array) {
  const auto all = view(array);
  return {all.begin(), all.end()};
}

py::array_t<std::int64_t> int64_array(const Numbers& all) {
  return py::array_t<std::int64_t>(static_cast<py::ssize_t>(all.size()), all.data());
}

Sampling sampling_named(const std::string& name) {
  if (name == "nearest") return Sampling::nearest;
  if (name == "previous") return Sampling::previous;
  if (name == "linear") return Sampling::linear;
  if (name == "mean") return Sampling::mean;
  throw std::invalid_argument("sampling is nearest, previous, linear or mean, got " + name);
}

const char* name_of(Sampling sampling) {
  constexpr const char* kNames[] = {"nearest", "previous", "linear", "mean"};
  return kNames[static_cast<int>(sampling)];
}

SliceGrid grid_of(const PyGrid& grid) {
  const auto& [samples, rate, offset] = grid;
  return {samples, {rate.first, rate.second}, offset};
}

PyGrid py_grid(const SliceGrid& grid) { return {grid.samples, {grid.rate.count, grid.rate.seconds}, grid.offset}; }

SliceTimes make_times(const Indices& starts, const Indices& spans, const Indices& lows, const Indices& highs,
                      Numbers counts) {
  return {{numbers(starts), numbers(spans), numbers(lows), numbers(highs)}, std::move(counts)};
}

Slices make_slices(const PyFrames& frames, const std::vector<PyRecording>& recordings, const SliceTimes& times,
                   const PyGrid& grid, const std::string& sampling, std::string_view element) {
  std::vector<Slices::Recording> all;
  all.reserve(recordings.size());
  for (const auto& [clock, first, padding] : recordings) all.push_back({*clock, first, padding});
  return {any_frames(frames), std::move(all), times, grid_of(grid), sampling_named(sampling), dtype_named(element)};
}

std::vector<PyRecording> recordings_of(const Slices& slices) {
  std::vector<PyRecording> all;
  for (const auto& [clock, first, padding] : slices.recordings()) {
    all.emplace_back(std::make_shared<Clock>(clock), first, padding);
  }
  return all;
}

std::shared_ptr<Events> make_events(const Indices& times, const py::array_t<std::int32_t, py::array::c_style>& units) {
  auto events = std::make_shared<Events>();
  events->times = numbers(times);
  events->units.assign(units.data(), units.data() + units.size());
  return events;
}

template <class ColumnType>
std::vector<std::shared_ptr<Events>> events_of(const ColumnType& column) {
  std::vector<std::shared_ptr<Events>> all;
  for (const auto& one : column.events()) all.push_back(shown(one));
  return all;
}

EventItem item_named(const std::string& name) {
  if (name == "time") return EventItem::time;
  if (name == "unit") return EventItem::unit;
  throw std::invalid_argument("items are time or unit, got " + name);
}

void register_clock(py::module_& m) {
  py::class_<Clock, std::shared_ptr<Clock>>(m, "Clock",
                                            "At which time each row was recorded, in whole nanoseconds. Immutable.")
      .def(py::init([](std::int64_t rows, std::int64_t start, const PyRate& rate) {
             return Clock(rows, start, {rate.first, rate.second});
           }),
           py::arg("rows"), py::arg("start"), py::arg("rate"),
           "A regular clock; the rate is a fraction (count, seconds).")
      .def_static(
          "at_times",
          [](const Indices& times, std::int64_t period, std::int64_t longest) {
            return Clock(numbers(times), period, longest);
          },
          py::arg("times"), py::arg("period"), py::arg("longest"),
          "Rows at these times. Those more than `longest` apart have a gap between them, before which the last row "
          "holds for `period`.")
      .def_property_readonly("rows", &Clock::rows)
      .def_property_readonly("start", &Clock::start)
      .def_property_readonly("rate", [](const Clock& c) { return PyRate(c.rate().count, c.rate().seconds); })
      .def_property_readonly("period", &Clock::period)
      .def_property_readonly("longest", &Clock::longest)
      .def_property_readonly(
          "times",
          [](const Clock& c) -> std::optional<py::array_t<std::int64_t>> {
            if (c.times() == nullptr) return std::nullopt;
            return int64_array(*c.times());
          },
          "A copy of the times; None for a regular clock.");
}

void register_times(py::module_& m) {
  py::class_<SliceTimes>(m, "SliceTimes", "When slices start, in nanoseconds, by recording. Immutable.")
      .def(py::init(&make_times), py::arg("starts"), py::arg("spans"), py::arg("lows"), py::arg("highs"),
           py::arg("counts"),
           "Spans, lows and highs may be empty. A slice starts up to `span` later than its start, as is drawn; padding "
           "stands before `low`, and from `high` on. `counts` are the slices of each recording.")
      .def_property_readonly("starts", [](const SliceTimes& t) { return int64_array(t.arrays().starts); })
      .def_property_readonly("spans", [](const SliceTimes& t) { return int64_array(t.arrays().spans); })
      .def_property_readonly("lows", [](const SliceTimes& t) { return int64_array(t.arrays().lows); })
      .def_property_readonly("highs", [](const SliceTimes& t) { return int64_array(t.arrays().highs); })
      .def_property_readonly("counts", &SliceTimes::counts)
      .def_property_readonly("draws", &SliceTimes::draws);
}

// The slices as they are stored: the selection is that of the column.
template <class ColumnType>
void add_time_methods(py::class_<ColumnType, std::shared_ptr<ColumnType>>& cls) {
  cls.def_property_readonly("times", &ColumnType::times, "Of all stored slices, in order.")
      .def_property_readonly(
          "draws", [](const ColumnType& c) { return c.times().draws(); }, "Whether starts are drawn for each pass.");
  add_column_methods(cls);
}

template <class ColumnType>
void add_slice_methods(py::class_<ColumnType, std::shared_ptr<ColumnType>>& cls) {
  cls.def_property_readonly("grid", [](const ColumnType& c) { return py_grid(c.grid()); }, "(samples, rate, offset)");
  add_time_methods(cls);
}

void register_event_items(py::module_& m) {
  py::class_<EventItems, std::shared_ptr<EventItems>> cls(
      m, "EventItems",
      "Rows that differ in length, of the events of slices: their float64 seconds from the beginning of the slice, or "
      "their int64 units. Immutable. `row_bytes` is their average.");
  cls.def(py::init([](const std::vector<std::shared_ptr<Events>>& events, const SliceTimes& times,
                      const std::pair<std::int64_t, std::int64_t>& window, const std::string& item) {
            return EventItems({events.begin(), events.end()}, times, {window.first, window.second}, item_named(item));
          }),
          py::arg("events"), py::arg("times"), py::arg("window"), py::arg("item"),
          "The window is (offset, duration) in nanoseconds; `item` is time or unit.")
      .def_property_readonly("events", &events_of<EventItems>)
      .def_property_readonly("window",
                             [](const EventItems& e) { return std::pair(e.window().offset, e.window().duration); })
      .def_property_readonly("item", [](const EventItems& e) { return e.item() == EventItem::time ? "time" : "unit"; })
      .def_property_readonly("item_bytes", [](const EventItems&) { return EventItems::kItemBytes; })
      .def_property_readonly("planes", [](const EventItems&) { return 1; })
      .def_property_readonly("items", &EventItems::items, "Of all rows, as they are outside of passes.");
  add_ragged_methods(cls);
  add_time_methods(cls);
}

}  // namespace

void register_slices(py::module_& m) {
  register_clock(m);
  register_times(m);
  py::class_<Slices, std::shared_ptr<Slices>> slices(
      m, "Slices", "Rows that are samples of frames at regular times from a start on. Immutable.");
  slices
      .def(py::init(&make_slices), py::arg("frames"), py::arg("recordings"), py::arg("times"), py::arg("grid"),
           py::arg("sampling"), py::arg("element"),
           "Recordings are (clock, its first frame, the frame that is padding or -1). Sampling is nearest, previous, "
           "linear or mean; `element` is the dtype of a frame's elements.")
      .def_property_readonly("frames", [](const Slices& s) { return py_frames(s.frames()); })
      .def_property_readonly("recordings", &recordings_of)
      .def_property_readonly("sampling", [](const Slices& s) { return name_of(s.sampling()); })
      .def_property_readonly("element", [](const Slices& s) { return std::string(memload::name_of(s.element())); })
      .def_property_readonly("blends", &Slices::blends, "Whether samples are computed of several frames.");
  add_slice_methods(slices);

  py::class_<Events, std::shared_ptr<Events>>(m, "Events", "Events of several units in the order of their times.")
      .def(py::init(&make_events), py::arg("times"), py::arg("units"))
      .def_property_readonly("times", [](const Events& e) { return int64_array(e.times); })
      .def_property_readonly("units", [](const Events& e) {
        return py::array_t<std::int32_t>(static_cast<py::ssize_t>(e.units.size()), e.units.data());
      });
  py::class_<EventCounts, std::shared_ptr<EventCounts>> counts(
      m, "EventCounts", "Rows that count the events of each unit in regular bins from a start on: int16. Immutable.");
  counts
      .def(py::init([](const std::vector<std::shared_ptr<Events>>& events, std::int64_t units, const SliceTimes& times,
                       const PyGrid& grid) {
             return EventCounts({events.begin(), events.end()}, units, times, grid_of(grid));
           }),
           py::arg("events"), py::arg("units"), py::arg("times"), py::arg("grid"))
      .def_property_readonly("events", &events_of<EventCounts>)
      .def_property_readonly("units", &EventCounts::units);
  add_slice_methods(counts);
  register_event_items(m);
}

}  // namespace memload::python
