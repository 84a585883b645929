// What a configuration must be before a table is laid out: the first thing that it cannot be, as kInvalidConfig.
#pragma once

#include <string>

#include "relive/words/layout.hpp"

namespace relive {

inline Status invalid(const std::string& what, const std::string& expected, int64_t got) {
  return Status(Code::kInvalidConfig).with_text("what", what).with_text("expected", expected).with_int("got", got);
}

// A limiter of an index of a table of so many steps: numbers that can be, and under which both sides can move.
Status check_limiter(const IndexConfig& index, const LimiterConfig& limiter, uint64_t capacity);
Status check_config(const TableConfig& config);

}  // namespace relive
