// What a configuration must be before a table is laid out: the first thing that it cannot be, as kInvalidConfig.
#pragma once

#include <string>

#include "relive/words/layout.hpp"

namespace relive {

inline Status invalid(const std::string& what, const std::string& expected, int64_t got) {
  return Status(Code::kInvalidConfig).with_text("what", what).with_text("expected", expected).with_int("got", got);
}

Status check_config(const TableConfig& config);

}  // namespace relive
