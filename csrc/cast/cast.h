// The cast rule: its definition for reading elements of one dtype and writing them as another, and its implementations.
//
// Reference in torch operations, reproduced to the bit for every input:
//
//     y = x.to(dtype)                                  # always
//     y = (y - 127) / 255.0                            # if norm_removed and x is uint8
//
// Rounding is to nearest even. For bf16 and f16 each of the three operations is computed in float and rounded
// to the target (as torch's CPU kernels do); for uint8 inputs only the division rounds. Conversions from wider
// integers and from f64 to bf16/f16 pass through float, as torch's do. A NaN stays a NaN: as bf16 it is 0x7FC0 (torch's
// kernels give that or 0xFFFF, by processor and strides); else it becomes quiet and keeps its sign and upper bits.
//
// The scalar version is the definition; every instruction set agrees with it to the bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace memload {

// Element types that can be cast. Others are only copied.
enum class DType : std::uint8_t { u8, i8, i16, u16, i32, i64, f16, bf16, f32, f64 };

enum class Isa : std::uint8_t { scalar, avx2, avx512, neon };

// How results are written: through the cache, or past it (non-temporal; an ordinary store where the machine has none).
enum class Store : std::uint8_t { cached, streaming };

struct CastRule {
  DType from;
  DType to;
  bool norm_removed = false;  // without effect unless from == u8
};

// Reads n elements at src and writes n elements at dst. src may have any alignment; dst is aligned to its element.
// The ranges do not overlap. A streaming function leaves its stores unordered: call store_fence() before publishing.
using CastFn = void (*)(const std::byte* src, std::byte* dst, std::size_t n) noexcept;

// Copies n bytes under the same terms, except that dst may have any alignment.
using CopyFn = void (*)(const std::byte* src, std::byte* dst, std::size_t n) noexcept;

[[nodiscard]] std::size_t size_of(DType dtype) noexcept;

[[nodiscard]] std::string_view name_of(DType dtype) noexcept;  // its name in safetensors: "U8", "BF16", ...

// The instruction sets that this build holds and this CPU runs, the best last. Never empty.
[[nodiscard]] std::vector<Isa> available_isas();
[[nodiscard]] Isa best_isa();
[[nodiscard]] std::string_view name_of(Isa isa) noexcept;  // "scalar", "avx2", "avx512" or "neon"

// Throws std::invalid_argument for a rule that has no implementation or an instruction set that is not available.
[[nodiscard]] CastFn find_cast(CastRule rule, Isa isa, Store store);
[[nodiscard]] CopyFn find_copy(Isa isa, Store store);

// Orders the streaming stores of this thread before its next stores.
void store_fence() noexcept;

}  // namespace memload
