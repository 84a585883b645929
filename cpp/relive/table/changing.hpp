// What changes items that are there: their priorities, their end; and what the learner says of its policy.
//
// Locking: under the table lock, 256 leaves a hold (rule C3); what must be refused is refused before the first.
// Cost:    about 35 ns a key that was just drawn.
#pragma once

#include <vector>

#include "relive/pages/records.hpp"
#include "relive/table/table.hpp"

namespace relive {

// Applied = how many were still there (pending ones included). All are checked before the first is applied.
Status update_priorities(Table& table, uint32_t index, const int64_t* keys, const float* priorities, size_t count,
                         int64_t* applied);
// A row's key: out of every index whose leaves are rows; its bytes stay, and so do explicit items that refer to it. An
// explicit item's: that item.
Status delete_items(Table& table, const int64_t* keys, size_t count, int64_t* deleted);
Status clear(Table& table);
// The late columns of rows: given[count], each the late columns in their order, one behind the other. *applied: rows that
// were still there; of deleted ones their neighbours' windows get them all the same. Items whose rows all have theirs now
// are published. kForeignKey: a key that is no row's. kAlreadyCompleted (position, key, column): a row that has them, or
// that is named twice; nothing is applied, unless another call came between two holds of this one (applied).
Status complete_rows(Table& table, const int64_t* keys, size_t count, const std::byte* given, size_t num_bytes,
                     int64_t* applied);
// Writers that wait for a staleness budget look again. No lock.
Status set_policy_version(Table& table, uint32_t version);

// The limiter of an index from now on, for everybody who waits, too (rule P1); a corridor begins anew (begun_at).
// kInvalidConfig: one that the index cannot have. kRequestTooLarge: a draw that waits now could never pass; then the old
// one stays.
Status set_limiter(Table& table, uint32_t index, const LimiterConfig& limiter);
// The exponent of a prioritized index from now on, for everybody: every mass is computed anew in one hold of the lock,
// some 60 ns a leaf of the index. kInvalidConfig: another sampler, not finite or below 0, from 0 to another one.
Status set_priority_exponent(Table& table, uint32_t index, double exponent);
// A limiter as numbers, its kind first, as callers give and get it.
std::vector<double> numbers_of(const LimiterConfig& limiter);
Status limiter_of(const double* numbers, size_t count, LimiterConfig* limiter);

// Explicit items to be inserted: each has a place for every window that its index declares.
struct NewItems {
  size_t num_items = 0;
  const WindowRows* windows = nullptr;        // [num_items][windows of the index]
  const float* priorities = nullptr;          // of each; null: none given, as for rows
  const std::byte* const* columns = nullptr;  // of each of the items' own columns, its values [num_items]
};
// Explicit items, in order: each lists windows of rows that are steps of the table now. Stores the first `stored` of
// them, whole, and their keys; what stops it says which item: kForeignKey (item, window: a key that is no row's),
// kInvalidConfig (of a window or an item that the index cannot hold), kRowGone (item, window: a row that is not there, or
// not yet, or no step), kRowsApart (rows that are not a window). All are checked before the first is stored. Blocks while
// the limiter refuses.
Status insert_items(Table& table, uint32_t index, const NewItems& items, double timeout_s, int64_t* keys,
                    size_t* stored);

}  // namespace relive
