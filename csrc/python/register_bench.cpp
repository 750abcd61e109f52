#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bench/ceiling.h"
#include "bench/disk.h"
#include "bench/plain_images.h"
#include "core/columns/column.h"
#include "python/casts.h"
#include "python/convert.h"
#include "python/names.h"
#include "python/register.h"

namespace memload::python {
namespace {

namespace py = pybind11;
using bench::TeamTime;

// (from, to, norm_removed), or None
using PyPlainCast = std::optional<std::tuple<std::string, std::string, bool>>;
// Of rows that are cropped: (bytes of a run, bytes from one run to the next, runs, where each planned row begins).
using PyCrop = std::optional<std::tuple<std::size_t, std::size_t, std::size_t, Indices>>;
using PyCeilingField = std::tuple<std::shared_ptr<Column>, PyPlainCast, PyCrop>;

// Narrows rows to their crops, all of which must lie within a stored row.
void crop(bench::CeilingField& field, const PyCrop& wanted) {
  if (!wanted) return;
  const auto& [run_bytes, stride, runs, begins] = *wanted;
  const std::span<const std::int64_t> first = view(begins);
  if (runs == 0 || run_bytes == 0 || first.size() != field.rows.size()) {
    throw std::invalid_argument("a crop has runs, each of at least a byte, and a place for each planned row");
  }
  const bool fits = stride <= field.row_bytes / runs && run_bytes <= field.row_bytes;
  const std::size_t reach = fits ? (runs - 1) * stride + run_bytes : field.row_bytes + 1;
  for (std::size_t i = 0; i < first.size(); ++i) {
    const auto begin = static_cast<std::size_t>(first[i]);
    if (first[i] < 0 || begin > field.row_bytes || reach > field.row_bytes - begin) {
      throw std::out_of_range("a crop at byte " + std::to_string(first[i]) + " is not within its row");
    }
    field.rows[i] += begin;
  }
  field.row_bytes = runs * run_bytes;
  field.run_bytes = run_bytes;
  field.run_stride = stride;
}

// Where each planned row begins.
std::vector<const std::byte*> addresses(const Column& column, std::span<const std::int64_t> plan) {
  std::vector<const std::byte*> found;
  found.reserve(plan.size());
  for (const std::int64_t row : plan) {
    if (row < 0 || row >= column.rows()) {
      throw std::out_of_range("row " + std::to_string(row) + " of the plan is not one of the column's " +
                              std::to_string(column.rows()));
    }
    found.push_back(column.address(row));
  }
  return found;
}

bench::CeilingField plan_field(const PyCeilingField& field, std::span<const std::int64_t> plan) {
  const auto& [column, cast, cropped] = field;
  bench::CeilingField planned;
  planned.row_bytes = column->row_bytes();
  if (cast) {
    const auto& [from, to, norm_removed] = *cast;
    planned.cast = CastRule{dtype_named(from), dtype_named(to), norm_removed};
  }
  planned.rows = addresses(*column, plan);
  crop(planned, cropped);
  return planned;
}

// Keeps the columns alive that the ceiling reads.
struct HeldCeiling {
  std::vector<PyCeilingField> held;
  bench::Ceiling ceiling;
  std::mutex running{};  // a ceiling serves one caller at a time
};

std::unique_ptr<HeldCeiling> make_ceiling(std::vector<PyCeilingField> fields, const Indices& plan,
                                          std::size_t batch_size, std::size_t threads, const std::string& isa) {
  std::vector<bench::CeilingField> planned;
  for (const PyCeilingField& field : fields) planned.push_back(plan_field(field, view(plan)));
  bench::Ceiling ceiling(std::move(planned), batch_size, threads, isa_named(isa));
  return std::unique_ptr<HeldCeiling>(new HeldCeiling{std::move(fields), std::move(ceiling)});
}

py::dict to_dict(const TeamTime& time) {
  py::dict result;
  result["seconds"] = time.seconds;
  result["cpu_seconds"] = time.cpu_seconds;
  return result;
}

py::dict to_dict(const bench::CeilingRun& run) {
  py::dict result = to_dict(run.time);
  result["batches"] = run.batches;
  result["rows"] = run.rows;
  result["bytes_out"] = run.bytes_out;
  return result;
}

py::dict run_ceiling(HeldCeiling& self, std::size_t batches, bool streaming) {
  bench::CeilingRun run;
  {
    const py::gil_scoped_release unlocked;
    const std::scoped_lock lock(self.running);
    run = self.ceiling.run(batches == 0 ? self.ceiling.batches_in_plan() : batches, store_of(streaming));
  }
  return to_dict(run);
}

py::dict run_fresh(HeldCeiling& self, bool streaming) {
  bench::CeilingRun run;
  {
    const py::gil_scoped_release unlocked;
    const std::scoped_lock lock(self.running);
    run = self.ceiling.run_fresh(store_of(streaming));
  }
  return to_dict(run);
}

// Keeps the column alive that its loops read.
struct HeldImages {
  std::shared_ptr<Column> held;
  bench::PlainImages images;
  std::mutex running{};
};

// (top, left, flipped) of each planned row
std::vector<ImageDraw> image_draws_of(const Indices& draws) {
  const std::span<const std::int64_t> given = view(draws);
  std::vector<ImageDraw> found;
  for (std::size_t i = 0; i + 2 < given.size(); i += 3) {
    if (given[i] < 0 || given[i + 1] < 0 || std::max(given[i], given[i + 1]) > INT32_MAX) {
      throw std::invalid_argument("a draw has a place within its image");
    }
    found.push_back(
        {static_cast<std::uint32_t>(given[i]), static_cast<std::uint32_t>(given[i + 1]), given[i + 2] != 0});
  }
  return found;
}

std::unique_ptr<HeldImages> make_images(const std::shared_ptr<Column>& column, const Indices& rows,
                                        const Indices& draws, const PyShape& shape, const std::string& to,
                                        const PyAffine& constants, std::size_t batch_size, std::size_t threads) {
  bench::ImagePlan plan{addresses(*column, view(rows)), image_draws_of(draws), shape_of(shape), dtype_named(to),
                        *affine_of(constants)};
  if (column->row_bytes() != std::size_t{plan.shape.height} * plan.shape.width * plan.shape.channels) {
    throw std::invalid_argument("a row of " + std::to_string(column->row_bytes()) + " bytes is no such image");
  }
  return std::unique_ptr<HeldImages>(new HeldImages{column, bench::PlainImages(std::move(plan), batch_size, threads)});
}

py::dict run_images(HeldImages& self, std::size_t batches) {
  bench::CeilingRun run;
  {
    const py::gil_scoped_release unlocked;
    const std::scoped_lock lock(self.running);
    run = self.images.run(batches == 0 ? self.images.batches_in_plan() : batches);
  }
  return to_dict(run);
}

py::bytes written_images(const HeldImages& self, std::size_t batch) {
  const auto bytes = self.images.written(batch);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

py::bytes written(const HeldCeiling& self, std::size_t batch, std::size_t field) {
  const auto bytes = self.ceiling.written(batch, field);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

py::dict bench_memcpy(std::size_t nbytes, std::size_t threads, double seconds) {
  bench::CopyRun run;
  {
    const py::gil_scoped_release unlocked;
    run = bench::copy_rate(nbytes, threads, seconds);
  }
  py::dict result = to_dict(run.time);
  result["bytes"] = run.bytes;
  return result;
}

bench::ReadMethod read_method_named(std::string_view name) {
  if (name == "direct") return bench::ReadMethod::direct;
  if (name == "io_uring") return bench::ReadMethod::io_uring;
  throw std::invalid_argument("method is 'direct' or 'io_uring', not '" + std::string(name) + "'");
}

py::dict bench_disk(const std::string& path, const Indices& offsets, std::size_t nbytes, std::size_t in_flight,
                    const std::string& method) {
  const bench::ReadMethod how = read_method_named(method);
  const std::span<const std::int64_t> rows = view(offsets);
  bench::DiskRun run;
  {
    const py::gil_scoped_release unlocked;
    run = bench::read_rows(path, rows, nbytes, in_flight, how);
  }
  py::dict result = to_dict(run.time);
  result["reads"] = run.reads;
  result["bytes"] = run.bytes;
  return result;
}

}  // namespace

void register_bench(py::module_& m) {
  py::class_<HeldCeiling>(m, "Ceiling", "Planned rows gathered and cast into four reused huge-page buffers.")
      .def(py::init(&make_ceiling), py::arg("fields"), py::arg("rows"), py::arg("batch_size"), py::arg("threads"),
           py::arg("isa") = "")
      .def_property_readonly("batches_in_plan", [](const HeldCeiling& self) { return self.ceiling.batches_in_plan(); })
      .def_property_readonly("batch_bytes", [](const HeldCeiling& self) { return self.ceiling.batch_bytes(); })
      .def("run", &run_ceiling, py::arg("batches") = 0, py::arg("streaming") = false,
           "Gathers that many batches (0: the whole plan once) and says how long it took.")
      .def("run_fresh", &run_fresh, py::arg("streaming") = false,
           "Gathers the first batch into memory that nobody has touched yet.")
      .def("written", &written, py::arg("batch"), py::arg("field"),
           "The bytes that a batch of the last run wrote for a field; overwritten four batches later.");
  py::class_<HeldImages>(m, "PlainImages", "Planned images made by plain loops into four reused huge-page buffers.")
      .def(py::init(&make_images), py::arg("column"), py::arg("rows"), py::arg("draws"), py::arg("shape"),
           py::arg("to"), py::arg("constants"), py::arg("batch_size"), py::arg("threads"))
      .def_property_readonly("batch_bytes", [](const HeldImages& self) { return self.images.batch_bytes(); })
      .def("run", &run_images, py::arg("batches") = 0,
           "Makes that many batches (0: the whole plan once) and says how long it took.")
      .def("written", &written_images, py::arg("batch"),
           "The bytes that a batch of the last run wrote; overwritten four batches later.");
  m.def("bench_memcpy", &bench_memcpy, py::arg("nbytes"), py::arg("threads"), py::arg("seconds"),
        "Copies between huge-page buffers for about that long: seconds, cpu_seconds, bytes.");
  m.def("bench_disk", &bench_disk, py::arg("path"), py::arg("offsets"), py::arg("nbytes"), py::arg("in_flight"),
        py::arg("method"), "Reads rows past the page cache: seconds, cpu_seconds, reads, bytes.");
}

}  // namespace memload::python
