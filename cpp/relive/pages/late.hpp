// Late columns: which rows still wait for them, and which items are published once they are filled (rules L1 to L6).
// One bit in the head of a row (kLateBit) says that the row waits. The later of two events publishes an item: its
// window is complete (publish.cpp), or its rows have their late columns (here).
//
// Owns:    a FilledRows lives on the stack and remembers the rows that it has read.
// Locking: every function with a Held runs under the table lock; the answer of has_all_of is exact under the lock only.
// Cost:    one read for each row of a window, nothing in a table without late columns. A FilledRows that is asked for
//          consecutive rows reads each row once, however long windows are.
#pragma once

#include <cstdint>

#include "relive/words/held.hpp"

namespace relive {

// Whether all rows of an item have their late columns. One object serves one page of one index.
class FilledRows final {
 public:
  FilledRows(const Region& r, uint32_t index) : r_(r), index_(index) {}
  // page: the same page in all calls of one object. offset: the item's row, which is an existing step.
  bool has_all_of(uint64_t page, uint32_t offset) { return r_.late_bytes == 0 || looks_at_all_of(page, offset); }

 private:
  enum class Front : uint32_t {
    kGoesOn,
    kStops,
    kEnds
  };  // kStops: the next row waits or does not exist; kEnds: the episode ends before the next row

  bool looks_at_all_of(uint64_t page, uint32_t offset);
  void begin_at(uint64_t page, int64_t offset);
  void look_at_next();

  const Region& r_;
  const uint32_t index_;
  // Rows [begin_, next_) are steps of one episode with their late columns; offsets from row 0 of the page.
  int64_t begin_ = 0, next_ = -1;
  uint64_t page_ = 0;    // page of next_
  uint32_t offset_ = 0;  // next_ in that page
  Front front_ = Front::kStops;
};

// Whether rows [first, first + count) of a page have their late columns; always true in a table without late columns.
// May be called without the lock for rows that exist (step_end was read before); the answer may then be outdated.
bool has_late_columns(const Region& r, uint64_t page, uint32_t first, uint32_t count);

// The same for the rows of an explicit item; rows that a stride skips do not count. Adds the number of rows read to
// *looks. Returns false if a row was evicted.
bool has_late_columns_of(const Region& r, uint32_t index, uint64_t record, uint32_t* looks);

// The number of rows on each side of a completed row that an item of any index may share with it.
uint32_t late_reach(const Region& r);

// Publishes every item of rows that waited only for the late columns of rows [first, first + count) of a page. Explicit
// items that may have waited for them are noted for publish_rest(). Call publish_rest() before, until it returns true.
void publish_filled(Held& held, uint64_t page, uint32_t first, uint32_t count);

// Continues with the noted explicit items, as far as one critical section may (Held::looks_left). Returns false if more
// are left for the next critical section of any process.
bool publish_rest(Held& held);

// After a death under the lock: does both for all rows. Idempotent at every store.
void publish_all_filled(Held& held);

}  // namespace relive
