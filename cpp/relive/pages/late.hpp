// Late columns: which rows still wait for theirs, and what is published once they came (rules L1 to L5).
//
// Whether a row has its late columns is one bit of its head (kLateBit), so it moves with the row and needs no word more.
// An item is published by whichever comes last: its window (publish.cpp), or the late columns of its rows (here).
//
// Locking: everything that takes a Held runs under the table lock; so does has_all_of, for what it says to be true.
// Cost:    a look at each row of the window, and nothing in a table without late columns. Asked for one row after the
//          other each of them is looked at once, however long windows are.
#pragma once

#include <cstdint>

#include "relive/words/held.hpp"

namespace relive {

// Whether the late columns of all rows of an item are there; made for one page of one index, on the stack.
class FilledRows final {
 public:
  FilledRows(const Region& r, uint32_t index) : r_(r), index_(index) {}
  // page: the one that all questions to this object are of. offset: the item's row, a step that is there.
  bool has_all_of(uint64_t page, uint32_t offset) { return r_.late_bytes == 0 || looks_at_all_of(page, offset); }

 private:
  enum class Front : uint32_t {
    kGoesOn,
    kStops,
    kEnds
  };  // stops: a row waits, or is not there; ends: its episode ends

  bool looks_at_all_of(uint64_t page, uint32_t offset);
  void begin_at(uint64_t page, int64_t offset);
  void look_at_next();

  const Region& r_;
  const uint32_t index_;
  // Rows [begin_, next_) are steps of one episode that have their late columns; places from row 0 of the page asked for.
  int64_t begin_ = 0, next_ = -1;
  uint64_t page_ = 0;    // of next_
  uint32_t offset_ = 0;  // of next_ in it
  Front front_ = Front::kStops;
};

// Whether rows [first, first + count) of a page have their late columns: of tables without any they do. Also without the
// lock, where the rows are known to be there (behind their range); the answer may be old then.
bool has_late_columns(const Region& r, uint64_t page, uint32_t first, uint32_t count);

// The same of the rows of an explicit item; those that a stride passes over do not count. *looks: and so many more rows
// were looked at. False where a row is gone.
bool has_late_columns_of(const Region& r, uint32_t index, uint64_t record, uint32_t* looks);

// Rows of the lane around one whose late columns came that an item of some index may have in common with it.
uint32_t late_reach(const Region& r);

// Publishes every item that waited for no more than the late columns of rows [first, first + count) of a page. Explicit
// ones that may have are noted first: publish_rest() comes to them, which must have said that nothing was left.
void publish_filled(Held& held, uint64_t page, uint32_t first, uint32_t count);

// Goes on with the explicit items that were noted, as far as one hold may (Held::looks_left). False: there are more, for
// the next hold, whoever has it.
bool publish_rest(Held& held);

// After a death under the lock: the same for all rows there are. Idempotent at every store.
void publish_all_filled(Held& held);

}  // namespace relive
