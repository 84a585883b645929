// The life of a record, the explicit item behind it: FREE(g) -> used(g) -> FREE(g + 1) (rules X1 to X7).
//
// Locking: everything here that takes a Held runs under the table lock; walk_rows may be called at any time, and what it
//          says without the lock may be old.
// Cost:    a record O(windows x pages that they touch) when it comes and when it goes; the row that goes asks for one
//          word of each explicit index. Nothing of it where no index is explicit.
#pragma once

#include <algorithm>
#include <cstdint>

#include "relive/words/held.hpp"

namespace relive {

// One window of an item that is to be inserted.
struct WindowRows {
  int64_t key;  // of its first row
  uint32_t num_rows;
};

// The rows of a window, page by page: each(page, first row, rows), false to stop. False where one of them is not there:
// not committed, evicted, or on a page that is gone.
template <class Each>
bool walk_rows(const Region& r, int64_t key, uint32_t num_rows, Each&& each) {
  if (num_rows == 0 || !r.is_row_key(key)) return false;
  uint64_t page = r.page_of(r.key_slot(key));
  uint32_t first = r.offset_of(r.key_slot(key));
  const uint64_t word = r.words[page].load(std::memory_order_acquire);
  if (!Region::is_used(word) || Region::generation_of(word) != r.key_generation(key)) return false;
  while (true) {
    const Range range = Range::unpack(r.pages[page].range.load(std::memory_order_acquire));
    const uint32_t count = std::min(num_rows, r.page_len - first);
    if (first < range.step_begin || first + count > range.step_end || !each(page, first, count)) return false;
    num_rows -= count;
    if (num_rows == 0) return true;
    page = r.alive(r.pages[page].next.load(std::memory_order_acquire));
    if (page == kNoPage) return false;
    first = 0;
  }
}

// Whether the rows of a window are all there and are steps of one lane (another may go on in its page, rule E5): what an
// item may be inserted with; where there are late columns each of them has them (rule L2). A tail is no step; a step that becomes one later (rule E4) stays a row of the items that it
// has: its bytes do not change.
bool are_steps_there(const Region& r, const WindowRows& window);

// How much of what one hold may end (Held::ends_left) a record of the index is.
uint32_t cost_of_end(const Region& r, uint32_t index);

// The record at the ring's cursor, free: the item that it held, the oldest of the index, has ended. kNoRecord where the
// hold has ended enough, or where no record is left that has a generation to come.
inline constexpr uint64_t kNoRecord = ~uint64_t{0};
uint64_t take_record(Held& held, uint32_t index);

// Makes an item of a record that was taken: its windows, where it hangs, its word, its leaf. given: its priority, NaN
// for none. The rows must be there (are_steps_there). Returns its key; *is_item: whether it can be drawn now.
int64_t fill_record(Held& held, uint32_t index, uint64_t record, const WindowRows* windows, uint32_t num_windows,
                    float given, bool* is_item);

// The item goes: as removed (kStateRemoved) or ended (kStateEnded). The record must be used.
void end_record(Held& held, uint32_t index, uint64_t record, uint16_t final_state);

// Ends every explicit item that hangs at a row, which is about to go. False where the hold has ended enough: come again.
bool end_records_at(Held& held, uint64_t slot);

// Recovery, once the pages are settled: ends what died half made, half gone or without its rows; counts what lives and
// hangs it up anew.
void recover_records(Held& held);

// The first thing about records that does not hold, in words; null if all does. Under the lock.
const char* broken_records(const Region& r);

}  // namespace relive
