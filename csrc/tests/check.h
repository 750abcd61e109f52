// All the framework the C++ tests need: a test is a function, a file is an executable, CTest runs it.
//
//     TEST(an_empty_file_is_refused) { CHECK_THROWS(std::runtime_error, parse({})); }
//     int main() { return memload::test::run(); }
//
// A failed check prints where and what, and the test goes on; run() returns 1 if any check failed.
#pragma once

#include <atomic>
#include <cstdio>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

namespace memload::test {

struct Case {
  const char* name;
  void (*body)();
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

// Atomic, since stress tests check from several threads.
inline std::atomic<int>& failures() {
  static std::atomic<int> count{0};
  return count;
}

inline bool add(const char* name, void (*body)()) {
  cases().push_back({name, body});
  return true;
}

inline void fail(const char* file, int line, const std::string& what) {
  // After the first hundred a loop's failures only repeat themselves.
  if (failures().fetch_add(1) < 100) std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
}

template <class A, class B>
void check_equal(const A& got, const B& want, const char* expression, const char* file, int line) {
  if (got == want) return;
  std::ostringstream text;
  text << expression << ": got " << got << ", expected " << want;
  fail(file, line, text.str());
}

inline int run() {
  for (const Case& test : cases()) {
    const int before = failures();
    try {
      test.body();
    } catch (const std::exception& error) {
      fail(test.name, 0, std::string("unexpected exception: ") + error.what());
    }
    std::printf("%s %s\n", failures() == before ? "ok  " : "FAIL", test.name);
    std::fflush(stdout);  // a later test may end the process
  }
  return failures() == 0 ? 0 : 1;
}

}  // namespace memload::test

#define TEST(name)                                                         \
  static void test_##name();                                               \
  static const bool added_##name = memload::test::add(#name, test_##name); \
  static void test_##name()

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) memload::test::fail(__FILE__, __LINE__, #condition); \
  } while (false)

#define CHECK_EQ(got, want) memload::test::check_equal((got), (want), #got, __FILE__, __LINE__)

// The statement must throw `type` (or a type derived from it).
#define CHECK_THROWS(type, ...)                                                                 \
  do {                                                                                          \
    bool thrown = false;                                                                        \
    try {                                                                                       \
      static_cast<void>(__VA_ARGS__);                                                           \
    } catch (const type&) {                                                                     \
      thrown = true;                                                                            \
    }                                                                                           \
    if (!thrown) memload::test::fail(__FILE__, __LINE__, #__VA_ARGS__ " did not throw " #type); \
  } while (false)
