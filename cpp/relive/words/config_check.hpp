// Checks of a configuration, before a table is laid out. Each returns kInvalidConfig on the first value at fault.
#pragma once

#include <string>

#include "relive/words/layout.hpp"

namespace relive {

inline Status invalid(const std::string& what, const std::string& expected, int64_t got) {
  return Status(Code::kInvalidConfig).with_text("what", what).with_text("expected", expected).with_int("got", got);
}

// The limiter of an index of a table with this capacity: its numbers are in range, and neither draws nor inserts wait
// for ever.
Status check_limiter(const IndexConfig& index, const LimiterConfig& limiter, uint64_t capacity);
Status check_config(const TableConfig& config);

}  // namespace relive
