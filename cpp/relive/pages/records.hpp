// The life of a record, the explicit item behind it: FREE(g) -> used(g) -> FREE(g + 1) (rules X1 to X7).
//
// Locking: everything here that takes a Held runs under the table lock; walk_rows may be called at any time, and what it
//          says without the lock may be old.
// Cost:    a record O(windows x pages that they touch) when it comes and when it goes; the row that goes asks for one
//          word of each explicit index. Nothing of it where no index is explicit.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "relive/words/held.hpp"

namespace relive {

// One window of an item that is to be inserted, as somebody asks for it.
struct WindowRows {
  int64_t key;          // of its first row, or of its last one
  int64_t num_rows;     // from that row on; negative: so many that end with it; 0: the item has no such window
  uint32_t behind = 0;  // of one that ends: rows from its last to the one that is named
  const int64_t* rows = nullptr;  // the keys of all of them, for them to be these and no others; null: not told
};

// What speaks against a window. The first three: its rows are not there; the others: they do not belong together.
enum class WhyNot : uint32_t { kNothing, kGone, kNotYet, kTail, kBegin, kEnd, kLane, kOther };

// A window that was looked for: its first row, or why there is none.
struct FoundWindow {
  WhyNot why = WhyNot::kNothing;
  int64_t key = 0;
  uint32_t num_rows = 0;
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

// The rows that a window asks for. All rows that it spans must be there and be steps of one lane (another may go on in
// its page, rule E5): what an item may be inserted with, whether or not they wait for their late columns (rule L2). A
// tail is no step, so where there are states no window runs over an end; a step that becomes one later (rule E4) stays a
// row of the items that it has: its bytes do not change. Exact under the lock.
FoundWindow find_window(const Region& r, const WindowConfig& shape, const WindowRows& asked);

// Why an item cannot have a window, as a sentence says it.
const char* words_of(WhyNot why);

// How much of what one hold may end (Held::ends_left) a record of the index is.
uint32_t cost_of_end(const Region& r, uint32_t index);

// The record at the ring's cursor, free: the item that it held, the oldest of the index, has ended; or, where the remover
// is another than Fifo, one that is free. kNoRecord where the hold has ended enough, or where no record is left that has a
// generation to come.
inline constexpr uint64_t kNoRecord = ~uint64_t{0};
uint64_t take_record(Held& held, uint32_t index);

// Behind each item that came, where the remover chooses: ends those whose turn it is, the newcomer among them, until a
// record is free for the next one (rule R5).
void keep_a_record_free(Held& held, uint32_t index);

// What a record is filled with: its windows, which were found, and its own columns: value `position` of each.
struct NewRecord {
  FoundWindow windows[kMaxWindows];
  const std::byte* const* columns = nullptr;
  size_t position = 0;
  float given = 0.0f;  // priority; NaN: none
};

// Makes an item of a record that was taken: windows and values, where it hangs, its word, its leaf. Its rows must be there
// (find_window). Returns its key; *is_item: whether it can be drawn now: not while rows of it wait for their late columns (rule L2).
int64_t fill_record(Held& held, uint32_t index, uint64_t record, const NewRecord& from, bool* is_item);

// ---- for who makes a record piece by piece (groups.hpp) ------------------------------------------------------------
// A record that was taken begins: it stands for nothing yet, and waits.
void begin_record(Held& held, uint32_t index, uint64_t record);
// The word of a record in use, of the generation that it has.
uint64_t used_word(uint64_t word);
// Hangs it where one of its windows, which it has, touches a page. False where a row of that is not there.
bool hang_window(Held& held, uint32_t index, uint64_t record, uint32_t window);
// All that it lists is there: an item of this priority (NaN: none is given). False where it cannot be drawn yet.
bool let_in(Held& held, uint32_t index, uint64_t record, float given);
// Whether a record is a group of episodes that still waits for members (rule Y1).
bool is_open_group(const Region& r, uint32_t index, uint64_t record);

// The item goes: as removed (kStateRemoved) or ended (kStateEnded). The record must be used.
void end_record(Held& held, uint32_t index, uint64_t record, uint16_t final_state);

// Ends every explicit item that hangs at a row, which is about to go. False where the hold has ended enough: come again.
bool end_records_at(Held& held, uint64_t slot);

// The same of those among them that have more than `rows` rows from that row on: the last of so many is the last in front
// of an episode that is given up (rule V3).
bool end_records_behind(Held& held, uint64_t slot, uint64_t rows);

// Recovery, once the pages are settled: ends what died half made, half gone or without its rows; counts what lives and
// hangs it up anew.
void recover_records(Held& held);

// The first thing about records that does not hold, in words; null if all does. Under the lock.
const char* broken_records(const Region& r);

}  // namespace relive
