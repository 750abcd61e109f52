// The pipeline, as Python's loader drives it.
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/columns/row_index.h"
#include "core/pass/pipeline.h"
#include "python/batch_arrays.h"
#include "python/casts.h"
#include "python/columns.h"
#include "python/devices.h"
#include "python/dlpack.h"
#include "python/names.h"
#include "python/register.h"
#include "python/rows.h"
#include "python/spares.h"

namespace memload::python {
namespace {

namespace py = pybind11;
using namespace std::chrono_literals;

// How long a wait may hold up Ctrl-C and the timeout: after each such span, Python's signal handlers get their turn.
constexpr auto kPatience = 100ms;

using Seconds = std::chrono::duration<double>;

// Such a span, or what is left if that is less.
std::chrono::milliseconds span_of(Seconds left) {
  return std::chrono::ceil<std::chrono::milliseconds>(std::clamp<Seconds>(left, 0ms, kPatience));
}

// (column, cast or None, DLPack code, bits, shape of a row, images or None)
using PyField = std::tuple<PyColumn, std::optional<PyCast>, int, int, std::vector<std::int64_t>, PyImages>;

// (device, stream of copies, stream of what follows, first field of the second part)
using PyRoute = std::tuple<const PyDevice*, Device::Stream, Device::Stream, std::size_t>;

// (address, number, bytes of each)
using PyBuffers = std::tuple<std::uintptr_t, std::size_t, std::size_t>;

FieldSpec spec_of(const PyField& field) {
  FieldSpec spec{any_column(std::get<0>(field)), std::nullopt};
  if (const std::optional<PyCast>& cast = std::get<1>(field)) {
    spec.cast = rule_of(*cast);
    spec.affine = affine_of(std::get<2>(*cast));
    spec.images = images_of(std::get<5>(field));
  }
  return spec;
}

std::vector<FieldSpec> specs_of(const std::vector<PyField>& fields) {
  std::vector<FieldSpec> specs;
  specs.reserve(fields.size());
  for (const PyField& field : fields) specs.push_back(spec_of(field));
  return specs;
}

constexpr DlDataType kInt64{0, 64, 1};

class PyPipeline {
 public:
  PyPipeline(const std::vector<PyField>& fields, const PipelineOptions& options, PyPipeline* reuse)
      : fields_(fields),
        in_slots_(!options.route && !options.borrowed),
        kept_from_(options.route ? options.route->kept_from : fields.size()),
        pipeline_(std::make_unique<Pipeline>(specs_of(fields), options,
                                             reuse == nullptr ? nullptr : reuse->pipeline_.get())) {}

  ~PyPipeline() {
    // Closing waits for workers, and other threads of Python must not.
    const WithoutGil released;
    pipeline_.reset();
  }
  PyPipeline(const PyPipeline&) = delete;
  PyPipeline& operator=(const PyPipeline&) = delete;

  [[nodiscard]] std::shared_ptr<TileCache> tiles() const { return pipeline_->tiles(); }

  void begin(std::uint64_t key) {
    const WithoutGil released;
    pipeline_->begin(key);
  }

  void extend(const Indices& rows) {
    Rows planned = of_stream(rows);
    const WithoutGil released;
    pipeline_->extend(std::move(planned));
  }

  void push(const Indices& rows) {
    Rows planned = copied(rows);
    const WithoutGil released;
    pipeline_->push(std::move(planned));
  }

  // Plans those of some rows, as one batch, whose stored numbers are at least `first`; without any, nothing. Returns
  // the numbers of all, in which those are counted from `first` on, and how many they are.
  py::tuple push_from(const RowIndex& index, std::int64_t first, const Indices& rows) {
    CutRows cut = index.cut(view(rows), first);
    const std::size_t moved = cut.moved.size();
    if (moved != 0) {
      const WithoutGil released;
      const auto planned = std::make_shared<const std::vector<std::int64_t>>(std::move(cut.moved));
      pipeline_->push({planned, *planned});
    }
    return py::make_tuple(array_of(std::move(cut.numbers)), moved);
  }

  void finish() {
    const WithoutGil released;
    pipeline_->finish();
  }

  // The next batch; None at the end; the bytes of each part of a destination that set_destination() has to give first.
  py::object next(double timeout) {
    return next_as(timeout, [this](const Batch& batch) { return arrays(batch); });
  }

  // The addresses of the next batch's fields on the device, each with its rows; None at the end, or without `wait`, if
  // the batch is not there yet.
  py::object next_addresses(bool wait) {
    if (wait) return next_as(0.0, &addresses);
    Batch batch;
    Step step{};
    {
      const WithoutGil released;
      step = pipeline_->next_if_ready(batch);
    }
    return step == Step::batch ? taken(std::move(batch), &addresses) : py::none();
  }

  void release() {
    const WithoutGil released;
    pipeline_->release();
  }

  template <class Make>
  py::object next_as(double timeout, const Make& make) {
    const auto start = std::chrono::steady_clock::now();
    const auto left = [&] { return start + Seconds(timeout) - std::chrono::steady_clock::now(); };
    Batch batch;
    while (true) {
      switch (timeout > 0 ? wait(batch, span_of(left()), /*steal=*/false) : wait(batch, kPatience, /*steal=*/true)) {
        case Step::batch:
          return taken(std::move(batch), make);
        case Step::needs_destination:
          if (const auto need = wanted()) return py::make_tuple(need->first, need->second);
          break;
        case Step::end:
          return py::none();
        case Step::unplanned:
          throw std::logic_error("the plan holds no further batch: extend, push or finish it first");
        case Step::waiting:
          if (PyErr_CheckSignals() != 0) throw py::error_already_set();
          if (timeout > 0 && left() <= Seconds::zero()) {
            PyErr_SetString(PyExc_TimeoutError, "no batch was ready in time");
            throw py::error_already_set();
          }
      }
    }
  }

  // Of the batch that next() gave last, as an array that is made when it is asked for.
  Indices row_numbers() {
    if (!asked_) asked_ = array_of(std::move(row_numbers_));
    return *asked_;
  }

  [[nodiscard]] std::int64_t rows() const { return pipeline_->rows(); }

  void check_files() const {
    const WithoutGil released;
    pipeline_->check_files();
  }

  py::object ready() {
    std::optional<DestinationSize> need;
    bool ready = false;
    {
      const WithoutGil released;
      need = pipeline_->needed_destination();
      if (!need) ready = pipeline_->ready();
    }
    return need ? sizes_of(need) : py::bool_(ready);
  }

  py::object needed_destination() { return sizes_of(wanted()); }

  py::object set_destination(std::uintptr_t first, std::uintptr_t second, const py::object& owner) {
    std::shared_ptr<void> kept = keep_alive(owner);
    std::optional<DestinationSize> need;
    {
      const WithoutGil released;
      pipeline_->set_destination({reinterpret_cast<std::byte*>(first), reinterpret_cast<std::byte*>(second)},
                                 std::move(kept));
      need = pipeline_->needed_destination();
    }
    return sizes_of(need);
  }

  PlanQueue cancel() {
    const WithoutGil released;
    return pipeline_->cancel();
  }

  // Returns whether all threads have stopped. Reads that do not answer for `patience` seconds are left behind.
  bool close(bool keep_slots, double patience) {
    const auto deadline = std::chrono::steady_clock::now() + Seconds(patience);
    bool stopped = false;
    bool interrupted = false;
    do {
      {
        const WithoutGil released;
        stopped = pipeline_->close(keep_slots, span_of(deadline - std::chrono::steady_clock::now()));
      }
      interrupted = !stopped && PyErr_CheckSignals() != 0;
    } while (!stopped && !interrupted && std::chrono::steady_clock::now() < deadline);
    if (!stopped) {
      const WithoutGil released;
      pipeline_->abandon(keep_slots);
    }
    if (interrupted) throw py::error_already_set();
    return stopped;
  }

  [[nodiscard]] py::dict stats() const {
    const PipelineStats s = pipeline_->stats();
    py::dict d;
    d["batches"] = s.batches;
    d["rows"] = s.rows;
    d["bytes_in"] = s.bytes_in;
    d["bytes_out"] = s.bytes_out;
    d["gather_seconds"] = s.gather_seconds;
    d["decode_seconds"] = s.decode_seconds;
    d["consumer_wait_seconds"] = s.consumer_wait_seconds;
    d["ring_full_seconds"] = s.ring_full_seconds;
    d["fresh_batches"] = s.fresh_batches;
    d["helped_pieces"] = s.stolen_pieces;  // its name in LoaderStats
    d["major_faults"] = s.major_faults;
    d["disk_bytes"] = s.disk_bytes;
    d["disk_seconds"] = s.disk_seconds;
    d["advised_rows"] = s.advised_rows;
    d["direct_bytes"] = s.direct_bytes;
    d["cached_bytes"] = s.cached_bytes;
    d["decoded_chunks"] = s.decoded_tiles;  // its name in LoaderStats
    d["reused_bytes"] = s.reused_bytes;
    d["copied_bytes"] = s.copied_bytes;
    d["copies"] = s.copies;
    d["copy_wait_seconds"] = s.copy_wait_seconds;
    d["streaming"] = s.streaming;
    return d;
  }

 private:
  Step wait(Batch& batch, std::chrono::milliseconds span, bool steal) {
    const WithoutGil released;
    return pipeline_->next(batch, span, steal);
  }

  template <class Make>
  py::object taken(Batch batch, const Make& make) {
    row_numbers_ = std::move(batch.row_numbers);
    asked_.reset();
    return make(batch);
  }

  static py::list addresses(const Batch& batch) {
    py::list found(batch.outputs.size());
    for (std::size_t f = 0; f < batch.outputs.size(); ++f) {
      const Output& one = batch.outputs[f];
      found[f] = py::make_tuple(reinterpret_cast<std::uintptr_t>(batch.passing + one.offset), one.rows);
    }
    return found;
  }

  static py::object sizes_of(const std::optional<DestinationSize>& need) {
    if (!need) return py::none();
    return py::make_tuple(need->first, need->second);
  }

  std::optional<DestinationSize> wanted() {
    const WithoutGil released;
    return pipeline_->needed_destination();
  }

  // The arrays of a batch, each as a DLPack capsule; of a batch elsewhere as (part, offset in it, code, bits, shape).
  [[nodiscard]] py::list arrays(const Batch& batch) const {
    std::vector<Array> found = arrays_in(batch);
    py::list list(found.size());
    const std::vector<SlotPool::Lease> memory =
        in_slots_ ? memory_of(found, batch.slot) : std::vector<SlotPool::Lease>();
    for (std::size_t i = 0; i < found.size(); ++i) {
      auto& [field, offset, dtype, shape] = found[i];
      const bool kept = field >= kept_from_;
      list[i] = in_slots_ ? to_capsule(memory[i], memory[i].get(), dtype, std::move(shape))
                          : py::make_tuple(kept ? 1 : 0, kept ? offset - batch.kept_begin : offset, dtype.code,
                                           dtype.bits, py::cast(shape));
    }
    return list;
  }

  [[nodiscard]] std::vector<Array> arrays_in(const Batch& batch) const {
    std::vector<Array> found;
    for (std::size_t f = 0; f < fields_.size(); ++f) {
      const auto& [column, cast, code, bits, row_shape, images] = fields_[f];
      const Output& elements = batch.outputs[found.size()];
      std::vector<std::int64_t> shape{elements.rows};
      shape.insert(shape.end(), row_shape.begin(), row_shape.end());
      const DlDataType dtype{static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bits), 1};
      found.push_back({f, elements.offset, dtype, std::move(shape)});
      for (std::size_t k = 1; k < pipeline_->outputs(f); ++k) {
        const Output& numbers = batch.outputs[found.size()];
        found.push_back({f, numbers.offset, kInt64, {numbers.rows}});
      }
    }
    return found;
  }

  std::vector<PyField> fields_;
  bool in_slots_;
  std::size_t kept_from_;
  std::vector<std::int64_t> row_numbers_;  // until they are asked for
  std::optional<Indices> asked_;
  std::unique_ptr<Pipeline> pipeline_;
};

std::unique_ptr<PyPipeline> make_pipeline(const std::vector<PyField>& fields, std::size_t batch_rows,
                                          std::size_t slot_rows, bool drop_last, int depth, int threads,
                                          bool read_blocks, bool direct, std::size_t tile_bytes,
                                          const PyPipeline* tiles_of, const std::string& isa,
                                          std::optional<bool> streaming, std::optional<PyPipeline*> reuse,
                                          const PyPinnedSlots* slots, const std::optional<PyRoute>& route,
                                          const std::optional<PyBuffers>& buffers, bool borrowed,
                                          const PySpares* spares, const std::vector<int>& cpus) {
  PipelineOptions options;
  options.batch_rows = batch_rows;
  options.slot_rows = slot_rows;
  options.drop_last = drop_last;
  options.depth = depth;
  options.threads = threads;
  options.isa = isa_named(isa);
  options.read_blocks = read_blocks;
  options.direct = direct;
  options.tile_bytes = tile_bytes;
  if (tiles_of != nullptr) options.tiles = tiles_of->tiles();
  options.borrowed = borrowed;
  options.cpus = cpus;
  if (spares != nullptr) {
    options.spares = spares->get();
    options.slots = source_of(options.spares);
  }
  if (slots != nullptr) options.slots = *slots->get();
  if (route) {
    const auto& [device, copies, work, kept_from] = *route;
    options.route = Route{device->get(), copies, work, kept_from};
  }
  if (buffers) {
    const auto& [address, count, bytes] = *buffers;
    options.buffers = DeviceBuffers{reinterpret_cast<std::byte*>(address), count, bytes};
  }
  if (streaming) options.store = *streaming ? Store::streaming : Store::cached;
  return std::make_unique<PyPipeline>(fields, options, reuse.value_or(nullptr));
}

std::size_t ring_bytes(const std::vector<PyField>& fields, std::size_t slot_rows, int depth, int threads) {
  const Gather gather(specs_of(fields), Isa::scalar, Store::cached);
  return Pipeline::ring_bytes(gather, slot_rows, depth) + Pipeline::workspace_bytes(gather, threads);
}

}  // namespace

void register_pipeline(py::module_& m) {
  m.def("small_arrays", &small_arrays, py::arg("sizes"),
        "Which arrays of a batch, by their sizes in bytes, get memory of their own: few bytes in all.");
  py::class_<PyPipeline>(m, "Pipeline", "One pass over a plan: rows gathered by native threads into reused slots.")
      .def(py::init(&make_pipeline), py::arg("fields"), py::arg("batch_rows"), py::arg("slot_rows"),
           py::arg("drop_last"), py::arg("depth"), py::arg("threads"), py::arg("read_blocks") = false,
           py::arg("direct") = false, py::arg("tile_bytes") = 0, py::arg("tiles_of") = py::none(), py::arg("isa") = "",
           py::arg("streaming") = py::none(), py::arg("reuse") = py::none(), py::arg("slots") = py::none(),
           py::arg("route") = py::none(), py::arg("buffers") = py::none(), py::arg("borrowed") = false,
           py::arg("spares") = py::none(), py::arg("cpus") = std::vector<int>(),
           "Fields are (column, None or (from, to, norm_removed), DLPack code, bits, shape of what follows the first "
           "axis). With a route (device, stream of copies, stream of what follows, first field of the second part) "
           "batches go to a device, by `slots`; buffers: (address, number, bytes of each) of the device's memory that "
           "they go to in turn, instead of memory that set_destination() gives. borrowed: they are gathered into "
           "memory that set_destination() gives. tile_bytes: of decoded chunks that are kept for further batches, "
           "or in what the pipeline `tiles_of` keeps. "
           "`spares` keep memory that is not pinned, and threads, for the next pass. cpus: those near the slots, on "
           "which threads stay if each has one.")
      .def_property_readonly("rows", &PyPipeline::rows, "The number of rows of the data set.")
      .def("begin", &PyPipeline::begin, py::arg("key"),
           "The key of the pass, from which the draws of each row follow; before the first rows.")
      .def("extend", &PyPipeline::extend, py::arg("rows"), "Plan rows, to be cut into batches of batch_rows.")
      .def("push", &PyPipeline::push, py::arg("rows"), "Plan one batch of exactly these rows.")
      .def("push_from", &PyPipeline::push_from, py::arg("index"), py::arg("first"), py::arg("rows"),
           "Plan one batch: of these rows those whose numbers are at least `first`, counted from there; none: nothing. "
           "Returns the numbers of all rows, in which those are `first`, first + 1, ..., and how many they are.")
      .def("finish", &PyPipeline::finish, "No more rows will come.")
      .def("next_addresses", &PyPipeline::next_addresses, py::arg("wait") = true,
           "With buffers: the next batch as (address, rows) of each of its fields on the device; None at the end, or "
           "without `wait`, if it is not there yet.")
      .def("release", &PyPipeline::release,
           "With buffers: all that reads the batch that next_addresses() gave first is in its stream by now.")
      .def("next", &PyPipeline::next, py::arg("timeout") = 0.0,
           "The next batch as a list of DLPack capsules, or with a route or borrowed memory of (part, offset, DLPack "
           "code, bits, shape); None at the end; a tuple like that of needed_destination(): set_destination() comes "
           "first. Raises TimeoutError, ShardReadError, IndexError.")
      .def("row_numbers", &PyPipeline::row_numbers,
           "The rows of the batch that next() gave last, as they were planned.")
      .def("check_files", &PyPipeline::check_files,
           "Raise ShardReadError if a file of the pass was cut since it was opened; asked at the end of a pass.")
      .def("ready", &PyPipeline::ready,
           "Whether next() has a batch, or its error, without waiting; or a tuple like that of needed_destination(): "
           "set_destination() comes first.")
      .def("needed_destination", &PyPipeline::needed_destination,
           "Bytes of each part of the first batch that has begun and has no destination; None if there is none.")
      .def("set_destination", &PyPipeline::set_destination, py::arg("first"), py::arg("second"), py::arg("owner"),
           "Memory for the two parts of that batch; without a route only the first, which `owner` keeps. Returns what "
           "needed_destination() gives then.")
      .def("cancel", &PyPipeline::cancel,
           "Stop gathering: the plan of what next() has not given, which gives nothing more. close() has to follow.")
      .def("close", &PyPipeline::close, py::arg("keep_slots") = false,
           py::arg("patience") = Seconds(Pipeline::kLongestClose).count(),
           "Stop, and give memory and threads back. Returns whether all threads stopped: one whose read does not "
           "answer for so many seconds is left behind.")
      .def("stats", &PyPipeline::stats, "Counters of this pass.")
      .def_static("ring_bytes", &ring_bytes, py::arg("fields"), py::arg("slot_rows"), py::arg("depth"),
                  py::arg("threads") = 0,
                  "Bytes that the slots of such a pipeline take, and what so many threads decode and resize in.");
}

}  // namespace memload::python
