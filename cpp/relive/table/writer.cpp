// A writer's life: lanes taken, blocks written, episodes ended, lanes given back.
#include "relive/table/writer.hpp"

#include <algorithm>
#include <cstring>

#include "relive/index/leaves.hpp"
#include "relive/pages/publish.hpp"
#include "relive/table/changing.hpp"
#include "relive/table/writer_cells.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint64_t kRowAhead = 512;  // bytes of them

// Lanes of writers that were dropped without the lock, as many a hold as one may cut. What the deadline leaves stays noted.
Status cut_left_lanes(Table& table, const Deadline& deadline) {
  Status status;
  const int32_t writers = table.left_lanes().end([&](std::vector<uint32_t>& lanes) {
    while (!lanes.empty() && status.ok()) {
      Locked locked(table.door(), deadline);
      status = locked.status();
      while (status.ok() && !lanes.empty() && locked.cut(lanes.back())) lanes.pop_back();
    }
  });
  table.count_writers(-writers);
  return status;
}

}  // namespace

Status Writer::open(Table* table, uint32_t num_lanes, std::unique_ptr<Writer>* out) {
  Entered entered(*table, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  Region& r = table->region();
  const Geometry& g = *r.geometry;
  std::unique_ptr<Writer> writer(new Writer(table));
  writer->closed_ = true;  // until it has its lanes
  writer->lanes_.resize(num_lanes);
  size_t said_bytes = 0;
  for (const ColumnCell& cell : writer->episode_cells_) said_bytes += cell.num_bytes;
  for (LaneWriter& lane : writer->lanes_) lane.said.resize(said_bytes);
  writer->set_up_starts();
  writer->fork_epoch_ = fork_epoch();
  const Deadline deadline = table->own_deadline();
  RELIVE_RETURN_IF_ERROR(cut_left_lanes(*table, deadline));
  Locked locked(table->door(), deadline);
  RELIVE_RETURN_IF_ERROR(locked.status());
  const auto count_open = [&] {
    uint32_t count = 0;
    for (uint32_t lane = 0; lane < g.max_lanes; ++lane)
      count += r.lanes[lane].state.load(kRelaxed) == LaneState::kLive ? 1 : 0;
    return count;
  };
  // Lanes of the dead take no slots from the living, and no room of the capacity.
  const uint32_t with_dead = count_open();
  if (g.max_lanes - with_dead < num_lanes || needed_steps(g, with_dead + num_lanes) > g.capacity) locked.sweep_dead();
  RELIVE_RETURN_IF_ERROR(locked.status());
  const uint32_t open_lanes = count_open();
  const uint64_t needed = needed_steps(g, open_lanes + num_lanes);
  const bool are_free = g.max_lanes - open_lanes >= num_lanes;
  if (!are_free || needed > g.capacity) {
    locked.release();
    if (!are_free)
      return Status(Code::kTooManyLanes).with_int("asked", num_lanes).with_int("free", g.max_lanes - open_lanes);
    return Status(Code::kCapacityTooSmall)
        .with_int("capacity", static_cast<int64_t>(g.capacity))
        .with_int("needed", static_cast<int64_t>(needed))
        .with_int("lanes", open_lanes + num_lanes);
  }
  size_t taken = 0;  // first where a page is parked: as few slots as ever write at a time are used
  for (const bool goes_on : {true, false})
    for (uint32_t slot = 0; slot < g.max_lanes && taken < num_lanes; ++slot) {
      if (r.lanes[slot].state.load(kRelaxed) == LaneState::kLive) continue;
      if (!goes_on || parked_page(r, slot) != kNoPage) writer->take_lane(locked.held(), writer->lanes_[taken++], slot);
    }
  locked.release();  // what *out held before goes behind it
  table->count_writers(+1);
  writer->closed_ = false;
  *out = std::move(writer);
  return {};
}

// A lane of this slot; where the one before left a page with room, its rows go on there as those of a new episode.
void Writer::take_lane(Held& held, LaneWriter& lane, uint32_t slot) {
  const Region& r = held.region;
  open_lane(held, slot, table_->participant());
  lane.slot = slot;
  lane.uid = static_cast<uint32_t>(r.lanes[slot].uid.load(kRelaxed));
  const uint64_t open = r.lanes[slot].open.load(kRelaxed);
  if (open == 0) return;
  take_page(lane, false, open);
  lane.end = Range::unpack(r.pages[lane.page].range.load(kRelaxed)).step_end;
}

Writer::~Writer() {
  if (cut_lanes(Deadline::after(0.0).deaf()).ok()) return;
  std::vector<uint32_t> slots;
  for (size_t m = num_cut_; m < lanes_.size(); ++m) slots.push_back(lanes_[m].slot);
  table_->left_lanes().leave(std::move(slots));
}

Status Writer::close() { return cut_lanes(table_->own_deadline()); }

Status Writer::cut_lanes(const Deadline& deadline) {
  if (fork_epoch_ != fork_epoch()) closed_ = true;  // the parent's lanes are the parent's to end, and so is its turn
  if (closed_ || lanes_.empty()) return {};
  const Turn turn(turn_, "to close this writer", deadline);
  RELIVE_RETURN_IF_ERROR(turn.status());
  if (closed_) return {};
  Entered entered(*table_, true);
  if (entered.status().code() == Code::kTableClosed) closed_ = true;  // which has ended all its lanes
  if (closed_) return {};
  RELIVE_RETURN_IF_ERROR(entered.status());
  // A window more or less at a lane's end is no reason to keep the lanes. A signal is: what its handler raised is set.
  if (const Status prepared = prepare_cut(deadline); prepared.code() == Code::kInterrupted) return prepared;
  while (num_cut_ < lanes_.size()) {
    Locked locked(table_->door(), deadline);
    RELIVE_RETURN_IF_ERROR(locked.status());
    for (; num_cut_ < lanes_.size(); ++num_cut_) {
      if (lanes_[num_cut_].moves_back()) name_moved(locked.held(), lanes_[num_cut_]);
      if (!locked.cut(lanes_[num_cut_].slot)) break;
    }
  }
  table_->count_writers(-1);
  closed_ = true;
  return {};
}

// The next rows of a lane that fit one page and one episode.
void Writer::plan_run(const StepBlock& block, size_t m, size_t most) {
  LaneWriter& lane = lane_of(block, m);
  const Region& r = table_->region();
  lane.run = StepRun{};
  lane.run.lane_slot = lane.slot;
  lane.run.first = lane.page == kNoPage ? 0 : lane.end;
  const size_t room = r.page_len - lane.run.first;
  size_t count = std::min({room, most, block.num_rows - lane.done});
  for (size_t row = 0; row < count; ++row) {
    if (!ends_at(block, lane.done + row, m)) continue;
    count = row + 1;
    lane.run.ends = true;
  }
  lane.run.count = static_cast<uint32_t>(count);
  if (lane.starts != nullptr) plan_starts(lane);
  const size_t last = lane.done + count - 1;
  lane.run.has_seam = r.geometry->has_state != 0 && count > 0 && !lane.run.ends && has_next_cell(block, last, false);
}

// The next rows that go together, in one hold or (more lanes than one takes) lane by lane: whole steps of all lanes that
// end with no page and no episode in between, or what is left of one step. What is stored is so always a beginning of
// the block, in order of time and then of lane. Returns how many rows.
size_t Writer::plan_round(const StepBlock& block, size_t stored, size_t upto) {
  const size_t lanes = block.num_lanes;
  const size_t capacity = table_->region().geometry->capacity;
  const size_t begin = stored % lanes;
  const bool is_whole = begin == 0 && upto - stored >= lanes;
  const size_t end = is_whole ? lanes : std::min(lanes, begin + upto - stored);
  size_t steps = 1;
  if (is_whole)
    steps = std::min((upto - stored) / lanes, std::max<size_t>(1, std::min(kRowsPerHold, capacity) / lanes));
  size_t shortest = steps;
  for (size_t m = 0; m < lanes; ++m) {
    plan_run(block, m, m >= begin && m < end ? steps : 0);
    if (m >= begin && m < end) shortest = std::min<size_t>(shortest, lane_of(block, m).run.count);
  }
  for (size_t m = 0; shortest < steps && m < lanes; ++m) plan_run(block, m, shortest);
  return shortest * (end - begin);
}

// Rows of the runs that the next hold will commit, from lane m on.
size_t Writer::rows_of_hold(const StepBlock& block, size_t m) {
  size_t rows = 0;
  for (; m < block.num_lanes && rows < kRowsPerHold; ++m) rows += lane_of(block, m).run.count;
  return rows;
}

// The shared words that committing the lane will touch, while another lane's are at hand.
void Writer::ask_for_words(const LaneWriter& lane) const {
  if (lane.page == kNoPage) return;
  const Region& r = table_->region();
  const uint64_t slot = r.slot_of(lane.page, lane.end);
  __builtin_prefetch(&r.lanes[lane.slot], 1);
  __builtin_prefetch(&r.words[lane.page]);
  __builtin_prefetch(&r.pages[lane.page].range, 1);
  __builtin_prefetch(&r.pages[lane.page].live, 1);
  __builtin_prefetch(&r.frames[lane.page]);
  __builtin_prefetch(&r.tails[lane.page * r.geometry->tail_words]);
  for (const uint32_t i : r.row_indexes()) {
    Leaves(r, i).prefetch(slot);
    Leaves(r, i).prefetch_state(slot);
  }
}

// The record that writing the lane will fill.
void Writer::ask_for_row(const LaneWriter& lane) const {
  if (lane.page == kNoPage) return;
  const uint64_t stride = table_->region().geometry->record_stride;
  const std::byte* row = lane.frame + lane.end * stride;
  __builtin_prefetch(&table_->region().marks[table_->region().slot_of(lane.page, lane.end)], 1);
  for (uint64_t at = 0; at < 2 * stride && at < kRowAhead; at += 64) __builtin_prefetch(row + at, 1);
}

Status Writer::commit(const StepBlock& block, const Deadline& deadline, int64_t* keys) {
  Table& table = *table_;
  Region& r = table.region();
  for (size_t m = 0; m < block.num_lanes;) {
    Locked locked(table.door(), deadline);
    RELIVE_RETURN_IF_ERROR(locked.status());
    if (!make_room(locked.held(), rows_of_hold(block, m))) {
      locked.release();  // explicit items on the oldest rows end in several holds, the rows behind them
      if (deadline.passed()) return items_stand_error(deadline);
      continue;
    }
    for (size_t rows = 0; m < block.num_lanes && rows < kRowsPerHold; ++m) {
      LaneWriter& lane = lane_of(block, m);
      const StepRun& run = lane.run;
      if (m + kLanesAhead < block.num_lanes) ask_for_words(lane_of(block, m + kLanesAhead));
      if (run.count == 0) continue;
      if (lane.starts != nullptr) name_moved(locked.held(), lane);
      commit_run(locked.held(), run);
      for (uint32_t k = 0; k < run.count; ++k)
        keys[(lane.done + k) * block.num_lanes + m] = r.key_of(r.slot_of(lane.page, run.first + k), lane.word);
      rows += run.count;
      lane.done += run.count;
      lane.has_last = !run.ends;
      lane.last_slot = r.slot_of(lane.page, run.first + run.count - 1);
      lane.last_word = lane.word;
      lane.episode_step = run.ends ? 0 : lane.episode_step + run.count;
      lane.lane_step += run.count;
      if (lane.starts != nullptr) keep_cells(lane);
      advance(lane, run.ends && r.geometry->has_state != 0);
      if (rows_left_admitted_ > 0) {
        table.region().credit(table.participant(), 0).reserved.fetch_sub(run.count, kRelaxed);
        rows_left_admitted_ -= run.count;
      }
    }
    locked.items_came();
  }
  return {};
}

Status Writer::note_given_priorities(const StepBlock& block, const Deadline& deadline) {
  if (block.priority.base == nullptr) return {};
  float largest = 0.0f;
  for (size_t row = 0; row < block.num_rows; ++row)
    for (size_t m = 0; m < block.num_lanes; ++m) {
      float priority;
      std::memcpy(&priority, block.priority.at(row, m), sizeof priority);
      largest = std::max(largest, priority);
    }
  Locked locked(table_->door(), deadline);
  RELIVE_RETURN_IF_ERROR(locked.status());
  for (const uint32_t i : table_->region().row_indexes()) note_priority(locked.held(), i, largest);
  return {};
}

Status Writer::Call::begin(Writer& writer, const Deadline& deadline) {
  if (writer.fork_epoch_ != fork_epoch()) return Status(Code::kForkedHandle).with_text("what", "a writer");
  turn_.emplace(writer.turn_, "this writer", deadline);
  RELIVE_RETURN_IF_ERROR(turn_->status());
  if (writer.closed_) return Status(Code::kWriterClosed);
  return entered_.emplace(*writer.table_, true).status();
}

Status Writer::write(const StepBlock& block, double timeout_s, int64_t* keys) {
  const Deadline deadline = Deadline::after(timeout_s);
  const Call call(*this, deadline);
  RELIVE_RETURN_IF_ERROR(call.status());
  if (block.num_rows == 0 || block.num_lanes == 0) return {};
  RELIVE_RETURN_IF_ERROR(finish_abandoning(block, deadline));
  RELIVE_RETURN_IF_ERROR(check_block(block));
  for (size_t m = 0; m < block.num_lanes; ++m) lane_of(block, m).done = 0;
  const size_t total = block.num_rows * block.num_lanes;
  Status status;
  for (size_t stored = 0; stored < total && status.ok();) {
    size_t upto = total;
    status = admit(block, stored, deadline, &upto);
    if (status.ok() && stored == 0) status = note_given_priorities(block, deadline);
    if (status.ok() && block.num_rows > 1) status = take_frames(block, deadline);
    while (stored < upto && status.ok()) {
      const size_t rows = plan_round(block, stored, upto);
      status = write_round(block, deadline, keys);
      stored += rows;
    }
  }
  if (rows_left_admitted_ > 0) {
    table_->region().credit(table_->participant(), 0).reserved.fetch_sub(rows_left_admitted_, kRelaxed);
    rows_left_admitted_ = 0;
    notify(&table_->region().header->room_event);
  }
  return status.ok() ? Status() : with_rows_stored(block, std::move(status));
}

Status Writer::write_round(const StepBlock& block, const Deadline& deadline, int64_t* keys) {
  RELIVE_RETURN_IF_ERROR(open_pages(block, deadline));
  if (!start_cells_.empty()) RELIVE_RETURN_IF_ERROR(take_cells(block, deadline));
  for (size_t m = 0; m < block.num_lanes; ++m) {
    note_part(lane_of(block, m));
    if (m + kLanesAhead < block.num_lanes) ask_for_row(lane_of(block, m + kLanesAhead));
    write_rows(block, m);
  }
  Status status = commit(block, deadline, keys);
  for (size_t m = 0; num_recent_ > 0 && m < block.num_lanes; ++m) note_recent(block, lane_of(block, m), m);
  return status;
}

// A block that stops half way says how many of its rows are stored: the first `stored` ones, whose keys are written.
Status Writer::with_rows_stored(const StepBlock& block, Status status) {
  size_t stored = 0;
  for (size_t m = 0; m < block.num_lanes; ++m) stored += lane_of(block, m).done;
  if (stored == 0) return status;
  return std::move(status)
      .with_int("stored", static_cast<int64_t>(stored))
      .with_int("num_rows", static_cast<int64_t>(block.num_rows * block.num_lanes));
}

Status Writer::end_episode(const StepBlock& block, bool terminated, double timeout_s) {
  const Deadline deadline = Deadline::after(timeout_s);
  const Call call(*this, deadline);
  RELIVE_RETURN_IF_ERROR(call.status());
  RELIVE_RETURN_IF_ERROR(finish_abandoning(block, deadline));
  Region& r = table_->region();
  const bool has_state = r.geometry->has_state != 0;
  for (size_t m = 0; m < block.num_lanes; ++m) {
    LaneWriter& lane = lane_of(block, m);
    lane.done = 0;
    plan_run(block, m, 0);
    lane.run.ends = lane.has_last;
    if (!lane.has_last) continue;
    if (lane.starts != nullptr) plan_moved(lane, lane.episode_step, false);
    const auto number = static_cast<int64_t>(block.lanes == nullptr ? m : block.lanes[m]);
    if (terminated && (lane.is_frozen || !has_state)) return Status(Code::kAlreadyPublished).with_int("lane", number);
    if (!has_state) continue;
    const ColumnCell* other = lane.is_frozen && block.has_next ? other_frozen(block, block.next, m) : nullptr;
    if (other != nullptr) return seam_mismatch(block, other->column, m);
    if (!lane.is_frozen && !terminated && !block.has_next) return Status(Code::kMissingNext).with_int("lane", number);
  }
  RELIVE_RETURN_IF_ERROR(open_pages(block, deadline));
  if (!start_cells_.empty()) RELIVE_RETURN_IF_ERROR(take_cells(block, deadline));
  for (size_t m = 0; m < block.num_lanes; ++m) {  // no row of these is a step yet: they need no lock
    LaneWriter& lane = lane_of(block, m);
    if (lane.starts != nullptr) write_moved(lane);
    if (!has_state) continue;
    lane.run = StepRun{lane.slot, lane.end, 0, true, false};
    if (lane.has_last && !lane.is_frozen) write_next_cell(block, lane, 0, m);
  }
  for (size_t m = 0; m < block.num_lanes;) {
    Locked locked(table_->door(), deadline);
    RELIVE_RETURN_IF_ERROR(locked.status());  // called again it goes on with the lanes that have not ended
    for (size_t ended = 0; m < block.num_lanes && ended < lanes_per_hold(); ++m)
      ended += end_lane(locked.held(), lane_of(block, m), terminated) ? 1 : 0;
    locked.items_came();
  }
  return {};
}

// Ends the episode of one lane behind its last row, under the lock. False where none was open.
bool Writer::end_lane(Held& held, LaneWriter& lane, bool terminated) {
  if (!lane.has_last) return false;
  Region& r = held.region;
  if (lane.starts != nullptr) {
    name_moved(held, lane);
    keep_cells(lane);
  }
  const bool has_state = r.geometry->has_state != 0;
  const uint64_t last_page = r.page_of(lane.last_slot);
  const bool last_is_there =
      Region::generation_of(r.words[last_page].load(kRelaxed)) == Region::generation_of(lane.last_word);
  if (last_is_there && (terminated || !has_state)) {  // no published window holds this row but as its last
    if (terminated) r.marks[lane.last_slot].discount.store(0.0f, kRelaxed);
    r.head_of(lane.last_slot).fetch_or(terminated ? kTerminatedBit : kTruncatedBit);
  }
  if (has_state) {
    commit_run(held, lane.run);
    advance(lane, true);
  } else {
    publish_lane(held, lane.slot, Until::kEpisodeEnd);
  }
  lane.has_last = false;
  lane.episode_step = 0;
  return true;
}

}  // namespace relive
