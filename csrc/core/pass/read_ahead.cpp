#include "core/pass/read_ahead.h"

#include <algorithm>
#include <span>
#include <utility>

#include "core/pass/batch_task.h"

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

AdviceTask::AdviceTask(std::shared_ptr<TaskGroup> group, std::vector<std::int64_t> rows,
                       std::shared_ptr<const Gather> gather, std::shared_ptr<const Residency> residency, bool blocks,
                       Advised advised)
    : Task(std::move(group), (rows.size() + piece_rows(blocks) - 1) / piece_rows(blocks)),
      rows_(std::move(rows)),
      gather_(std::move(gather)),
      residency_(std::move(residency)),
      blocks_(blocks),
      advised_(std::move(advised)) {}

void AdviceTask::run(std::size_t piece) noexcept {
  const std::size_t rows = piece_rows(blocks_);
  const std::size_t begin = piece * rows;
  const auto part = std::span<const std::int64_t>(rows_).subspan(begin, std::min(rows, rows_.size() - begin));
  std::optional<bool> resident;
  if (gather_->files().knows_residency) resident = gather_->resident(part.front());
  const std::uint64_t before = disk_reads_of_thread().bytes;
  if (blocks_) {
    gather_->read_blocks(part);
  } else {
    gather_->advise(part, /*small_only=*/residency_->direct());
  }
  advised_(resident, disk_reads_of_thread().bytes - before);
}

std::size_t AdviceTask::piece_rows(bool blocks) noexcept { return blocks ? kBlockPiece : kAdvisePiece; }

}  // namespace memload
