#include "core/pass/batch_task.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

namespace memload {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

DiskReads disk_reads_of_thread() {
  constexpr std::uint64_t kBlock = 512;
  struct rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return {usage.ru_majflt, static_cast<std::uint64_t>(usage.ru_inblock) * kBlock};
}

BatchTask::BatchTask(std::shared_ptr<TaskGroup> group, std::shared_ptr<const Gather> gather,
                     std::shared_ptr<BatchReader> reader, Done done, SlotPool::Lease slot, BatchLayout layout,
                     Pieces pieces)
    : Task(std::move(group), pieces.count()),
      slot(std::move(slot)),
      layout(std::move(layout)),
      remaining(pieces.count()),
      gather_(std::move(gather)),
      reader_(std::move(reader)),
      cut_(pieces),
      done_(std::move(done)) {}

BatchTask::BatchTask(std::shared_ptr<TaskGroup> group, SlotPool::Lease slot, std::vector<std::int64_t> rows,
                     std::exception_ptr error)
    : Task(std::move(group), 0), slot(std::move(slot)), rows(std::move(rows)), error(std::move(error)) {}

void BatchTask::run(std::size_t number) noexcept {
  const std::size_t piece = copy ? number : cut_.in_turn(number);  // a copy begins with what is finished at the front
  const Clock::time_point start = Clock::now();
  const bool watch = gather_->files().mapped;
  const DiskReads before = watch ? disk_reads_of_thread() : DiskReads{};
  PieceReport report;
  try {
    report.found = reader_->fill(layout, slot.get(), edge(piece), edge(piece + 1));
    reader_->check(rows);
    if (copy) copy->piece_done(piece);
  } catch (...) {
    report.error = std::current_exception();
  }
  report.spent = Clock::now() - start;
  if (watch) {
    const DiskReads after = disk_reads_of_thread();
    report.major_faults = after.major_faults - before.major_faults;
    report.disk_bytes = std::max(after.bytes - before.bytes, report.found.direct_bytes);
  }
  done_(*this, std::move(report));
}

void BatchTask::copy_to(const Route& route) {
  const std::size_t kept_begin =
      route.kept_from < layout.shares.size() ? layout.shares[route.kept_from].offset : layout.bytes;
  std::vector<std::size_t> ready(pieces());
  for (std::size_t i = 0; i < ready.size(); ++i) ready[i] = finished_bytes(layout, edge(i + 1));
  copy = std::make_shared<AsyncCopy>(route, slot.get(), kept_begin, std::move(ready));
}

BatchesInFlight::BatchTaskPtr BatchesInFlight::without_destination() const {
  const auto found =
      std::find_if(batches_.begin(), batches_.end(), [](const BatchTaskPtr& task) { return !task->has_destination; });
  return found == batches_.end() ? nullptr : *found;
}

std::vector<std::int64_t> BatchesInFlight::rows_under_way() const {
  std::vector<std::int64_t> rows;
  for (const BatchTaskPtr& task : batches_) {
    if (task->remaining != 0) rows.insert(rows.end(), task->rows.begin(), task->rows.end());
  }
  return rows;
}

void BatchesInFlight::put_back(PlanQueue& plan) const {
  for (auto task = batches_.rbegin(); task != batches_.rend(); ++task) {
    const auto rows = std::make_shared<const std::vector<std::int64_t>>((*task)->rows);
    plan.put_back({rows, *rows});
  }
}

void BatchesInFlight::cancel_copies() const {
  for (const BatchTaskPtr& task : batches_) {
    if (task->copy) task->copy->cancel();
  }
}

}  // namespace memload
