#include "relive/table/writer_check.hpp"

#include <cmath>
#include <cstring>

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr size_t kLanesAhead = 8;    // distance of a prefetch, in lanes
constexpr uint64_t kRowAhead = 512;  // bytes of a row that are prefetched

// The record that writing the lane fills. Always inlined: for GCC a function that only prefetches has no effect, and it
// removes the calls.
[[gnu::always_inline]] inline void prefetch_row(const Region& r, const WriterLane& lane) {
  if (lane.page == kNoPage) return;
  const uint64_t stride = r.geometry->record_stride;
  const std::byte* row = lane.frame + lane.step_end * stride;
  __builtin_prefetch(&r.marks[r.slot_of(lane.page, lane.step_end)], 1);
  for (uint64_t at = 0; at < 2 * stride && at < kRowAhead; at += 64) __builtin_prefetch(row + at, 1);
}

// If the state after a row is not given with it, each open lane needs one row more. Lanes of dead processes are swept
// before anything is refused for their sake.
Status check_capacity(Table& table) {
  const Region& r = table.region();
  const Geometry& g = *r.geometry;
  uint32_t open_lanes = 0;
  const auto is_short = [&] {
    open_lanes = 0;
    for (uint32_t lane = 0; lane < g.max_lanes; ++lane)
      open_lanes += r.lanes[lane].state.load(kRelaxed) == LaneState::kLive ? 1 : 0;
    return needed_steps(g, open_lanes) + open_lanes > g.capacity;
  };
  if (!is_short()) return {};
  {
    Locked locked(table.door(), table.own_deadline());
    if (locked.status().ok()) (void)locked.sweep_dead();
    RELIVE_RETURN_IF_ERROR(locked.status());
  }
  if (!is_short()) return {};
  return Status(Code::kCapacityTooSmall)
      .with_int("capacity", static_cast<int64_t>(g.capacity))
      .with_int("needed", static_cast<int64_t>(needed_steps(g, open_lanes) + open_lanes))
      .with_int("lanes", open_lanes);
}

// The rows of one lane, one by one.
Status check_rows(const Region& r, const WriterColumns& columns, const StepBlock& steps, const WriterLane& lane,
                  size_t m) {
  const bool has_state = r.geometry->has_state != 0;
  uint32_t episode_step = lane.episode_step;
  for (size_t row = 0; row < steps.num_rows; ++row) {
    const bool truncated = steps.truncated.flag_at(row, m);
    const bool terminated = steps.terminated.flag_at(row, m);
    if (++episode_step > columns.longest_episode)
      return Status(Code::kEpisodeTooLong)
          .with_int("lane", steps.lane_number(m))
          .with_int("max_length", columns.longest_episode);
    if (terminated || truncated) episode_step = 0;
    if (truncated && !terminated && has_state && !steps.has_next_cell(row, true))
      return Status(Code::kMissingNext).with_int("lane", steps.lane_number(m));
    if (steps.priority.base == nullptr) continue;
    float priority;
    std::memcpy(&priority, steps.priority.at(row, m), sizeof priority);
    if (!(priority >= 0.0f) || std::isinf(priority))
      return Status(Code::kInvalidPriority)
          .with_int("position", static_cast<int64_t>(row * steps.num_lanes + m))
          .with_double("value", priority);
  }
  return {};
}

// A next state that was given is frozen: the row that follows must give the same state. Returns the first column that
// differs, or null.
const ColumnCell* wrong_state(const WriterColumns& columns, const StepBlock& steps, const WriterLane& lane, size_t m) {
  if (lane.has_seam) {
    if (const ColumnCell* cell = differs_from_seam(columns, lane, steps.columns, m); cell != nullptr) return cell;
  }
  for (size_t row = 1; steps.has_next && row < steps.num_rows; ++row) {
    if (steps.ends_at(row - 1, m)) continue;
    for (const ColumnCell& cell : columns.state_cells) {
      const uint32_t c = cell.column;
      if (!cell.is_same(steps.next[c].at(row - 1, m), steps.columns[c].at(row, m))) return &cell;
    }
  }
  return nullptr;
}

// A column of kind episode has one value in all rows of an episode. Returns the first column that differs, or null.
const ColumnCell* wrong_episode(const WriterColumns& columns, const StepBlock& steps, const WriterLane& lane,
                                size_t m) {
  const std::byte* noted = lane.episode_values.data();
  for (const ColumnCell& cell : columns.episode_cells) {
    const std::byte* value = lane.in_episode ? noted : nullptr;  // of the episode that row belongs to; null: it begins
    for (size_t row = 0; row < steps.num_rows; ++row) {
      const std::byte* const given = steps.columns[cell.column].at(row, m);
      if (value != nullptr && !cell.is_same(value, given)) return &cell;
      value = steps.ends_at(row, m) ? nullptr : given;
    }
    noted += cell.num_bytes;
  }
  return nullptr;
}

}  // namespace

const ColumnCell* differs_from_seam(const WriterColumns& columns, const WriterLane& lane,
                                    const std::vector<Cells>& given, size_t m) {
  for (const ColumnCell& cell : columns.state_cells)
    if (!cell.is_same(cell.at(lane.frame, lane.bulk, lane.step_end), given[cell.column].at(0, m))) return &cell;
  return nullptr;
}

Status seam_mismatch(const Region& r, const StepBlock& steps, uint32_t column, size_t m) {
  return Status(Code::kSeamMismatch).with_int("lane", steps.lane_number(m)).with_text("column", r.columns[column].name);
}

Status check_block(Table& table, const WriterColumns& columns, LaneBlock block) {
  const Region& r = table.region();
  const Geometry& g = *r.geometry;
  const StepBlock& steps = block.steps;
  const uint32_t extra = g.has_state != 0 && !steps.has_next && !steps.has_last_state && steps.num_rows > 0 ? 1 : 0;
  if (extra != 0 && g.capacity < 2 * uint64_t{g.max_lanes} * (g.history + g.max_n_step + 1))
    RELIVE_RETURN_IF_ERROR(check_capacity(table));
  const bool has_row_checks = steps.truncated.base != nullptr || steps.priority.base != nullptr ||
                              columns.longest_episode != WriterColumns::kAnyLength;
  for (size_t m = 0; m < steps.num_lanes; ++m) {
    const WriterLane& lane = block.lane(m);
    if (has_row_checks) RELIVE_RETURN_IF_ERROR(check_rows(r, columns, steps, lane, m));
    if (m + kLanesAhead < steps.num_lanes) prefetch_row(r, block.lane(m + kLanesAhead));
    if (const ColumnCell* cell = wrong_state(columns, steps, lane, m); cell != nullptr)
      return seam_mismatch(r, steps, cell->column, m);
    if (columns.episode_cells.empty()) continue;
    if (const ColumnCell* cell = wrong_episode(columns, steps, lane, m); cell != nullptr)
      return Status(Code::kEpisodeMismatch)
          .with_int("lane", steps.lane_number(m))
          .with_text("column", r.columns[cell->column].name);
  }
  return {};
}

}  // namespace relive
