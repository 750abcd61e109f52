#include "bench/decode.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <utility>

#include "bench/clock.h"
#include "codec/foreign.h"
#include "core/base/fault_guard.h"
#include "core/base/memory.h"

namespace memload::bench {

namespace {

std::size_t largest(std::span<const EncodedPart> parts) {
  std::size_t bytes = 0;
  for (const EncodedPart& part : parts) bytes = std::max(bytes, part.bytes);
  return bytes;
}

// Where one thread decodes to: one place after the other, and from the beginning again.
class Output {
 public:
  Output(std::size_t most, std::size_t ring) : memory_(std::max(most, ring)) {
    std::memset(memory_.data(), 0, memory_.size());  // fresh pages are not what is measured
  }

  std::span<std::byte> next(std::size_t bytes) {
    if (memory_.size() - at_ < bytes) at_ = 0;
    return {memory_.data() + std::exchange(at_, at_ + bytes), bytes};
  }

 private:
  HugeMemory memory_;
  std::size_t at_ = 0;
};

class Inflater {
 public:
  explicit Inflater(Output out) : out_(std::move(out)) {
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
    const std::span<std::byte> out = out_.next(part.bytes + 1);  // a longer stream shows
    stream_.next_out = reinterpret_cast<std::uint8_t*>(out.data());
    stream_.avail_out = static_cast<std::uint32_t>(out.size());
    if (zng_inflate(&stream_, kFinish) != kStreamEnd || stream_.total_out != part.bytes) {
      throw std::runtime_error("a part is not the zlib or gzip stream of its size");
    }
  }

 private:
  Output out_;
  zng_stream stream_{};
};

class Decoder {
 public:
  Decoder(const Chain& chain, std::size_t most, Output out)
      : chain_(&chain), out_(std::move(out)), scratch_(chain.scratch_bytes(most)) {}

  void operator()(const EncodedPart& part) { chain_->decode(part.stored, out_.next(part.bytes), scratch_); }

 private:
  const Chain* chain_;
  Output out_;
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

// make(output) gives each thread what decodes one part.
template <typename Make>
DecodeRun run(std::span<const EncodedPart> parts, const DecodeTerms& terms, const Make& make) {
  if (parts.empty() || terms.threads == 0) throw std::invalid_argument("at least one part and one thread are needed");
  install_fault_handler();
  std::vector<Output> outputs;
  for (std::size_t k = 0; k < terms.threads; ++k) {
    outputs.emplace_back(largest(parts) + 1, terms.ring_bytes / terms.threads);
  }
  std::atomic<std::size_t> decoded = 0;  // plain sums, read after the threads were joined: relaxed suffices
  std::atomic<std::size_t> bytes = 0;
  const TeamTime time = run_team(terms.threads, [&](std::size_t thread) {
    auto decode = make(std::move(outputs[thread]));
    const auto until = Clock::now() + std::chrono::duration<double>(terms.seconds);
    bool first = true;
    while (first || Clock::now() < until) {
      for (std::size_t k = thread; k < parts.size() && (first || Clock::now() < until); k += terms.threads) {
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

DecodeRun inflate_rate(std::span<const EncodedPart> parts, const DecodeTerms& terms) {
  if (largest(parts) >= UINT32_MAX) throw std::invalid_argument("parts of 4 GiB or more are not measured");
  return run(parts, terms, [](Output out) { return Inflater(std::move(out)); });
}

DecodeRun decode_rate(const Chain& chain, std::span<const EncodedPart> parts, const DecodeTerms& terms) {
  const std::size_t most = largest(parts);
  return run(parts, terms, [&](Output out) { return Decoder(chain, most, std::move(out)); });
}

}  // namespace memload::bench
