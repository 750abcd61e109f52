#include "core/ragged_reader.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/direct_file.h"
#include "core/error.h"
#include "core/fault_guard.h"
#include "core/gather.h"
#include "core/memory.h"
#include "core/run_copier.h"

namespace memload {
namespace {

constexpr std::size_t kAhead = 8;  // rows asked for ahead of the one being copied

template <class Number>
void copy_increased(const std::byte* src, std::byte* dst, std::size_t bytes, std::int64_t by) noexcept {
  const auto increment = static_cast<Number>(by);
  for (std::size_t i = 0; i < bytes; i += sizeof(Number)) {
    Number number;
    std::memcpy(&number, src + i, sizeof number);
    number = static_cast<Number>(static_cast<std::make_unsigned_t<Number>>(number) +
                                 static_cast<std::make_unsigned_t<Number>>(increment));
    std::memcpy(dst + i, &number, sizeof number);
  }
}

// n bytes of the pattern again and again, of which a first byte lies at every multiple of its size; zeros if it is
// empty.
void fill_pad(std::byte* out, std::size_t n, std::size_t at, std::span<const std::byte> pattern) noexcept {
  if (pattern.empty()) {
    std::memset(out, 0, n);
    return;
  }
  std::size_t filled = std::min(n, pattern.size());
  for (std::size_t i = 0; i < filled; ++i) out[i] = pattern[(at + i) % pattern.size()];
  while (filled < n) {  // what is there repeats after each whole pattern
    const std::size_t more = std::min(filled, n - filled);
    std::memcpy(out + filled, out, more);
    filled += more;
  }
}

void check_rows(std::span<const std::int64_t> rows, std::int64_t count) {
  for (const std::int64_t row : rows) {
    if (row < 0 || row >= count) {
      throw std::out_of_range("row " + std::to_string(row) + " is not one of the " + std::to_string(count) + " rows");
    }
  }
}

}  // namespace

struct RaggedReader::Plan : FieldPlan {
  std::vector<Run> runs;
  std::vector<std::int64_t> numbers;     // the second output
  std::vector<std::size_t> starts;       // of each row in a plane of the output, in bytes; one more for the end
  std::vector<std::int64_t> increments;  // of each row, where items are increased
  std::size_t numbers_at = 0;            // where the second output begins
  std::size_t plane_bytes = 0;           // of the output
};

// Bytes [begin, end) of the first output.
class RaggedReader::Part {
 public:
  Part(const RaggedReader& field, const Plan& plan, std::byte* out, const ColdReads& cold, Filled& found)
      : field_(field),
        plan_(plan),
        out_(out),
        copier_(field.kernel_, field.in_size_, field.out_size_, cold, found),
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
      if (i + kAhead < plan_.runs.size()) {
        const Run& next = plan_.runs[i + kAhead];
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
    const std::size_t filled = static_cast<std::size_t>(run.items) * field_.out_item_bytes_;
    if (inside < filled) {
      const std::size_t elements = std::min(end - at, filled - inside) / field_.out_size_;
      const std::size_t skipped = inside / field_.out_size_ * field_.in_size_;
      copy_run(i, plane_of(run, plane) + skipped, out + at, elements);
      at += elements * field_.out_size_;
    }
    if (at < end) fill_pad(out + at, end - at, at, field_.ragged_->pad());
  }

  void copy_run(std::size_t i, const std::byte* src, std::byte* out, std::size_t elements) noexcept {
    const Run& run = plan_.runs[i];
    if (plan_.increments.empty()) {
      copier_.copy(*run.segment->values, src, out, elements, bytes_of(run));
      return;
    }
    if (!run.segment->values->enter(src, elements)) found_.in_cache = false;
    if (field_.ragged_->item_bytes() == sizeof(std::int32_t)) {
      copy_increased<std::int32_t>(src, out, elements, plan_.increments[i]);
    } else {
      copy_increased<std::int64_t>(src, out, elements, plan_.increments[i]);
    }
  }

  [[nodiscard]] static const std::byte* plane_of(const Run& run, std::size_t plane) noexcept {
    return run.data + plane * run.segment->plane_stride;
  }

  [[nodiscard]] std::size_t bytes_of(const Run& run) const noexcept {
    return static_cast<std::size_t>(run.items) * field_.ragged_->item_bytes();
  }

  const RaggedReader& field_;
  const Plan& plan_;
  std::byte* out_;
  RunCopier copier_;
  Filled& found_;
  volatile std::size_t current_ = 0;  // read after a jump out of copy()
};

RaggedReader::RaggedReader(std::shared_ptr<const Ragged> ragged, const std::optional<CastRule>& cast, Isa isa,
                           Store store)
    : ragged_(std::move(ragged)), kernel_(cast ? find_cast(*cast, isa, store) : find_copy(isa, store)) {
  if (cast) {
    if (ragged_->counts()) throw std::invalid_argument("items that are increased cannot be cast");
    in_size_ = size_of(cast->from);
    out_size_ = size_of(cast->to);
  }
  if (ragged_->item_bytes() % in_size_ != 0) {
    throw std::invalid_argument("an item of " + std::to_string(ragged_->item_bytes()) +
                                " bytes is not a whole number of elements of " + std::to_string(in_size_));
  }
  out_item_bytes_ = ragged_->item_bytes() / in_size_ * out_size_;
  if (const std::size_t pad = ragged_->pad().size(); pad != 0 && out_item_bytes_ % pad != 0) {
    throw std::invalid_argument("an item of " + std::to_string(out_item_bytes_) +
                                " bytes is not a whole number of pads of " + std::to_string(pad));
  }
}

FieldReader::Files RaggedReader::files() const noexcept {
  Files files;
  const bool large = ragged_->row_bytes() / ragged_->planes() > kLargeRow;
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

// Of both outputs, with the padding between them.
std::size_t RaggedReader::bytes_of(std::int64_t items, std::size_t rows) const {
  const std::size_t values = batch_bytes(static_cast<std::size_t>(items), ragged_->planes() * out_item_bytes_);
  return batch_bytes(1, round_up(values, kAlign) + batch_bytes(rows + 1, sizeof(std::int64_t)));
}

std::size_t RaggedReader::bound(std::size_t rows) const {
  if (!ragged_->pads()) return bytes_of(ragged_->longest(rows), rows);
  return bytes_of(static_cast<std::int64_t>(batch_bytes(rows, static_cast<std::size_t>(ragged_->longest(1)))), rows);
}

std::unique_ptr<const FieldPlan> RaggedReader::plan(std::span<const std::int64_t> rows) const {
  auto plan = std::make_unique<Plan>();
  plan->runs.resize(rows.size());
  ragged_->find(rows, plan->runs);
  plan->numbers.reserve(rows.size() + 1);
  std::int64_t items = 0;
  std::int64_t longest = 0;
  for (const Run& run : plan->runs) {
    plan->numbers.push_back(ragged_->pads() ? run.items : items);
    if (__builtin_add_overflow(items, run.items, &items)) throw std::length_error("a batch is larger than any memory");
    longest = std::max(longest, run.items);
  }
  plan->bytes_in = static_cast<std::size_t>(items) * ragged_->planes() * ragged_->item_bytes();
  if (ragged_->pads()) {
    items = static_cast<std::int64_t>(batch_bytes(rows.size(), static_cast<std::size_t>(longest)));
  } else {
    plan->numbers.push_back(items);
  }
  plan->bytes = plan->work = bytes_of(items, rows.size());  // which also says that what follows can be counted
  plan->in_order = true;
  plan->starts.reserve(rows.size() + 1);
  for (std::size_t i = 0; i <= rows.size(); ++i) {
    const auto before =
        ragged_->pads() ? i * static_cast<std::size_t>(longest) : static_cast<std::size_t>(plan->numbers[i]);
    plan->starts.push_back(before * out_item_bytes_);
  }
  plan->plane_bytes = plan->starts.back();
  plan->numbers_at = round_up(plan->plane_bytes * ragged_->planes(), kAlign);
  plan->outputs[0] = {0, items * static_cast<std::int64_t>(ragged_->planes())};
  plan->outputs[1] = {plan->numbers_at, static_cast<std::int64_t>(plan->numbers.size())};
  if (const auto& counts = ragged_->counts()) {
    plan->increments.resize(rows.size());
    counts->lengths(rows, plan->increments);
    std::int64_t sum = 0;
    for (std::int64_t& n : plan->increments) n = std::exchange(sum, sum + n);
  }
  return plan;
}

void RaggedReader::fill(const FieldPlan& base, std::byte* out, std::size_t begin, std::size_t end,
                        const ColdReads& cold, Filled& found) const {
  const auto& plan = static_cast<const Plan&>(base);
  Part part(*this, plan, out, cold, found);
  const std::size_t values_end = std::min(end, plan.plane_bytes * ragged_->planes());
  const void* const fault = guarded([&]() noexcept { part.copy(begin, values_end); });
  if (fault != nullptr) part.fail(fault);
  const std::size_t from = std::max(begin, plan.numbers_at);
  const std::size_t to = std::min(end, plan.numbers_at + plan.numbers.size() * sizeof(std::int64_t));
  if (from < to) {
    const auto* const numbers = reinterpret_cast<const std::byte*>(plan.numbers.data());
    std::memcpy(out + from, numbers + (from - plan.numbers_at), to - from);
  }
}

// Rows that one read can give are not cut: each goes to the side where more of it lies.
std::size_t RaggedReader::edge(const FieldPlan& base, std::size_t at) const noexcept {
  const auto& plan = static_cast<const Plan&>(base);
  const std::size_t planes = ragged_->planes();
  if (plan.plane_bytes == 0 || at >= plan.plane_bytes * planes) return at;
  const std::size_t first = at / plan.plane_bytes * plan.plane_bytes;
  const auto after = std::upper_bound(plan.starts.begin(), plan.starts.end(), at - first);
  const Run& run = plan.runs[static_cast<std::size_t>(after - plan.starts.begin()) - 1];
  const std::size_t bytes = static_cast<std::size_t>(run.items) * ragged_->item_bytes();
  if ((bytes <= kLargeRow && !run.segment->values->past_cache()) || DirectFile::room_for(bytes) > Gather::kScratch)
    return at;
  const std::size_t begin = first + *(after - 1);
  const std::size_t end = first + *after;
  return at - begin < end - at ? begin : end;
}

// A row whose offsets cannot be read is left out here: whoever wants it is told by plan().
void RaggedReader::visit(std::span<const std::int64_t> rows, const Stored& each) const {
  for (const std::int64_t row : rows) {
    Run run;
    try {
      ragged_->find({&row, 1}, {&run, 1});
    } catch (const ReadError&) {
      continue;
    }
    const std::size_t bytes = static_cast<std::size_t>(run.items) * ragged_->item_bytes();
    for (std::size_t plane = 0; plane < ragged_->planes(); ++plane) {
      each(*run.segment->values, run.data + plane * run.segment->plane_stride, bytes);
    }
  }
}

void RaggedReader::visit_storages(const std::function<void(const Storage&)>& each) const {
  for (const RaggedSegment& segment : ragged_->segments()) {
    each(*segment.values);
    each(*segment.offsets);
  }
}

void gather_items(const std::shared_ptr<const Ragged>& ragged, std::span<const std::int64_t> rows,
                  std::span<std::byte> out) {
  install_fault_handler();
  check_rows(rows, ragged->rows());
  const RaggedReader reader(ragged, std::nullopt, Isa::scalar, Store::cached);
  const auto plan = reader.plan(rows);
  const std::size_t bytes = static_cast<std::size_t>(plan->outputs[0].rows) * ragged->item_bytes();
  if (bytes != out.size()) {
    throw std::invalid_argument(std::to_string(rows.size()) + " rows of " + std::to_string(bytes) +
                                " bytes in all do not fill " + std::to_string(out.size()) + " bytes");
  }
  Filled found;
  HugeMemory memory;
  if (reader.files().past_cache) memory = HugeMemory(Gather::kScratch);
  reader.fill(*plan, out.data(), 0, bytes, {.memory = {memory.data(), memory.size()}}, found);
}

void checked_lengths(const Ragged& ragged, std::span<const std::int64_t> rows, std::span<std::int64_t> out) {
  install_fault_handler();
  check_rows(rows, ragged.rows());
  ragged.lengths(rows, out);
}

}  // namespace memload
