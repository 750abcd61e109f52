#include "core/readers/block_mover.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace memload {
namespace {

constexpr std::size_t kStreamedRun = 512;  // bytes: of shorter ones, streaming stores would fill too few whole lines
constexpr std::size_t kShortRun = 64;      // bytes: below it, calling a kernel costs more than what it does
constexpr std::size_t kBuffer = 4096;

template <std::size_t Bytes>
void copy_strided_by(const std::byte* src, std::size_t src_step, std::byte* dst, std::size_t dst_step, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) std::memcpy(dst + i * dst_step, src + i * src_step, Bytes);
}

// Copies n runs of `bytes`, which are so many bytes apart.
void copy_strided(const std::byte* src, std::size_t src_step, std::byte* dst, std::size_t dst_step, std::size_t bytes,
                  std::size_t n) {
  switch (bytes) {
    case 1:
      return copy_strided_by<1>(src, src_step, dst, dst_step, n);
    case 2:
      return copy_strided_by<2>(src, src_step, dst, dst_step, n);
    case 3:
      return copy_strided_by<3>(src, src_step, dst, dst_step, n);
    case 4:
      return copy_strided_by<4>(src, src_step, dst, dst_step, n);
    case 8:
      return copy_strided_by<8>(src, src_step, dst, dst_step, n);
    default:
      for (std::size_t i = 0; i < n; ++i) std::memcpy(dst + i * dst_step, src + i * src_step, bytes);
  }
}

}  // namespace

struct BlockMover::Part {
  TileBlock block;
  std::size_t item;
  std::size_t item_out;
  const std::byte* src;
  std::byte* dst;

  // Calls body(src, dst) at each turn of the loops from `first` on.
  template <class Body>
  void each(std::size_t first, const Body& body) const noexcept {
    std::array<std::size_t, TileBlock::kMostAxes> index{};
    std::size_t from = 0;
    std::size_t to = 0;
    std::size_t axis = first;
    do {
      body(src + from * item, dst + to * item_out);
      for (axis = first; axis < block.loops; ++axis) {
        const TileBlock::Loop& loop = block.loop[axis];
        from += loop.tile_step;
        to += loop.row_step;
        if (++index[axis] < loop.count) break;
        index[axis] = 0;
        from -= loop.count * loop.tile_step;
        to -= loop.count * loop.row_step;
      }
    } while (axis < block.loops);
  }
};

BlockMover::BlockMover(const std::optional<CastRule>& cast, Isa isa, Store store)
    : casts_(cast.has_value()),
      kernel_(cast ? find_cast(*cast, isa, store) : find_copy(isa, store)),
      short_kernel_(cast ? find_cast(*cast, isa, Store::cached) : find_copy(isa, Store::cached)) {
  if (!cast) return;
  in_size_ = size_of(cast->from);
  out_size_ = size_of(cast->to);
}

void BlockMover::move(const TileBlock& block, std::size_t item_bytes, const std::byte* tile_row,
                      std::byte* row) const noexcept {
  const std::size_t item_out = bytes_out(item_bytes);
  std::byte* const first = row + block.first * item_out;
  if (block.loops == 0) {
    const CopyFn kernel = block.run * item_out < kStreamedRun ? short_kernel_ : kernel_;
    kernel(tile_row, first, block.run * item_bytes / in_size_);
  } else if (block.run * item_out < kShortRun) {
    move_short_runs({block, item_bytes, item_out, tile_row, first});
  } else {
    move_runs({block, item_bytes, item_out, tile_row, first});
  }
}

void BlockMover::move_runs(const Part& part) const noexcept {
  const CopyFn kernel = part.block.run * part.item_out < kStreamedRun ? short_kernel_ : kernel_;
  const std::size_t n = part.block.run * part.item / in_size_;
  part.each(0, [&](const std::byte* src, std::byte* dst) { kernel(src, dst, n); });
}

// The longest loop is done at once: its runs are brought together, cast, and put where they belong.
void BlockMover::move_short_runs(const Part& part) const noexcept {
  Part turned = part;
  auto& loops = turned.block.loop;
  const auto end = loops.begin() + static_cast<std::ptrdiff_t>(part.block.loops);
  std::swap(*loops.begin(),
            *std::max_element(loops.begin(), end, [](const auto& a, const auto& b) { return a.count < b.count; }));
  const TileBlock::Loop inner = loops.front();
  const std::size_t in = part.block.run * part.item;
  const std::size_t out = part.block.run * part.item_out;
  const std::size_t in_step = inner.tile_step * part.item;
  const std::size_t out_step = inner.row_step * part.item_out;
  const std::size_t most = kBuffer / std::max(in, out);
  alignas(64) std::array<std::byte, kBuffer> taken;
  alignas(64) std::array<std::byte, kBuffer> done;
  turned.each(1, [&](const std::byte* src, std::byte* dst) {
    if (!casts_) return copy_strided(src, in_step, dst, out_step, in, inner.count);
    for (std::size_t i = 0; i < inner.count; i += most) {
      const std::size_t n = std::min(most, inner.count - i);
      const std::byte* from = src + i * in_step;
      if (in_step != in) {
        copy_strided(from, in_step, taken.data(), in, in, n);
        from = taken.data();
      }
      if (out_step == out) {
        short_kernel_(from, dst + i * out_step, n * in / in_size_);
      } else {
        short_kernel_(from, done.data(), n * in / in_size_);
        copy_strided(done.data(), out, dst + i * out_step, out_step, out, n);
      }
    }
  });
}

}  // namespace memload
