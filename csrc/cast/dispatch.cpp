// The one place that chooses an instruction set.
#include <stdexcept>
#include <string>

#include "cast/target.h"

namespace memload {
namespace {

// nullptr for the scalar version; throws for an instruction set that this build or this CPU lacks.
const Target* target_of(Isa isa) {
  if (isa == Isa::scalar) return nullptr;
  for (const Target& target : targets()) {
    if (target.isa == isa && target.runs_here()) return &target;
  }
  throw std::invalid_argument("instruction set " + std::string(name_of(isa)) + " is not available here; the best is " +
                              std::string(name_of(best_isa())));
}

}  // namespace

std::size_t size_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::u8:
    case DType::i8:
      return 1;
    case DType::i16:
    case DType::u16:
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::i32:
    case DType::f32:
      return 4;
    case DType::i64:
    case DType::f64:
      return 8;
  }
  return 0;
}

std::string_view name_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::u8:
      return "U8";
    case DType::i8:
      return "I8";
    case DType::i16:
      return "I16";
    case DType::u16:
      return "U16";
    case DType::i32:
      return "I32";
    case DType::i64:
      return "I64";
    case DType::f16:
      return "F16";
    case DType::bf16:
      return "BF16";
    case DType::f32:
      return "F32";
    case DType::f64:
      return "F64";
  }
  return "?";
}

std::vector<Isa> available_isas() {
  std::vector<Isa> isas{Isa::scalar};
  for (const Target& target : targets()) {
    if (target.runs_here()) isas.push_back(target.isa);
  }
  return isas;
}

Isa best_isa() { return available_isas().back(); }

std::string_view name_of(Isa isa) noexcept {
  switch (isa) {
    case Isa::scalar:
      return "scalar";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
    case Isa::neon:
      return "neon";
  }
  return "?";
}

CastFn find_cast(CastRule rule, Isa isa, Store store) {
  const Target* target = target_of(isa);
  const CastFn scalar = scalar_cast(rule);
  if (scalar == nullptr) {
    throw std::invalid_argument("no cast from " + std::string(name_of(rule.from)) + " to " +
                                std::string(name_of(rule.to)) + " (the target is one of BF16, F16, F32, F64)");
  }
  const CastFn vector = target == nullptr ? nullptr : target->cast(rule, store);
  return vector == nullptr ? scalar : vector;
}

AffineFn find_affine(DType from, DType to, Arithmetic how, Isa isa, Store store) {
  const Target* target = target_of(isa);
  return target == nullptr ? nullptr : target->affine(from, to, how, store);
}

SplitFn find_split(std::size_t element_bytes, std::size_t channels, Isa isa) {
  const Target* target = target_of(isa);
  const SplitFn scalar = scalar_split(element_bytes, channels);
  const SplitFn vector = target == nullptr ? nullptr : target->split(element_bytes, channels);
  return vector == nullptr ? scalar : vector;
}

ResizeLoops find_resize(Isa isa) {
  const Target* target = target_of(isa);
  return target == nullptr ? scalar_resize() : target->resize();
}

MirrorFn find_mirror(std::size_t pixel_bytes, Isa isa) {
  const Target* target = target_of(isa);
  const MirrorFn vector = target == nullptr ? nullptr : target->mirror(pixel_bytes);
  return vector == nullptr ? scalar_mirror(pixel_bytes) : vector;
}

BetweenFn find_between(Isa isa, Store store) {
  const Target* target = target_of(isa);
  return target == nullptr ? scalar_between() : target->between(store);
}

CopyFn find_copy(Isa isa, Store store) {
  const Target* target = target_of(isa);
  return target == nullptr ? scalar_copy() : target->copy(store);
}

}  // namespace memload
