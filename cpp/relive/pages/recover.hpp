// Repair after a death: recover() rebuilds the DERIVED words, sweep() ends the lanes of dead participants (rules E4,
// F).
//
// Owns:    a handle owns its RecoverScratch.
// Locking: every function runs under the table lock. All are idempotent: if a process dies in here, the next one starts
//          again.
// Cost:    recover 4 to 10 ns a leaf, 25 to 40 if the remover chooses pages (smallest pages, one sort of them); sweep
//          0.5 us for each live participant, plus the pages of each dead one's lanes.
#pragma once

#include <string>
#include <vector>

#include "relive/pages/parked.hpp"
#include "relive/words/sync.hpp"

namespace relive {

inline constexpr uint64_t kLifeByte = 64;     // lock byte 64 + i: participant i lives
inline constexpr uint64_t kAttachedByte = 0;  // shared: attached; exclusive: the only user
inline constexpr uint64_t kAttachingByte = 1;

// Memory to sort pages and to mark visited objects. A handle reserves it when it attaches, because nothing may be
// allocated under the lock. Owner: the handle; used under the lock.
struct RecoverScratch {
  struct UsedPage {  // order and page together: reading the orders during the sort would miss caches
    uint64_t order;
    uint32_t page;
  };
  std::vector<UsedPage> pages;
  std::vector<uint8_t> frames;
  std::vector<uint8_t> seen;                    // a mark for each page, for check()
  std::vector<uint8_t> bulk_frames, positions;  // marks of a tiered table, for check()
  std::vector<uint8_t> cells;                   // a mark for each start cell
  std::vector<uint32_t> cell_owners;            // an owner for each start cell, for check()

  void reserve(const Geometry& g) {
    pages.resize(g.num_pages);
    frames.resize(g.num_frames);
    seen.resize(g.num_pages);
    cells.resize(g.cells.num_cells);
    cell_owners.resize(g.cells.num_cells);
  }
  void reserve_bulk(const BulkGeometry& g) {
    bulk_frames.resize(g.num_frames);
    positions.resize(g.num_positions);
  }
};

// Rebuilds lists, counts and inner nodes from the PRIMARY words after an owner of the lock died.
void recover(Held& held, RecoverScratch& scratch);

// The result of a sweep in one critical section.
struct Swept {
  bool any = false;     // a lane was cut, or a participant's slot is free now
  bool is_done = true;  // false: a later critical section finds the rest
};

// Ends every participant whose life byte is free, except `me`. num_cut: the lanes that this critical section has cut;
// the sweep stops at lanes_per_section() of them.
Swept sweep(Held& held, const Storage& storage, uint32_t me, uint32_t* num_cut);

// Ends the lanes, credits and pins of one participant and then frees its slot. Returns false if this critical section
// has cut as many lanes as it may; the caller continues in another one. Idempotent at every store; the slot is freed
// last.
bool end_participant(Held& held, uint32_t participant, uint32_t* num_cut);

// A broken invariant and its page; `what` is null if none is broken.
struct Broken {
  const char* what = nullptr;
  uint64_t page = kNoPage;

  explicit operator bool() const { return what != nullptr; }
  std::string text() const {  // call after the unlock
    return page == kNoPage ? what : std::string(what) + " (page " + std::to_string(page) + ")";
  }
};

// The first broken invariant. Under the lock.
Broken broken_invariant(const Region& r, RecoverScratch& scratch);

}  // namespace relive
