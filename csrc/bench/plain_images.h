// The ceiling of images whose pixels change places: planned images of bytes are cropped, mirrored, laid out and cast by
// the loops that one would write down, into reused memory. Compilers make vector code of them for the instruction sets
// that the processor has; nothing is written for vectors by hand, nothing is asked for ahead, and no store bypasses the
// cache.
//
//   batch b:  slot b % 4    | thread 0: row, row, ... | thread 1: row, row, ... | ...
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bench/ceiling.h"
#include "cast/affine.h"
#include "cast/cast.h"
#include "cast/image.h"
#include "core/base/memory.h"

namespace memload::bench {

// What is planned. Whoever makes it keeps the images mapped for the life of the PlainImages.
struct ImagePlan {
  std::vector<const std::byte*> images;  // where each planned image of uint8 begins, in the plan's order
  std::vector<ImageDraw> draws;          // of each
  ImageShape shape{};                    // stored as (H, W, C), with 1, 3 or 4 channels
  DType to = DType::f32;                 // or bf16
  Affine constants;                      // of each channel, or one for all; `inner` has no meaning
};

class PlainImages {
 public:
  // A remainder behind whole batches is left out. Throws std::invalid_argument for a plan without a whole batch, with
  // other images, or with a draw that is not within its image.
  PlainImages(ImagePlan plan, std::size_t batch_rows, std::size_t threads);

  // Makes that many batches, from the plan's start and over again. One caller at a time. Throws std::runtime_error if a
  // mapped file was cut short.
  CeilingRun run(std::size_t batches);

  [[nodiscard]] std::size_t batches_in_plan() const noexcept { return plan_.images.size() / batch_rows_; }
  [[nodiscard]] std::size_t batch_bytes() const noexcept { return batch_rows_ * image_bytes_; }
  // What batch `batch` of the last run wrote; overwritten four batches later.
  [[nodiscard]] std::span<const std::byte> written(std::size_t batch) const;

 private:
  void make_share(std::size_t thread, std::size_t batches) const;

  ImagePlan plan_;
  std::size_t batch_rows_;
  std::size_t threads_;
  std::size_t image_bytes_;
  std::vector<HugeMemory> slots_;
};

}  // namespace memload::bench
