// The life of a record, which stands for an explicit item: FREE(g) -> used(g) -> FREE(g + 1) (rules X1 to X7).
//
// Owns:    nothing; the region owns the records.
// Locking: every function with a Held runs under the table lock. walk_rows and find_window may run without it; their
//          answer may then be outdated.
// Cost:    O(windows x pages that they touch) when a record begins and when it ends. A row that is evicted reads one
//          word of each explicit index. Nothing if no index is explicit.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "relive/words/held.hpp"

namespace relive {

// One window of an item to insert, as the caller requests it.
struct WindowRows {
  int64_t key;          // of the first row, or of the last one
  int64_t num_rows;     // from that row on; negative: this many rows that end with it; 0: the item has no such window
  uint32_t behind = 0;  // for a window that ends: rows between its last row and the named row
  const int64_t* rows = nullptr;  // the keys of all rows, if the caller expects exactly these; else null
};

// The reason that refuses a window. The first three: rows do not exist; the others: the rows do not belong together.
enum class WhyNot : uint32_t { kNothing, kGone, kNotYet, kTail, kBegin, kEnd, kLane, kOther };

// The result of a search for a window: its first row, or the reason that refuses it.
struct FoundWindow {
  WhyNot why = WhyNot::kNothing;
  int64_t key = 0;
  uint32_t num_rows = 0;
};

// Visits the rows of a window page by page: each(page, first row, rows) returns false to stop. Returns false if a row
// does not exist: it is not committed, was evicted, or lies on a page that is gone.
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

// Finds the rows of a requested window. All rows that the window spans must exist and be steps of one lane (another
// lane may continue in its page, rule E5). The rows may still wait for late columns (rule L2). A tail is no step, so
// with state columns no window runs over an end. A step that becomes a tail later (rule E4) stays a row of its items,
// because its bytes do not change. Exact under the lock only.
FoundWindow find_window(const Region& r, const WindowConfig& shape, const WindowRows& asked);

// The reason as words of an error sentence.
const char* words_of(WhyNot why);

// The part of a critical section's bound (Held::ends_left) that ending one record of the index uses up.
uint32_t cost_of_end(const Region& r, uint32_t index);

// Takes a record for a new item. Fifo: the record at the ring's cursor, after its item, the oldest of the index, has
// ended. Other removers: a free record. Returns kNoRecord if this critical section has ended as many items as it may,
// or if all records have used up their generations.
inline constexpr uint64_t kNoRecord = ~uint64_t{0};
uint64_t take_record(Held& held, uint32_t index);

// Call this after each new item if the remover is not Fifo: ends the items that the remover chooses, possibly the new
// one, until a record is free for the next item (rule R5).
void keep_a_record_free(Held& held, uint32_t index);

// The content of a new record: the windows that were found, and its own columns, of which each takes value `position`.
struct NewRecord {
  FoundWindow windows[kMaxWindows];
  const std::byte* const* columns = nullptr;
  size_t position = 0;
  float given = 0.0f;  // priority; NaN: none
};

// Makes an item of a record that was taken: stores windows and values, links the record to its rows, stores its word
// and its leaf. The rows must exist (find_window). Returns the key. *is_item: whether the item can be drawn now, which
// it cannot while its rows wait for late columns (rule L2).
int64_t fill_record(Held& held, uint32_t index, uint64_t record, const NewRecord& from, bool* is_item);

// ---- for code that assembles a record step by step (groups.hpp) ----------------------------------------------------
// Begins a record that was taken: it is no item yet, and waits.
void begin_record(Held& held, uint32_t index, uint64_t record);
// The word of a used record of the same generation.
uint64_t used_word(uint64_t word);
// Links the record to each page that an existing window of it touches. Returns false if a row of the window does not
// exist.
bool hang_window(Held& held, uint32_t index, uint64_t record, uint32_t window);
// Makes an item of a complete record, with this priority (NaN: none is given). Returns false if it cannot be drawn yet.
bool let_in(Held& held, uint32_t index, uint64_t record, float given);
// Whether a record is a group of episodes that waits for members (rule Y1).
bool is_open_group(const Region& r, uint32_t index, uint64_t record);

// Ends the item of a used record, as removed (kStateRemoved) or ended (kStateEnded).
void end_record(Held& held, uint32_t index, uint64_t record, uint16_t final_state);

// Ends every explicit item linked to a row that will be evicted. Returns false if this critical section has ended as
// many items as it may: the caller continues in another one.
bool end_records_at(Held& held, uint64_t slot);

// The same for those of them that have more than `rows` rows from that row on. A window of `rows` rows ends just before
// an abandoned episode (rule V3).
bool end_records_behind(Held& held, uint64_t slot, uint64_t rows);

// Runs in recovery, after the pages are settled: ends items that a death left half made or half removed, or without
// their rows. Counts the live items and links them again.
void recover_records(Held& held);

// The first broken invariant of records, in words; null if none is broken. Under the lock.
const char* broken_records(const Region& r);

}  // namespace relive
