// Room for rows: pages opened before their rows are written, frames committed, the limiters' admission.
#include "relive/table/writer.hpp"

#include <algorithm>

#include "relive/pages/pins.hpp"
#include "relive/table/changing.hpp"
#include "relive/table/waiting.hpp"
#include "relive/table/writer_cells.hpp"
#include "relive/tiers/tier.hpp"
#include "relive/words/limiter.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

}  // namespace

// Whether a page must be opened before the lane's run is written: its own, or the one that the cell after it falls on.
bool Writer::needs_page(const LaneWriter& lane, bool* ahead) const {
  *ahead = lane.page != kNoPage;
  const Region& r = table_->region();
  const bool has_tail = lane.run.ends && r.geometry->has_state != 0;
  if (lane.run.count == 0 && !has_tail && !lane.moves_back()) return false;
  if (lane.page == kNoPage) return true;
  const bool on_next = lane.run.first + lane.run.count == r.page_len;
  return on_next && lane.ahead_frame == nullptr && r.geometry->has_state != 0 && (lane.run.has_seam || lane.run.ends);
}

void Writer::take_page(LaneWriter& lane, bool ahead, uint64_t ref) {
  const Region& r = table_->region();
  const uint64_t page = r.ref_page(ref);
  if (ahead) {
    lane.ahead_frame = r.page_base(page);
    lane.ahead_bulk = bulk_of(r, page);
    return;
  }
  lane.page = page;
  lane.word = r.words[page].load(kRelaxed);
  lane.frame = r.page_base(page);
  lane.bulk = bulk_of(r, page);
  lane.end = 0;
  lane.is_frozen = false;
  if (lane.starts != nullptr) lane.starts->cells.clear();  // what is left of them goes with the page before
}

// After commit_run: where the next row goes.
void Writer::advance(LaneWriter& lane, bool has_tail) {
  const Region& r = table_->region();
  const bool tail_here = has_tail && lane.end + lane.run.count < r.page_len;
  lane.end += lane.run.count + (tail_here ? 1 : 0);
  lane.is_frozen = lane.run.has_seam && !lane.run.ends;
  if (lane.end < r.page_len) return;
  lane.page = kNoPage;
  if (lane.ahead_frame == nullptr) {
    lane.is_frozen = false;
    return;
  }
  const bool is_frozen = lane.is_frozen;
  take_page(lane, false, r.lanes[lane.slot].open.load(kRelaxed));
  lane.ahead_frame = nullptr;
  lane.is_frozen = is_frozen;
  lane.end = has_tail && !tail_here ? 1 : 0;
}

// More frames of the slabs, really allocated, outside the lock (rule J1).
Status Writer::grow(const Deadline& deadline) {
  Region& r = table_->region();
  const Geometry& g = *r.geometry;
  const uint64_t from = r.header->frames_committed.load(std::memory_order_acquire);
  const uint64_t to = std::min(from + g.grow_frames, g.num_frames);
  for (uint64_t frame = from; frame < to;) {  // slab by slab: there may be padding between them
    const uint64_t in_slab = uint64_t{1} << g.frames_per_slab_shift;
    const uint64_t end = std::min(to, (frame / in_slab + 1) * in_slab);
    const auto offset = static_cast<uint64_t>(r.frame_base(static_cast<uint32_t>(frame)) - r.base);
    RELIVE_RETURN_IF_ERROR(table_->storage().commit(offset, (end - frame) * g.frame_bytes));
    frame = end;
  }
  RELIVE_FAIL_POINT(grow_committed);
  Locked locked(table_->door(), deadline);
  RELIVE_RETURN_IF_ERROR(locked.status());
  if (r.header->frames_committed.load(kRelaxed) != from) return {};  // somebody else was faster
  r.header->frames_committed.store(to, std::memory_order_release);
  RELIVE_FAIL_POINT(grow_counted);
  uint64_t free = r.header->num_free_frames.load(kRelaxed);
  for (uint64_t frame = to; frame-- > from;) r.free_frames[free++].store(static_cast<uint32_t>(frame), kRelaxed);
  r.header->num_free_frames.store(free, kRelaxed);
  return {};
}

// Makes one page or frame available. Called with the lock held; may let go of it.
Status Writer::relieve(OpenResult result, Locked* locked, const Deadline& deadline) {
  Region& r = table_->region();
  if (result == OpenResult::kNoFrame && r.header->frames_committed.load(kRelaxed) < r.geometry->num_frames) {
    locked->release();
    return grow(deadline);
  }
  if (result == OpenResult::kNoBulk) {
    // Frames of parked pages stay in memory: where nothing else can be spilled one of them closes.
    if (r.bulk.state->list_head == kNoPage) close_oldest_parked(locked->held());
    locked->release();
    return table_->tier()->wait_for_frame(deadline);
  }
  const auto has_room = [&r] {
    // Start cells are short only where all of them have memory: else more are committed, and no row goes for one.
    const bool has_cells = !r.cells || r.cells.state->num_free.load(kRelaxed) > 0 ||
                           r.cells.state->committed.load(kRelaxed) < r.cells.geometry->num_cells;
    return has_cells && r.header->num_free_pages.load(kRelaxed) > 0 && r.header->num_free_frames.load(kRelaxed) > 0;
  };
  (void)locked->sweep_dead();
  RELIVE_RETURN_IF_ERROR(locked->status());
  (void)free_kept(locked->held(), kKeptPerHold);
  if (has_room()) return {};
  if (relieve_pressure(locked->held())) {
    const bool is_done = r.header->num_free_pages.load(kRelaxed) > 0 || locked->held().ends_left > 0;
    locked->release();
    return is_done || !deadline.passed() ? Status() : items_stand_error(deadline);
  }
  const bool waits = is_held(r);
  locked->release();
  if (waits) return wait_for_holders(deadline);
  return Status(Code::kDeadlineExceeded)
      .with_text("needs", "a free page")
      .with_text("has", "every page open or pinned")
      .with_double("waited_s", deadline.waited_s());
}

// While somebody reads with all pages held none goes; those that died meanwhile are swept by whoever asks next.
Status Writer::wait_for_holders(const Deadline& deadline) {
  const Region& r = table_->region();
  if (deadline.passed())
    return Status(Code::kDeadlineExceeded)
        .with_text("needs", "a free page")
        .with_text("has", "all pages held by a reader")
        .with_double("waited_s", deadline.waited_s());
  const auto ready = [&] { return table_->is_closed() || !is_held(r); };
  wait_slice(&r.header->room_event, deadline, kWaitSlice_s, ready);
  if (table_->is_closed()) return Status(Code::kTableClosed);
  return is_interrupted() ? Status(Code::kInterrupted) : Status();
}

// Before rows are written: a page for each lane's next row and, where a cell will fall on the page after it, that too.
Status Writer::open_pages(const StepBlock& block, const Deadline& deadline) {
  bool ahead = false;
  for (size_t m = 0; m < block.num_lanes;) {
    if (!needs_page(lane_of(block, m), &ahead)) {
      ++m;
      continue;
    }
    Locked locked(table_->door(), deadline);
    RELIVE_RETURN_IF_ERROR(locked.status());
    for (size_t opened = 0; m < block.num_lanes && opened < kRowsPerHold;) {
      LaneWriter& lane = lane_of(block, m);
      if (!needs_page(lane, &ahead)) {
        ++m;
        continue;
      }
      uint64_t ref = 0;
      const bool history_free = ahead ? lane.run.ends : lane.episode_step == 0;
      const OpenResult result = open_page(locked.held(), lane.slot, ahead, history_free, &ref);
      if (result == OpenResult::kOk) {
        take_page(lane, ahead, ref);
        ++opened;
        continue;
      }
      RELIVE_RETURN_IF_ERROR(relieve(result, &locked, deadline));
      break;  // the lock may have been let go
    }
    locked.release();
    if (Tier* const tier = table_->tier()) tier->wake_if_low();
  }
  return {};
}

// Pages that the rows of the block which are not stored yet will open, tails and the cell after the last row counted.
size_t Writer::pages_needed(const StepBlock& block) const {
  const Region& r = table_->region();
  const bool has_state = r.geometry->has_state != 0;
  size_t pages = 0;
  for (size_t m = 0; m < block.num_lanes; ++m) {
    const LaneWriter& lane = lane_of(block, m);
    size_t cells = (lane.page == kNoPage ? 0 : lane.end) + (block.num_rows - lane.done);
    if (has_state && cells + block.num_rows - lane.done + 1 > r.page_len) {
      for (size_t row = lane.done; row < block.num_rows; ++row) cells += ends_at(block, row, m) ? 1 : 0;
      const bool ends = ends_at(block, block.num_rows - 1, m);
      cells += !ends && has_next_cell(block, block.num_rows - 1, ends) ? 1 : 0;
    }
    const size_t there = (lane.page == kNoPage ? 0 : 1) + (lane.ahead_frame == nullptr ? 0 : 1);
    const size_t all = (cells + r.page_len - 1) / r.page_len;
    pages += all > there ? all - there : 0;
  }
  return pages;
}

// A file system that has no room for the block says so before its first row, not in the middle. Where old rows go as
// new ones come, their frames come back, so a block beyond the capacity needs no more than what is not full yet.
Status Writer::take_frames(const StepBlock& block, const Deadline& deadline) {
  const Region& r = table_->region();
  const Geometry& g = *r.geometry;
  size_t left = 0;
  for (size_t m = 0; m < block.num_lanes; ++m) left += block.num_rows - lane_of(block, m).done;
  const uint64_t live = r.header->live_steps.load(kRelaxed);
  const uint64_t room = g.capacity > live ? g.capacity - live : 0;
  const bool old_rows_go = left > room;
  uint64_t needed = pages_needed(block);
  if (old_rows_go) needed = std::min<uint64_t>(needed, (room + kRowsPerHold) / r.page_len + 1 + block.num_lanes);
  while (r.header->num_free_frames.load(kRelaxed) < needed &&
         r.header->frames_committed.load(std::memory_order_acquire) < g.num_frames) {
    Status status = grow(deadline);
    if (status.ok()) continue;
    return old_rows_go && status.code() == Code::kStorageFull ? Status() : status;
  }
  const uint64_t rows = old_rows_go ? room + kRowsPerHold : left;  // behind these old cells come back
  const uint64_t cells = start_cells_.empty() ? 0 : cells_of_block(block, rows);
  while (cells > 0 && r.cells.state->num_free.load(kRelaxed) < cells &&
         r.cells.state->committed.load(std::memory_order_acquire) < r.cells.geometry->num_cells) {
    Status status = grow_cells(deadline);
    if (status.ok()) continue;
    return old_rows_go && status.code() == Code::kStorageFull ? Status() : status;
  }
  return {};
}

// The most items of an index that the next `rows` rows of a block can begin: what admission counts. Of sequences these are
// the steps where one may begin, and of those that move back at an end one more for each end; of groups one for each
// episode that begins, for with its end it may be the last member.
int64_t Writer::most_items(const StepBlock& block, uint32_t index, size_t stored, size_t rows) const {
  const SequenceConfig& sequence = table_->region().header->indexes[index].sequence;
  const bool is_group = table_->region().header->indexes[index].group.is_set();
  if (!sequence.is_set() && !is_group) return static_cast<int64_t>(rows);
  int64_t items = 0;
  for (size_t m = 0; m < block.num_lanes; ++m) {
    const LaneWriter& lane = lane_of(block, m);
    uint64_t step = sequence.crosses() ? lane.lane_step : lane.episode_step;
    for (size_t row = lane.done; row * block.num_lanes + m < stored + rows; ++row) {
      items += sequence.begins_at(step++) ? 1 : 0;
      if (!ends_at(block, row, m)) continue;
      items += sequence.at_end == AtEnd::kShift ? 1 : 0;
      if (!sequence.crosses()) step = 0;
    }
  }
  return items;
}

// How many of the next `rows` rows an index lets in that takes `allowed` items.
int64_t Writer::rows_of_items(const StepBlock& block, uint32_t index, size_t stored, size_t rows,
                              int64_t allowed) const {
  size_t fits = 0;
  for (size_t beyond = rows + 1; fits + 1 < beyond;) {  // more rows never begin fewer items
    const size_t middle = fits + (beyond - fits) / 2;
    (most_items(block, index, stored, middle) <= allowed ? fits : beyond) = middle;
  }
  return static_cast<int64_t>(fits);
}

// All rows that are left, or none, as long as draws that fit the window beside them take turns with them. A block that
// does not fit it beside the largest draw that was refused so far would wait for that draw as that draw for it: it goes
// in by parts, as many rows as there is room for.
Writer::Admission Writer::ask_limiters(const StepBlock& block, size_t stored) const {
  const Region& r = table_->region();
  const int64_t left = static_cast<int64_t>(block.num_rows * block.num_lanes - stored);
  const int64_t reserved = r.reserved_rows();
  Admission admission{left, left, left, 0, false};
  for (const uint32_t i : r.appended_indexes()) {
    const LimiterConfig limiter = r.limiter(i);
    if (!paces_inserts(limiter)) continue;
    const int64_t items = most_items(block, i, stored, static_cast<size_t>(left));
    const int64_t allowed = most_insertable(limiter, r.inserted_counts(i, limiter, reserved), items);
    const int64_t rows = allowed >= items ? left : rows_of_items(block, i, stored, static_cast<size_t>(left), allowed);
    if (rows < admission.rows) {
      admission.rows = rows;
      admission.items = items;
      admission.refused = i;
    }
    if (rows < left && stored == 0 && !insert_can_ever_pass(limiter, items)) return {0, left, items, i, true};
  }
  if (admission.rows < left) split_admission(block, stored, &admission);
  return admission;
}

// Less than all would go in: by parts where it must be, in whole steps where a step fits beside the draws.
void Writer::split_admission(const StepBlock& block, size_t stored, Admission* admission) const {
  const Region& r = table_->region();
  const auto width = static_cast<int64_t>(block.num_lanes);
  const auto first = static_cast<int64_t>(stored);
  bool goes_by_parts = stored > 0, steps_fit = true;
  for (const uint32_t i : r.appended_indexes()) {
    const LimiterConfig limiter = r.limiter(i);
    const int64_t draw = r.refused_draw(i);
    const auto asked = static_cast<size_t>(admission->asked), step = static_cast<size_t>(width);
    goes_by_parts |= !always_moves(limiter, most_items(block, i, stored, asked), draw);
    steps_fit &= always_moves(limiter, most_items(block, i, stored, step), draw);
  }
  const int64_t unit = steps_fit ? width : 1;
  if (goes_by_parts) admission->asked = unit - first % unit;
  admission->rows = goes_by_parts ? std::max<int64_t>(0, (first + admission->rows) / unit * unit - first) : 0;
}

namespace {

// What an insert of n waits for.
std::string room_text(const LimiterConfig& limiter) {
  const std::string most = " <= " + std::to_string(limiter.hi);
  if (limiter.kind == LimiterConfig::kQueue) return "items in the queue + n" + most;
  if (limiter.kind == LimiterConfig::kStalenessBudget)
    return "inserted + pending + n - removed unused" + most + " = (eta + version + 1) x items_per_version";
  return "(inserted + n) x samples_per_insert - sampled" + most;
}

}  // namespace

Status Writer::room_error(Code code, const Admission& admission, const Deadline& deadline) const {
  const Region& r = table_->region();
  const LimiterConfig limiter = r.limiter(admission.refused);
  if (code == Code::kRequestTooLarge)
    return Status(code)
        .with_int("requested", admission.items)
        .with_double("window", window(limiter) / limiter.samples_per_insert)
        .with_text("arithmetic", limiter_text(r, admission.refused));
  const LimiterCounts counts = r.inserted_counts(admission.refused, limiter, 0);
  const double inserted = static_cast<double>(counts.inserted + admission.items);
  const double has = inserted * limiter.samples_per_insert - static_cast<double>(counts.sampled);
  const std::string needs = room_text(limiter);
  // Samplers cannot take it down again while there is nothing for them to draw: both sides stand still.
  const std::string massless = massless_text(r, admission.refused);
  Status status =
      massless.empty()
          ? Status(code).with_text("needs", needs).with_double("has", has)
          : Status(code).with_text("needs", needs).with_text("has", std::to_string(has) + ", of " + massless);
  return std::move(status).with_double("waited_s", deadline.waited_s());
}

Status Writer::wait_for_room(const StepBlock& block, size_t stored, const Deadline& deadline) {
  const Region& r = table_->region();
  const Admission admission = ask_limiters(block, stored);
  if (admission.rows > 0) return {};
  if (admission.never) return room_error(Code::kRequestTooLarge, admission, deadline);
  Counters& counters = r.header->counters;
  const LimiterWait wait{
      r.header->room_event, counters.writer_waits, counters.writer_wait_ns, table_->has_sampled(), true,
      admission.refused,    admission.items};
  return wait_for_limiter(
      *table_, wait, deadline, [&] { return ask_limiters(block, stored).rows > 0; },
      [&](Code code) { return room_error(code, admission, deadline); });
}

// Reserves what the limiters of all indexes let in of the rows that are left; waits until that is something.
Status Writer::admit(const StepBlock& block, size_t stored, const Deadline& deadline, size_t* upto) {
  Table& table = *table_;
  Region& r = table.region();
  bool is_limited = false;
  for (const uint32_t i : r.appended_indexes()) is_limited |= paces_inserts(r.limiter(i));
  while (is_limited) {
    if (table.is_closed()) return Status(Code::kTableClosed);
    {
      Locked locked(table.door(), deadline);
      RELIVE_RETURN_IF_ERROR(locked.status());
      const int64_t rows = ask_limiters(block, stored).rows;
      if (rows > 0) {
        r.credit(table.participant(), 0).reserved.fetch_add(rows, kRelaxed);
        rows_left_admitted_ = rows;
        *upto = stored + static_cast<size_t>(rows);
        return {};
      }
    }
    RELIVE_RETURN_IF_ERROR(wait_for_room(block, stored, deadline));
  }
  return {};
}

}  // namespace relive
