#include "core/pass/pipeline.h"

#include <utility>

#include "core/base/error.h"
#include "core/pass/pass.h"

namespace memload {

Pipeline::Pipeline(const std::vector<FieldSpec>& fields, const PipelineOptions& options, Pipeline* reuse)
    : pass_(std::make_shared<Pass>(fields, options, reuse == nullptr ? nullptr : reuse->pass_.get())) {}

Pipeline::~Pipeline() {
  if (pass_->in_child()) {
    // Its locks may be held and its threads are not here: leave it as it is, for ever.
    [[maybe_unused]] auto* left = new std::shared_ptr<Pass>(std::move(pass_));
    return;
  }
  if (!pass_->close(/*keep_slots=*/false, kLongestClose)) pass_->abandon(/*keep_slots=*/false);
}

Pass& Pipeline::here() const {
  if (pass_->in_child()) {
    throw ForkedError(
        "this iterator was made before the process was forked, and its threads stayed with the parent; "
        "call iter(loader) again in the child");
  }
  return *pass_;
}

void Pipeline::begin(std::uint64_t key) { here().begin(key); }
void Pipeline::extend(Rows rows) { here().plan(std::move(rows), /*whole=*/false); }
void Pipeline::push(Rows rows) { here().plan(std::move(rows), /*whole=*/true); }
void Pipeline::finish() { here().finish(); }
Step Pipeline::next(Batch& batch, std::chrono::milliseconds patience, bool steal) {
  return here().next(batch, patience, steal);
}
Step Pipeline::next_if_ready(Batch& batch) { return here().next_if_ready(batch); }
void Pipeline::check_files() const { here().check_files(); }
bool Pipeline::ready() { return here().ready(); }
std::optional<DestinationSize> Pipeline::needed_destination() { return here().needed_destination(); }
void Pipeline::set_destination(const DestinationBuffer& memory, std::shared_ptr<void> owner) {
  here().set_destination(memory, std::move(owner));
}
void Pipeline::release() { here().release(); }
PlanQueue Pipeline::cancel() { return here().cancel(); }
bool Pipeline::close(bool keep_slots, std::chrono::milliseconds patience) { return here().close(keep_slots, patience); }
void Pipeline::abandon(bool keep_slots) { here().abandon(keep_slots); }
std::int64_t Pipeline::rows() const { return pass_->rows(); }
std::size_t Pipeline::outputs(std::size_t field) const { return pass_->outputs(field); }
std::shared_ptr<TileCache> Pipeline::tiles() const { return here().tiles(); }
PipelineStats Pipeline::stats() const { return here().stats(); }

std::size_t Pipeline::ring_bytes(const Gather& gather, std::size_t slot_rows, int depth) {
  return (static_cast<std::size_t>(depth) + 1) * mapped_bytes(gather.slot_bytes(slot_rows));
}

std::size_t Pipeline::workspace_bytes(const Gather& gather, int threads) {
  const std::size_t bytes = gather.workspace_bytes();
  return bytes == 0 || threads == 0 ? 0 : (static_cast<std::size_t>(threads) + 1) * mapped_bytes(bytes);
}

}  // namespace memload
