#include "core/base/fork.h"

#include <pthread.h>

#include <atomic>

namespace memload {
namespace {

std::atomic<std::uint64_t> g_generation{0};

[[maybe_unused]] const int g_registered =
    ::pthread_atfork(nullptr, nullptr, [] { g_generation.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

std::uint64_t fork_generation() noexcept { return g_generation.load(std::memory_order_relaxed); }

}  // namespace memload
