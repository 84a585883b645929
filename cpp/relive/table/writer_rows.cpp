#include "relive/table/writer_rows.hpp"

#include <cstring>

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// memcpy with the sizes of scalars and short vectors spelled out, because a call costs more than they do, and most
// columns are scalars or short vectors. If the size is no multiple of a word, the last word overlaps the one before.
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

// The lane keeps the values of the episode's own columns: the first rows may be evicted, and their page may move, while
// the episode is open.
void note_episode(const WriterColumns& columns, const StepBlock& steps, WriterLane& lane, size_t m) {
  std::byte* to = lane.episode_values.data();
  for (const ColumnCell& cell : columns.episode_cells) {
    std::memcpy(to, steps.columns[cell.column].at(lane.num_stored, m), cell.num_bytes);
    to += cell.num_bytes;
  }
}

// The priorities that the run's steps came with, for each index whose priorities lie apart from the marks (rule H1).
void note_priorities(const Region& r, const StepBlock& steps, const WriterLane& lane, size_t m) {
  for (const uint32_t i : r.given_apart()) {
    for (uint32_t k = 0; k < lane.run.count; ++k) {
      uint32_t priority = kNoPriority;
      if (steps.priority.base != nullptr)
        std::memcpy(&priority, steps.priority.at(lane.num_stored + k, m), sizeof priority);
      r.given(i, r.slot_of(lane.page, lane.run.first + k)).store(priority, kRelaxed);
    }
  }
}

}  // namespace

void write_next_cell(const Region& r, const WriterColumns& columns, const StepBlock& steps, const WriterLane& lane,
                     size_t row, size_t m) {
  RELIVE_NOT_LOCKED("cells are written under the lock");
  const uint32_t at = lane.run.first + lane.run.count;
  std::byte* frame = at < r.page_len ? lane.frame : lane.ahead_frame;
  std::byte* bulk = at < r.page_len ? lane.bulk : lane.ahead_bulk;
  const uint32_t offset = at & (r.page_len - 1);
  const bool is_given = steps.has_next_cell(row, lane.run.ends);
  for (const ColumnCell& cell : columns.state_cells) {
    std::byte* to = cell.at(frame, bulk, offset);
    const uint32_t c = cell.column;
    if (!is_given) {
      std::memset(to, 0, cell.num_bytes);
    } else {
      copy_cell(to, steps.has_next ? steps.next[c].at(row, m) : steps.columns[c].at(row + 1, m), cell.num_bytes);
    }
  }
  if (!lane.run.ends) return;
  const uint32_t head = (lane.episode_step + lane.run.count) & kStepMask;
  std::memcpy(frame + offset * r.geometry->record_stride, &head, sizeof head);
  RELIVE_FAIL_POINT(cells_written);
}

void write_rows(const Region& r, const WriterColumns& columns, const StartValues& starts, const StepBlock& steps,
                WriterLane& lane, size_t m, uint32_t policy_version) {
  RELIVE_NOT_LOCKED("rows are written under the lock");
  if (lane.run.count == 0 && !lane.run.ends) return;
  if (!lane.in_episode && lane.run.count > 0) note_episode(columns, steps, lane, m);
  const uint32_t late = r.late_bytes != 0 && RELIVE_RULE(L1_bit) ? kLateBit : 0;
  if (lane.starts != nullptr) lane.starts->run_cells = 0;
  for (uint32_t k = 0; k < lane.run.count; ++k) {
    const size_t row = lane.num_stored + k;
    const uint32_t offset = lane.run.first + k;
    const bool terminated = steps.terminated.flag_at(row, m);
    const bool truncated = steps.truncated.flag_at(row, m);
    const float usual = terminated ? 0.0f : 1.0f;
    float discount = usual;
    uint32_t priority = kNoPriority;
    if (steps.discount.base != nullptr) std::memcpy(&discount, steps.discount.at(row, m), sizeof discount);
    if (steps.priority.base != nullptr) std::memcpy(&priority, steps.priority.at(row, m), sizeof priority);
    const uint32_t head = ((lane.episode_step + k) & kStepMask) | (terminated ? kTerminatedBit : 0) |
                          (truncated ? kTruncatedBit : 0) | (discount != usual ? kDiscountBit : 0) | late;
    std::memcpy(lane.frame + offset * r.geometry->record_stride, &head, sizeof head);
    r.marks[r.slot_of(lane.page, offset)].write(policy_version, discount, priority, lane.uid);
    if (starts.is_used()) starts.write(steps, lane, k, m);
    const bool is_frozen = k == 0 && lane.has_seam;
    for (const ColumnCell& cell : columns.cells) {
      if (is_frozen && cell.is_state) continue;  // other processes may be reading this cell; its value is the same
      copy_cell(cell.at(lane.frame, lane.bulk, offset), steps.columns[cell.column].at(row, m), cell.num_bytes);
    }
  }
  if (!r.given_apart().empty()) note_priorities(r, steps, lane, m);
  if (r.geometry->has_state != 0 && (lane.run.has_seam || lane.run.ends) && lane.run.count > 0)
    write_next_cell(r, columns, steps, lane, lane.num_stored + lane.run.count - 1, m);
  if (lane.starts != nullptr) starts.write_moved(lane);
  RELIVE_FAIL_POINT(cells_written);
}

}  // namespace relive
