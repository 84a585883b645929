// From rows to items: commit, publication, the end of a lane (rules B2, B3, D2, E4).
//
// Locking: everything here runs under the table lock, after the rows themselves were written without it.
// Cost:    commit_run O(steps of the run + items it completes) plus the leaves' ancestors at flush.
#pragma once

#include <cstdint>

#include "relive/pages/parked.hpp"

namespace relive {

// Rows [first, first + count) of one page that their owner has written, in order, of one episode.
struct StepRun {
  uint32_t lane_slot = 0;
  uint32_t first = 0;
  uint32_t count = 0;     // steps; 0 only with `ends` (an end that comes after its last step)
  bool ends = false;      // the last row ends its episode: the row after it becomes a tail (where there is state)
  bool has_seam = false;  // the state cell of the row after the last one is written too
};

// Evicts the oldest steps until `count` more fit the capacity. Better once for many runs than run by run. False: as
// evict_steps(); before explicit items ended in holds enough nothing may be committed.
bool make_room(Held& held, uint64_t count);

// Makes the rows steps, opens the way for the next row and publishes every item whose window is now complete.
// The lane's open page must hold the run; where the cell after it lies on the next page, lane.ahead must name that.
// Where items are explicit make_room() came before it.
void commit_run(Held& held, const StepRun& run);

// How far a lane is complete: as far as its rows say; or all of it, since its episode has ended, or was cut off.
enum class Until { kNow, kEpisodeEnd, kLaneEnd };

// Publishes what is complete.
void publish_lane(Held& held, uint32_t lane_slot, Until until);

// Takes a free lane for a participant: a new uid, nothing to publish. Where the last lane of the slot left its page with
// room (it is parked) this one goes on in it, behind rows that end in a mark: lane.open names it; else there is no page.
void open_lane(Held& held, uint32_t lane_slot, uint32_t participant);

// After a death under the lock: what had been committed of the lane is published, and a page that is full gives way to
// the one opened ahead of it. Nothing to do for a lane that the dead holder did not write to.
void settle_lane(Held& held, uint32_t lane_slot);

// Lanes that are cut in one hold: each publishes what its windows waited for (rule C3).
#ifdef RELIVE_TESTING
inline uint32_t lanes_per_hold() { return testing::lanes_per_hold; }
#else
inline constexpr uint32_t lanes_per_hold() { return 64; }
#endif

// Ends a lane whose writer was closed or died: the frozen cell, or else the last row, becomes a tail (without state
// columns the last row says that it is the end); what is complete is published, shorter; the lane is free again. Its page
// stays OPEN, parked, where it has rows and room for more: a page closed with ten rows in it would waste the others.
// Idempotent at every store.
void cut_lane(Held& held, uint32_t lane_slot);

// Whether the state cell of row `offset` of the page is the lane's frozen one.
bool is_seam(const Region& r, const Lane& lane, uint64_t page, uint32_t offset);

}  // namespace relive
