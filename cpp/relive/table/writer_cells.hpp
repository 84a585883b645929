// What the writer's files share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "relive/table/writer.hpp"

namespace relive {

inline constexpr size_t kRowsPerHold = 256;  // rule C3
inline constexpr size_t kLanesAhead = 8;     // lanes whose words and rows are asked for ahead of their turn

// Of an OPEN page: its bulk is in memory and stays where it is.
inline std::byte* bulk_of(const Region& r, uint64_t page) {
  return r.bulk ? r.bulk.frame(r.bulk.place(page).number) : nullptr;
}

// Steps that `lanes` open lanes need for one window each.
inline uint64_t needed_steps(const Geometry& g, uint64_t lanes) { return lanes * (g.history + g.max_n_step); }

}  // namespace relive
