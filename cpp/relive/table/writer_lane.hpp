// The state of one lane of a writer: its open page, its episode, and the run of rows that is being written.
//
// Owner:   a Writer owns a WriterLane for each of its lanes. Only the lane's owner moves step_end and opens pages, so
//          an append reads none of this back from the region.
// Locking: the writer's mutex. Functions that take a Held run under the table lock.
// Cost:    O(1) each. A step of many lanes reads all of a WriterLane for each, so it is small.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "relive/pages/publish.hpp"
#include "relive/table/step_block.hpp"

namespace relive {

inline constexpr size_t kRowsPerSection = 256;  // rows that one critical section commits (rule C3)

// A page that has rows of the open episode, from row `first` on.
struct EpisodePage {
  uint64_t ref;
  uint32_t first;
};

// The start values of a lane's rows, in a table that keeps them in cells (StartValues).
struct LaneStarts {
  std::vector<uint32_t> cells;  // cells of the open page that no committed row names, in the order of rows
  uint32_t run_cells = 0;       // how many of these the run's rows name
  std::vector<uint32_t>
      moved;  // steps where the end of the run moves a window's start to; no other window starts there
  std::unique_ptr<std::byte[]> recent;  // values of the episode's last steps that have no cell
  uint32_t num_fresh = 0;               // committed steps of the last run, which `recent` does not have yet
};

struct WriterLane {
  uint32_t slot = 0;
  uint32_t uid = 0;  // its low half
  uint32_t episode_step = 0;
  uint64_t lane_step = 0;   // steps that the lane has
  bool in_episode = false;  // the open episode has a committed row
  bool has_seam = false;    // the state cell of row step_end is written and frozen (rule B3)
  uint64_t last_slot = 0;   // slot of the last row, and the word of its page
  uint64_t last_word = 0;
  size_t num_stored = 0;  // rows of the block that are committed
  StepRun run;
  uint64_t page = kNoPage;  // page of the next row; kNoPage: a page must be opened first
  uint64_t word = 0;
  uint32_t step_end = 0;             // of the page
  std::byte* frame = nullptr;        // of the page
  std::byte* ahead_frame = nullptr;  // of the page that is opened ahead; null: there is none
  std::byte* bulk = nullptr;         // as frame and ahead_frame, for the large columns of a tiered table
  std::byte* ahead_bulk = nullptr;
  std::unique_ptr<LaneStarts> starts;      // null if rows store their start values themselves
  std::vector<std::byte> episode_values;   // columns of kind episode of the open episode, one after the other
  std::vector<EpisodePage> episode_pages;  // of the open episode, oldest first
  bool is_abandoning = false;              // `abandon` of the open episode has begun and is not done

  bool moves_back() const { return starts != nullptr && !starts->moved.empty(); }
};

// A block of rows and the lanes of the writer that it goes to: lane(m) takes column m of the block.
struct LaneBlock {
  const StepBlock& steps;
  WriterLane* lanes;

  size_t num_lanes() const { return steps.num_lanes; }
  WriterLane& lane(size_t m) const { return lanes[steps.lanes == nullptr ? m : static_cast<size_t>(steps.lanes[m])]; }
};

// The lane's owner takes the slot. If the slot's last lane left a page with room, rows continue there as a new episode
// (rule E5).
void begin_lane(Held& held, WriterLane& lane, uint32_t slot, uint32_t participant);
// A page was opened for the lane's next row, or `ahead` of it.
void take_page(const Region& r, WriterLane& lane, bool ahead, uint64_t ref);
// After commit_run: the place of the next row. has_tail: the run ended with a tail.
void advance(const Region& r, WriterLane& lane, bool has_tail);
// Notes the page of the run among the pages of the open episode.
void note_episode_page(const Region& r, WriterLane& lane);

// Steps of capacity that `lanes` open lanes need: one window each.
inline uint64_t needed_steps(const Geometry& g, uint64_t lanes) { return lanes * (g.history + g.max_n_step); }

}  // namespace relive
