#include "relive/table/writer_ends.hpp"

#include "relive/pages/changed_rows.hpp"
#include "relive/table/writer_check.hpp"
#include "relive/table/writer_room.hpp"
#include "relive/table/writer_rows.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// Plans an empty run that ends the episode of `lane`, column m of the block, and checks that the episode can end so.
Status plan_end(const Region& r, const WriterColumns& columns, const StartValues& starts, const StepBlock& steps,
                WriterLane& lane, size_t m, bool terminated) {
  const bool has_state = r.geometry->has_state != 0;
  lane.num_stored = 0;
  lane.run = StepRun{lane.slot, lane.page == kNoPage ? 0 : lane.step_end, 0, lane.in_episode, false};
  if (lane.starts != nullptr) starts.plan(lane);
  if (!lane.in_episode) return {};
  const int64_t number = steps.lane_number(m);
  if (terminated && (lane.has_seam || !has_state)) return Status(Code::kAlreadyPublished).with_int("lane", number);
  if (!has_state) return {};
  if (lane.has_seam && steps.has_next) {
    const ColumnCell* const cell = differs_from_seam(columns, lane, steps.next, m);
    if (cell != nullptr) return seam_mismatch(r, steps, cell->column, m);
  }
  if (!lane.has_seam && !terminated && !steps.has_next) return Status(Code::kMissingNext).with_int("lane", number);
  return {};
}

// Ends the episode of one lane after its last row, under the table lock. False if no episode was open.
bool end_episode(Held& held, const StartValues& starts, WriterLane& lane, bool terminated) {
  if (!lane.in_episode) return false;
  Region& r = held.region;
  if (lane.starts != nullptr) {
    starts.name_moved(held, lane);
    starts.keep_named(lane);
  }
  const bool has_state = r.geometry->has_state != 0;
  const uint64_t last_page = r.page_of(lane.last_slot);
  const bool last_is_there =
      Region::generation_of(r.words[last_page].load(kRelaxed)) == Region::generation_of(lane.last_word);
  if (last_is_there && (terminated || !has_state)) {  // in a published window this row can only be the last
    change_rows(held, last_page, [&] {
      if (terminated) r.marks[lane.last_slot].discount.store(0.0f, kRelaxed);
      r.head_of(lane.last_slot).fetch_or(terminated ? kTerminatedBit : kTruncatedBit);
    });
  }
  if (has_state) {
    commit_run(held, lane.run);
    advance(r, lane, true);
  } else {
    publish_lane(held, lane.slot, Until::kEpisodeEnd);
  }
  lane.in_episode = false;
  lane.episode_step = 0;
  return true;
}

}  // namespace

Status end_episodes(Table& table, const WriterColumns& columns, const StartValues& starts, LaneBlock block,
                    bool terminated, const Deadline& deadline) {
  const Region& r = table.region();
  const bool has_state = r.geometry->has_state != 0;
  for (size_t m = 0; m < block.num_lanes(); ++m)
    RELIVE_RETURN_IF_ERROR(plan_end(r, columns, starts, block.steps, block.lane(m), m, terminated));
  RELIVE_RETURN_IF_ERROR(open_pages(table, block, deadline));
  if (starts.is_used()) RELIVE_RETURN_IF_ERROR(take_cells(table, starts, block, deadline));
  for (size_t m = 0; m < block.num_lanes(); ++m) {  // these rows are no steps yet: they need no lock
    WriterLane& lane = block.lane(m);
    if (lane.starts != nullptr) starts.write_moved(lane);
    if (!has_state) continue;
    lane.run = StepRun{lane.slot, lane.step_end, 0, true, false};
    if (lane.in_episode && !lane.has_seam) write_next_cell(r, columns, block.steps, lane, 0, m);
  }
  for (size_t m = 0; m < block.num_lanes();) {
    Locked locked(table.door(), deadline);
    locked.drop_all_overdue();
    RELIVE_RETURN_IF_ERROR(locked.status());  // the next call continues with the lanes that have not ended
    for (size_t ended = 0; m < block.num_lanes() && ended < lanes_per_section(); ++m)
      ended += end_episode(locked.held(), starts, block.lane(m), terminated) ? 1 : 0;
    locked.items_came();
  }
  return {};
}

// A cut turns the lane's last row into a tail if the row after it is not written yet.
Status prepare_cut(Table& table, const StartValues& starts, std::vector<WriterLane>* lanes, size_t first,
                   const Deadline& deadline) {
  if (!starts.keeps_recent()) return {};
  const bool has_state = table.region().geometry->has_state != 0;
  std::vector<int32_t> numbers;
  for (size_t m = first; m < lanes->size(); ++m) {
    WriterLane& lane = (*lanes)[m];
    lane.run = StepRun{};
    lane.starts->run_cells = 0;
    lane.starts->moved.clear();
    if (!lane.in_episode || lane.is_abandoning) continue;
    starts.plan_moved(lane, lane.episode_step - (has_state && !lane.has_seam ? 1 : 0), true);
    if (!lane.starts->moved.empty()) numbers.push_back(static_cast<int32_t>(m));
  }
  StepBlock steps;
  steps.num_lanes = numbers.size();
  steps.lanes = numbers.data();
  const LaneBlock block{steps, lanes->data()};
  Status status = open_pages(table, block, deadline);
  if (status.ok()) status = take_cells(table, starts, block, deadline);
  for (const int32_t m : numbers) {
    WriterLane& lane = (*lanes)[static_cast<size_t>(m)];
    status.ok() ? starts.write_moved(lane) : lane.starts->moved.clear();
  }
  return status;
}

Status cut_lanes(Table& table, const StartValues& starts, std::vector<WriterLane>* lanes, size_t* first,
                 const Deadline& deadline) {
  while (*first < lanes->size()) {
    Locked locked(table.door(), deadline);
    RELIVE_RETURN_IF_ERROR(locked.status());
    for (; *first < lanes->size(); ++*first) {
      WriterLane& lane = (*lanes)[*first];
      if (lane.moves_back()) starts.name_moved(locked.held(), lane);
      if (!locked.cut(lane.slot)) break;  // this critical section has cut its share
    }
  }
  return {};
}

}  // namespace relive
