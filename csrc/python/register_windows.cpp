// Windows: overlapping rows of frames that are stored once.
#include <cstdint>
#include <memory>
#include <tuple>
#include <vector>

#include "core/columns/windows.h"
#include "python/columns.h"
#include "python/register.h"

namespace memload::python {
namespace {

namespace py = pybind11;

using PyRun = std::tuple<std::int64_t, std::int64_t, std::int64_t>;

std::shared_ptr<Windows> make_windows(const PyFrames& frames, std::vector<std::int64_t> steps,
                                      const std::vector<PyRun>& runs) {
  std::vector<WindowRun> parts;
  parts.reserve(runs.size());
  for (const auto& [first, rows, hop] : runs) parts.push_back({first, rows, hop});
  return std::make_shared<Windows>(any_frames(frames), std::move(steps), std::move(parts));
}

std::vector<PyRun> runs(const Windows& windows) {
  std::vector<PyRun> found;
  for (const WindowRun& run : windows.runs()) found.emplace_back(run.first, run.rows, run.hop);
  return found;
}

}  // namespace

void register_windows(py::module_& m) {
  py::class_<Windows, std::shared_ptr<Windows>> cls(
      m, "Windows", "Rows that are windows of frames; each frame is stored once. Immutable.");
  cls.def(py::init(&make_windows), py::arg("frames"), py::arg("steps"), py::arg("runs"),
          "A row beginning at the frame b is the frames b + step for each step; runs are (first frame, rows, hop).")
      .def_property_readonly("frames", [](const Windows& w) { return py_frames(w.frames()); })
      .def_property_readonly("steps", &Windows::steps)
      .def_property_readonly("runs", &runs, "(first frame, rows, hop) of each run of windows, in order.")
      .def(
          "sharing", [](const Windows& w) { return std::make_shared<Windows>(w.sharing()); },
          "The same windows, of which a pipeline gives a batch as frames, each once, and the int64 places of windows "
          "among them: of each one's lowest step, where the steps leave no gap, else of each step. Without places, as "
          "few frames are shared, the frames are those of window after window.");
  add_column_methods(cls);
}

}  // namespace memload::python
