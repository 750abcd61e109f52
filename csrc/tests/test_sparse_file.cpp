// Parts of sparse files: their bytes, the space that they take, and what happens where there is none.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "core/io/sparse_file.h"
#include "tests/check.h"

namespace {

using memload::give_back;
using memload::write_part;

constexpr std::uint64_t kPart = 1 << 16;
constexpr std::uint64_t kSize = 4 * kPart + 100;

// A sparse file without a name.
class SparseFile {
 public:
  SparseFile() : stream_(std::tmpfile()) {
    if (stream_ == nullptr || ::ftruncate(number(), kSize) != 0) throw std::runtime_error("no file");
  }
  ~SparseFile() { std::fclose(stream_); }
  SparseFile(const SparseFile&) = delete;
  SparseFile& operator=(const SparseFile&) = delete;
  [[nodiscard]] int number() const { return ::fileno(stream_); }
  [[nodiscard]] struct stat info() const {
    struct stat found{};
    ::fstat(number(), &found);
    return found;
  }
  [[nodiscard]] std::uint64_t disk_bytes() const { return static_cast<std::uint64_t>(info().st_blocks) * 512; }
  [[nodiscard]] std::byte at(std::uint64_t offset) const {
    std::byte found{};
    if (::pread(number(), &found, 1, static_cast<off_t>(offset)) != 1) throw std::runtime_error("no byte");
    return found;
  }

 private:
  std::FILE* stream_;
};

TEST(a_part_takes_its_own_space_until_it_is_given_back) {
  for (const bool reserve : {false, true}) {
    const SparseFile file;
    const std::vector<std::byte> data(kPart, std::byte{7});
    write_part(file.number(), kPart, data, reserve);
    ::fsync(file.number());
    CHECK(file.at(kPart - 1) == std::byte{0});
    CHECK(file.at(kPart) == std::byte{7});
    CHECK(file.at(2 * kPart - 1) == std::byte{7});
    CHECK(file.at(2 * kPart) == std::byte{0});
    CHECK(file.disk_bytes() >= kPart);
    CHECK(file.disk_bytes() < 2 * kPart);
    give_back(file.number(), kPart, kPart);
    CHECK(file.at(kPart) == std::byte{0});
    CHECK(file.disk_bytes() < kPart);
  }
}

TEST(a_last_part_leaves_the_size_of_the_file_as_it_is) {
  const SparseFile file;
  const std::vector<std::byte> data(100, std::byte{7});
  write_part(file.number(), 4 * kPart, data, true);
  CHECK_EQ(static_cast<std::uint64_t>(file.info().st_size), kSize);
  CHECK(file.at(kSize - 1) == std::byte{7});
  give_back(file.number(), 4 * kPart, 100);
  CHECK_EQ(static_cast<std::uint64_t>(file.info().st_size), kSize);
  CHECK(file.at(kSize - 1) == std::byte{0});
}

TEST(what_cannot_be_written_or_given_back_is_an_error) {
  const std::array<std::byte, 1> one{};
  CHECK_THROWS(std::system_error, write_part(-1, 0, one, false));
  CHECK_THROWS(std::system_error, write_part(-1, 0, one, true));
  CHECK_THROWS(std::system_error, give_back(-1, 0, 4096));
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  CHECK_THROWS(std::system_error, give_back(null, 0, 4096));
  ::close(null);
}

}  // namespace

int main() { return memload::test::run(); }
