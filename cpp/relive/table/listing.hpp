// The keys of an index, some leaves at a time: a sampler of the caller's own chooses from them.
//
// Owner:   the caller owns the Listing.
// Locking: none. Each item that is live when its leaf is read is listed once; every listed item was live.
// Cost:    one pass over leaf states; with a condition, also a test of each item.
#pragma once

#include <cstdint>
#include <vector>

#include "relive/read/where.hpp"
#include "relive/table/table.hpp"

namespace relive {

// Items, in no order. ages: rise in the order in which the items came. ranks: the smaller, the more the sampler prefers
// the item; they mean nothing if the sampler ignores priorities.
struct Listing {
  std::vector<int64_t> keys;
  std::vector<uint64_t> ages;
  std::vector<double> ranks;
  uint64_t next_leaf = 0;  // the leaf to continue with; 0: all leaves are listed
};

// The items of the leaves [first, first + count). where: a condition; null: every item passes. index: Region::steps() for
// the steps, whether they are items or not.
Status list_items(Table& table, uint32_t index, uint64_t first, uint64_t count, const Where* where, Listing* out);

}  // namespace relive
