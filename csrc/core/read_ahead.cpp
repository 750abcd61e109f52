#include "core/read_ahead.h"

#include <algorithm>
#include <span>
#include <utility>

namespace memload {
namespace {

constexpr std::size_t kAdvisePiece = 16;  // rows
constexpr std::size_t kBlockPiece = 2;    // rows whose blocks are waited for

std::size_t rows_that_fill_the_queue(std::size_t row_bytes) {
  return std::min(ReadAhead::kBytes / std::max<std::size_t>(1, row_bytes), ReadAhead::kRows);
}

}  // namespace

ReadAhead::ReadAhead(const Gather& gather, std::size_t batch_rows)
    : rows_(gather.rows()), window_(std::max(batch_rows, rows_that_fill_the_queue(gather.row_bytes()))) {}

std::vector<std::int64_t> ReadAhead::due(const PlanQueue& plan) {
  asked_ = std::max(asked_, plan.taken());
  const std::size_t until = plan.taken() + window_;
  if (asked_ >= until) return {};
  std::vector<std::int64_t> rows = plan.peek(asked_, until - asked_);
  std::erase_if(rows, [n = rows_](std::int64_t row) { return row < 0 || row >= n; });
  asked_ += rows.size();
  return rows;
}

Advice::Advice(std::shared_ptr<Crew> crew, std::vector<std::int64_t> rows, std::shared_ptr<const Gather> gather,
               std::shared_ptr<const Residency> residency, bool blocks, Sampled sampled)
    : Job(std::move(crew), (rows.size() + piece_rows(blocks) - 1) / piece_rows(blocks)),
      rows_(std::move(rows)),
      gather_(std::move(gather)),
      residency_(std::move(residency)),
      blocks_(blocks),
      sampled_(std::move(sampled)) {}

void Advice::run(std::size_t piece) noexcept {
  const std::size_t rows = piece_rows(blocks_);
  const std::size_t begin = piece * rows;
  const auto part = std::span<const std::int64_t>(rows_).subspan(begin, std::min(rows, rows_.size() - begin));
  if (gather_->files().knows_residency) sampled_(gather_->resident(part.front()));
  if (blocks_) {
    gather_->read_blocks(part);
  } else {
    gather_->advise(part, /*small_only=*/residency_->direct());
  }
}

std::size_t Advice::piece_rows(bool blocks) noexcept { return blocks ? kBlockPiece : kAdvisePiece; }

}  // namespace memload
