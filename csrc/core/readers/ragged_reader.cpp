#include "core/readers/ragged_reader.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/fault_guard.h"
#include "core/base/memory.h"
#include "core/io/direct_file.h"
#include "core/readers/run_copier.h"

namespace memload {

// Bytes [begin, end) of the first output.
class RaggedReader::Part {
 public:
  Part(const RaggedReader& field, const RaggedPlan& plan, std::byte* out, const ColdReads& cold, Filled& found)
      : field_(field),
        plan_(plan),
        out_(out),
        copier_(Mover(field.form_.kernel(), field.form_.in_size(), field.form_.out_size()), cold, found),
        found_(found) {}

  // Runs under the fault guard: owns nothing, throws nothing.
  void copy(std::size_t begin, std::size_t end) noexcept {
    for (std::size_t at = begin; at < end;) {
      const std::size_t plane = at / plan_.plane_bytes;
      const std::size_t stop = std::min(end, (plane + 1) * plan_.plane_bytes);
      copy_of_plane(plane, at - plane * plan_.plane_bytes, stop - plane * plan_.plane_bytes);
      at = stop;
    }
  }

  [[noreturn]] void fail(const void* address) const {
    const Run& run = plan_.runs[current_];
    const Storage& storage = *run.segment->values;
    throw ReadError(storage.name(), run.row_in_segment,
                    static_cast<std::uint64_t>(static_cast<const std::byte*>(address) - storage.data()),
                    "the file had " + std::to_string(storage.size()) +
                        " bytes when it was opened; it was truncated since, or its disk fails. Restore it and open the "
                        "data set again");
  }

 private:
  void copy_of_plane(std::size_t plane, std::size_t at, std::size_t end) noexcept {
    const auto after = std::upper_bound(plan_.starts.begin(), plan_.starts.end(), at);
    auto i = static_cast<std::size_t>(after - plan_.starts.begin()) - 1;
    std::byte* const out = out_ + plane * plan_.plane_bytes;
    for (; at < end; ++i) {
      current_ = i;
      if (i + RunCopier::kAhead < plan_.runs.size()) {
        const Run& next = plan_.runs[i + RunCopier::kAhead];
        RunCopier::prefetch(plane_of(next, plane), bytes_of(next));
      }
      const std::size_t stop = std::min(end, plan_.starts[i + 1]);
      copy_of_row(i, plane, out, at, stop);
      at = stop;
    }
  }

  // What a row has at [at, end) of the plane: items, and zeros behind them.
  void copy_of_row(std::size_t i, std::size_t plane, std::byte* out, std::size_t at, std::size_t end) noexcept {
    const Run& run = plan_.runs[i];
    const std::size_t inside = at - plan_.starts[i];
    const RaggedForm& form = field_.form_;
    const std::size_t filled = static_cast<std::size_t>(run.items) * form.out_item_bytes();
    if (inside < filled) {
      const std::size_t elements = std::min(end - at, filled - inside) / form.out_size();
      const std::size_t skipped = inside / form.out_size() * form.in_size();
      copy_run(i, plane_of(run, plane) + skipped, out + at, elements);
      at += elements * form.out_size();
    }
    if (at < end) form.pad(out + at, end - at, at);
  }

  void copy_run(std::size_t i, const std::byte* src, std::byte* out, std::size_t elements) noexcept {
    const Run& run = plan_.runs[i];
    if (plan_.increments.empty()) {
      copier_.copy(*run.segment->values, {src, out, elements, bytes_of(run)});
      return;
    }
    if (!run.segment->values->enter(src, elements)) found_.in_cache = false;
    field_.form_.put(plan_, i, src, out, elements);
  }

  [[nodiscard]] static const std::byte* plane_of(const Run& run, std::size_t plane) noexcept {
    return run.data + plane * run.segment->plane_stride;
  }

  [[nodiscard]] std::size_t bytes_of(const Run& run) const noexcept {
    return static_cast<std::size_t>(run.items) * field_.form_.ragged().item_bytes();
  }

  const RaggedReader& field_;
  const RaggedPlan& plan_;
  std::byte* out_;
  RunCopier copier_;
  Filled& found_;
  volatile std::size_t current_ = 0;  // read after a jump out of copy()
};

FieldReader::Files RaggedReader::files() const noexcept {
  Files files;
  const bool large = form_.ragged().row_bytes() / form_.ragged().planes() > kLargeRow;
  visit_storages([&](const Storage& storage) {
    files.past_cache = files.past_cache || storage.past_cache();
    if (storage.past_cache()) return;
    files.mapped = files.mapped || storage.mapped();
    files.knows_residency = files.knows_residency && storage.knows_residency();
  });
  files.large_rows = files.mapped && large;
  files.small_rows = files.mapped && !large;
  return files;
}

std::unique_ptr<const FieldPlan> RaggedReader::plan(std::span<const std::int64_t> rows, Seeds) const {
  auto plan = std::make_unique<RaggedPlan>();
  form_.plan(rows, *plan);
  plan->values_work = plan->numbers_at;
  plan->work = plan->bytes;
  plan->in_order = true;
  return plan;
}

void RaggedReader::fill(const FieldPlan& base, std::byte* out, std::size_t begin, std::size_t end,
                        const ColdReads& cold, Filled& found) const {
  const auto& plan = static_cast<const RaggedPlan&>(base);
  Part part(*this, plan, out, cold, found);
  const std::size_t values_end = std::min(end, plan.plane_bytes * form_.ragged().planes());
  const void* const fault = guarded([&]() noexcept { part.copy(begin, values_end); });
  if (fault != nullptr) part.fail(fault);
  const std::size_t from = std::max(begin, plan.numbers_at);
  const std::size_t to = std::min(end, plan.numbers_at + plan.numbers_bytes());
  if (from < to) plan.put_numbers(out, from - plan.numbers_at, to - plan.numbers_at);
}

// Rows that one read can give are not cut: each goes to the side where more of it lies.
std::size_t RaggedReader::edge(const FieldPlan& base, std::size_t at) const noexcept {
  const auto& plan = static_cast<const RaggedPlan&>(base);
  const std::size_t planes = form_.ragged().planes();
  if (plan.plane_bytes == 0 || at >= plan.plane_bytes * planes) return at;
  const std::size_t first = at / plan.plane_bytes * plan.plane_bytes;
  const auto after = std::upper_bound(plan.starts.begin(), plan.starts.end(), at - first);
  const Run& run = plan.runs[static_cast<std::size_t>(after - plan.starts.begin()) - 1];
  const std::size_t bytes = static_cast<std::size_t>(run.items) * form_.ragged().item_bytes();
  if ((bytes <= kLargeRow && !run.segment->values->past_cache()) || DirectFile::room_for(bytes) > kScratch) return at;
  const std::size_t begin = first + *(after - 1);
  const std::size_t end = first + *after;
  return at - begin < end - at ? begin : end;
}

// A row whose offsets cannot be read is left out here: whoever wants it is told by plan().
void RaggedReader::visit(std::span<const std::int64_t> rows, const Stored& each) const {
  for (const std::int64_t row : rows) {
    Run run;
    try {
      form_.ragged().find({&row, 1}, {&run, 1});
    } catch (const ReadError&) {
      continue;
    }
    const std::size_t bytes = static_cast<std::size_t>(run.items) * form_.ragged().item_bytes();
    for (std::size_t plane = 0; plane < form_.ragged().planes(); ++plane) {
      each(*run.segment->values, run.data + plane * run.segment->plane_stride, bytes);
    }
  }
}

void RaggedReader::visit_storages(const std::function<void(const Storage&)>& each) const {
  for (const RaggedSegment& segment : form_.ragged().segments()) {
    each(*segment.values);
    each(*segment.offsets);
  }
}

}  // namespace memload
