#include "cast/cast.h"
#include <cstring>
#include <stdexcept>
namespace memload {
static void cp(const std::byte* s, std::byte* d, std::size_t n) noexcept { std::memcpy(d, s, n); }
std::size_t size_of(DType d) noexcept { switch(d){case DType::u8:case DType::i8:return 1;case DType::i16:case DType::f16:case DType::bf16:return 2;case DType::i32:case DType::f32:return 4;default:return 8;} }
std::vector<Isa> available_isas() { return {Isa::scalar}; }
Isa best_isa() { return Isa::scalar; }
std::string_view name_of(Isa) noexcept { return "scalar"; }
CastFn find_cast(CastRule, Isa, Store) { throw std::invalid_argument("none"); }
CopyFn find_copy(Isa, Store) { return cp; }
void store_fence() noexcept {}
}
