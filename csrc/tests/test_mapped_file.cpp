// Files that are mapped, and files that are cut short while they are being read.
#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/base/fault_guard.h"
#include "core/base/page.h"
#include "core/gather/gather.h"
#include "tests/check.h"
#include "tests/fixtures.h"

namespace {

using memload::BatchLayout;
using memload::Column;
using memload::Gather;
using memload::Isa;
using memload::ReadError;
using memload::Storage;
using memload::Store;
using memload::test::dense;
using memload::test::pattern_bytes;
using memload::test::same;
using memload::test::ScratchFile;

const std::size_t kPageBytes = memload::system_page();

int open_descriptors() {
  int count = 0;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

// How a child that runs `body` ends, as waitpid() says. What it writes to stderr is dropped.
template <class Body>
int status_of_child(Body&& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(STDERR_FILENO);
    body();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

std::byte read_byte(const std::byte* at) { return *static_cast<const volatile std::byte*>(at); }

TEST(a_file_is_mapped_whole_and_its_descriptor_closed) {
  const std::vector<std::byte> bytes = pattern_bytes(3 * kPageBytes + 17);
  const ScratchFile file(bytes);
  const int before = open_descriptors();
  const auto storage = Storage::map_file(file.path());
  CHECK_EQ(open_descriptors(), before);
  CHECK(storage->mapped());
  CHECK_EQ(storage->size(), bytes.size());
  CHECK_EQ(storage->name(), file.path());
  CHECK(same(storage->data(), bytes.data(), bytes.size()));
}

TEST(an_empty_file_is_no_bytes) {
  const auto storage = Storage::map_file(ScratchFile({}).path());
  CHECK_EQ(storage->size(), 0u);
}

TEST(a_missing_file_is_named) {
  try {
    static_cast<void>(Storage::map_file("/no/such/file"));
    CHECK(false);
  } catch (const std::system_error& error) {
    CHECK_EQ(error.code().value(), ENOENT);
    CHECK(std::string(error.what()).find("/no/such/file") != std::string::npos);
  }
}

TEST(a_folder_is_not_mapped) { CHECK_THROWS(std::system_error, Storage::map_file("/tmp")); }

TEST(a_fault_is_returned_and_the_guard_can_be_used_again) {
  const ScratchFile file(pattern_bytes(4 * kPageBytes));
  const auto storage = Storage::map_file(file.path());
  memload::install_fault_handler();
  file.truncate(kPageBytes);
  const std::byte* const gone = storage->data() + 2 * kPageBytes + 5;
  for (int i = 0; i < 100; ++i) {
    const void* const address = memload::guarded([&] { read_byte(gone); });
    CHECK(address == gone);
    CHECK(memload::guarded([&] { read_byte(storage->data()); }) == nullptr);
  }
}

TEST(a_row_cut_off_is_named_with_its_file_and_offset) {
  const std::size_t kRow = kPageBytes / 4 - 24;
  const ScratchFile file(pattern_bytes(40 * kRow));
  const auto column = dense(Storage::map_file(file.path()), kRow);
  const Gather gather({{column, {}}}, Isa::scalar, Store::cached);
  std::vector<std::byte> slot(gather.slot_bytes(1));
  memload::install_fault_handler();
  file.truncate(2 * kPageBytes);
  const auto fill = [&](std::int64_t row) {
    const BatchLayout layout = gather.layout({&row, 1});
    static_cast<void>(gather.fill(layout, slot.data(), 0, layout.work));
  };
  fill(7);  // ends inside the two pages that are left
  try {
    fill(8);  // ends outside
    CHECK(false);
  } catch (const ReadError& error) {
    CHECK_EQ(error.file(), file.path());
    CHECK_EQ(error.row(), 8);
    CHECK(error.offset() >= 2 * kPageBytes && error.offset() < 9 * kRow);
    const std::string message = error.what();
    CHECK(message.find(file.path()) != std::string::npos);
    CHECK(message.find(std::to_string(40 * kRow)) != std::string::npos);
    CHECK(message.find("truncated") != std::string::npos);
  }
}

TEST(a_file_truncated_under_reading_threads_ends_no_thread_and_spoils_no_other_file) {
  constexpr std::size_t kRow = 4096;
  constexpr std::size_t kRows = 512;
  const std::vector<std::byte> bytes = pattern_bytes(kRow * kRows, 1);
  const ScratchFile whole(bytes);
  const ScratchFile cut(bytes);
  const Gather good({{dense(Storage::map_file(whole.path()), kRow), {}}}, Isa::scalar, Store::cached);
  const Gather bad({{dense(Storage::map_file(cut.path()), kRow), {}}}, Isa::scalar, Store::cached);
  memload::install_fault_handler();

  std::atomic<int> errors{0};
  std::atomic<int> warm{0};
  std::atomic<int> spoilt{0};
  const auto read = [&](const Gather& gather, unsigned seed, bool until_error) {
    std::vector<std::byte> slot(gather.slot_bytes(1));
    const std::vector<std::int64_t> order = memload::test::shuffled(kRows, seed);
    for (std::size_t i = 0; until_error || i < 4 * kRows; ++i) {
      const std::int64_t row = order[i % kRows];
      try {
        const BatchLayout layout = gather.layout({&row, 1});
        static_cast<void>(gather.fill(layout, slot.data(), 0, layout.work));
        if (!same(slot.data(), bytes.data() + static_cast<std::size_t>(row) * kRow, kRow)) ++spoilt;
      } catch (const ReadError& error) {
        CHECK(until_error);
        CHECK_EQ(error.row(), row);
        ++errors;
        return;
      }
      if (i == 50) ++warm;
    }
  };
  {
    std::vector<std::jthread> threads;
    for (unsigned seed = 0; seed < 3; ++seed) threads.emplace_back([&, seed] { read(bad, seed, true); });
    for (unsigned seed = 3; seed < 5; ++seed) threads.emplace_back([&, seed] { read(good, seed, false); });
    while (warm < 5) std::this_thread::yield();
    cut.truncate(kRow);
  }
  CHECK_EQ(errors.load(), 3);
  CHECK_EQ(spoilt.load(), 0);
}

TEST(asking_about_a_truncated_file_is_harmless) {
  const ScratchFile file(pattern_bytes(8 * kPageBytes));
  const auto storage = Storage::map_file(file.path());
  file.truncate(0);
  const std::byte* const last = storage->data() + 7 * kPageBytes;
  storage->advise(last, kPageBytes);
  CHECK(!storage->enter(last, kPageBytes));
  CHECK(!storage->resident(last));
}

TEST(a_guard_works_under_a_handler_that_blocks_signals_and_hands_on_to_ours) {
  const ScratchFile file(pattern_bytes(2 * kPageBytes));
  const auto storage = Storage::map_file(file.path());
  file.truncate(0);
  const int status = status_of_child([&] {
    static struct sigaction ours{};
    memload::install_fault_handler();
    ::sigaction(SIGBUS, nullptr, &ours);
    struct sigaction theirs{};
    theirs.sa_sigaction = [](int signal, siginfo_t* info, void* context) { ours.sa_sigaction(signal, info, context); };
    theirs.sa_flags = SA_SIGINFO;
    sigfillset(&theirs.sa_mask);
    ::sigaction(SIGBUS, &theirs, nullptr);
    int caught = 0;
    for (int i = 0; i < 3; ++i) caught += memload::guarded([&] { read_byte(storage->data()); }) != nullptr ? 1 : 0;
    sigset_t blocked;
    ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    ::_exit(caught + 10 * sigismember(&blocked, SIGINT));
  });
  CHECK(WIFEXITED(status));
  CHECK_EQ(WEXITSTATUS(status), 3);
}

TEST(a_fault_that_is_not_ours_goes_to_the_handler_that_was_there) {
  const ScratchFile file(pattern_bytes(2 * kPageBytes));
  const auto storage = Storage::map_file(file.path());
  file.truncate(0);
  const int status = status_of_child([&] {
    struct sigaction theirs{};
    theirs.sa_handler = [](int) { ::_exit(7); };
    ::sigaction(SIGBUS, &theirs, nullptr);
    memload::install_fault_handler();
    CHECK(memload::guarded([&] { read_byte(storage->data()); }) == storage->data());
    read_byte(storage->data());
  });
  CHECK(WIFEXITED(status));
  CHECK_EQ(WEXITSTATUS(status), 7);
}

TEST(a_fault_that_is_nobodys_ends_the_process) {
  const ScratchFile file(pattern_bytes(2 * kPageBytes));
  const auto storage = Storage::map_file(file.path());
  file.truncate(0);
  const int status = status_of_child([&] {
    struct sigaction none{};
    none.sa_handler = SIG_DFL;
    ::sigaction(SIGBUS, &none, nullptr);
    memload::install_fault_handler();
    read_byte(storage->data());
  });
  CHECK(WIFSIGNALED(status));
  CHECK_EQ(WTERMSIG(status), SIGBUS);
}

}  // namespace

int main() { return memload::test::run(); }
