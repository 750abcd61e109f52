// Memory that runs short at any one allocation: a pass ends with an error or with all of its rows, and waits for
// nothing that does not come.
#include <atomic>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <numeric>
#include <vector>

#include "core/pass/pipeline.h"
#include "tests/check.h"
#include "tests/fixtures.h"
#include "tests/passes.h"

namespace {

std::atomic<long> until_it_fails{-1};  // allocations that succeed before one fails, in any thread; negative: none fails

void* allocate(std::size_t bytes) {
  if (until_it_fails.load() >= 0 && until_it_fails.fetch_sub(1) == 0) throw std::bad_alloc();
  if (void* const found = std::malloc(bytes == 0 ? 1 : bytes)) return found;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

using memload::Batch;
using memload::FieldSpec;
using memload::Pipeline;
using memload::PipelineOptions;
using memload::Step;
using memload::test::ColumnPtr;
using memload::test::Indices;
using memload::test::kPatience;
using memload::test::numbered;
using memload::test::rows_of;
using memload::test::same;

constexpr std::size_t kRows = 48;
constexpr std::size_t kRowBytes = 64;
constexpr std::size_t kBatchRows = 3;

// The rows that come before the end; an error of the pass is thrown. A step that is late for ever is not the end.
std::size_t rows_until_the_end(Pipeline& pipeline, const ColumnPtr& column) {
  std::size_t rows = 0;
  Step step = Step::batch;
  for (Batch batch; (step = pipeline.next(batch, kPatience)) == Step::batch; rows += batch.row_numbers.size()) {
    const auto first = static_cast<std::int64_t>(rows);
    CHECK(same(batch.slot.get(), column->at(first).data, batch.row_numbers.size() * kRowBytes));
  }
  CHECK(step == Step::end);
  return rows;
}

// Whether the pass came to its end before so many allocations had succeeded.
bool ends_without_a_failure(const ColumnPtr& column, const Indices& plan, long allocations) {
  PipelineOptions options;
  options.batch_rows = options.slot_rows = kBatchRows;
  options.threads = 2;
  std::unique_ptr<Pipeline> pipeline;
  until_it_fails = allocations;
  try {
    pipeline = std::make_unique<Pipeline>(std::vector<FieldSpec>{{column, {}}}, options);
    pipeline->extend(rows_of(plan));
    pipeline->finish();
    const std::size_t rows = rows_until_the_end(*pipeline, column);
    const bool all_succeeded = until_it_fails.exchange(-1) >= 0;
    CHECK_EQ(rows, plan.size());
    return all_succeeded;
  } catch (const std::exception&) {
    until_it_fails = -1;
  }
  if (!pipeline) return false;
  Batch batch;  // who goes on after the error does not wait either
  try {
    CHECK(pipeline->next(batch, kPatience) != Step::waiting);
  } catch (const std::exception&) {
  }
  return false;
}

TEST(whichever_allocation_fails_a_pass_gives_all_rows_or_an_error) {
  const ColumnPtr column = numbered(kRows, kRowBytes);
  Indices plan(kRows);
  std::iota(plan.begin(), plan.end(), 0);
  const int before = memload::test::failures();
  long allocations = 0;
  while (!ends_without_a_failure(column, plan, allocations) && memload::test::failures() == before) ++allocations;
  CHECK(allocations > 50);  // else it has not been tried
}

}  // namespace

int main() { return memload::test::run(); }
