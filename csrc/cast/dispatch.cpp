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
  throw std::invalid_argument("instruction set " + std::string(name_of(isa)) +
                              " is not available on this machine (available, best last: " +
                              [] {
                                std::string names;
                                for (const Isa available : available_isas()) {
                                  names += (names.empty() ? "" : ", ") + std::string(name_of(available));
                                }
                                return names;
                              }() +
                              ")");
}

struct NamedDType {
  std::string_view name;
  DType dtype;
};

constexpr NamedDType kDTypes[] = {{"U8", DType::u8},     {"I8", DType::i8},   {"I16", DType::i16},
                                  {"I32", DType::i32},   {"I64", DType::i64}, {"F16", DType::f16},
                                  {"BF16", DType::bf16}, {"F32", DType::f32}, {"F64", DType::f64}};

}  // namespace

std::size_t size_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::u8:
    case DType::i8:
      return 1;
    case DType::i16:
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
  for (const NamedDType& entry : kDTypes) {
    if (entry.dtype == dtype) return entry.name;
  }
  return "?";
}

DType parse_dtype(std::string_view name) {
  for (const NamedDType& entry : kDTypes) {
    if (entry.name == name) return entry.dtype;
  }
  throw std::invalid_argument("no cast for dtype \"" + std::string(name) +
                              "\" (known: U8, I8, I16, I32, I64, F16, BF16, F32, F64)");
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

Isa parse_isa(std::string_view name) {
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512, Isa::neon}) {
    if (name_of(isa) == name) return isa;
  }
  throw std::invalid_argument("unknown instruction set \"" + std::string(name) +
                              "\" (known: scalar, avx2, avx512, neon)");
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

CopyFn find_copy(Isa isa, Store store) {
  const Target* target = target_of(isa);
  return target == nullptr ? scalar_copy() : target->copy(store);
}

}  // namespace memload
