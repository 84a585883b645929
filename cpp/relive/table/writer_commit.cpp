#include "relive/table/writer_commit.hpp"

#include <algorithm>
#include <cstring>

#include "relive/index/leaves.hpp"
#include "relive/table/waiting.hpp"

namespace relive {
namespace {

// Rows of the runs that the next critical section commits, from lane m on.
size_t rows_of_section(LaneBlock block, size_t m) {
  size_t rows = 0;
  for (; m < block.num_lanes() && rows < kRowsPerSection; ++m) rows += block.lane(m).run.count;
  return rows;
}

// The next rows of a lane, column m of the block, that fit one page and one episode: at most `most` rows.
void plan_run(const Region& r, const StartValues& starts, const StepBlock& steps, WriterLane& lane, size_t m,
              size_t most) {
  lane.run = StepRun{};
  lane.run.lane_slot = lane.slot;
  lane.run.first = lane.page == kNoPage ? 0 : lane.step_end;
  const size_t room = r.page_len - lane.run.first;
  size_t count = std::min({room, most, steps.num_rows - lane.num_stored});
  for (size_t row = 0; row < count; ++row) {
    if (!steps.ends_at(lane.num_stored + row, m)) continue;
    count = row + 1;
    lane.run.ends = true;
  }
  lane.run.count = static_cast<uint32_t>(count);
  if (lane.starts != nullptr) starts.plan(lane);
  const size_t last = lane.num_stored + count - 1;
  lane.run.has_seam = r.geometry->has_state != 0 && count > 0 && !lane.run.ends && steps.has_next_cell(last, false);
}

}  // namespace

size_t plan_round(const Region& r, const StartValues& starts, LaneBlock block, size_t stored, size_t upto) {
  const size_t lanes = block.num_lanes();
  const size_t capacity = r.geometry->capacity;
  const size_t begin = stored % lanes;
  const bool is_whole = begin == 0 && upto - stored >= lanes;
  const size_t end = is_whole ? lanes : std::min(lanes, begin + upto - stored);
  size_t steps = 1;
  if (is_whole)
    steps = std::min((upto - stored) / lanes, std::max<size_t>(1, std::min(kRowsPerSection, capacity) / lanes));
  size_t shortest = steps;
  for (size_t m = 0; m < lanes; ++m) {
    WriterLane& lane = block.lane(m);
    const bool takes_part = m >= begin && m < end;
    plan_run(r, starts, block.steps, lane, m, takes_part ? steps : 0);
    if (takes_part) shortest = std::min<size_t>(shortest, lane.run.count);
  }
  for (size_t m = 0; shortest < steps && m < lanes; ++m) plan_run(r, starts, block.steps, block.lane(m), m, shortest);
  return shortest * (end - begin);
}

Status commit_round(Table& table, const StartValues& starts, LaneBlock block, const Deadline& deadline,
                    ReservedRows* reserved, int64_t* keys) {
  Region& r = table.region();
  for (size_t m = 0; m < block.num_lanes();) {
    Locked locked(table.door(), deadline);
    locked.drop_all_overdue();
    RELIVE_RETURN_IF_ERROR(locked.status());
    if (!make_room(locked.held(), rows_of_section(block, m))) {
      locked
          .release();  // explicit items on the oldest rows end in several critical sections, and their rows after them
      if (deadline.passed()) return items_stand_error(deadline);
      continue;
    }
    for (size_t rows = 0; m < block.num_lanes() && rows < kRowsPerSection; ++m) {
      WriterLane& lane = block.lane(m);
      const StepRun& run = lane.run;
      if (run.count == 0) continue;
      if (lane.starts != nullptr) starts.name_moved(locked.held(), lane);
      commit_run(locked.held(), run);
      for (uint32_t k = 0; k < run.count; ++k)
        keys[(lane.num_stored + k) * block.num_lanes() + m] = r.key_of(r.slot_of(lane.page, run.first + k), lane.word);
      rows += run.count;
      lane.num_stored += run.count;
      lane.in_episode = !run.ends;
      lane.last_slot = r.slot_of(lane.page, run.first + run.count - 1);
      lane.last_word = lane.word;
      lane.episode_step = run.ends ? 0 : lane.episode_step + run.count;
      lane.lane_step += run.count;
      if (lane.starts != nullptr) starts.keep_named(lane);
      advance(r, lane, run.ends && r.geometry->has_state != 0);
      reserved->commit(run.count);
    }
    locked.items_came();
  }
  return {};
}

Status note_given_priorities(Table& table, const StepBlock& steps, const Deadline& deadline) {
  if (steps.priority.base == nullptr) return {};
  float largest = 0.0f;
  for (size_t row = 0; row < steps.num_rows; ++row)
    for (size_t m = 0; m < steps.num_lanes; ++m) {
      float priority;
      std::memcpy(&priority, steps.priority.at(row, m), sizeof priority);
      largest = std::max(largest, priority);
    }
  Locked locked(table.door(), deadline);
  RELIVE_RETURN_IF_ERROR(locked.status());
  for (const uint32_t i : table.region().row_indexes()) note_priority(locked.held(), i, largest);
  return {};
}

}  // namespace relive
