// Items gathered by their keys, from whatever source their rows come (rules G2 to G5).
//
// Owner:   a ByKeyScratch is a thread's or a call's, reused; a RowSource is the call's.
// Locking: none for 16 rounds; then all pages are held for one more (rule D7), and still no row is read under the lock.
#pragma once

#include <vector>

#include "relive/read/ragged.hpp"
#include "relive/read/row_source.hpp"
#include "relive/table/table.hpp"

namespace relive {

// What is asked for, and where it goes: out as the plan's outputs of `batch` items, these from item `first` on;
// present[count].
struct ByKey {
  const GatherPlan& plan;
  const int64_t* keys;
  size_t count;
  std::byte* const* out;
  uint8_t* present;
  size_t batch;
  size_t first = 0;
  const RaggedBatch* places = nullptr;  // of items that lie end to end; who has no rows there is passed over
  const double* picks = nullptr;        // [count]: of hindsight, what chooses their goals; null: each has its own
};

struct ByKeyScratch {
  std::vector<Window> windows;
  Runs runs;
  std::vector<uint32_t> which;  // rows not delivered yet
};

// kForeignKey for the first key that cannot be of this region.
Status check_keys(const Region& r, uint32_t index, const int64_t* keys, size_t count);

// The same where items lie end to end: asked.plan and asked.out are those of `ragged`, which begins with the batch. An item
// that is gone has no rows.
Status gather_ragged(Table& table, const ByKey& asked, RaggedBatch* ragged, RowSource& source, ByKeyScratch* scratch);

// present[i] = 0 and zeros where a key's item is gone. What the source says when it cannot read ends the call.
Status gather_by_key(Table& table, const ByKey& asked, RowSource& source, ByKeyScratch* scratch);

}  // namespace relive
