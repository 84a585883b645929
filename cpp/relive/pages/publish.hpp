// Turns rows into items: commit, publication, and the end of a lane (rules B2, B3, D2, E4).
//
// Owns:    nothing; the region owns the lanes.
// Locking: every function runs under the table lock. The rows themselves were written before, without the lock.
// Cost:    commit_run O(steps of the run + items that become complete), plus the leaves' ancestors at flush.
#pragma once

#include <cstdint>

#include "relive/pages/parked.hpp"

namespace relive {

// Rows [first, first + count) of one page that their owner has written in order. All of them are of one episode.
struct StepRun {
  uint32_t lane_slot = 0;
  uint32_t first = 0;
  uint32_t count = 0;     // steps; 0 only with `ends`: an end without a step
  bool ends = false;      // the last row ends its episode: with state columns, the next row becomes a tail
  bool has_seam = false;  // the state cell of the row after the last one is written
};

// Evicts the oldest steps until `count` more fit the capacity. One call for many runs is better than one for each run.
// Returns false like evict_steps(); the caller commits nothing until it returns true.
bool make_room(Held& held, uint64_t count);

// Makes the rows steps, prepares the page for the next row, and publishes every item whose window is now complete. The
// lane's open page must contain the run. If the next cell lies on the next page, lane.ahead must name that page. In a
// table with explicit indexes the caller has called make_room().
void commit_run(Held& held, const StepRun& run);

// How far a lane is complete: as far as its rows tell; or whole, because its episode ended, or because the lane ended.
enum class Until { kNow, kEpisodeEnd, kLaneEnd };

// Publishes the items that are complete.
void publish_lane(Held& held, uint32_t lane_slot, Until until);

// Takes a free lane slot for a participant: the lane gets a new uid and has nothing to publish. If the slot has a
// parked page, the lane continues in it, after rows that end in a mark, and lane.open names that page. Otherwise the
// lane has no page.
void open_lane(Held& held, uint32_t lane_slot, uint32_t participant);

// After a death under the lock: publishes committed rows of the lane, and advances a full page to the one opened ahead.
// Does nothing for a lane that the dead owner of the lock did not write to.
void settle_lane(Held& held, uint32_t lane_slot);

// The number of lanes that one critical section cuts. Each cut publishes the items whose windows waited (rule C3).
#ifdef RELIVE_TESTING
inline uint32_t lanes_per_section() { return testing::lanes_per_section; }
#else
inline constexpr uint32_t lanes_per_section() { return 64; }
#endif

// Ends a lane after its writer was closed or died. The frozen cell, or else the last row, becomes a tail; without state
// columns the last row is marked as the end. Then the complete items are published, shorter, and the slot is free. The
// page stays OPEN (parked) if it has rows and room for more, because a page closed with ten rows would waste the rest
// of its rows. Idempotent at every store.
void cut_lane(Held& held, uint32_t lane_slot);

// Whether the state cell of row `offset` of the page is the lane's frozen cell.
bool is_seam(const Region& r, const Lane& lane, uint64_t page, uint32_t offset);

}  // namespace relive
