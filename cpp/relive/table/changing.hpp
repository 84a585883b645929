// Items change: their priorities, their late columns, their end; and explicit items are inserted.
//
// Owner:   keys, values and results are the caller's memory.
// Locking: the table lock, for at most 256 leaves at a time (rule C3). A call is checked before its first critical
//          section, so that a call that is refused has changed nothing.
// Cost:    about 35 ns for a key that was just drawn.
#pragma once

#include "relive/pages/records.hpp"
#include "relive/table/table.hpp"

namespace relive {

// *applied: items that were still there, pending ones included. All priorities are checked before the first is applied.
Status update_priorities(Table& table, uint32_t index, const int64_t* keys, const float* priorities, size_t count,
                         int64_t* applied);
// The key of a row: removes the item from every index of rows. The bytes of the row stay, and so do explicit items that
// refer to it. The key of an explicit item: removes that item.
Status delete_items(Table& table, const int64_t* keys, size_t count, int64_t* deleted);
Status clear(Table& table);
// Takes the table lock and releases it, which drops all items that have waited too long (rule T2). Changes nothing
// else. kDeadlineExceeded: the lock did not become free in time.
Status take_lock(Table& table, double timeout_s);
// The late columns of rows. given: [count], each the late columns in their order, one after the other. *applied: rows
// that were still there. A deleted row gets its columns all the same, because windows of its neighbours have it. Items
// whose rows have all late columns now are published. kForeignKey: a key that is no row's. kAlreadyCompleted (position,
// key, column): a row that has its columns, or is named twice. Then nothing is applied, unless another call completed
// the row between two critical sections of this one (applied).
Status complete_rows(Table& table, const int64_t* keys, size_t count, const std::byte* given, size_t num_bytes,
                     int64_t* applied);

// Explicit items to insert: each has a place for every window that its index declares.
struct NewItems {
  size_t num_items = 0;
  const WindowRows* windows = nullptr;        // [num_items][windows of the index]
  const float* priorities = nullptr;          // [num_items]; null: none given, as for rows
  const std::byte* const* columns = nullptr;  // for each of the items' own columns: its values [num_items]
};
// Inserts explicit items in order; each lists windows of rows that are steps of the table now. Stores the first *stored
// items, whole, and their keys. The error names the item that stopped the call: kForeignKey (item, window: a key that
// is no row's), kInvalidConfig (the index cannot have such a window or item), kRowGone (item, window: a row that is not
// there, not yet there, or no step), kRowsApart (rows that are not a window). All items are checked before the first is
// stored. Blocks while the limiter refuses.
Status insert_items(Table& table, uint32_t index, const NewItems& items, double timeout_s, int64_t* keys,
                    size_t* stored);

}  // namespace relive
