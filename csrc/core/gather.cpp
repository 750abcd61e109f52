#include "core/gather.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/fault_guard.h"
#include "core/memory.h"

namespace memload {
namespace {

constexpr std::size_t kSmallRow = 4096;  // below this, the hardware's prefetcher has no time to see a row's pattern
constexpr std::size_t kAhead = 8;        // rows asked for ahead of the one being copied
constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kLargestBatch = std::size_t{1} << 56;  // more than any address space; sums of such do not wrap

void prefetch(const std::byte* at, std::size_t n) noexcept {
  for (std::size_t i = 0; i < n; i += kCacheLine) __builtin_prefetch(at + i, 0, 0);
}

}  // namespace

// One field's share of a fill(): bytes [begin, end) of the field's own output.
class Gather::Part {
 public:
  Part(const Field& field, std::span<const std::int64_t> rows, std::byte* out, std::size_t begin, std::size_t end,
       const ColdReads& cold, Filled& found)
      : field_(field), rows_(rows), out_(out), begin_(begin), end_(end), cold_(cold), found_(found) {}

  // Runs under the fault guard: owns nothing, throws nothing.
  void copy() noexcept {
    const Column& column = *field_.column;
    const std::size_t row_bytes = field_.out_row_bytes;
    const bool small = column.row_bytes() <= kSmallRow;
    const bool direct = field_.large() && !cold_.scratch.empty();
    std::size_t at = begin_;
    std::size_t inside = at % row_bytes;
    for (std::size_t i = at / row_bytes; at < end_; ++i) {
      current_ = i;
      if (small && i + kAhead < rows_.size()) prefetch(column.address(rows_[i + kAhead]), column.row_bytes());
      const std::size_t bytes = std::min(row_bytes - inside, end_ - at);
      const std::size_t elements = bytes / field_.out_size;
      const std::size_t skipped = inside / field_.out_size * field_.in_size;
      const Extent extent = column.at(rows_[i]);
      const std::byte* const src = extent.data + skipped;
      const Storage& storage = *extent.segment->storage;
      if (direct && storage.mapped()) {
        copy_directly(storage, src, out_ + at, elements);
      } else {
        copy_mapped(storage, src, out_ + at, elements);
      }
      at += bytes;
      inside = 0;
    }
  }

  [[noreturn]] void fail(const void* address) const {
    const Extent extent = field_.column->at(rows_[current_]);
    const Storage& storage = *extent.segment->storage;
    const auto offset = static_cast<std::uint64_t>(static_cast<const std::byte*>(address) - storage.data());
    throw ReadError(storage.name(), extent.row_in_segment, offset,
                    "the file had " + std::to_string(storage.size()) +
                        " bytes when it was opened; it was truncated since, or its disk fails. Restore it and open the "
                        "data set again");
  }

 private:
  void copy_mapped(const Storage& storage, const std::byte* src, std::byte* out, std::size_t elements) noexcept {
    const std::size_t bytes = elements * field_.in_size;
    if (!storage.enter(src, bytes)) found_.in_cache = false;
    if (cold_.ask && field_.column->row_bytes() > kSmallRow && !storage.resident(src)) storage.advise(src, bytes);
    field_.kernel(src, out, elements);
  }

  // As many elements at once as the scratch can hold.
  void copy_directly(const Storage& storage, const std::byte* src, std::byte* out, std::size_t elements) noexcept {
    const std::size_t most = (cold_.scratch.size() - kPage) / field_.in_size;
    while (elements != 0) {
      const std::size_t n = std::min(elements, most);
      if (const std::byte* const read = read_directly(storage, src, n * field_.in_size)) {
        field_.kernel(read, out, n);
      } else {
        copy_mapped(storage, src, out, n);
      }
      src += n * field_.in_size;
      out += n * field_.out_size;
      elements -= n;
    }
  }

  // nullptr: the mapping is to be read.
  const std::byte* read_directly(const Storage& storage, const std::byte* src, std::size_t bytes) noexcept {
    if (storage.knows_residency() && storage.resident(src, bytes)) {
      ++found_.resident_reads;
      return nullptr;
    }
    const std::byte* const read = storage.read_direct(src, bytes, cold_.scratch);
    if (read != nullptr) {
      found_.direct_bytes += bytes;
    } else {
      found_.refused = found_.refused || !storage.reads_directly();
      storage.advise(src, bytes);
    }
    return read;
  }

  const Field& field_;
  std::span<const std::int64_t> rows_;
  std::byte* out_;
  std::size_t begin_;
  std::size_t end_;
  const ColdReads& cold_;
  Filled& found_;
  volatile std::size_t current_ = 0;  // read after a jump out of copy()
};

Gather::Gather(std::vector<FieldSpec> fields, Isa isa, Store store) : store_(store) {
  if (fields.empty()) throw std::invalid_argument("a batch needs at least one field");
  rows_ = fields.front().column->rows();
  for (FieldSpec& spec : fields) {
    const Column& column = *spec.column;
    if (column.rows() != rows_) {
      throw std::invalid_argument("fields differ in length: " + std::to_string(rows_) + " and " +
                                  std::to_string(column.rows()) + " rows");
    }
    Field field{spec.column, nullptr, 1, 1, column.row_bytes()};
    if (spec.cast) {
      field.kernel = find_cast(*spec.cast, isa, store);
      field.in_size = size_of(spec.cast->from);
      field.out_size = size_of(spec.cast->to);
      if (column.row_bytes() % field.in_size != 0) {
        throw std::invalid_argument("a row of " + std::to_string(column.row_bytes()) +
                                    " bytes is not a whole number of elements of " + std::to_string(field.in_size));
      }
      field.out_row_bytes = column.row_bytes() / field.in_size * field.out_size;
    } else {
      field.kernel = find_copy(isa, store);
    }
    in_row_bytes_ += column.row_bytes();
    for (const Segment& segment : column.segments()) {
      maps_files_ = maps_files_ || segment.storage->mapped();
      bool& maps_such_rows = field.large() ? maps_large_rows_ : maps_small_rows_;
      maps_such_rows = maps_such_rows || segment.storage->mapped();
      knows_residency_ = knows_residency_ && segment.storage->knows_residency();
    }
    fields_.push_back(std::move(field));
  }
}

BatchLayout Gather::layout(std::size_t rows) const {
  BatchLayout layout;
  for (const Field& field : fields_) {
    std::size_t bytes = 0;
    if (__builtin_mul_overflow(rows, field.out_row_bytes, &bytes) || bytes > kLargestBatch - layout.bytes) {
      throw std::length_error("a batch of " + std::to_string(rows) + " rows is larger than any memory");
    }
    layout.offsets.push_back(layout.bytes);
    layout.bytes += round_up(bytes, kAlign);
  }
  return layout;
}

Filled Gather::fill(std::span<const std::int64_t> rows, const BatchLayout& layout, std::byte* slot, std::size_t begin,
                    std::size_t end, const ColdReads& cold) const {
  Filled found;
  for (std::size_t f = 0; f < fields_.size(); ++f) {
    const std::size_t start = layout.offsets[f];
    const std::size_t stop = start + rows.size() * fields_[f].out_row_bytes;
    const std::size_t from = std::max(begin, start);
    const std::size_t to = std::min(end, stop);
    if (from >= to) continue;
    Part part(fields_[f], rows, slot + start, from - start, to - start, cold, found);
    const void* const fault = guarded([&part]() noexcept { part.copy(); });
    if (fault != nullptr) part.fail(fault);
  }
  if (store_ == Store::streaming) store_fence();
  return found;
}

std::size_t Gather::row_edge(std::size_t rows, const BatchLayout& layout, std::size_t at) const noexcept {
  const auto next = std::upper_bound(layout.offsets.begin(), layout.offsets.end(), at);
  const auto f = static_cast<std::size_t>(next - layout.offsets.begin()) - 1;
  const Field& field = fields_[f];
  if (!field.large() || DirectFile::room_for(field.column->row_bytes()) > kScratch) return at;
  const std::size_t nearest = (at - layout.offsets[f] + field.out_row_bytes / 2) / field.out_row_bytes;
  return layout.offsets[f] + std::min(nearest, rows) * field.out_row_bytes;
}

void Gather::advise(std::span<const std::int64_t> rows, bool small_only) const noexcept {
  for (const Field& field : fields_) {
    if (small_only && field.large()) continue;
    const Storage* storage = nullptr;
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
    for (const std::int64_t row : rows) {
      const Extent extent = field.column->at(row);
      const std::byte* const stop = extent.data + field.column->row_bytes();
      if (extent.segment->storage.get() == storage && extent.data >= begin && extent.data <= end) {
        end = std::max(end, stop);
        continue;
      }
      if (storage != nullptr) storage->advise(begin, static_cast<std::size_t>(end - begin));
      storage = extent.segment->storage.get();
      begin = extent.data;
      end = stop;
    }
    if (storage != nullptr) storage->advise(begin, static_cast<std::size_t>(end - begin));
  }
}

void Gather::read_blocks(std::span<const std::int64_t> rows) const noexcept {
  for (const Field& field : fields_) {
    for (const std::int64_t row : rows) {
      const Extent extent = field.column->at(row);
      extent.segment->storage->read_blocks(extent.data, field.column->row_bytes());
    }
  }
}

void Gather::expect_random_reads(bool blocks) const noexcept {
  for (const Field& field : fields_) {
    for (const Segment& segment : field.column->segments()) segment.storage->expect_random_reads(blocks);
  }
}

bool Gather::resident(std::int64_t row) const noexcept {
  return std::all_of(fields_.begin(), fields_.end(), [row](const Field& field) {
    const Extent extent = field.column->at(row);
    return field.column->row_bytes() == 0 || extent.segment->storage->resident(extent.data);
  });
}

void gather_rows(const std::shared_ptr<const Column>& column, std::span<const std::int64_t> rows, std::byte* out) {
  install_fault_handler();
  for (const std::int64_t row : rows) {
    if (row < 0 || row >= column->rows()) {
      throw std::out_of_range("row " + std::to_string(row) + " is not one of the " + std::to_string(column->rows()) +
                              " rows");
    }
  }
  const Gather gather({{column, std::nullopt}}, Isa::scalar, Store::cached);
  const BatchLayout layout = gather.layout(rows.size());
  gather.fill(rows, layout, out, 0, rows.size() * column->row_bytes());
}

}  // namespace memload
