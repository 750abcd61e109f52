#include "cast/parallel.h"

#include <algorithm>
#include <thread>

namespace memload {
namespace {

// About 100 us of work: several times what starting a thread costs.
constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

// Elements per piece: whole pages of results, so that no two threads write to one.
std::size_t elements_per_piece(std::size_t n, std::size_t element_bytes, std::size_t threads) {
  const std::size_t worthwhile = kPieceBytes / element_bytes;
  const std::size_t share = (n + threads - 1) / threads;
  const std::size_t page = 4096 / element_bytes;
  return (std::max(worthwhile, share) + page - 1) / page * page;
}

void move_parallel(Mover mover, std::size_t in_size, std::size_t out_size, const std::byte* src, std::byte* dst,
                   std::size_t n, std::size_t threads) {
  const std::size_t piece = elements_per_piece(n, out_size, std::max<std::size_t>(threads, 1));
  const auto run = [=](std::size_t first) noexcept {
    mover(src + first * in_size, dst + first * out_size, std::min(piece, n - first), first);
    store_fence();
  };
  std::vector<std::jthread> helpers;
  for (std::size_t first = piece; first < n; first += piece) helpers.emplace_back(run, first);
  if (n > 0) run(0);
}

}  // namespace

void cast_parallel(CastRule rule, Isa isa, Store store, const std::byte* src, std::byte* dst, std::size_t n,
                   std::size_t threads) {
  move_parallel(find_cast(rule, isa, store), size_of(rule.from), size_of(rule.to), src, dst, n, threads);
}

void affine_parallel(DType from, DType to, const Affine& rule, Isa isa, Store store, const std::byte* src,
                     std::byte* dst, std::size_t n, std::size_t threads) {
  const AffineCast cast(from, to, rule, isa, store);
  move_parallel(Mover(cast), size_of(from), size_of(to), src, dst, n, threads);
}

}  // namespace memload
