// Files read past the page cache: the same bytes as through the mapping, whatever happens to the file.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/gather/gather.h"
#include "core/io/direct_file.h"
#include "core/pass/pipeline.h"
#include "tests/check.h"
#include "tests/fixtures.h"
#include "tests/passes.h"

namespace {

using memload::Batch;
using memload::BatchLayout;
using memload::CastRule;
using memload::ColdReads;
using memload::Column;
using memload::DirectFile;
using memload::DType;
using memload::FieldSpec;
using memload::Filled;
using memload::Gather;
using memload::HugeMemory;
using memload::Isa;
using memload::kPage;
using memload::OpenFiles;
using memload::Pipeline;
using memload::PipelineOptions;
using memload::PipelineStats;
using memload::ReadError;
using memload::Rows;
using memload::Segment;
using memload::Step;
using memload::Storage;
using memload::Store;
using memload::test::ColumnPtr;
using memload::test::dense;
using memload::test::in_memory;
using memload::test::Indices;
using memload::test::kPatience;
using memload::test::pattern_bytes;
using memload::test::rows_of;
using memload::test::same;
using memload::test::ScratchFile;
using memload::test::shuffled;
using namespace std::chrono_literals;

using Bytes = std::vector<std::byte>;

constexpr std::size_t kRow = 100'003;  // large, and no multiple of anything

// Puts the file out of the page cache. Nobody may have it mapped.
void evict(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ::fsync(fd);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
}

// Whether files of the temporary folder are on a disk: elsewhere nothing is ever cold, or nothing read directly, and
// the tests only show that the bytes are right.
bool on_a_disk() {
  static const bool answer = [] {
    const ScratchFile file(pattern_bytes(16 * kPage));
    evict(file.path());
    const int fd = ::open(file.path().c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
    const HugeMemory page(kPage);
    const bool direct = fd >= 0 && ::pread(fd, page.data(), kPage, 0) == static_cast<ssize_t>(kPage);
    if (fd >= 0) ::close(fd);
    const auto storage = Storage::map_file(file.path());
    const bool yes = direct && !storage->resident(storage->data(), storage->size());
    if (!yes) std::printf("the temporary folder is not on a disk: what is read directly is not counted\n");
    return yes;
  }();
  return answer;
}

std::set<std::string> descriptors_of(const std::string& prefix) {
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with(prefix)) found.insert(entry.path().filename().string());
  }
  return found;
}

std::unique_ptr<DirectFile> direct_file(const std::string& path,
                                        std::shared_ptr<OpenFiles> files = OpenFiles::shared()) {
  struct stat info{};
  CHECK_EQ(::stat(path.c_str(), &info), 0);
  return std::make_unique<DirectFile>(path, info.st_dev, info.st_ino, std::move(files));
}

// Reads [offset, offset + n) and compares; true as well where the file system refuses.
bool reads(const DirectFile& file, const Bytes& bytes, std::size_t offset, std::size_t n) {
  const HugeMemory scratch(DirectFile::room_for(n));
  const std::byte* const found = file.read(offset, n, {scratch.data(), scratch.size()});
  return found != nullptr ? same(found, bytes.data() + offset, n) : !on_a_disk();
}

TEST(any_range_is_read_up_to_the_files_last_byte) {
  const Bytes bytes = pattern_bytes(50 * kPage + 1234);
  const ScratchFile scratch(bytes);
  const auto file = direct_file(scratch.path());
  for (const std::size_t offset : {std::size_t{0}, std::size_t{1}, kPage - 1, kPage, 7 * kPage + 4095}) {
    for (const std::size_t n : {std::size_t{1}, kPage, kPage + 1, 3 * kPage - 1, bytes.size() - offset}) {
      CHECK(reads(*file, bytes, offset, n));
    }
  }
  CHECK(reads(*file, bytes, bytes.size() - 1, 1));
  CHECK(file->usable() || !on_a_disk());
}

TEST(a_scratch_that_is_too_small_is_left_alone) {
  const ScratchFile scratch(pattern_bytes(8 * kPage));
  const auto file = direct_file(scratch.path());
  const HugeMemory page(kPage);
  CHECK(file->read(kPage - 1, 2, {page.data(), page.size()}) == nullptr);
}

TEST(nothing_is_opened_before_the_first_read_and_one_descriptor_kept_for_all_threads) {
  const Bytes bytes = pattern_bytes(64 * kPage);
  const ScratchFile scratch(bytes);
  auto file = direct_file(scratch.path());
  CHECK_EQ(descriptors_of(scratch.path()).size(), 0u);
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < 6; ++t) {
      threads.emplace_back([&, t] {
        for (std::size_t i = 0; i < 20; ++i) CHECK(reads(*file, bytes, (t * 20 + i) * 2000, 5000));
      });
    }
  }
  if (on_a_disk()) CHECK_EQ(descriptors_of(scratch.path()).size(), 1u);
  file.reset();
  CHECK_EQ(descriptors_of(scratch.path()).size(), 0u);
}

TEST(of_many_files_only_some_stay_open_and_all_are_read) {
  const Bytes bytes = pattern_bytes(2 * kPage);
  std::vector<std::unique_ptr<ScratchFile>> scratch;
  std::vector<std::unique_ptr<DirectFile>> files;
  const std::string folder = (std::filesystem::temp_directory_path() / "memload-test-").string();
  const auto table = std::make_shared<OpenFiles>(64);
  for (int i = 0; i < 200; ++i) {
    scratch.push_back(std::make_unique<ScratchFile>(bytes));
    files.push_back(direct_file(scratch.back()->path(), table));
  }
  for (int pass = 0; pass < 2; ++pass) {
    for (const auto& file : files) CHECK(reads(*file, bytes, 5000, 3000));
  }
  CHECK_EQ(descriptors_of(folder).size(), on_a_disk() ? 64u : 0u);
  files.clear();
  CHECK_EQ(descriptors_of(folder).size(), 0u);
}

TEST(a_file_put_in_the_place_of_ours_is_never_read) {
  const Bytes bytes = pattern_bytes(4 * kPage, 1);
  const ScratchFile ours(bytes);
  const ScratchFile other(pattern_bytes(4 * kPage, 2));
  const auto file = direct_file(ours.path());
  const auto opened_before = direct_file(ours.path());
  CHECK(reads(*opened_before, bytes, 0, kPage));
  ::rename(other.path().c_str(), ours.path().c_str());
  const HugeMemory scratch(2 * kPage);
  CHECK(file->read(0, kPage, {scratch.data(), scratch.size()}) == nullptr);
  CHECK(!file->usable());
  CHECK_EQ(descriptors_of(ours.path()).size(), on_a_disk() ? 1u : 0u);  // that of opened_before
  CHECK(reads(*opened_before, bytes, kPage, kPage));
}

TEST(a_file_that_is_gone_or_no_file_is_not_waited_for) {
  const ScratchFile ours(pattern_bytes(kPage));
  const auto file = direct_file(ours.path());
  ::unlink(ours.path().c_str());
  CHECK_EQ(::mkfifo(ours.path().c_str(), 0600), 0);
  const HugeMemory scratch(2 * kPage);
  CHECK(file->read(0, kPage, {scratch.data(), scratch.size()}) == nullptr);
  CHECK(!file->usable());
}

TEST(a_file_cut_short_gives_nothing_and_is_asked_again) {
  const Bytes bytes = pattern_bytes(8 * kPage);
  const ScratchFile scratch(bytes);
  const auto file = direct_file(scratch.path());
  scratch.truncate(3 * kPage + 10);
  const HugeMemory memory(3 * kPage);
  CHECK(file->read(3 * kPage, 11, {memory.data(), memory.size()}) == nullptr);
  CHECK(file->read(6 * kPage, kPage, {memory.data(), memory.size()}) == nullptr);
  CHECK(reads(*file, bytes, 3 * kPage, 10));
}

TEST(a_forked_child_has_none_of_the_descriptors_and_opens_its_own) {
  const Bytes bytes = pattern_bytes(32 * kPage);
  const ScratchFile scratch(bytes);
  const auto file = direct_file(scratch.path());
  CHECK(reads(*file, bytes, 0, kPage));
  const pid_t child = ::fork();
  if (child == 0) {
    bool good = descriptors_of(scratch.path()).empty();
    for (std::size_t i = 0; i < 30; ++i) good = good && reads(*file, bytes, i * kPage, kPage + 7);
    ::_exit(good ? 0 : 1);
  }
  for (std::size_t i = 0; i < 30; ++i) CHECK(reads(*file, bytes, i * kPage + 9, kPage));
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(a_file_system_in_memory_is_read_as_any_other) {
  struct stat info{};
  if (::stat("/dev/shm", &info) != 0) return;
  const std::string path = "/dev/shm/memload-test-" + std::to_string(::getpid());
  const Bytes bytes = pattern_bytes(4 * kRow);
  const int fd = ::open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  CHECK_EQ(::write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  ::close(fd);
  const auto storage = Storage::map_file(path);
  const HugeMemory scratch(DirectFile::room_for(kRow));
  const std::byte* const read = storage->read_direct(storage->data() + kRow, kRow, {scratch.data(), scratch.size()});
  CHECK(read == nullptr || same(read, bytes.data() + kRow, kRow));
  CHECK(storage->resident(storage->data(), storage->size()));
  ::unlink(path.c_str());
}

// A file mapped while it is not in the page cache.
struct ColdFile {
  explicit ColdFile(const Bytes& bytes) : file(bytes) {
    evict(file.path());
    storage = Storage::map_file(file.path());
  }
  ScratchFile file;
  std::shared_ptr<const Storage> storage;
};

// Fills a batch in pieces that keep rows whole, the last first, with direct reads.
Filled fill_directly(const Gather& gather, const BatchLayout& layout, std::byte* slot, std::size_t piece) {
  const HugeMemory scratch(Gather::kScratch);
  const ColdReads cold{.ask = true, .scratch = {scratch.data(), scratch.size()}};
  Filled sum;
  std::size_t end = layout.bytes;
  for (std::size_t at = layout.bytes / piece * piece;; at -= piece) {
    const std::size_t begin = gather.row_edge(layout, at);
    CHECK(begin <= end);
    const Filled found = gather.fill(layout, slot, begin, end, cold);
    sum.direct_bytes += found.direct_bytes;
    sum.resident_reads += found.resident_reads;
    sum.refused = sum.refused || found.refused;
    end = begin;
    if (at == 0) break;
  }
  CHECK_EQ(end, 0u);
  return sum;
}

TEST(a_batch_read_directly_has_the_bytes_of_the_file) {
  constexpr std::size_t kRows = 30;
  const Bytes bytes = pattern_bytes(kRows * kRow + 77, 3);
  for (const std::size_t piece : {std::size_t{64} << 10, std::size_t{256} << 10, std::size_t{8} << 20}) {
    const ColdFile cold(bytes);
    const auto column = std::make_shared<const Column>(
        kRow, std::vector<Segment>{{cold.storage, 77, kRows, kRow}});  // the last row ends with the file
    const Gather gather({{column, {}}}, memload::best_isa(), Store::cached);
    const Indices rows = shuffled(kRows, 4);
    const BatchLayout layout = gather.layout(rows);
    Bytes slot(layout.bytes, std::byte{0xEE});
    const Filled found = fill_directly(gather, layout, slot.data(), piece);
    for (std::size_t i = 0; i < kRows; ++i) {
      CHECK(same(slot.data() + i * kRow, bytes.data() + 77 + static_cast<std::size_t>(rows[i]) * kRow, kRow));
    }
    if (!on_a_disk()) continue;
    CHECK_EQ(found.direct_bytes, kRows * kRow);
    CHECK_EQ(cold.storage->direct_bytes(), kRows * kRow);
    CHECK_EQ(found.resident_reads, 0u);
    CHECK(!cold.storage->resident(cold.storage->data() + 10 * kRow, kRow));
  }
}

TEST(residency_is_told_of_bytes_anywhere_in_a_page) {
  const ColdFile cold(pattern_bytes(1 << 20, 9));
  if (!on_a_disk()) return;
  const std::byte* const data = cold.storage->data();
  constexpr std::array<std::size_t, 5> kOffsets = {0, 1, kPage, 5 * kPage, 300'003};
  for (const std::size_t offset : kOffsets) CHECK(!cold.storage->resident(data + offset, kPage + 1));
  // It reads all, which stays until it is unmapped. The sanitizers make mlock() a call that does nothing.
  if (::mlock2(data, cold.storage->size(), 0) != 0) return;
  for (const std::size_t offset : kOffsets) CHECK(cold.storage->resident(data + offset, kPage + 1));
  CHECK(cold.storage->resident(data, cold.storage->size()));
}

TEST(a_batch_read_directly_is_cast_on_the_way) {
  constexpr std::size_t kRows = 12;
  constexpr std::size_t kElements = 60'001;
  const Bytes bytes = pattern_bytes(kRows * kElements * 2 + 2, 5);
  for (const Store store : {Store::cached, Store::streaming}) {
    const ColdFile cold(bytes);
    const auto column =
        std::make_shared<const Column>(kElements * 2, std::vector<Segment>{{cold.storage, 2, kRows, kElements * 2}});
    const CastRule widen{DType::i16, DType::f32};
    const Gather gather({{column, widen}}, memload::best_isa(), store);
    const Indices rows = shuffled(kRows, 6);
    const BatchLayout layout = gather.layout(rows);
    const HugeMemory direct(layout.bytes);
    const HugeMemory mapped(layout.bytes);
    const Filled found = fill_directly(gather, layout, direct.data(), 333 * 64);
    static_cast<void>(gather.fill(layout, mapped.data(), 0, layout.bytes));
    CHECK(same(direct.data(), mapped.data(), layout.bytes));
    if (on_a_disk()) CHECK_EQ(found.direct_bytes, kRows * kElements * 2);
  }
}

TEST(rows_longer_than_the_scratch_are_read_in_chunks) {
  constexpr std::size_t kLong = 2 * Gather::kScratch + 12'344;
  const Bytes bytes = pattern_bytes(3 * kLong, 7);
  const ColdFile cold(bytes);
  const Gather gather({{dense(cold.storage, kLong), {}}}, memload::best_isa(), Store::cached);
  const Indices rows = {2, 0, 1};
  const BatchLayout layout = gather.layout(rows);
  const HugeMemory slot(layout.bytes);
  const Filled found = fill_directly(gather, layout, slot.data(), layout.bytes);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(same(slot.data() + i * kLong, bytes.data() + static_cast<std::size_t>(rows[i]) * kLong, kLong));
  }
  if (on_a_disk()) CHECK_EQ(found.direct_bytes, 3 * kLong);
}

TEST(only_large_rows_of_files_that_are_not_in_the_page_cache_are_read_directly) {
  constexpr std::size_t kRows = 20;
  const Bytes large = pattern_bytes(kRows * kRow, 8);
  const Bytes small = pattern_bytes(kRows * 5000, 9);
  const ColdFile cold(large);
  const ColdFile cold_small(small);
  const ColdFile warm(large);
  CHECK(same(warm.storage->data(), large.data(), large.size()));
  const std::vector<ColumnPtr> columns = {dense(cold.storage, kRow), dense(cold_small.storage, 5000),
                                          dense(in_memory(large), kRow), dense(warm.storage, kRow)};
  std::vector<FieldSpec> fields;
  for (const ColumnPtr& column : columns) fields.push_back({column, {}});
  const Gather gather(fields, Isa::scalar, Store::cached);
  CHECK(gather.files().large_rows);
  CHECK(gather.files().small_rows);
  const Indices rows = shuffled(kRows, 10);
  const BatchLayout layout = gather.layout(rows);
  const HugeMemory slot(layout.bytes);
  const Filled found = fill_directly(gather, layout, slot.data(), std::size_t{256} << 10);
  for (std::size_t f = 0; f < columns.size(); ++f) {
    const std::size_t n = columns[f]->row_bytes();
    for (std::size_t i = 0; i < kRows; ++i) {
      CHECK(same(slot.data() + layout.shares[f].offset + i * n, columns[f]->address(rows[i]), n));
    }
  }
  if (!on_a_disk()) return;
  CHECK_EQ(found.direct_bytes, kRows * kRow);
  CHECK_EQ(found.resident_reads, kRows);
  CHECK_EQ(cold_small.storage->direct_bytes() + warm.storage->direct_bytes(), 0u);
}

PipelineOptions options(std::size_t batch_rows) {
  PipelineOptions chosen;
  chosen.batch_rows = chosen.slot_rows = batch_rows;
  chosen.threads = 2;
  chosen.direct = true;
  return chosen;
}

std::unique_ptr<Pipeline> planned(const ColumnPtr& column, const Indices& rows, const PipelineOptions& chosen) {
  auto pipeline = std::make_unique<Pipeline>(std::vector<FieldSpec>{{column, {}}}, chosen);
  pipeline->extend(rows_of(rows));
  pipeline->finish();
  return pipeline;
}

// Reads to the end and compares with the bytes of the file; the number of rows that were right.
std::size_t read_all(Pipeline& pipeline, const Bytes& bytes, const Indices& plan) {
  std::size_t seen = 0;
  Batch batch;
  while (pipeline.next(batch, kPatience) == Step::batch) {
    for (std::size_t i = 0; i < batch.row_numbers.size(); ++i) {
      const auto row = static_cast<std::size_t>(plan[seen]);
      if (!same(batch.slot.get() + i * kRow, bytes.data() + row * kRow, kRow)) return seen;
      ++seen;
    }
  }
  return seen;
}

TEST(a_cold_pass_reads_every_row_directly_and_leaves_no_descriptor) {
  constexpr std::size_t kRows = 200;
  const Bytes bytes = pattern_bytes(kRows * kRow, 11);
  std::string path;
  const std::size_t before = descriptors_of("/").size();
  {
    ColdFile cold(bytes);
    path = cold.file.path();
    const Indices plan = shuffled(kRows, 12);
    const auto pipeline = planned(dense(cold.storage, kRow), plan, options(8));
    CHECK_EQ(read_all(*pipeline, bytes, plan), kRows);
    const PipelineStats stats = pipeline->stats();
    if (on_a_disk()) {
      CHECK_EQ(stats.direct_bytes, kRows * kRow);
      CHECK_EQ(stats.advised_rows, 0u);
    }
    CHECK_EQ(stats.bytes_in, kRows * kRow);
  }
  CHECK_EQ(descriptors_of(path).size(), 0u);
  CHECK_EQ(descriptors_of("/").size(), before);
}

TEST(a_warm_pass_reads_nothing_directly) {
  constexpr std::size_t kRows = 60;
  const Bytes bytes = pattern_bytes(memload::round_up(kRows * kRow, 65536), 13);  // whole pages of any system
  const ScratchFile file(bytes);
  const auto column = dense(Storage::map_file(file.path()), kRow);
  const Indices plan = shuffled(kRows, 14);
  const auto pipeline = planned(column, plan, options(8));
  CHECK_EQ(read_all(*pipeline, bytes, plan), kRows);
  CHECK_EQ(pipeline->stats().direct_bytes, 0u);
  CHECK_EQ(descriptors_of(file.path()).size(), 0u);
}

TEST(rows_that_are_in_the_page_cache_are_not_read_from_the_disk_again) {
  constexpr std::size_t kRows = 300;
  constexpr std::size_t kCold = 100;
  const Bytes bytes = pattern_bytes(kRows * kRow, 15);
  const ColdFile cold(bytes);
  const std::byte* const first_warm = cold.storage->data() + kCold * kRow;
  CHECK(same(first_warm, bytes.data() + kCold * kRow, (kRows - kCold) * kRow));
  Indices plan(kRows);
  for (std::size_t i = 0; i < kRows; ++i) plan[i] = static_cast<std::int64_t>(i);
  std::rotate(plan.begin() + 20, plan.begin() + kCold, plan.end());  // cold, then 200 warm, then cold again
  const auto pipeline = planned(dense(cold.storage, kRow), plan, options(10));
  CHECK_EQ(read_all(*pipeline, bytes, plan), kRows);
  CHECK(pipeline->stats().direct_bytes <= (kCold + 1) * kRow);
  if (on_a_disk()) CHECK(pipeline->stats().direct_bytes >= 15 * kRow);
}

TEST(a_file_truncated_while_it_is_read_directly_fails_with_file_and_row) {
  constexpr std::size_t kRows = 200;
  const Bytes bytes = pattern_bytes(kRows * kRow, 16);
  const ColdFile cold(bytes);
  const Indices plan = shuffled(kRows, 17);
  const auto pipeline = planned(dense(cold.storage, kRow), plan, options(4));
  Batch batch;
  CHECK(pipeline->next(batch, kPatience) == Step::batch);
  cold.file.truncate(3 * kRow);
  bool thrown = false;
  try {
    while (pipeline->next(batch, kPatience) == Step::batch) {
    }
  } catch (const ReadError& error) {
    thrown = true;
    CHECK_EQ(error.file(), cold.file.path());
    CHECK(error.row() >= 2 && error.row() < static_cast<std::int64_t>(kRows));
    CHECK(error.offset() + kPage >= static_cast<std::uint64_t>(error.row()) * kRow);
    CHECK(error.offset() < static_cast<std::uint64_t>(error.row() + 1) * kRow);
  }
  CHECK(thrown);
  CHECK(pipeline->next(batch, kPatience) == Step::end);
}

TEST(a_replaced_file_is_read_on_through_the_mapping) {
  constexpr std::size_t kRows = 150;
  const Bytes bytes = pattern_bytes(kRows * kRow, 18);
  const ColdFile cold(bytes);
  const ScratchFile other(pattern_bytes(kRows * kRow, 19));
  ::rename(other.path().c_str(), cold.file.path().c_str());
  const Indices plan = shuffled(kRows, 20);
  const auto pipeline = planned(dense(cold.storage, kRow), plan, options(8));
  CHECK_EQ(read_all(*pipeline, bytes, plan), kRows);
  CHECK_EQ(pipeline->stats().direct_bytes, 0u);
  if (on_a_disk()) CHECK(pipeline->stats().advised_rows > 0);  // as any cold pass that goes through the page cache
}

TEST(a_pass_left_in_the_middle_of_direct_reads_ends) {
  constexpr std::size_t kRows = 120;
  const Bytes bytes = pattern_bytes(kRows * kRow, 21);
  for (int i = 0; i < 20; ++i) {
    const ColdFile cold(bytes);
    const auto pipeline = planned(dense(cold.storage, kRow), shuffled(kRows, 22), options(6));
    Batch batch;
    if (i % 3 != 0) CHECK(pipeline->next(batch, kPatience) == Step::batch);
    if (i % 2 != 0) pipeline->close();
  }
}

TEST(several_passes_read_one_file_directly_at_once) {
  constexpr std::size_t kRows = 120;
  const Bytes bytes = pattern_bytes(kRows * kRow, 24);
  const ColdFile cold(bytes);
  std::atomic<std::size_t> right{0};
  {
    std::vector<std::jthread> consumers;
    for (unsigned id = 0; id < 3; ++id) {
      consumers.emplace_back([&, id] {
        const Indices plan = shuffled(kRows, 100 + id);
        right += read_all(*planned(dense(cold.storage, kRow), plan, options(4 + id)), bytes, plan);
      });
    }
  }
  CHECK_EQ(right.load(), 3 * kRows);
  if (on_a_disk()) CHECK_EQ(cold.storage->direct_bytes(), 3 * kRows * kRow);
}

TEST(files_whose_residency_is_not_told_are_read_directly_when_that_is_asked_for) {
  if (::geteuid() != 0) return;  // only root can become somebody who does not own its file
  const Bytes bytes = pattern_bytes(4 * kRow, 23);
  const ScratchFile file(bytes);
  ::chmod(file.path().c_str(), 0644);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::seteuid(65534) != 0) ::_exit(2);
    const auto storage = Storage::map_file(file.path());
    const Gather gather({{dense(storage, kRow), {}}}, Isa::scalar, Store::cached);
    const Indices rows = {0, 1, 2, 3};
    const BatchLayout layout = gather.layout(rows);
    const HugeMemory slot(layout.bytes);
    const Filled found = fill_directly(gather, layout, slot.data(), layout.bytes);
    const bool good = !storage->knows_residency() && same(slot.data(), bytes.data(), bytes.size()) &&
                      (found.direct_bytes == 4 * kRow || !on_a_disk());
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK_EQ(WEXITSTATUS(status), 0);
}

}  // namespace

int main() { return memload::test::run(); }
