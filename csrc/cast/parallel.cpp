#include "cast/parallel.h"

#include <algorithm>
#include <system_error>
#include <thread>
#include <vector>

namespace memload {
namespace {

// Of results, about 100 us of work: several times what starting a thread costs.
constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

// Elements per piece: whole pages of results, so that no two threads write to one.
std::size_t elements_per_piece(std::size_t n, std::size_t element_bytes, std::size_t threads) {
  const std::size_t worthwhile = kPieceBytes / element_bytes;
  const std::size_t share = (n + threads - 1) / threads;
  const std::size_t page = 4096 / element_bytes;
  return (std::max(worthwhile, share) + page - 1) / page * page;
}

// move(src, dst, n, at) casts n elements, of which the first is number `at`.
template <class Move>
void move_parallel(const Move& move, std::size_t in_size, std::size_t out_size, const std::byte* src, std::byte* dst,
                   std::size_t n, std::size_t threads) {
  const std::size_t piece = elements_per_piece(n, out_size, std::max<std::size_t>(threads, 1));
  run_pieces((n + piece - 1) / piece, [=, &move](std::size_t number) noexcept {
    const std::size_t first = number * piece;
    move(src + first * in_size, dst + first * out_size, std::min(piece, n - first), first);
    store_fence();
  });
}

}  // namespace

std::size_t images_per_piece(std::size_t images, std::size_t image_bytes, std::size_t threads) {
  const std::size_t worthwhile = std::max<std::size_t>(1, kPieceBytes / image_bytes);
  const std::size_t most = std::max<std::size_t>(threads, 1);
  return std::max(worthwhile, (images + most - 1) / most);
}

void run_pieces(std::size_t pieces, const std::function<void(std::size_t)>& run) {
  std::vector<std::jthread> helpers;
  helpers.reserve(pieces);
  std::size_t left = 1;  // the first piece that has no thread
  try {
    for (; left < pieces; ++left) helpers.emplace_back(run, left);
  } catch (const std::system_error&) {
  }
  for (std::size_t piece = left; piece < pieces; ++piece) run(piece);
  if (pieces > 0) run(0);
}

void cast_parallel(CastRule rule, Isa isa, Store store, const std::byte* src, std::byte* dst, std::size_t n,
                   std::size_t threads) {
  const CastFn cast = find_cast(rule, isa, store);
  const auto move = [cast](const std::byte* from, std::byte* to, std::size_t count, std::size_t) noexcept {
    cast(from, to, count);
  };
  move_parallel(move, size_of(rule.from), size_of(rule.to), src, dst, n, threads);
}

void affine_parallel(DType from, DType to, const Affine& rule, Isa isa, Store store, const std::byte* src,
                     std::byte* dst, std::size_t n, std::size_t threads) {
  const AffineCast cast(from, to, rule, isa, store);
  move_parallel(cast, size_of(from), size_of(to), src, dst, n, threads);
}

}  // namespace memload
