#include "relive/table/start_values.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "relive/pages/cells.hpp"
#include "relive/pages/item_starts.hpp"

namespace relive {

// A window has length + burn_in rows. One more value is kept, because the lane's last row may become a tail.
StartValues::StartValues(const Region& r, const WriterColumns& columns) : r_(r), columns_(columns.start_cells) {
  if (!is_used()) return;
  for (const uint32_t i : r.row_indexes()) {
    const SequenceConfig& sequence = r.header->indexes[i].sequence;
    if (sequence.at_end == AtEnd::kShift) num_recent_ = std::max(num_recent_, sequence.length + sequence.burn_in + 1);
  }
}

void StartValues::set_up(WriterLane& lane) const {
  if (!is_used()) return;
  lane.starts = std::make_unique<LaneStarts>();
  lane.starts->moved.reserve(r_.num_indexes);
  if (keeps_recent())  // not initialised: only values that are used take physical memory
    lane.starts->recent.reset(new std::byte[num_recent_ * r_.cells.geometry->stride]);
}

// Whether a window of some index may begin at that step.
bool StartValues::starts_at(uint32_t episode_step, uint64_t lane_step) const {
  for (const uint32_t i : r_.row_indexes()) {
    const SequenceConfig& sequence = r_.header->indexes[i].sequence;
    if (sequence.starts_at(sequence.crosses() ? lane_step : episode_step)) return true;
  }
  return false;
}

// Whether row k of the run has a cell: a window may begin at its step, or the end of the run moves a window back to it.
bool StartValues::has_cell(const WriterLane& lane, uint32_t k) const {
  const uint32_t step = lane.episode_step + k;
  const std::vector<uint32_t>& moved = lane.starts->moved;
  return starts_at(step, lane.lane_step + k) || std::find(moved.begin(), moved.end(), step) != moved.end();
}

uint32_t StartValues::cells_of_run(const WriterLane& lane) const {
  uint32_t cells = 0;
  for (uint32_t k = 0; k < lane.run.count; ++k) cells += has_cell(lane, k) ? 1 : 0;
  for (const uint32_t step : lane.starts->moved) cells += step < lane.episode_step ? 1 : 0;
  return cells;
}

uint64_t StartValues::cells_of_block(LaneBlock block, uint64_t most_rows) const {
  if (!is_used()) return 0;
  const uint64_t most_steps = most_rows / block.num_lanes() + 1;  // of a lane
  uint64_t cells = 0;
  for (size_t m = 0; m < block.num_lanes(); ++m) {
    const WriterLane& lane = block.lane(m);
    uint32_t step = lane.episode_step;
    uint64_t lane_step = lane.lane_step;
    const size_t end = std::min<uint64_t>(block.steps.num_rows, lane.num_stored + most_steps);
    for (size_t row = lane.num_stored; row < end; ++row) {
      cells += starts_at(step, lane_step++) ? 1 : 0;
      ++step;
      if (!block.steps.ends_at(row, m)) continue;
      for_each_moved(step, lane_step - step, false, [&cells](uint32_t) { ++cells; });
      step = 0;
    }
  }
  return cells;
}

void StartValues::write(const StepBlock& steps, WriterLane& lane, uint32_t k, size_t m) const {
  RELIVE_NOT_LOCKED("start values are written under the lock");
  uint32_t cell = kNoCell;
  if (has_cell(lane, k)) {
    cell = lane.starts->cells[lane.starts->run_cells++];
    for (const ColumnCell& part : columns_)
      std::memcpy(r_.cells.at(cell) + part.offset, steps.columns[part.column].at(lane.num_stored + k, m),
                  part.num_bytes);
  }
  store_cell_word(lane.frame + (lane.run.first + k) * r_.geometry->record_stride, cell);
}

std::byte* StartValues::recent_at(const WriterLane& lane, uint32_t step) const {
  return lane.starts->recent.get() + step % num_recent_ * r_.cells.geometry->stride;
}

// Calls each(step) for the first row of each window that an end after num_steps steps of an episode moves back. A row
// that has a cell anyway, because a window may begin at its step, is left out. lane_begin: the lane's steps before the
// episode.
template <class Each>
void StartValues::for_each_moved(uint32_t num_steps, uint64_t lane_begin, bool is_cut, Each&& each) const {
  if (!keeps_recent()) return;
  for (const uint32_t i : r_.row_indexes()) {
    const SequenceConfig& sequence = r_.header->indexes[i].sequence;
    const uint32_t step = is_cut && sequence.only_ended != 0 ? 0 : sequence.moved_start(num_steps);
    if (step != 0 && !starts_at(step, lane_begin + step)) each(step);
  }
}

void StartValues::plan(WriterLane& lane) const {
  lane.starts->run_cells = 0;
  lane.starts->moved.clear();
  if (lane.run.ends) plan_moved(lane, lane.episode_step + lane.run.count, false);
}

void StartValues::plan_moved(WriterLane& lane, uint32_t num_steps, bool is_cut) const {
  std::vector<uint32_t>& moved = lane.starts->moved;
  moved.clear();
  for_each_moved(num_steps, lane.lane_step - lane.episode_step, is_cut, [&moved](uint32_t step) {
    if (std::find(moved.begin(), moved.end(), step) == moved.end()) moved.push_back(step);
  });
}

void StartValues::write_moved(WriterLane& lane) const {
  RELIVE_NOT_LOCKED("start values are written under the lock");
  const LaneStarts& starts = *lane.starts;
  uint32_t at = starts.run_cells;
  for (const uint32_t step : starts.moved) {
    if (step >= lane.episode_step) continue;
    std::byte* const cell = r_.cells.at(starts.cells[at++]);
    const std::byte* const from = recent_at(lane, step);
    for (const ColumnCell& part : columns_) std::memcpy(cell + part.offset, from + part.offset, part.num_bytes);
  }
}

void StartValues::name_moved(Held& held, WriterLane& lane) const {
  LaneStarts& starts = *lane.starts;
  uint32_t at = starts.run_cells;
  for (const uint32_t step : starts.moved) {
    if (step >= lane.episode_step) continue;
    const uint32_t cell = starts.cells[at++];
    const uint64_t last = r_.alive(r_.ref_of(r_.page_of(lane.last_slot), lane.last_word));
    if (last == kNoPage) continue;
    const uint64_t slot = row_before(r_, last, r_.offset_of(lane.last_slot), lane.episode_step - 1 - step);
    if (slot == kNoSlot) continue;
    name_cell(held, lane.page, cell, slot);
    std::swap(starts.cells[at - 1], starts.cells[starts.run_cells++]);  // named cells come first in the list
  }
  starts.moved.clear();
}

void StartValues::keep_named(WriterLane& lane) const {
  LaneStarts& starts = *lane.starts;
  if (RELIVE_RULE(B4_own)) starts.cells.erase(starts.cells.begin(), starts.cells.begin() + starts.run_cells);
  starts.run_cells = 0;
  starts.num_fresh = lane.run.ends ? 0 : lane.run.count;
}

void StartValues::note_recent(const StepBlock& steps, WriterLane& lane, size_t m) const {
  RELIVE_NOT_LOCKED("start values are copied under the lock");
  for (uint32_t back = std::min(std::exchange(lane.starts->num_fresh, 0), num_recent_); back > 0; --back) {
    const uint32_t step = lane.episode_step - back;
    if (starts_at(step, lane.lane_step - back)) continue;
    for (const ColumnCell& part : columns_)
      std::memcpy(recent_at(lane, step) + part.offset, steps.columns[part.column].at(lane.num_stored - back, m),
                  part.num_bytes);
  }
}

}  // namespace relive
