#include "core/filling.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

namespace memload {
namespace {

using Clock = std::chrono::steady_clock;

long major_faults_of_thread() {
  struct rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_majflt;
}

}  // namespace

Filling::Filling(std::shared_ptr<Crew> crew, std::shared_ptr<const Gather> gather, std::shared_ptr<Filler> filler,
                 Done done, SlotPool::Lease slot, std::vector<std::int64_t> rows, BatchLayout layout, Pieces pieces)
    : Job(std::move(crew), pieces.count()),
      slot(std::move(slot)),
      rows(std::move(rows)),
      layout(std::move(layout)),
      remaining(pieces.count()),
      gather_(std::move(gather)),
      filler_(std::move(filler)),
      cut_(pieces),
      done_(std::move(done)) {}

Filling::Filling(std::shared_ptr<Crew> crew, SlotPool::Lease slot, std::exception_ptr error)
    : Job(std::move(crew), 0), slot(std::move(slot)), error(std::move(error)) {}

void Filling::run(std::size_t piece) noexcept {
  const Clock::time_point start = Clock::now();
  const bool watch = gather_->files().mapped;
  const long faults = watch ? major_faults_of_thread() : 0;
  PieceReport report;
  try {
    report.found = filler_->fill(layout, slot.get(), edge(piece), edge(piece + 1));
    filler_->check(rows);
    if (shipment) shipment->piece_done(piece);
  } catch (...) {
    report.error = std::current_exception();
  }
  report.spent = Clock::now() - start;
  report.major_faults = watch ? major_faults_of_thread() - faults : 0;
  done_(*this, std::move(report));
}

void Filling::ship(const Route& route) {
  const std::size_t kept_begin =
      route.kept_from < layout.shares.size() ? layout.shares[route.kept_from].offset : layout.bytes;
  std::vector<std::size_t> ready(pieces());
  for (std::size_t i = 0; i < ready.size(); ++i) ready[i] = finished_bytes(layout, edge(i + 1));
  shipment = std::make_shared<Shipment>(route, slot.get(), kept_begin, std::move(ready));
}

InFlight::FillingPtr InFlight::unlanded() const {
  const auto found = std::find_if(batches_.begin(), batches_.end(), [](const FillingPtr& f) { return !f->landed; });
  return found == batches_.end() ? nullptr : *found;
}

std::vector<std::int64_t> InFlight::rows_under_way() const {
  std::vector<std::int64_t> rows;
  for (const FillingPtr& filling : batches_) {
    if (filling->remaining != 0) rows.insert(rows.end(), filling->rows.begin(), filling->rows.end());
  }
  return rows;
}

void InFlight::cancel_shipments() const {
  for (const FillingPtr& filling : batches_) {
    if (filling->shipment) filling->shipment->cancel();
  }
}

}  // namespace memload
