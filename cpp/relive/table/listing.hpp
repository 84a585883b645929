// The keys of an index, some leaves at a time: what a sampler of one's own chooses from.
//
// Locking: none. Every item that lives while its leaf is looked at is listed, once; none that was never there is.
// Cost:    one pass over leaf states; with a condition also a look of a draw for each item.
#pragma once

#include <cstdint>
#include <vector>

#include "relive/read/where.hpp"
#include "relive/table/table.hpp"

namespace relive {

// Items, in no order. ages: in the order in which they came. ranks: the smaller, the sooner its sampler prefers it; of a
// kind that looks at no priorities they mean nothing.
struct Listing {
  std::vector<int64_t> keys;
  std::vector<uint64_t> ages;
  std::vector<double> ranks;
  uint64_t next_leaf = 0;  // where to go on; 0: that was the last
};

// Of the leaves [first, first + count).
Status list_items(Table& table, uint32_t index, uint64_t first, uint64_t count, const Where* where, Listing* out);

}  // namespace relive
