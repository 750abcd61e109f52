#include "bench/decode.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>

#include "bench/clock.h"
#include "codec/foreign.h"
#include "core/fault_guard.h"

namespace memload::bench {

namespace {

std::size_t largest(std::span<const EncodedPart> parts) {
  std::size_t bytes = 0;
  for (const EncodedPart& part : parts) bytes = std::max(bytes, part.bytes);
  return bytes;
}

class Inflater {
 public:
  explicit Inflater(std::size_t most) : out_(most + 1) {
    constexpr std::int32_t kZlibOrGzip = 15 + 32;
    if (zng_inflateInit2(&stream_, kZlibOrGzip) != 0) throw std::bad_alloc();
  }
  ~Inflater() { zng_inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  void operator()(const EncodedPart& part) {
    constexpr std::int32_t kFinish = 4;
    constexpr std::int32_t kStreamEnd = 1;
    zng_inflateReset(&stream_);
    stream_.next_in = reinterpret_cast<const std::uint8_t*>(part.stored.data());
    stream_.avail_in = static_cast<std::uint32_t>(part.stored.size());
    stream_.next_out = reinterpret_cast<std::uint8_t*>(out_.data());
    stream_.avail_out = static_cast<std::uint32_t>(out_.size());
    if (zng_inflate(&stream_, kFinish) != kStreamEnd || stream_.total_out != part.bytes) {
      throw std::runtime_error("a part is not the zlib or gzip stream of its size");
    }
  }

 private:
  std::vector<std::byte> out_;
  zng_stream stream_{};
};

class Decoder {
 public:
  Decoder(const Chain& chain, std::size_t most) : chain_(&chain), out_(most), scratch_(chain.scratch_bytes(most)) {}

  void operator()(const EncodedPart& part) { chain_->decode(part.stored, std::span(out_).first(part.bytes), scratch_); }

 private:
  const Chain* chain_;
  std::vector<std::byte> out_;
  std::vector<std::byte> scratch_;
};

// An exception may not pass the guard.
template <typename Decode>
void decode_guarded(Decode& decode, const EncodedPart& part) {
  std::exception_ptr failure;
  const void* const fault = guarded([&] {
    try {
      decode(part);
    } catch (...) {
      failure = std::current_exception();
    }
  });
  if (fault != nullptr) throw std::runtime_error("a file was cut short while its parts were decoded");
  if (failure) std::rethrow_exception(failure);
}

// make() gives each thread what decodes one part.
template <typename Make>
DecodeRun run(std::span<const EncodedPart> parts, std::size_t threads, double seconds, const Make& make) {
  if (parts.empty() || threads == 0) throw std::invalid_argument("at least one part and one thread are needed");
  install_fault_handler();
  std::atomic<std::size_t> decoded = 0;  // plain sums, read after the threads were joined: relaxed suffices
  std::atomic<std::size_t> bytes = 0;
  const TeamTime time = run_team(threads, [&](std::size_t thread) {
    auto decode = make();
    const auto until = Clock::now() + std::chrono::duration<double>(seconds);
    bool first = true;
    while (first || Clock::now() < until) {
      for (std::size_t k = thread; k < parts.size() && (first || Clock::now() < until); k += threads) {
        decode_guarded(decode, parts[k]);
        decoded.fetch_add(1, std::memory_order_relaxed);
        bytes.fetch_add(parts[k].bytes, std::memory_order_relaxed);
      }
      first = false;
    }
  });
  return {time, decoded.load(std::memory_order_relaxed), bytes.load(std::memory_order_relaxed)};
}

}  // namespace

DecodeRun inflate_rate(std::span<const EncodedPart> parts, std::size_t threads, double seconds) {
  const std::size_t most = largest(parts);
  if (most >= UINT32_MAX) throw std::invalid_argument("parts of 4 GiB or more are not measured");
  return run(parts, threads, seconds, [&] { return Inflater(most); });
}

DecodeRun decode_rate(const Chain& chain, std::span<const EncodedPart> parts, std::size_t threads, double seconds) {
  const std::size_t most = largest(parts);
  return run(parts, threads, seconds, [&] { return Decoder(chain, most); });
}

}  // namespace memload::bench
