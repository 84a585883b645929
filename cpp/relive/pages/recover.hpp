// What is done after a death: recover() rebuilds the DERIVED words, sweep() ends the lanes of the dead (rules E4, F).
//
// Locking: under the table lock. Idempotent: whoever dies in here, the next one starts again.
// Cost:    recover 4 to 10 ns a leaf, 25 to 40 where a remover chooses (smallest pages, a sort of them); sweep 0.5 us a live participant and the pages of each dead one's lanes.
#pragma once

#include <string>
#include <vector>

#include "relive/pages/parked.hpp"
#include "relive/words/sync.hpp"

namespace relive {

inline constexpr uint64_t kLifeByte = 64;     // lock byte 64 + i: participant i lives
inline constexpr uint64_t kAttachedByte = 0;  // shared: attached; exclusive: I am alone
inline constexpr uint64_t kAttachingByte = 1;

// Room to sort pages and to mark what was seen: a handle reserves it when it attaches, since nothing is allocated under
// the lock. Owner: the handle; used under the lock.
struct RecoverScratch {
  struct UsedPage {  // side by side with its order: looking up the orders of pages while they are sorted misses caches
    uint64_t order;
    uint32_t page;
  };
  std::vector<UsedPage> pages;
  std::vector<uint8_t> frames;
  std::vector<uint8_t> seen;                    // of each page, by check()
  std::vector<uint8_t> bulk_frames, positions;  // of a tiered table, by check()
  std::vector<uint8_t> cells;                   // of each start cell
  std::vector<uint32_t> cell_owners;            // the same, by check()

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

// Rebuilds lists, counts and inner nodes from the PRIMARY words after a holder of the lock died.
void recover(Held& held, RecoverScratch& scratch);

// What a sweep did in one hold.
struct Swept {
  bool any = false;     // a lane was cut, or a participant's slot is free now
  bool is_done = true;  // else what is left is found again by the sweep of a later hold
};

// Ends every participant whose life byte is free; `me` is never looked at. num_cut: lanes that this hold has cut so far;
// at lanes_per_hold() of them it stops.
Swept sweep(Held& held, const Storage& storage, uint32_t me, uint32_t* num_cut);

// Ends lanes, credits and pins of one participant and frees its slot, in as many holds as its lanes take: true where
// that is done, false where this hold has cut its share. Idempotent at every store; the slot is freed last.
bool end_participant(Held& held, uint32_t participant, uint32_t* num_cut);

// An invariant that does not hold, and of which page; what is null where all do.
struct Broken {
  const char* what = nullptr;
  uint64_t page = kNoPage;

  explicit operator bool() const { return what != nullptr; }
  std::string text() const {  // behind the lock
    return page == kNoPage ? what : std::string(what) + " (page " + std::to_string(page) + ")";
  }
};

// The first invariant that does not hold. Under the lock.
Broken broken_invariant(const Region& r, RecoverScratch& scratch);

}  // namespace relive
