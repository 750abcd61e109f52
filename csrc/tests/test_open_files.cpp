// The table of open descriptors: bounded, never closed under a reader, and empty in a forked child.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "core/io/open_files.h"
#include "tests/check.h"

namespace {

using memload::OpenFiles;
using WhenFull = OpenFiles::WhenFull;

// Files are told apart by an address.
std::array<char, 64> g_files{};

int open_null() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }
int open_none() { return -1; }
bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

OpenFiles::Handle get(OpenFiles& files, std::size_t file, WhenFull when_full = WhenFull::one_more) {
  return files.get(&g_files[file], when_full, open_null);
}

TEST(a_table_without_places_is_refused) { CHECK_THROWS(std::invalid_argument, OpenFiles(0)); }

TEST(the_file_used_least_recently_is_closed_for_the_next) {
  OpenFiles files(3);
  const int first = get(files, 0).fd();
  const int second = get(files, 1).fd();
  const int third = get(files, 2).fd();
  CHECK_EQ(get(files, 0).fd(), first);
  get(files, 3);
  CHECK_EQ(files.count(), 3u);
  CHECK_EQ(files.get(&g_files[0], WhenFull::one_more, open_none).fd(), first);
  CHECK_EQ(files.get(&g_files[2], WhenFull::one_more, open_none).fd(), third);
  CHECK_EQ(files.get(&g_files[1], WhenFull::one_more, open_none).fd(), -1);
  CHECK(second != first);
}

TEST(a_descriptor_in_use_is_not_closed_and_one_more_goes_with_its_handle) {
  OpenFiles files(1);
  const auto held = get(files, 0);
  int more = -1;
  {
    const auto other = get(files, 1);
    more = other.fd();
    CHECK(is_open(more));
    CHECK(is_open(held.fd()));
    CHECK_EQ(get(files, 2, WhenFull::none).fd(), -1);
  }
  CHECK(!is_open(more));
  CHECK_EQ(files.count(), 1u);
  CHECK(!files.close_idle());
  CHECK(is_open(held.fd()));
}

TEST(a_place_that_was_given_back_or_forgotten_is_free) {
  OpenFiles files(1);
  int fd = get(files, 0).fd();
  CHECK(is_open(fd));
  files.forget(&g_files[0]);
  CHECK(!is_open(fd));
  fd = get(files, 1, WhenFull::none).fd();
  CHECK(is_open(fd));
  CHECK(files.close_idle());
  CHECK(!is_open(fd));
  CHECK_EQ(files.count(), 0u);
}

TEST(a_file_that_cannot_be_opened_takes_no_place) {
  OpenFiles files(1);
  for (int i = 0; i < 3; ++i) CHECK_EQ(files.get(&g_files[0], WhenFull::none, open_none).fd(), -1);
  CHECK(get(files, 1, WhenFull::none).fd() >= 0);
  CHECK_EQ(files.count(), 1u);
}

TEST(a_forked_child_has_an_empty_table_and_its_own_descriptors) {
  OpenFiles files(4);
  const int fd = get(files, 0).fd();
  const pid_t child = ::fork();
  if (child == 0) {
    const bool good = !is_open(fd) && files.count() == 0 && is_open(get(files, 1).fd()) && files.count() == 1;
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(is_open(fd));
  CHECK_EQ(files.count(), 1u);
}

// Each thread checks that what it holds is the file that it asked for: these are told apart by their inodes.
TEST(threads_that_ask_for_more_files_than_there_are_places_hold_open_ones_within_the_bound) {
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kLimit = 5;
  OpenFiles files(kLimit);
  const auto open_of = [](std::size_t file) {
    return ::open(file % 2 == 0 ? "/dev/null" : "/dev/zero", O_RDONLY | O_CLOEXEC);
  };
  std::array<ino_t, 2> inodes{};
  for (std::size_t i = 0; i < 2; ++i) {
    struct stat info{};
    CHECK_EQ(::stat(i == 0 ? "/dev/null" : "/dev/zero", &info), 0);
    inodes[i] = info.st_ino;
  }
  std::atomic<std::size_t> wrong{0};
  std::atomic<std::size_t> held{0};
  std::atomic<std::size_t> most{0};
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 random(t);
        std::vector<OpenFiles::Handle> mine;
        for (int i = 0; i < 4000; ++i) {
          const std::size_t file = random() % g_files.size();
          const auto when_full = mine.empty() ? WhenFull::one_more : WhenFull::none;
          auto handle = files.get(&g_files[file], when_full, [&] { return open_of(file); });
          struct stat info{};
          if (handle.fd() < 0) {
            wrong += mine.empty() ? 1 : 0;
          } else if (::fstat(handle.fd(), &info) != 0 || info.st_ino != inodes[file % 2]) {
            ++wrong;
          }
          if (handle.fd() >= 0) mine.push_back(std::move(handle));
          held = files.count();
          if (held > most) most = held.load();
          if (random() % 3 == 0) mine.clear();
        }
      });
    }
  }
  CHECK_EQ(wrong.load(), 0u);
  CHECK(most <= kLimit);
  CHECK_EQ(files.count(), kLimit);
  CHECK(files.close_idle());
  CHECK_EQ(files.count(), 0u);
}

}  // namespace

int main() { return memload::test::run(); }
