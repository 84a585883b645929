// Items are gathered by their keys, from any source of rows (rules G2 to G5).
//
// Owner:   a ByKeyScratch belongs to a thread or to a call, and is reused; a RowSource belongs to the call.
// Locking: none for 16 rounds. Then all pages are pinned for one more round (rule D7). No row is read under the table
//          lock.
// Cost:    about 90 ns an item of a small transition.
#pragma once

#include <vector>

#include "relive/read/ragged.hpp"
#include "relive/read/row_source.hpp"
#include "relive/table/table.hpp"

namespace relive {

// The request and its outputs. out: the plan's outputs for `batch` items; the items of the request go to items
// [first, first + count) of it. present: [count].
struct ByKey {
  const GatherPlan& plan;
  const int64_t* keys;
  size_t count;
  std::byte* const* out;
  uint8_t* present;
  size_t batch;
  size_t first = 0;
  const RaggedBatch* places = nullptr;  // for items that lie end to end; an item without rows there is passed over
  const double* picks = nullptr;        // [count]: choose the goals of hindsight; null: each item has its own
};

struct ByKeyScratch {
  std::vector<Window> windows;
  Runs runs;
  std::vector<uint32_t> which;  // items that are not delivered yet
};

// kForeignKey: the first key that cannot be of this index.
Status check_keys(const Region& r, uint32_t index, const int64_t* keys, size_t count);

// If the item of keys[i] is gone: present[i] = 0, and zeros. An error of the source ends the call.
Status gather_by_key(Table& table, const ByKey& asked, RowSource& source, ByKeyScratch* scratch);

// The same if items lie end to end: the outputs are those of `ragged`, whose first item is the first of the batch. An
// item that is gone has no rows.
Status gather_ragged(Table& table, const ByKey& asked, RaggedBatch* ragged, RowSource& source, ByKeyScratch* scratch);

}  // namespace relive
