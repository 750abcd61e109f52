// The ring as its users see it: batches in order and unspoilt, whatever stops, breaks, is kept or runs beside it.
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/pass/pipeline.h"
#include "core/pass/store_choice.h"
#include "core/pass/workers.h"
#include "tests/check.h"
#include "tests/fixtures.h"
#include "tests/passes.h"

namespace {

using memload::Batch;
using memload::Column;
using memload::FieldSpec;
using memload::ForkedError;
using memload::Pipeline;
using memload::PipelineOptions;
using memload::PlanQueue;
using memload::ReadError;
using memload::Rows;
using memload::Step;
using memload::Storage;
using memload::test::ColumnPtr;
using memload::test::dense;
using memload::test::in_memory;
using memload::test::Indices;
using memload::test::kPatience;
using memload::test::numbered;
using memload::test::pattern_bytes;
using memload::test::rows_of;
using memload::test::same;
using memload::test::ScratchFile;
using memload::test::shuffled;
using namespace std::chrono_literals;

PipelineOptions options(std::size_t batch_rows, int depth = 2, int threads = 2) {
  PipelineOptions chosen;
  chosen.batch_rows = batch_rows;
  chosen.slot_rows = batch_rows;
  chosen.depth = depth;
  chosen.threads = threads;
  return chosen;
}

// A pass over these rows of these columns, planned to its end.
std::unique_ptr<Pipeline> planned(const std::vector<ColumnPtr>& columns, const Indices& rows,
                                  const PipelineOptions& chosen, Pipeline* reuse = nullptr) {
  std::vector<FieldSpec> fields;
  for (const ColumnPtr& column : columns) fields.push_back({column, {}});
  auto pipeline = std::make_unique<Pipeline>(std::move(fields), chosen, reuse);
  pipeline->extend(rows_of(rows));
  pipeline->finish();
  return pipeline;
}

// Whether the batch holds the rows from position `first` of the plan on, and says so.
bool holds(const Batch& batch, const std::vector<ColumnPtr>& columns, const Indices& plan, std::size_t first) {
  if (first + batch.row_numbers.size() > plan.size()) return false;
  const auto expected = plan.begin() + static_cast<std::ptrdiff_t>(first);
  if (!std::equal(batch.row_numbers.begin(), batch.row_numbers.end(), expected)) return false;
  for (std::size_t f = 0; f < columns.size(); ++f) {
    const std::size_t n = columns[f]->row_bytes();
    for (std::size_t i = 0; i < batch.row_numbers.size(); ++i) {
      const std::byte* const got = batch.slot.get() + batch.outputs[f].offset + i * n;
      if (!same(got, columns[f]->at(plan[first + i]).data, n)) return false;
    }
  }
  return true;
}

// Reads to the end; the number of rows seen, or -1 if a batch was not what the plan says.
std::int64_t read_all(Pipeline& pipeline, const std::vector<ColumnPtr>& columns, const Indices& plan) {
  std::size_t seen = 0;
  Batch batch;
  while (pipeline.next(batch, kPatience) == Step::batch) {
    if (!holds(batch, columns, plan, seen)) return -1;
    seen += batch.row_numbers.size();
  }
  return static_cast<std::int64_t>(seen);
}

int threads_of_pools() {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name.starts_with("memload-")) ++count;
  }
  return count;
}

// Whether the process comes to have so many threads of pools. A thread that was joined may still be listed for a while.
bool comes_to_threads_of_pools(int expected) {
  for (int i = 0; i < 2000 && threads_of_pools() != expected; ++i) std::this_thread::sleep_for(10ms);
  return threads_of_pools() == expected;
}

// How many threads of pools sleep: field 3 of proc_pid_stat(5), behind the name in parentheses.
int threads_of_pools_that_sleep() {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string line;
    std::getline(std::ifstream(task.path() / "stat"), line);
    if (line.find("(memload-") != std::string::npos && line.find(") S ") != std::string::npos) ++count;
  }
  return count;
}

// Whether so many come to sleep with nothing to do: they are seen asleep several times in a row, so that none of them
// just waits for a lock that another one has.
bool come_to_sleep(int expected) {
  int in_a_row = 0;
  for (int i = 0; i < kPatience / 1ms && in_a_row < 10; ++i) {
    std::this_thread::sleep_for(1ms);
    in_a_row = threads_of_pools_that_sleep() == expected ? in_a_row + 1 : 0;
  }
  return in_a_row == 10;
}

TEST(batches_come_in_order_for_any_depth_threads_and_size) {
  const std::vector<ColumnPtr> columns = {numbered(103, 700, 1), numbered(103, 4, 2)};
  const Indices plan = shuffled(103, 1);
  for (const int depth : {1, 2, 5}) {
    for (const int threads : {1, 3}) {
      for (const std::size_t batch_rows : {1u, 10u, 103u, 200u}) {
        CHECK_EQ(read_all(*planned(columns, plan, options(batch_rows, depth, threads)), columns, plan), 103);
      }
    }
  }
}

TEST(large_rows_are_cut_into_pieces_and_tiny_rows_gathered_together) {
  const std::vector<ColumnPtr> large = {numbered(5, 900'001)};
  const std::vector<ColumnPtr> tiny = {numbered(20'000, 3)};
  const Indices few = {4, 0, 4, 2};
  CHECK_EQ(read_all(*planned(large, few, options(3)), large, few), 4);
  const Indices many = shuffled(20'000, 2);
  CHECK_EQ(read_all(*planned(tiny, many, options(4096)), tiny, many), 20'000);
}

TEST(the_last_batch_is_short_or_dropped) {
  const std::vector<ColumnPtr> columns = {numbered(10, 8)};
  const Indices plan = shuffled(10, 3);
  PipelineOptions chosen = options(4);
  CHECK_EQ(read_all(*planned(columns, plan, chosen), columns, plan), 10);
  chosen.drop_last = true;
  CHECK_EQ(read_all(*planned(columns, plan, chosen), columns, plan), 8);
}

TEST(an_empty_plan_ends_at_once_and_goes_on_ending) {
  const auto pipeline = planned({numbered(10, 8)}, {}, options(4));
  Batch batch;
  CHECK(pipeline->next(batch, kPatience) == Step::end);
  CHECK(pipeline->next(batch, kPatience) == Step::end);
}

TEST(a_plan_may_arrive_in_parts) {
  const std::vector<ColumnPtr> columns = {numbered(50, 16)};
  const Indices plan = shuffled(50, 4);
  Pipeline pipeline({{columns[0], {}}}, options(8));
  Batch batch;
  std::size_t seen = 0;
  for (std::size_t begin = 0; begin < plan.size(); begin += 5) {
    pipeline.extend(rows_of(Indices(plan.begin() + static_cast<std::ptrdiff_t>(begin),
                                    plan.begin() + static_cast<std::ptrdiff_t>(begin + 5))));
    while (pipeline.next(batch, kPatience) == Step::batch) {
      CHECK(holds(batch, columns, plan, seen));
      seen += batch.row_numbers.size();
    }
    CHECK_EQ(seen, (begin + 5) / 8 * 8);
  }
  pipeline.finish();
  CHECK(pipeline.next(batch, kPatience) == Step::batch);
  CHECK(holds(batch, columns, plan, 48));
  CHECK(pipeline.next(batch, kPatience) == Step::end);
}

TEST(ready_made_batches_keep_their_sizes) {
  const std::vector<ColumnPtr> columns = {numbered(50, 16)};
  Pipeline pipeline({{columns[0], {}}}, options(4));
  const std::vector<Indices> batches = {{1, 2}, {}, shuffled(50, 5), {7}};  // one larger than announced
  for (const Indices& rows : batches) pipeline.push(rows_of(rows));
  pipeline.finish();
  Batch batch;
  for (const Indices& rows : batches) {
    CHECK(pipeline.next(batch, kPatience) == Step::batch);
    CHECK(batch.row_numbers == rows);
    CHECK(holds(batch, columns, rows, 0));
  }
  CHECK(pipeline.next(batch, kPatience) == Step::end);
}

TEST(kept_batches_stay_as_they_are_and_come_from_memory_of_their_own) {
  const std::vector<ColumnPtr> columns = {numbered(400, 1000)};
  const Indices plan = shuffled(400, 6);
  const auto pipeline = planned(columns, plan, options(10, 2));
  std::vector<Batch> kept(40);
  for (Batch& batch : kept) CHECK(pipeline->next(batch, kPatience) == Step::batch);
  for (std::size_t i = 0; i < kept.size(); ++i) CHECK(holds(kept[i], columns, plan, i * 10));
  CHECK_EQ(pipeline->stats().batches, 40u);
  CHECK_EQ(pipeline->stats().fresh_batches, 37u);  // all but depth + 1
}

TEST(a_slot_is_used_again_only_after_its_last_lease) {
  const std::vector<ColumnPtr> columns = {numbered(64, 256)};
  const Indices plan = shuffled(64, 7);
  const auto pipeline = planned(columns, plan, options(8, 1));
  Batch first;
  CHECK(pipeline->next(first, kPatience) == Step::batch);
  const Batch copy = first;
  std::vector<const std::byte*> seen;
  Batch batch;
  for (int i = 0; i < 3; ++i) {
    CHECK(pipeline->next(batch, kPatience) == Step::batch);
    seen.push_back(batch.slot.get());
  }
  first = {};
  CHECK(holds(copy, columns, plan, 0));
  CHECK(std::find(seen.begin(), seen.end(), copy.slot.get()) == seen.end());
}

TEST(a_loop_that_holds_one_batch_needs_no_memory_beyond_the_ring) {
  const std::vector<ColumnPtr> columns = {numbered(300, 64)};
  const Indices plan = shuffled(300, 8);
  const auto pipeline = planned(columns, plan, options(3, 2));
  std::vector<const std::byte*> slots;
  Batch batch;
  while (pipeline->next(batch, kPatience) == Step::batch) {
    if (std::find(slots.begin(), slots.end(), batch.slot.get()) == slots.end()) slots.push_back(batch.slot.get());
  }
  CHECK_EQ(pipeline->stats().fresh_batches, 0u);
  CHECK(slots.size() <= 3);
}

TEST(batches_outlive_the_pipeline) {
  const std::vector<ColumnPtr> columns = {numbered(100, 5000)};
  const Indices plan = shuffled(100, 9);
  std::vector<Batch> kept(5);
  {
    const auto pipeline = planned(columns, plan, options(20, 2));
    for (Batch& batch : kept) CHECK(pipeline->next(batch, kPatience) == Step::batch);
  }
  for (std::size_t i = 0; i < kept.size(); ++i) CHECK(holds(kept[i], columns, plan, i * 20));
}

// Batches that wait for a thread that lets go of them.
class Afterlife {
 public:
  Afterlife() : thread_([this](const std::stop_token& stop) { run(stop); }) {}

  void bury(Batch batch) {
    {
      const std::lock_guard lock(mutex_);
      batches_.push_back(std::move(batch));
    }
    arrived_.notify_one();
  }

 private:
  void run(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (arrived_.wait(lock, stop, [this] { return !batches_.empty(); })) {
      const Batch last = std::move(batches_.front());
      batches_.pop_front();
      lock.unlock();
      const_cast<Batch&>(last).slot.reset();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable_any arrived_;
  std::deque<Batch> batches_;
  std::jthread thread_;
};

TEST(leases_may_end_on_another_thread_while_the_ring_runs_and_after_it) {
  const std::vector<ColumnPtr> columns = {numbered(2000, 100)};
  const Indices plan = shuffled(2000, 10);
  Afterlife afterlife;
  for (int epoch = 0; epoch < 5; ++epoch) {
    const auto pipeline = planned(columns, plan, options(10, 3));
    Batch batch;
    std::size_t seen = 0;
    while (pipeline->next(batch, kPatience) == Step::batch) {
      CHECK(holds(batch, columns, plan, seen));
      seen += batch.row_numbers.size();
      afterlife.bury(std::move(batch));
      batch = {};
    }
    CHECK_EQ(seen, 2000u);
  }
}

TEST(stopping_early_again_and_again_leaves_no_thread_behind) {
  const std::vector<ColumnPtr> columns = {numbered(1000, 3000)};
  const Indices plan = shuffled(1000, 11);
  for (int i = 0; i < 200; ++i) {
    const auto pipeline = planned(columns, plan, options(50, 1 + i % 4, 1 + i % 3));
    Batch batch;
    if (i % 4 != 0) CHECK(pipeline->next(batch, kPatience) == Step::batch);
    if (i % 2 != 0) pipeline->close();
  }
  CHECK(comes_to_threads_of_pools(0));
}

TEST(a_closed_pipeline_has_ended_and_takes_no_plan) {
  const auto pipeline = planned({numbered(100, 8)}, shuffled(100, 12), options(10));
  Batch batch;
  CHECK(pipeline->next(batch, kPatience) == Step::batch);
  pipeline->close();
  pipeline->close();
  CHECK(pipeline->next(batch, kPatience) == Step::end);
  CHECK_THROWS(std::logic_error, pipeline->extend(rows_of({1})));
}

// The rows of all batches that a plan gives, each with its rows.
std::vector<Indices> batches_of(PlanQueue plan) {
  std::vector<Indices> batches;
  while (plan.ready()) batches.push_back(plan.take());
  return batches;
}

TEST(a_cancelled_pass_gives_back_the_plan_of_what_it_had_not_handed_out) {
  const std::vector<ColumnPtr> columns = {numbered(100, 700)};
  const Indices plan = shuffled(100, 7);
  for (const bool drop_last : {false, true}) {
    for (const std::size_t handed_out : {0u, 1u, 6u, 14u}) {
      PipelineOptions chosen = options(7, /*depth=*/3);
      chosen.drop_last = drop_last;
      const auto pipeline = planned(columns, plan, chosen);
      PlanQueue expected(7, drop_last);
      expected.extend(rows_of(plan));
      expected.finish();
      Batch batch;
      for (std::size_t i = 0; i < handed_out; ++i) {
        CHECK(pipeline->next(batch, kPatience) == Step::batch);
        CHECK(batch.row_numbers == expected.take());
      }
      CHECK(batches_of(pipeline->cancel()) == batches_of(std::move(expected)));
      CHECK(pipeline->next(batch, kPatience) == Step::end);
      CHECK_THROWS(std::logic_error, pipeline->extend(rows_of({1})));
      CHECK(pipeline->close(/*keep_slots=*/true));
      CHECK_EQ(read_all(*planned(columns, plan, options(7, /*depth=*/3), pipeline.get()), columns, plan), 100);
    }
  }
}

TEST(the_plan_of_a_cancelled_pass_goes_on_where_it_was) {
  Pipeline pipeline({{numbered(50, 16), {}}}, options(8));
  pipeline.extend(rows_of({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));  // a batch, under way, and two rows of the next
  PlanQueue left = pipeline.cancel();
  left.extend(rows_of({10, 11, 12, 13, 14, 15, 16}));
  left.finish();
  CHECK(batches_of(std::move(left)) ==
        (std::vector<Indices>{{0, 1, 2, 3, 4, 5, 6, 7}, {8, 9, 10, 11, 12, 13, 14, 15}, {16}}));
}

TEST(a_cancelled_pass_gives_back_ready_made_batches_and_those_that_failed) {
  Pipeline pipeline({{numbered(10, 16), {}}}, options(4));
  const std::vector<Indices> batches = {{1, 2}, {}, {3, 10}, {7}};  // there is no row 10
  for (const Indices& rows : batches) pipeline.push(rows_of(rows));
  pipeline.finish();
  CHECK(batches_of(pipeline.cancel()) == batches);
}

TEST(a_pass_is_cancelled_while_its_threads_gather) {
  const std::vector<ColumnPtr> columns = {numbered(400, 40'000)};
  const Indices plan = shuffled(400, 8);
  for (std::size_t round = 0; round < 30; ++round) {
    const auto pipeline = planned(columns, plan, options(16, /*depth=*/4, /*threads=*/3));
    Batch batch;
    std::size_t seen = 0;
    for (; seen < round % 5 * 16; seen += batch.row_numbers.size()) {
      CHECK(pipeline->next(batch, kPatience) == Step::batch);
      CHECK(holds(batch, columns, plan, seen));
    }
    Indices left;
    for (const Indices& rows : batches_of(pipeline->cancel())) left.insert(left.end(), rows.begin(), rows.end());
    CHECK(left == Indices(plan.begin() + static_cast<std::ptrdiff_t>(seen), plan.end()));
  }
}

TEST(the_next_pass_takes_over_the_slots_that_were_kept) {
  const std::vector<ColumnPtr> columns = {numbered(100, 512)};
  const Indices plan = shuffled(100, 13);
  auto pipeline = planned(columns, plan, options(25, 1));
  std::vector<const std::byte*> slots;
  for (Batch batch; pipeline->next(batch, kPatience) == Step::batch;) slots.push_back(batch.slot.get());
  pipeline->close(/*keep_slots=*/true);
  const auto again = planned(columns, plan, options(25, 1), pipeline.get());
  pipeline.reset();
  Batch batch;
  CHECK(again->next(batch, kPatience) == Step::batch);
  CHECK(std::find(slots.begin(), slots.end(), batch.slot.get()) != slots.end());
  CHECK(holds(batch, columns, plan, 0));
}

TEST(a_pass_of_another_depth_gets_slots_for_it) {
  const std::vector<ColumnPtr> columns = {numbered(100, 512)};
  const Indices plan = shuffled(100, 16);
  auto shallow = planned(columns, plan, options(25, 1));
  CHECK_EQ(read_all(*shallow, columns, plan), 100);
  shallow->close(/*keep_slots=*/true);
  const auto deep = planned(columns, plan, options(25, 3), shallow.get());
  std::deque<Batch> kept(4);
  for (Batch& batch : kept) CHECK(deep->next(batch, kPatience) == Step::batch);
  CHECK_EQ(deep->stats().fresh_batches, 0u);
}

// A piece that ends when it is told to.
class Blocked : public memload::Task {
 public:
  Blocked(std::shared_ptr<memload::TaskGroup> group, std::shared_ptr<std::atomic<bool>> until)
      : Task(std::move(group), 1), until_(std::move(until)) {}
  void run(std::size_t) noexcept override {
    ++begun;
    until_->wait(false);
  }
  static inline std::atomic<int> begun{0};

 private:
  std::shared_ptr<std::atomic<bool>> until_;
};

TEST(a_pool_whose_thread_does_not_come_back_is_abandoned_and_ends_when_it_does) {
  using memload::TaskGroup;
  using memload::Workers;
  const auto until = std::make_shared<std::atomic<bool>>(false);
  const auto group = std::make_shared<TaskGroup>(1);
  std::shared_ptr<Workers> pool = Workers::shared(2);
  pool->submit({std::make_shared<Blocked>(group, until)});
  while (pool->drain(*group, 0ms))
    pool->submit({std::make_shared<Blocked>(group, until)});  // until a thread has taken one
  CHECK(!pool->drain(*group, 10ms));
  pool->abandon(*group);
  CHECK(Workers::shared(1) != pool);
  const std::vector<ColumnPtr> columns = {numbered(100, 512)};
  const Indices plan = shuffled(100, 14);
  CHECK_EQ(read_all(*planned(columns, plan, options(10)), columns, plan), 100);
  pool.reset();  // does not wait
  until->store(true);
  until->notify_all();
  CHECK(comes_to_threads_of_pools(0));
}

TEST(holders_of_an_abandoned_pool_go_on_with_new_threads_in_it) {
  using memload::TaskGroup;
  using memload::Workers;
  const auto until = std::make_shared<std::atomic<bool>>(false);
  const int begun = Blocked::begun;
  const auto stuck = std::make_shared<TaskGroup>(2);
  std::shared_ptr<Workers> pool = Workers::shared(2);
  const std::vector<ColumnPtr> columns = {numbered(100, 512)};
  const Indices plan = shuffled(100, 15);
  Pipeline live({{columns[0], {}}}, options(10, 2, 1));
  for (int i = 0; i < 2; ++i) pool->submit({std::make_shared<Blocked>(stuck, until)});
  while (Blocked::begun < begun + 2) std::this_thread::sleep_for(1ms);
  live.extend(rows_of(plan));
  live.finish();
  Batch batch;
  CHECK(live.next(batch, 50ms, /*steal=*/false) == Step::waiting);
  pool->abandon(*stuck);
  std::size_t seen = 0;
  while (live.next(batch, kPatience, /*steal=*/false) == Step::batch && holds(batch, columns, plan, seen)) {
    seen += batch.row_numbers.size();
  }
  CHECK_EQ(seen, 100u);
  until->store(true);
  until->notify_all();
  CHECK(pool->drain(*stuck, kPatience));
  live.close();
  pool.reset();
  CHECK(comes_to_threads_of_pools(0));
}

// Pieces that wait for one another.
class Meeting : public memload::Task {
 public:
  Meeting(std::shared_ptr<memload::TaskGroup> group, int pieces)
      : Task(std::move(group), static_cast<std::size_t>(pieces)), pieces_(pieces) {}

  void run(std::size_t) noexcept override {
    begun.fetch_add(1);
    for (int i = 0; i < kPatience / 1ms && begun < pieces_; ++i) std::this_thread::sleep_for(1ms);
    met.fetch_add(begun == pieces_ ? 1 : 0);
  }

  std::atomic<int> begun{0};
  std::atomic<int> met{0};

 private:
  int pieces_;
};

TEST(a_task_that_may_wake_one_thread_wakes_one_until_all_are_called) {
  using memload::TaskGroup;
  using memload::Workers;
  const auto group = std::make_shared<TaskGroup>(3);
  const std::shared_ptr<Workers> pool = Workers::shared(3);
  const auto first = std::make_shared<Meeting>(group, 3);
  pool->submit({first});  // wakes three
  for (int i = 0; i < kPatience / 1ms && first->met < 3; ++i) std::this_thread::sleep_for(1ms);
  CHECK_EQ(first->met.load(), 3);
  CHECK(come_to_sleep(3));
  const auto task = std::make_shared<Meeting>(group, 3);
  pool->submit({task}, /*urgent=*/false, /*most_woken=*/1);
  for (int i = 0; i < kPatience / 1ms && task->begun < 1; ++i) std::this_thread::sleep_for(1ms);
  std::this_thread::sleep_for(50ms);  // in which another would begin
  CHECK_EQ(task->begun.load(), 1);
  pool->wake(*std::make_shared<TaskGroup>(3));  // of others: nothing of theirs is queued
  std::this_thread::sleep_for(20ms);
  CHECK_EQ(task->begun.load(), 1);
  pool->wake(*group);
  for (int i = 0; i < kPatience / 1ms && task->met < 3; ++i) std::this_thread::sleep_for(1ms);
  CHECK_EQ(task->met.load(), 3);
}

TEST(those_that_take_pieces_wake_the_threads_that_a_task_needs_beyond_the_first) {
  constexpr int kThreads = 11;
  const auto group = std::make_shared<memload::TaskGroup>(kThreads);
  const std::shared_ptr<memload::Workers> pool = memload::Workers::shared(kThreads);
  for (int round = 0; round < 3; ++round) {
    CHECK(come_to_sleep(kThreads));
    const auto task = std::make_shared<Meeting>(group, kThreads);  // each piece waits for all
    pool->submit({task});
    for (int i = 0; i < kPatience / 1ms && task->met < kThreads; ++i) std::this_thread::sleep_for(1ms);
    CHECK_EQ(task->met.load(), kThreads);
  }
}

// A piece that notes on which CPUs its thread may run.
class Affinity : public memload::Task {
 public:
  explicit Affinity(std::shared_ptr<memload::TaskGroup> group) : Task(std::move(group), 1) {}

  void run(std::size_t) noexcept override {
    ::sched_getaffinity(0, sizeof cpus_, &cpus_);
    done_.store(true);
    done_.notify_all();
  }
  const cpu_set_t& cpus() const {
    done_.wait(false);
    return cpus_;
  }

 private:
  cpu_set_t cpus_{};
  std::atomic<bool> done_{false};
};

cpu_set_t cpus_of_threads(memload::Workers& pool) {
  const auto task = std::make_shared<Affinity>(std::make_shared<memload::TaskGroup>(1));
  pool.submit({task});
  return task->cpus();
}

TEST(threads_stay_on_the_cpus_near_their_slots_where_each_has_one_of_those_that_the_caller_may_use) {
  using memload::Workers;
  cpu_set_t all;
  CHECK(::sched_getaffinity(0, sizeof all, &all) == 0);
  int first = 0;
  while (!CPU_ISSET(first, &all)) ++first;
  int foreign = 0;
  while (CPU_ISSET(foreign, &all)) ++foreign;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  const auto are = [](const cpu_set_t& found, const cpu_set_t& expected) { return CPU_EQUAL(&found, &expected) != 0; };
  {
    const auto near = Workers::shared(1, {first, foreign, -1, 1 << 20});
    CHECK(are(cpus_of_threads(*near), one));
    CHECK(are(cpus_of_threads(*Workers::shared(1)), all));  // the next pass is for no device
    CHECK(are(cpus_of_threads(*Workers::shared(1, {first})), one));
    CHECK(are(cpus_of_threads(*Workers::shared(2, {first})), all));  // two threads would share a CPU
    CHECK(are(cpus_of_threads(*Workers::shared(1, {foreign})), all));
  }
  CHECK(comes_to_threads_of_pools(0));
  const auto grown = Workers::shared(1, {first});  // new threads, too
  CHECK(are(cpus_of_threads(*grown), one));
}

TEST(one_place_chooses_the_stores_of_each_reader) {
  using memload::default_store;
  using memload::SlotReader;
  using memload::Store;
  CHECK(default_store(SlotReader::cpu, 150, 100) == Store::cached);
  CHECK(default_store(SlotReader::cpu, 151, 100) == Store::streaming);
  const std::size_t edge = memload::kHalfCachesOfCopyEngine * 100 / 2;
  CHECK(default_store(SlotReader::copy_engine, edge, 100) == Store::cached);
  CHECK(default_store(SlotReader::copy_engine, edge + 1, 100) == Store::streaming);
}

TEST(small_batches_are_begun_again_once_half_of_those_ahead_were_taken) {
  constexpr std::size_t kRow = 8;
  const auto bytes = std::make_shared<std::vector<std::byte>>(pattern_bytes(20 * kRow));
  const ColumnPtr column = dense(Storage::borrow(bytes->data(), bytes->size(), "memory", bytes), kRow);
  Indices plan(20);
  std::iota(plan.begin(), plan.end(), 0);
  const auto pipeline = planned({column}, plan, options(1, /*depth=*/8));
  for (int i = 0; i < kPatience / 1ms && pipeline->stats().ring_full_seconds == 0; ++i)
    std::this_thread::sleep_for(1ms);
  Batch batch;
  for (std::size_t first = 0; first < 3; ++first) {
    CHECK(pipeline->next(batch, kPatience) == Step::batch);
    CHECK(holds(batch, {column}, plan, first));
    batch = {};
  }
  std::this_thread::sleep_for(20ms);  // in which the next would be gathered
  for (std::size_t row = 8; row < 11; ++row) bytes->at(row * kRow) ^= std::byte{0xff};
  for (std::size_t first = 3; first < plan.size(); ++first) {
    CHECK(pipeline->next(batch, kPatience) == Step::batch);
    CHECK(holds(batch, {column}, plan, first));
    batch = {};
  }
  CHECK(pipeline->next(batch, kPatience) == Step::end);
}

TEST(options_that_make_no_ring_are_refused) {
  const ColumnPtr column = numbered(10, 8);
  CHECK_THROWS(std::invalid_argument, Pipeline({{column, {}}}, options(0)));
  CHECK_THROWS(std::invalid_argument, Pipeline({{column, {}}}, options(1, 0)));
  CHECK_THROWS(std::invalid_argument, Pipeline({{column, {}}}, options(1, 1, 0)));
}

TEST(a_row_that_is_not_there_fails_its_own_batch_and_ends_the_pass) {
  const std::vector<ColumnPtr> columns = {numbered(100, 64)};
  for (const std::int64_t bad : {std::int64_t{100}, std::int64_t{-1}}) {
    Indices plan = shuffled(100, 14);
    plan[25] = bad;
    const auto pipeline = planned(columns, plan, options(10, 4));
    Batch batch;
    for (std::size_t i = 0; i < 2; ++i) {
      CHECK(pipeline->next(batch, kPatience) == Step::batch);
      CHECK(holds(batch, columns, plan, i * 10));
    }
    CHECK_THROWS(std::out_of_range, pipeline->next(batch, kPatience));
    CHECK(pipeline->next(batch, kPatience) == Step::end);
  }
}

TEST(a_truncated_file_fails_its_batch_and_no_other_pipeline) {
  constexpr std::size_t kRow = 8192;
  constexpr std::size_t kRows = 200;
  const std::vector<std::byte> bytes = pattern_bytes(kRow * kRows, 15);
  const ScratchFile file(bytes);
  const std::vector<ColumnPtr> mapped = {dense(Storage::map_file(file.path()), kRow)};
  const std::vector<ColumnPtr> healthy = {dense(in_memory(bytes), kRow)};
  const Indices plan = shuffled(kRows, 15);
  const auto bad = planned(mapped, plan, options(10, 3));
  const auto good = planned(healthy, plan, options(10, 3));

  Batch batch;
  CHECK(bad->next(batch, kPatience) == Step::batch);
  file.truncate(kRow);
  bool thrown = false;
  try {
    while (bad->next(batch, kPatience) == Step::batch) {
    }
  } catch (const ReadError& error) {
    thrown = true;
    CHECK_EQ(error.file(), file.path());
    CHECK(error.row() >= 1 && error.row() < static_cast<std::int64_t>(kRows));
    CHECK_EQ(error.offset() / kRow, static_cast<std::uint64_t>(error.row()));
  }
  CHECK(thrown);
  CHECK(bad->next(batch, kPatience) == Step::end);
  CHECK_EQ(read_all(*good, healthy, plan), static_cast<std::int64_t>(kRows));
}

// Of the page in which a file ends the kernel shows zeros, and no fault tells of them.
TEST(rows_in_the_page_in_which_a_file_was_cut_are_not_zeros_but_an_error) {
  constexpr std::size_t kRow = 64;
  constexpr std::size_t kRows = 50;  // all in one page
  const ScratchFile file(pattern_bytes(kRow * kRows, 15));
  const ColumnPtr column = dense(Storage::map_file(file.path()), kRow);
  file.truncate(20 * kRow + 1);
  for (const std::int64_t row : {std::int64_t{0}, std::int64_t{19}, std::int64_t{20}, std::int64_t{49}}) {
    std::vector<std::byte> out(kRow);
    bool thrown = false;
    try {
      memload::gather_rows({column, std::nullopt}, {&row, 1}, out);
    } catch (const ReadError& error) {
      thrown = true;
      CHECK_EQ(error.row(), row);
      CHECK_EQ(error.offset(), std::max<std::uint64_t>(20 * kRow + 1, static_cast<std::uint64_t>(row) * kRow));
    }
    CHECK_EQ(thrown, row >= 20);
  }
  const auto pipeline = planned({column}, Indices{3, 4, 19, 20, 21}, options(3, 2));
  Batch batch;
  bool thrown = false;
  try {
    while (pipeline->next(batch, kPatience) == Step::batch) {
    }
  } catch (const ReadError&) {
    thrown = true;
  }
  CHECK(thrown);
  CHECK(pipeline->next(batch, kPatience) == Step::end);
}

TEST(whoever_asks_at_the_end_of_a_pass_is_told_if_one_of_many_files_was_cut_meanwhile) {
  constexpr std::size_t kRow = 64;
  std::vector<std::unique_ptr<ScratchFile>> files;
  std::vector<ColumnPtr> columns;
  for (std::uint32_t i = 0; i < 9; ++i) {
    files.push_back(std::make_unique<ScratchFile>(pattern_bytes(kRow * 4, i)));
    columns.push_back(dense(Storage::map_file(files.back()->path()), kRow));
  }
  const auto pipeline = planned(columns, Indices{0, 1, 2, 3}, options(4, 2));
  Batch batch;
  CHECK(pipeline->next(batch, kPatience) == Step::batch);
  CHECK(pipeline->next(batch, kPatience) == Step::end);
  pipeline->check_files();
  files[7]->truncate(kRow);
  std::string message;
  try {
    pipeline->check_files();
  } catch (const ReadError& error) {
    message = error.what();
  }
  CHECK(message.find(files[7]->path()) != std::string::npos);
}

TEST(an_error_with_batches_in_flight_and_held_does_not_hang) {
  const ScratchFile file(pattern_bytes(4096 * 64));
  const std::vector<ColumnPtr> mapped = {dense(Storage::map_file(file.path()), 4096)};
  for (int i = 0; i < 50; ++i) {
    if (i == 1) file.truncate(4096);
    const auto pipeline = planned(mapped, shuffled(64, 16), options(4, 4));
    Batch batch;
    try {
      while (pipeline->next(batch, kPatience) == Step::batch) {
      }
      CHECK_EQ(i, 0);
    } catch (const ReadError&) {
      CHECK(i != 0);
    }
  }
}

TEST(many_pipelines_share_one_pool_of_threads) {
  const std::vector<ColumnPtr> columns = {numbered(600, 400), numbered(600, 12)};
  std::atomic<int> failed{0};
  const auto consume = [&](unsigned id) {
    for (unsigned epoch = 0; epoch < 4; ++epoch) {
      const Indices plan = shuffled(600, 100 * id + epoch);
      const auto a = planned(columns, plan, options(7 + id, 2, 2));
      const auto b = planned({columns[1]}, plan, options(64, 1, 1));
      Batch batch;
      if (b->next(batch, kPatience) != Step::batch || !holds(batch, {columns[1]}, plan, 0)) ++failed;
      if (read_all(*a, columns, plan) != 600) ++failed;
      if (epoch % 2 == 0) continue;  // b is left in the middle
      if (b->next(batch, kPatience) != Step::batch || !holds(batch, {columns[1]}, plan, 64)) ++failed;
    }
  };
  const std::shared_ptr<memload::Workers> pool = memload::Workers::shared(1);
  {
    std::vector<std::jthread> consumers;
    for (unsigned id = 0; id < 4; ++id) consumers.emplace_back(consume, id);
  }
  CHECK_EQ(failed.load(), 0);
  CHECK_EQ(pool->threads(), 2);
  CHECK(comes_to_threads_of_pools(2));
}

// Notes how many of its pieces run at once. Each waits for as many as are wanted, and a little for one more.
class Together : public memload::Task {
 public:
  Together(std::shared_ptr<memload::TaskGroup> group, std::size_t pieces, int wanted)
      : Task(std::move(group), pieces), left(pieces), wanted_(wanted) {}

  void run(std::size_t) noexcept override {
    std::unique_lock lock(mutex_);
    most = std::max(most, ++running_);
    changed_.notify_all();
    changed_.wait_for(lock, kPatience, [this] { return most >= wanted_; });
    changed_.wait_for(lock, 5ms, [this] { return most > wanted_; });
    --running_;
    --left;
    changed_.notify_all();
  }
  int most_at_once() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [this] { return left == 0; });
    return most;
  }

  std::size_t left;  // guarded by mutex_, as the next
  int most = 0;

 private:
  int running_ = 0;
  const int wanted_;
  std::mutex mutex_;
  std::condition_variable changed_;
};

TEST(a_task_group_may_be_given_more_threads_and_then_fewer) {
  const std::shared_ptr<memload::Workers> pool = memload::Workers::shared(2);
  const auto group = std::make_shared<memload::TaskGroup>(2);
  for (const int threads : {2, 5, 1, 3}) {
    pool->set_limit(*group, threads);
    const auto task = std::make_shared<Together>(group, 12, threads);
    pool->submit({task});
    CHECK_EQ(task->most_at_once(), threads);
  }
  CHECK_EQ(pool->threads(), 5);
}

TEST(patience_ends_a_wait_for_a_plan_that_does_not_go_on) {
  Pipeline pipeline({{numbered(10, 8), {}}}, options(4));
  pipeline.extend(rows_of({1, 2, 3}));
  Batch batch;
  CHECK(pipeline.next(batch, 1ms) == Step::unplanned);
}

TEST(statistics_add_up) {
  const std::vector<ColumnPtr> columns = {numbered(100, 30), numbered(100, 12)};
  const Indices plan = shuffled(100, 17);
  const auto pipeline = planned(columns, plan, options(16));
  CHECK_EQ(read_all(*pipeline, columns, plan), 100);
  const memload::PipelineStats stats = pipeline->stats();
  CHECK_EQ(stats.batches, 7u);
  CHECK_EQ(stats.rows, 100u);
  CHECK_EQ(stats.bytes_in, 4200u);
  CHECK_EQ(stats.bytes_out, 4200u);
  CHECK(stats.gather_seconds > 0);
  CHECK_EQ(stats.major_faults, 0u);
}

TEST(a_forked_child_is_told_and_ends_in_peace) {
  const std::vector<ColumnPtr> columns = {numbered(500, 2000)};
  const Indices plan = shuffled(500, 18);
  auto pipeline = planned(columns, plan, options(20, 3));
  Batch batch;
  CHECK(pipeline->next(batch, kPatience) == Step::batch);
  const pid_t child = ::fork();
  if (child == 0) {
    bool told = false;
    try {
      Batch none;
      pipeline->next(none, kPatience);
    } catch (const ForkedError&) {
      told = true;
    }
    batch = {};
    pipeline.reset();
    ::_exit(told ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(holds(batch, columns, plan, 0));
  CHECK(pipeline->next(batch, kPatience) == Step::batch);
  CHECK(holds(batch, columns, plan, 20));
}

}  // namespace

int main() { return memload::test::run(); }
