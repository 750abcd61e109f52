#include "python/names.h"

#include <array>
#include <utility>

namespace memload::python {

DType dtype_named(std::string_view code) {
  constexpr std::array<std::pair<std::string_view, DType>, 10> kNames{{{"U8", DType::u8},
                                                                       {"I8", DType::i8},
                                                                       {"I16", DType::i16},
                                                                       {"U16", DType::u16},
                                                                       {"I32", DType::i32},
                                                                       {"I64", DType::i64},
                                                                       {"F16", DType::f16},
                                                                       {"BF16", DType::bf16},
                                                                       {"F32", DType::f32},
                                                                       {"F64", DType::f64}}};
  for (const auto& [name, dtype] : kNames) {
    if (name == code) return dtype;
  }
  throw std::invalid_argument("elements of dtype " + std::string(code) + " cannot be cast");
}

Isa isa_named(std::string_view name) {
  if (name.empty()) return best_isa();
  std::string available;
  for (const Isa isa : available_isas()) {
    if (name_of(isa) == name) return isa;
    available.append(" ").append(name_of(isa));
  }
  throw std::invalid_argument("instruction set " + std::string(name) +
                              " is not available here; there are:" + available);
}

}  // namespace memload::python
