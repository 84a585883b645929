// The start values of a writer's rows, in a table that keeps large columns of kind start in cells (rule B4): only rows
// where a window may begin have a cell (pages/cells.hpp).
//
// An episode's end may move a window back, and the row where that window begins is known only then. So the lane keeps
// the start values of as many steps as a window reaches back over. At the end of the episode it writes the value of the
// row where the window begins into a cell of its open page, without the table lock. In the critical section of the end
// the cell moves to the page of that row.
//
// Owner:   a Writer owns one StartValues; the cells and recent values of a lane belong to the lane (LaneStarts).
// Locking: the writer's mutex. name_moved() runs under the table lock; every other function runs without it.
// Cost:    O(rows x indexes). Without such columns a writer never calls these functions: see is_used().
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "relive/table/writer_columns.hpp"
#include "relive/table/writer_lane.hpp"

namespace relive {

class StartValues final {
 public:
  StartValues(const Region& r, const WriterColumns& columns);

  bool is_used() const { return !columns_.empty(); }
  bool keeps_recent() const { return num_recent_ > 0; }  // an index may move windows back
  void set_up(WriterLane& lane) const;

  // ---- before the rows are written: which of them have a cell
  // The lane's run was planned: computes the window starts that the end of the run moves.
  void plan(WriterLane& lane) const;
  // The window starts that an end after num_steps steps of the open episode moves. is_cut: the lane itself ends there.
  void plan_moved(WriterLane& lane, uint32_t num_steps, bool is_cut) const;
  // Cells that the run needs.
  uint32_t cells_of_run(const WriterLane& lane) const;
  // Cells that the rows of the block need which are not stored yet; of these, the first most_rows are counted.
  uint64_t cells_of_block(LaneBlock block, uint64_t most_rows) const;

  // ---- with the rows
  // The start value of row k of the run, if the row has one, and the word that names its cell.
  void write(const StepBlock& steps, WriterLane& lane, uint32_t k, size_t m) const;
  // The values of moved starts that are steps already, in the cells after those of the run's own rows.
  void write_moved(WriterLane& lane) const;

  // ---- with the commit
  // In the critical section of the end and before its stores: the rows of moved starts name their cells. A row that is
  // gone needs none, and the next row takes its cell.
  void name_moved(Held& held, WriterLane& lane) const;
  // After commit_run: the cells that the run's rows name belong to these rows.
  void keep_named(WriterLane& lane) const;
  // After the critical section: copies the values of the run's rows, because windows may be moved back to them.
  void note_recent(const StepBlock& steps, WriterLane& lane, size_t m) const;

 private:
  bool starts_at(uint32_t episode_step, uint64_t lane_step) const;
  bool has_cell(const WriterLane& lane, uint32_t k) const;
  std::byte* recent_at(const WriterLane& lane, uint32_t step) const;
  template <class Each>
  void for_each_moved(uint32_t num_steps, uint64_t lane_begin, bool is_cut, Each&& each) const;

  const Region& r_;
  std::vector<ColumnCell> columns_;
  uint32_t num_recent_ = 0;  // values that a lane keeps; 0: no index moves windows back
};

}  // namespace relive
