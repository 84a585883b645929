// A small test harness: TEST(name) { CHECK(...); }. Tests run in order of definition; arguments select tests by name. A
// failing CHECK is printed and counted, and the test continues. SKIP("reason") prints the reason and ends the test.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace harness {

struct Case {
  const char* name;
  void (*body)();
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

inline int& failures() {
  static int count = 0;
  return count;
}

struct Skipped {
  std::string reason;
};

// Whether this is the short run of `make test`: a part of the seeds, lengths and bits, and less time for each race.
inline bool is_short() {
  const char* text = std::getenv("RELIVE_TEST_SHORT");
  return text != nullptr && std::strcmp(text, "1") == 0;
}

struct Register {
  Register(const char* name, void (*body)()) { cases().push_back({name, body}); }
};

template <class Value>
std::string show(const Value& value) {
  std::ostringstream out;
  out.precision(17);
  out << value;
  return out.str();
}

inline void fail(const char* file, int line, const std::string& text) {
  ++failures();
  if (failures() <= 50) std::printf("  %s:%d: %s\n", file, line, text.c_str());
}

inline int run(int argc, char** argv) {
  int passed = 0, failed = 0, skipped = 0;
  for (const Case& test : cases()) {
    bool wanted = argc < 2;
    for (int i = 1; i < argc; ++i) wanted = wanted || std::strstr(test.name, argv[i]) != nullptr;
    if (!wanted) continue;
    failures() = 0;
    std::printf("%s\n", test.name);
    std::fflush(stdout);
    try {
      test.body();
    } catch (const Skipped& skip) {
      std::printf("  skipped: %s\n", skip.reason.c_str());
      ++skipped;
      continue;
    }
    failures() == 0 ? ++passed : ++failed;
  }
  std::printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
  return failed == 0 ? 0 : 1;
}

}  // namespace harness

#define TEST(name)                                                    \
  static void test_##name();                                          \
  static const harness::Register register_##name{#name, test_##name}; \
  static void test_##name()
#define CHECK(condition)                                                       \
  do {                                                                         \
    if (!(condition)) harness::fail(__FILE__, __LINE__, "false: " #condition); \
  } while (0)
#define CHECK_EQ(got, expected)                                                                                  \
  do {                                                                                                           \
    const auto& harness_got = (got);                                                                             \
    const auto& harness_expected = (expected);                                                                   \
    if (!(harness_got == harness_expected))                                                                      \
      harness::fail(__FILE__, __LINE__,                                                                          \
                    #got " is " + harness::show(harness_got) + ", expected " + harness::show(harness_expected)); \
  } while (0)
#define SKIP(reason) \
  throw harness::Skipped { reason }
#define TEST_MAIN() \
  int main(int argc, char** argv) { return harness::run(argc, argv); }
