// From rows to items: commit, publication, the end of a lane (rules B2, B3, D2, E4).
//
// Locking: everything here runs under the table lock, after the rows themselves were written without it.
// Cost:    commit_run O(steps of the run + items it completes) plus the leaves' ancestors at flush.
#pragma once

#include <cstdint>

#include "relive/pages/pages.hpp"
#include "relive/words/region.hpp"

namespace relive {

// Rows [first, first + count) of one page that their owner has written, in order, of one episode.
struct Run {
  uint32_t lane_slot = 0;
  uint32_t first = 0;
  uint32_t count = 0;     // steps; 0 only with `ends` (an end that comes after its last step)
  bool ends = false;      // the last row ends its episode: the row after it becomes a tail (where there is state)
  bool has_seam = false;  // the state cell of the row after the last one is written too
};

// Evicts the oldest steps until `count` more fit the capacity. Better once for many runs than run by run.
void make_room(Region& r, uint64_t count, Dirty& dirty);

// Makes the rows steps, opens the way for the next row and publishes every item whose window is now complete.
// The lane's open page must hold the run; where the cell after it lies on the next page, lane.ahead must name that.
void commit_run(Region& r, const Run& run, Dirty& dirty);

// Publishes what is complete. `ended`: nothing more will come in this episode, so everything before its end is.
// `only_open_page`: nothing older than the lane's open page can be unpublished.
void publish_lane(Region& r, uint32_t lane_slot, bool ended, bool only_open_page, Dirty& dirty);

// One published item: use count 0, leaf, counts. Also for items whose priority came late (initial="given").
void publish_item(Region& r, uint32_t index, uint64_t slot, double mass, Dirty& dirty);

// Ends a lane whose writer was closed or died: the frozen cell, or else the last row, becomes a tail; what is
// complete is published, shorter; the lane is free again. Idempotent at every store.
void cut_lane(Region& r, uint32_t lane_slot, Dirty& dirty);

// Whether the state cell of row `offset` of the page is the lane's frozen one.
bool is_seam(const Region& r, const Lane& lane, uint64_t page, uint32_t offset);

// mass = priority^priority_exponent for prioritized indexes, else 1; relative error below 1e-9. Priorities are finite
// and >= 0. masses_of: the same of each, masses[i] of priorities[i].
double mass_of(const IndexConfig& index, float priority);
void masses_of(const IndexConfig& index, const float* priorities, size_t count, double* masses);

}  // namespace relive
