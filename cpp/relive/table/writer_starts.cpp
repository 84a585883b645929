// Start values of a writer's rows, in tables that keep them only where a window may begin (pages/cells.hpp).
#include <algorithm>
#include <cstring>

#include "relive/pages/cells.hpp"
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

uint32_t Writer::cells_of_run(const LaneWriter& lane) const {
  uint32_t cells = 0;
  for (uint32_t k = 0; k < lane.run.count; ++k) cells += starts_at(lane.episode_step + k, lane.lane_step + k) ? 1 : 0;
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
      step = ends_at(block, row, m) ? 0 : step + 1;
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
    if (first.run.count == 0 || first.cells.size() >= cells_of_run(first)) {
      ++m;
      continue;
    }
    const size_t end = std::min(m + kRowsPerHold, block.num_lanes);
    for (size_t n = m; n < end; ++n) lane_of(block, n).cells.reserve(lane_of(block, n).run.count);
    Locked locked(table_->door(), deadline);
    RELIVE_RETURN_IF_ERROR(locked.status());
    for (size_t taken = 0; m < end && taken < kRowsPerHold;) {
      LaneWriter& lane = lane_of(block, m);
      if (lane.run.count == 0 || lane.cells.size() >= cells_of_run(lane)) {
        ++m;
        continue;
      }
      if (const uint32_t cell = take_cell(locked.held(), lane.page); cell != kNoCell) {
        lane.cells.push_back(cell);
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
  if (starts_at(lane.episode_step + k, lane.lane_step + k)) {
    cell = lane.cells[lane.run_cells++];
    for (const ColumnCell& part : start_cells_)
      std::memcpy(r.cells.at(cell) + part.offset, block.columns[part.column].at(lane.done + k, m), part.num_bytes);
  }
  store_cell_word(lane.frame + (lane.run.first + k) * r.geometry->record_stride, cell);
}

// After commit_run: what its rows name is theirs.
void Writer::keep_cells(LaneWriter& lane) const {
  if (RELIVE_RULE(B4_own)) lane.cells.erase(lane.cells.begin(), lane.cells.begin() + lane.run_cells);
  lane.run_cells = 0;
}

}  // namespace relive
