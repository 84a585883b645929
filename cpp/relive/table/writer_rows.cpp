// Rows of a block: everything that can be wrong with them, and writing them without the lock.
#include "relive/table/writer.hpp"

#include <cmath>
#include <cstring>

#include "relive/table/writer_cells.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

bool flag_at(const Cells& cells, size_t row, size_t m) {
  return cells.base != nullptr && *cells.at(row, m) != std::byte{0};
}

// memcpy with the sizes of scalars and short vectors spelled out, for a call costs more than they do: most columns are
// one. The last word of those that are no multiple of it overlaps the one before.
void copy_cell(std::byte* to, const std::byte* from, size_t num_bytes) {
  constexpr size_t kWord = 16;
  if (num_bytes == 4) {
    std::memcpy(to, from, 4);
  } else if (num_bytes == 8) {
    std::memcpy(to, from, 8);
  } else if (num_bytes == 1) {
    *to = *from;
  } else if (num_bytes >= kWord && num_bytes <= 8 * kWord) {
    for (size_t at = 0; at + kWord < num_bytes; at += kWord) std::memcpy(to + at, from + at, kWord);
    std::memcpy(to + num_bytes - kWord, from + num_bytes - kWord, kWord);
  } else {
    std::memcpy(to, from, num_bytes);
  }
}

}  // namespace

Writer::Writer(Table* table) : table_(table) {
  const Region& r = table->region();
  for (uint32_t c = 0; c < r.geometry->num_columns; ++c) {
    const ColumnLayout& column = r.columns[c];
    if (column.kind == ColumnKind::kLate) continue;
    const bool is_state = column.kind == ColumnKind::kState;
    if (column.area == Area::kCell) {
      start_cells_.push_back({column.offset, column.stride, column.num_bytes, c, false, false});
      continue;
    }
    cells_.push_back({column.offset, column.stride, column.num_bytes, c, is_state, column.area == Area::kBulk});
    if (is_state) state_cells_.push_back(cells_.back());
    if (column.kind == ColumnKind::kEpisode) episode_cells_.push_back(cells_.back());
  }
  for (uint32_t i = 0; i < r.num_indexes; ++i) {
    const IndexConfig& index = r.header->indexes[i];
    const bool is_group = index.group.is_set() && index.group.too_long == TooLong::kRefuse;
    const uint32_t longest = is_group ? index.windows[0].length : index.sequence.longest;
    if (longest != 0) longest_episode_ = std::min(longest_episode_, longest);
  }
}

bool Writer::ends_at(const StepBlock& block, size_t row, size_t m) const {
  return flag_at(block.terminated, row, m) || flag_at(block.truncated, row, m);
}

// Whether the state after `row` is known from the block itself. Within an extend the next row is it, unless the
// episode ended: then the next row begins another.
bool Writer::has_next_cell(const StepBlock& block, size_t row, bool ends) const {
  if (block.has_next) return true;
  if (row + 1 == block.num_rows) return block.has_last_state;
  return !ends;
}

// Where the state after a row is not given with it each open lane needs a row more. Lanes of the dead are nobody's: they
// are swept before anything is refused for them.
Status Writer::check_capacity() {
  const Region& r = table_->region();
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
    Locked locked(table_->door(), table_->own_deadline());
    if (locked.status().ok()) (void)locked.sweep_dead();
    RELIVE_RETURN_IF_ERROR(locked.status());
  }
  if (!is_short()) return {};
  return Status(Code::kCapacityTooSmall)
      .with_int("capacity", static_cast<int64_t>(g.capacity))
      .with_int("needed", static_cast<int64_t>(needed_steps(g, open_lanes) + open_lanes))
      .with_int("lanes", open_lanes);
}

// Everything that can be wrong with a block is found here, before anything changes.
Status Writer::check_block(const StepBlock& block) {
  const Region& r = table_->region();
  const Geometry& g = *r.geometry;
  const uint32_t extra = g.has_state != 0 && !block.has_next && !block.has_last_state && block.num_rows > 0 ? 1 : 0;
  if (extra != 0 && g.capacity < 2 * uint64_t{g.max_lanes} * (g.history + g.max_n_step + 1))
    RELIVE_RETURN_IF_ERROR(check_capacity());
  const bool has_row_checks =
      block.truncated.base != nullptr || block.priority.base != nullptr || longest_episode_ != kAnyLength;
  for (size_t m = 0; m < block.num_lanes; ++m) {
    if (has_row_checks) RELIVE_RETURN_IF_ERROR(check_rows(block, m));
    if (m + kLanesAhead < block.num_lanes) ask_for_row(lane_of(block, m + kLanesAhead));
    if (const ColumnCell* cell = other_seam(block, m); cell != nullptr) return seam_mismatch(block, cell->column, m);
    if (episode_cells_.empty()) continue;
    if (const ColumnCell* cell = other_episode(block, m); cell != nullptr)
      return Status(Code::kEpisodeMismatch)
          .with_int("lane", static_cast<int64_t>(block.lanes == nullptr ? m : block.lanes[m]))
          .with_text("column", r.columns[cell->column].name);
  }
  return {};
}

// The rows of one lane, one by one.
Status Writer::check_rows(const StepBlock& block, size_t m) const {
  const bool has_state = table_->region().geometry->has_state != 0;
  const auto lane_number = static_cast<int64_t>(block.lanes == nullptr ? m : block.lanes[m]);
  uint32_t steps = lane_of(block, m).episode_step;  // of the episode so far
  for (size_t row = 0; row < block.num_rows; ++row) {
    const bool truncated = flag_at(block.truncated, row, m);
    const bool terminated = flag_at(block.terminated, row, m);
    if (++steps > longest_episode_)
      return Status(Code::kEpisodeTooLong).with_int("lane", lane_number).with_int("max_length", longest_episode_);
    if (terminated || truncated) steps = 0;
    if (truncated && !terminated && has_state && !has_next_cell(block, row, true))
      return Status(Code::kMissingNext).with_int("lane", lane_number);
    if (block.priority.base == nullptr) continue;
    float priority;
    std::memcpy(&priority, block.priority.at(row, m), sizeof priority);
    if (!(priority >= 0.0f) || std::isinf(priority))
      return Status(Code::kInvalidPriority)
          .with_int("position", static_cast<int64_t>(row * block.num_lanes + m))
          .with_double("value", priority);
  }
  return {};
}

Status Writer::seam_mismatch(const StepBlock& block, uint32_t column, size_t m) const {
  const auto number = static_cast<int64_t>(block.lanes == nullptr ? m : block.lanes[m]);
  return Status(Code::kSeamMismatch)
      .with_int("lane", number)
      .with_text("column", table_->region().columns[column].name);
}

// What is written into the frozen cell of a lane, against the states given for it, the first row of `given`: the first
// column that differs, null if none does.
const ColumnCell* Writer::other_frozen(const StepBlock& block, const std::vector<Cells>& given, size_t m) const {
  const LaneWriter& lane = lane_of(block, m);
  for (const ColumnCell& cell : state_cells_)
    if (std::memcmp(cell.at(lane.frame, lane.bulk, lane.end), given[cell.column].at(0, m), cell.num_bytes) != 0)
      return &cell;
  return nullptr;
}

// A next observation that was given is frozen: the row that follows must say the same. The first column that differs.
const ColumnCell* Writer::other_seam(const StepBlock& block, size_t m) const {
  if (lane_of(block, m).is_frozen) {
    if (const ColumnCell* cell = other_frozen(block, block.columns, m); cell != nullptr) return cell;
  }
  for (size_t row = 1; block.has_next && row < block.num_rows; ++row) {
    if (ends_at(block, row - 1, m)) continue;
    for (const ColumnCell& cell : state_cells_) {
      const uint32_t c = cell.column;
      if (std::memcmp(block.next[c].at(row - 1, m), block.columns[c].at(row, m), cell.num_bytes) != 0) return &cell;
    }
  }
  return nullptr;
}

// What an episode says of itself, kept by the writer: its rows may go, or their page move, while it goes on.
void Writer::note_episode(const StepBlock& block, LaneWriter& lane, size_t m) const {
  std::byte* to = lane.said.data();
  for (const ColumnCell& cell : episode_cells_) {
    std::memcpy(to, block.columns[cell.column].at(lane.done, m), cell.num_bytes);
    to += cell.num_bytes;
  }
}

// Each row of an episode says the same of it: the first column that differs.
const ColumnCell* Writer::other_episode(const StepBlock& block, size_t m) const {
  const LaneWriter& lane = lane_of(block, m);
  const std::byte* noted = lane.said.data();
  for (const ColumnCell& cell : episode_cells_) {
    const std::byte* said = lane.has_last ? noted : nullptr;  // of the episode that goes on
    for (size_t row = 0; row < block.num_rows; ++row) {
      const std::byte* const given = block.columns[cell.column].at(row, m);
      if (said != nullptr && std::memcmp(said, given, cell.num_bytes) != 0) return &cell;
      said = ends_at(block, row, m) ? nullptr : given;
    }
    noted += cell.num_bytes;
  }
  return nullptr;
}

// The state cells of the row after the run: the frozen cell of a seam, or the tail of an episode that ended.
void Writer::write_next_cell(const StepBlock& block, LaneWriter& lane, size_t row, size_t m) {
  RELIVE_NOT_LOCKED("cells are written under the lock");
  const Region& r = table_->region();
  const uint32_t at = lane.run.first + lane.run.count;
  std::byte* frame = at < r.page_len ? lane.frame : lane.ahead_frame;
  std::byte* bulk = at < r.page_len ? lane.bulk : lane.ahead_bulk;
  const uint32_t offset = at & (r.page_len - 1);
  const bool is_given = has_next_cell(block, row, lane.run.ends);
  for (const ColumnCell& cell : state_cells_) {
    std::byte* to = cell.at(frame, bulk, offset);
    const uint32_t c = cell.column;
    if (!is_given) {
      std::memset(to, 0, cell.num_bytes);
    } else {
      copy_cell(to, block.has_next ? block.next[c].at(row, m) : block.columns[c].at(row + 1, m), cell.num_bytes);
    }
  }
  if (!lane.run.ends) return;
  const uint32_t head = (lane.episode_step + lane.run.count) & kStepMask;
  std::memcpy(frame + offset * r.geometry->record_stride, &head, sizeof head);
  RELIVE_FAIL_POINT(cells_written);
}

// The priorities that the run's steps came with, where more than one index has some.
void Writer::note_priorities(const StepBlock& block, const LaneWriter& lane, size_t m) const {
  const Region& r = table_->region();
  for (const uint32_t i : r.given_apart()) {
    for (uint32_t k = 0; k < lane.run.count; ++k) {
      uint32_t priority = kNoPriority;
      if (block.priority.base != nullptr) std::memcpy(&priority, block.priority.at(lane.done + k, m), sizeof priority);
      r.given(i, r.slot_of(lane.page, lane.run.first + k)).store(priority, kRelaxed);
    }
  }
}

void Writer::write_rows(const StepBlock& block, size_t m) {
  RELIVE_NOT_LOCKED("rows are written under the lock");
  LaneWriter& lane = lane_of(block, m);
  if (lane.run.count == 0 && !lane.run.ends) return;
  if (!lane.has_last && lane.run.count > 0) note_episode(block, lane, m);
  const Region& r = table_->region();
  const uint32_t version =
      policy_version_ >= 0 ? static_cast<uint32_t>(policy_version_) : r.header->policy_version.load(kRelaxed);
  const uint32_t late = r.late_bytes != 0 && RELIVE_RULE(L1_bit) ? kLateBit : 0;
  if (lane.starts != nullptr) lane.starts->run_cells = 0;
  for (uint32_t k = 0; k < lane.run.count; ++k) {
    const size_t row = lane.done + k;
    const uint32_t offset = lane.run.first + k;
    const bool terminated = flag_at(block.terminated, row, m);
    const bool truncated = flag_at(block.truncated, row, m);
    const float usual = terminated ? 0.0f : 1.0f;
    float discount = usual;
    uint32_t priority = kNoPriority;
    if (block.discount.base != nullptr) std::memcpy(&discount, block.discount.at(row, m), sizeof discount);
    if (block.priority.base != nullptr) std::memcpy(&priority, block.priority.at(row, m), sizeof priority);
    const uint32_t head = ((lane.episode_step + k) & kStepMask) | (terminated ? kTerminatedBit : 0) |
                          (truncated ? kTruncatedBit : 0) | (discount != usual ? kDiscountBit : 0) | late;
    std::memcpy(lane.frame + offset * r.geometry->record_stride, &head, sizeof head);
    r.marks[r.slot_of(lane.page, offset)].write(version, discount, priority, lane.uid);
    if (!start_cells_.empty()) write_start(block, lane, k, m);
    const bool is_frozen = k == 0 && lane.is_frozen;
    for (const ColumnCell& cell : cells_) {
      if (is_frozen && cell.is_state) continue;  // others read it already, and it says the same
      copy_cell(cell.at(lane.frame, lane.bulk, offset), block.columns[cell.column].at(row, m), cell.num_bytes);
    }
  }
  if (!r.given_apart().empty()) note_priorities(block, lane, m);
  if (r.geometry->has_state != 0 && (lane.run.has_seam || lane.run.ends) && lane.run.count > 0)
    write_next_cell(block, lane, lane.done + lane.run.count - 1, m);
  if (lane.starts != nullptr) write_moved(lane);
  RELIVE_FAIL_POINT(cells_written);
}

}  // namespace relive
