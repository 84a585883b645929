// Start values of a writer's rows, in tables that keep them only where a window may begin (pages/cells.hpp).
#include <algorithm>
#include <cstring>
#include <utility>

#include "relive/pages/cells.hpp"
#include "relive/pages/item_starts.hpp"
#include "relive/table/writer.hpp"
#include "relive/table/writer_cells.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

}  // namespace

// Whether a window of some index may begin at that step.
bool Writer::starts_at(uint32_t episode_step, uint64_t lane_step) const {
  const Region& r = table_->region();
  for (const uint32_t i : r.row_indexes()) {
    const SequenceConfig& sequence = r.header->indexes[i].sequence;
    if (sequence.starts_at(sequence.crosses() ? lane_step : episode_step)) return true;
  }
  return false;
}

// Whether row k of the run has one: by its step, or since the run's end moves a window back to it.
bool Writer::has_cell(const LaneWriter& lane, uint32_t k) const {
  const uint32_t step = lane.episode_step + k;
  const std::vector<uint32_t>& moved = lane.starts->moved;
  return starts_at(step, lane.lane_step + k) || std::find(moved.begin(), moved.end(), step) != moved.end();
}

uint32_t Writer::cells_of_run(const LaneWriter& lane) const {
  uint32_t cells = 0;
  for (uint32_t k = 0; k < lane.run.count; ++k) cells += has_cell(lane, k) ? 1 : 0;
  for (const uint32_t step : lane.starts->moved) cells += step < lane.episode_step ? 1 : 0;
  return cells;
}

// Of the rows that are not stored yet, as far as the first `most_rows` of them go.
uint64_t Writer::cells_of_block(const StepBlock& block, uint64_t most_rows) const {
  const uint64_t most_steps = most_rows / block.num_lanes + 1;  // of a lane
  uint64_t cells = 0;
  for (size_t m = 0; m < block.num_lanes; ++m) {
    const LaneWriter& lane = lane_of(block, m);
    uint32_t step = lane.episode_step;
    uint64_t lane_step = lane.lane_step;
    const size_t end = std::min<uint64_t>(block.num_rows, lane.done + most_steps);
    for (size_t row = lane.done; row < end; ++row) {
      cells += starts_at(step, lane_step++) ? 1 : 0;
      ++step;
      if (!ends_at(block, row, m)) continue;
      for_each_moved(step, lane_step - step, false, [&cells](uint32_t) { ++cells; });
      step = 0;
    }
  }
  return cells;
}

// More cells, really allocated, outside the lock (rule J1).
Status Writer::grow_cells(const Deadline& deadline) {
  Region& r = table_->region();
  const CellGeometry& g = *r.cells.geometry;
  const uint64_t from = r.cells.state->committed.load(std::memory_order_acquire);
  const uint64_t to = std::min(from + g.grow_cells, g.num_cells);
  RELIVE_RETURN_IF_ERROR(table_->storage().commit(g.cells_offset + from * g.stride, (to - from) * g.stride));
  Locked locked(table_->door(), deadline);
  RELIVE_RETURN_IF_ERROR(locked.status());
  if (r.cells.state->committed.load(kRelaxed) == from) offer_cells(locked.held(), from, to);  // else one was faster
  return {};
}

// Before rows are written: a cell for each that begins a window. What an earlier round took for rows that it could not
// commit is there still. Room for their numbers is made before the lock is taken.
Status Writer::take_cells(const StepBlock& block, const Deadline& deadline) {
  Region& r = table_->region();
  for (size_t m = 0; m < block.num_lanes;) {
    LaneWriter& first = lane_of(block, m);
    if (first.starts->cells.size() >= cells_of_run(first)) {
      ++m;
      continue;
    }
    const size_t end = std::min(m + kRowsPerHold, block.num_lanes);
    for (size_t n = m; n < end; ++n) {
      LaneWriter& lane = lane_of(block, n);
      lane.starts->cells.reserve(lane.run.count + lane.starts->moved.size());
    }
    Locked locked(table_->door(), deadline);
    RELIVE_RETURN_IF_ERROR(locked.status());
    for (size_t taken = 0; m < end && taken < kRowsPerHold;) {
      LaneWriter& lane = lane_of(block, m);
      if (lane.starts->cells.size() >= cells_of_run(lane)) {
        ++m;
        continue;
      }
      if (const uint32_t cell = take_cell(locked.held(), lane.page); cell != kNoCell) {
        lane.starts->cells.push_back(cell);
        ++taken;
        continue;
      }
      if (r.cells.state->committed.load(kRelaxed) < r.cells.geometry->num_cells) {
        locked.release();
        RELIVE_RETURN_IF_ERROR(grow_cells(deadline));
      } else {
        RELIVE_RETURN_IF_ERROR(relieve(OpenResult::kNoPage, &locked, deadline));
      }
      break;  // the lock was let go
    }
  }
  return {};
}

// The start value of row k of the run, where it has one, and the word that names its cell.
void Writer::write_start(const StepBlock& block, LaneWriter& lane, uint32_t k, size_t m) const {
  RELIVE_NOT_LOCKED("start values are written under the lock");
  const Region& r = table_->region();
  uint32_t cell = kNoCell;
  if (has_cell(lane, k)) {
    cell = lane.starts->cells[lane.starts->run_cells++];
    for (const ColumnCell& part : start_cells_)
      std::memcpy(r.cells.at(cell) + part.offset, block.columns[part.column].at(lane.done + k, m), part.num_bytes);
  }
  store_cell_word(lane.frame + (lane.run.first + k) * r.geometry->record_stride, cell);
}

// ---- windows that an end moves back --------------------------------------------------------------------------------
//
// Where such a window begins is known with its episode's end alone. So the owner of a lane keeps the start values of as
// many steps as a window reaches back over. When the episode ends, the value of the row where the window begins goes
// into a cell of the lane's page, outside the lock; in the hold of the end it goes over to the row's own page.

// Made when the lanes are, with room for one more than a window has, as a lane's last row may become a tail.
void Writer::set_up_starts() {
  if (start_cells_.empty()) return;
  const Region& r = table_->region();
  for (const uint32_t i : r.row_indexes()) {
    const SequenceConfig& sequence = r.header->indexes[i].sequence;
    if (sequence.at_end == AtEnd::kShift) num_recent_ = std::max(num_recent_, sequence.length + sequence.burn_in + 1);
  }
  for (LaneWriter& lane : lanes_) {
    lane.starts = std::make_unique<LaneStarts>();
    lane.starts->moved.reserve(r.num_indexes);
    if (num_recent_ > 0)  // memory of it that is used, no more
      lane.starts->recent.reset(new std::byte[num_recent_ * r.cells.geometry->stride]);
  }
}

std::byte* Writer::recent_at(const LaneWriter& lane, uint32_t step) const {
  return lane.starts->recent.get() + step % num_recent_ * table_->region().cells.geometry->stride;
}

// Calls each(step) for the first rows of the windows that an end behind so many steps of an episode moves back; those
// that have a cell by their step are left out. lane_begin: the lane's steps before the episode.
template <class Each>
void Writer::for_each_moved(uint32_t num_steps, uint64_t lane_begin, bool is_cut, Each&& each) const {
  if (num_recent_ == 0) return;
  const Region& r = table_->region();
  for (const uint32_t i : r.row_indexes()) {
    const SequenceConfig& sequence = r.header->indexes[i].sequence;
    const uint32_t step = is_cut && sequence.only_ended != 0 ? 0 : sequence.moved_start(num_steps);
    if (step != 0 && !starts_at(step, lane_begin + step)) each(step);
  }
}

// Of a run that was planned.
void Writer::plan_starts(LaneWriter& lane) const {
  lane.starts->run_cells = 0;
  lane.starts->moved.clear();
  if (lane.run.ends) plan_moved(lane, lane.episode_step + lane.run.count, false);
}

// is_cut: it is its lane that ends.
void Writer::plan_moved(LaneWriter& lane, uint32_t num_steps, bool is_cut) const {
  std::vector<uint32_t>& moved = lane.starts->moved;
  moved.clear();
  for_each_moved(num_steps, lane.lane_step - lane.episode_step, is_cut, [&moved](uint32_t step) {
    if (std::find(moved.begin(), moved.end(), step) == moved.end()) moved.push_back(step);
  });
}

// The values of those that are steps already, behind the cells of the run's own rows.
void Writer::write_moved(LaneWriter& lane) const {
  RELIVE_NOT_LOCKED("start values are written under the lock");
  const Region& r = table_->region();
  const LaneStarts& starts = *lane.starts;
  uint32_t at = starts.run_cells;
  for (const uint32_t step : starts.moved) {
    if (step >= lane.episode_step) continue;
    std::byte* const cell = r.cells.at(starts.cells[at++]);
    const std::byte* const from = recent_at(lane, step);
    for (const ColumnCell& part : start_cells_) std::memcpy(cell + part.offset, from + part.offset, part.num_bytes);
  }
}

// In the hold of the end and before it: their rows name them. A row that is gone needs none, and its cell is the next's.
void Writer::name_moved(Held& held, LaneWriter& lane) const {
  const Region& r = held.region;
  LaneStarts& starts = *lane.starts;
  uint32_t at = starts.run_cells;
  for (const uint32_t step : starts.moved) {
    if (step >= lane.episode_step) continue;
    const uint32_t cell = starts.cells[at++];
    const uint64_t last = r.alive(r.ref_of(r.page_of(lane.last_slot), lane.last_word));
    if (last == kNoPage) continue;
    const uint64_t slot = row_before(r, last, r.offset_of(lane.last_slot), lane.episode_step - 1 - step);
    if (slot == kNoSlot) continue;
    name_cell(held, lane.page, cell, slot);
    std::swap(starts.cells[at - 1], starts.cells[starts.run_cells++]);  // what is named stands in front
  }
  starts.moved.clear();
}

// After the commit, outside the lock: the values of the run's rows, in case that windows are moved back to them.
void Writer::note_recent(const StepBlock& block, LaneWriter& lane, size_t m) const {
  RELIVE_NOT_LOCKED("start values are copied under the lock");
  for (uint32_t back = std::min(std::exchange(lane.starts->fresh, 0), num_recent_); back > 0; --back) {
    const uint32_t step = lane.episode_step - back;
    if (starts_at(step, lane.lane_step - back)) continue;
    for (const ColumnCell& part : start_cells_)
      std::memcpy(recent_at(lane, step) + part.offset, block.columns[part.column].at(lane.done - back, m),
                  part.num_bytes);
  }
}

// Before lanes are cut: what cut_lane() makes of an open episode moves windows back as its end does. Where a row behind
// its last one is not there yet that row becomes a tail. Where this fails a lane ends without these windows.
Status Writer::prepare_cut(const Deadline& deadline) {
  if (num_recent_ == 0) return {};
  const bool has_state = table_->region().geometry->has_state != 0;
  std::vector<int32_t> numbers;
  for (size_t m = num_cut_; m < lanes_.size(); ++m) {
    LaneWriter& lane = lanes_[m];
    lane.run = StepRun{};
    lane.starts->run_cells = 0;
    lane.starts->moved.clear();
    if (!lane.has_last || lane.is_given_up) continue;
    plan_moved(lane, lane.episode_step - (has_state && !lane.is_frozen ? 1 : 0), true);
    if (!lane.starts->moved.empty()) numbers.push_back(static_cast<int32_t>(m));
  }
  StepBlock block;
  block.num_lanes = numbers.size();
  block.lanes = numbers.data();
  Status status = open_pages(block, deadline);
  if (status.ok()) status = take_cells(block, deadline);
  for (const int32_t m : numbers) status.ok() ? write_moved(lanes_[m]) : lanes_[m].starts->moved.clear();
  return status;
}

// After commit_run: what its rows name is theirs.
void Writer::keep_cells(LaneWriter& lane) const {
  LaneStarts& starts = *lane.starts;
  if (RELIVE_RULE(B4_own)) starts.cells.erase(starts.cells.begin(), starts.cells.begin() + starts.run_cells);
  starts.run_cells = 0;
  starts.fresh = lane.run.ends ? 0 : lane.run.count;
}

}  // namespace relive
