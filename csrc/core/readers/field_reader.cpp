#include "core/readers/field_reader.h"

#include <stdexcept>
#include <string>

namespace memload {
namespace {

constexpr std::size_t kLargestBatch = std::size_t{1} << 56;  // more than any address space; sums of such do not wrap

}  // namespace

std::size_t batch_bytes(std::size_t rows, std::size_t row_bytes) {
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(rows, row_bytes, &bytes) || bytes > kLargestBatch) {
    throw std::length_error("a batch of " + std::to_string(rows) + " rows is larger than any memory");
  }
  return bytes;
}

}  // namespace memload
