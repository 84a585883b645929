// The arrays that have an entry for each leaf of an index and are PRIMARY: a save copies them whole.
//
// Owner:   the region owns the bytes.
// Locking: read under the table lock; written at the birth of a region.
// Cost:    O(1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "relive/index/index_view.hpp"

namespace relive {

struct LeafArea {
  const char* name;
  std::byte* at;
  uint32_t leaf_bytes;
};

// The monotonic clock's part of a save: these leaves are times since when items wait (rule T1).
inline constexpr const char* kWaitsArea = "waits";

// Leaves, leaf states, and the leaves of the trees beside them: removers, queues of records, times.
std::vector<LeafArea> leaf_areas(const Region& r, uint32_t index);

// Moves the times of all waiting items by so many seconds, for a region that was made by another clock.
void shift_waits(Held& held, uint32_t index, double seconds);

}  // namespace relive
