#include "relive/table/writer_room.hpp"

#include <algorithm>

#include "relive/pages/cells.hpp"
#include "relive/pages/pages.hpp"
#include "relive/pages/pins.hpp"
#include "relive/table/waiting.hpp"
#include "relive/tiers/tier.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// Whether a page must be opened before the lane's run is written: the page of the run, or (*ahead) the page of the
// state cell after the run.
bool needs_page(const Region& r, const WriterLane& lane, bool* ahead) {
  *ahead = lane.page != kNoPage;
  const bool has_tail = lane.run.ends && r.geometry->has_state != 0;
  if (lane.run.count == 0 && !has_tail && !lane.moves_back()) return false;
  if (lane.page == kNoPage) return true;
  const bool on_next = lane.run.first + lane.run.count == r.page_len;
  return on_next && lane.ahead_frame == nullptr && r.geometry->has_state != 0 && (lane.run.has_seam || lane.run.ends);
}

// Commits memory for more frames of the slabs, outside the table lock (rule J1).
Status grow_frames(Table& table, const Deadline& deadline) {
  Region& r = table.region();
  const Geometry& g = *r.geometry;
  const uint64_t from = r.header->frames_committed.load(std::memory_order_acquire);
  const uint64_t to = std::min(from + g.grow_frames, g.num_frames);
  for (uint64_t frame = from; frame < to;) {  // slab by slab: there may be padding between slabs
    const uint64_t in_slab = uint64_t{1} << g.frames_per_slab_shift;
    const uint64_t end = std::min(to, (frame / in_slab + 1) * in_slab);
    const auto offset = static_cast<uint64_t>(r.frame_base(static_cast<uint32_t>(frame)) - r.base);
    RELIVE_RETURN_IF_ERROR(table.storage().commit(offset, (end - frame) * g.frame_bytes));
    frame = end;
  }
  RELIVE_FAIL_POINT(grow_committed);
  Locked locked(table.door(), deadline);
  RELIVE_RETURN_IF_ERROR(locked.status());
  if (r.header->frames_committed.load(kRelaxed) != from) return {};  // another writer was faster
  r.header->frames_committed.store(to, std::memory_order_release);
  RELIVE_FAIL_POINT(grow_counted);
  uint64_t free = r.header->num_free_frames.load(kRelaxed);
  for (uint64_t frame = to; frame-- > from;) r.free_frames[free++].store(static_cast<uint32_t>(frame), kRelaxed);
  r.header->num_free_frames.store(free, kRelaxed);
  return {};
}

// The same for start cells.
Status grow_cells(Table& table, const Deadline& deadline) {
  Region& r = table.region();
  const CellGeometry& g = *r.cells.geometry;
  const uint64_t from = r.cells.state->committed.load(std::memory_order_acquire);
  const uint64_t to = std::min(from + g.grow_cells, g.num_cells);
  RELIVE_RETURN_IF_ERROR(table.storage().commit(g.cells_offset + from * g.stride, (to - from) * g.stride));
  Locked locked(table.door(), deadline);
  RELIVE_RETURN_IF_ERROR(locked.status());
  if (r.cells.state->committed.load(kRelaxed) != from) return {};  // another writer was faster
  offer_cells(locked.held(), from, to);
  return {};
}

// Makes one page, frame or start cell available. Called under the table lock; may release it.
Status relieve(Table& table, OpenResult result, Locked* locked, const Deadline& deadline) {
  Region& r = table.region();
  if (result == OpenResult::kNoFrame && r.header->frames_committed.load(kRelaxed) < r.geometry->num_frames) {
    locked->release();
    return grow_frames(table, deadline);
  }
  if (result == OpenResult::kNoBulk) {
    // Bulk of parked pages stays in memory. If no other page can be spilled, one parked page closes.
    if (r.bulk.state->list_head == kNoPage) close_oldest_parked(locked->held());
    locked->release();
    return table.tier()->wait_for_frame(deadline);
  }
  const auto has_room = [&r] {
    // Start cells are short only when all of them have memory. Before that more are committed, and no row goes for one.
    const bool has_cells = !r.cells || r.cells.state->num_free.load(kRelaxed) > 0 ||
                           r.cells.state->committed.load(kRelaxed) < r.cells.geometry->num_cells;
    return has_cells && r.header->num_free_pages.load(kRelaxed) > 0 && r.header->num_free_frames.load(kRelaxed) > 0;
  };
  (void)locked->sweep_dead();
  RELIVE_RETURN_IF_ERROR(locked->status());
  (void)free_kept(locked->held(), kKeptPerSection);
  if (has_room()) return {};
  if (relieve_pressure(locked->held())) {
    const bool is_done = r.header->num_free_pages.load(kRelaxed) > 0 || locked->held().ends_left > 0;
    locked->release();
    return is_done || !deadline.passed() ? Status() : items_stand_error(deadline);
  }
  const bool are_pinned = is_held(r);
  locked->release();
  if (are_pinned) return wait_for_pins(table, deadline);
  return Status(Code::kDeadlineExceeded)
      .with_text("needs", "a free page")
      .with_text("has", "every page open or pinned")
      .with_double("waited_s", deadline.waited_s());
}

// Pages that the unstored rows of the block will open; tails, and the state cell after the last row, are counted.
size_t pages_needed(const Region& r, LaneBlock block) {
  const StepBlock& steps = block.steps;
  const bool has_state = r.geometry->has_state != 0;
  size_t pages = 0;
  for (size_t m = 0; m < steps.num_lanes; ++m) {
    const WriterLane& lane = block.lane(m);
    const size_t left = steps.num_rows - lane.num_stored;
    size_t cells = (lane.page == kNoPage ? 0 : lane.step_end) + left;
    if (has_state && cells + left + 1 > r.page_len) {
      for (size_t row = lane.num_stored; row < steps.num_rows; ++row) cells += steps.ends_at(row, m) ? 1 : 0;
      const bool ends = steps.ends_at(steps.num_rows - 1, m);
      cells += !ends && steps.has_next_cell(steps.num_rows - 1, ends) ? 1 : 0;
    }
    const size_t there = (lane.page == kNoPage ? 0 : 1) + (lane.ahead_frame == nullptr ? 0 : 1);
    const size_t all = (cells + r.page_len - 1) / r.page_len;
    pages += all > there ? all - there : 0;
  }
  return pages;
}

}  // namespace

Status wait_for_pins(Table& table, const Deadline& deadline) {
  const Region& r = table.region();
  if (deadline.passed())
    return Status(Code::kDeadlineExceeded)
        .with_text("needs", "a free page")
        .with_text("has", "all pages pinned by a reader")
        .with_double("waited_s", deadline.waited_s());
  const auto ready = [&] { return table.is_closed() || !is_held(r); };
  wait_slice(&r.header->room_event, deadline, kWaitSlice_s, ready);
  if (table.is_closed()) return Status(Code::kTableClosed);
  return is_interrupted() ? Status(Code::kInterrupted) : Status();
}

Status open_pages(Table& table, LaneBlock block, const Deadline& deadline) {
  const Region& r = table.region();
  bool ahead = false;
  for (size_t m = 0; m < block.num_lanes();) {
    if (!needs_page(r, block.lane(m), &ahead)) {
      ++m;
      continue;
    }
    Locked locked(table.door(), deadline);
    RELIVE_RETURN_IF_ERROR(locked.status());
    for (size_t opened = 0; m < block.num_lanes() && opened < kRowsPerSection;) {
      WriterLane& lane = block.lane(m);
      if (!needs_page(r, lane, &ahead)) {
        ++m;
        continue;
      }
      uint64_t ref = 0;
      const bool history_free = ahead ? lane.run.ends : lane.episode_step == 0;
      const OpenResult result = open_page(locked.held(), lane.slot, ahead, history_free, &ref);
      if (result == OpenResult::kOk) {
        take_page(r, lane, ahead, ref);
        ++opened;
        continue;
      }
      RELIVE_RETURN_IF_ERROR(relieve(table, result, &locked, deadline));
      break;  // relieve() may have released the lock
    }
    locked.release();
    if (Tier* const tier = table.tier()) tier->wake_if_low();
  }
  return {};
}

Status take_frames(Table& table, const StartValues& starts, LaneBlock block, const Deadline& deadline) {
  const Region& r = table.region();
  const Geometry& g = *r.geometry;
  size_t left = 0;
  for (size_t m = 0; m < block.num_lanes(); ++m) left += block.steps.num_rows - block.lane(m).num_stored;
  const uint64_t live = r.header->live_steps.load(kRelaxed);
  const uint64_t room = g.capacity > live ? g.capacity - live : 0;
  const bool old_rows_go = left > room;
  uint64_t needed = pages_needed(r, block);
  if (old_rows_go) needed = std::min<uint64_t>(needed, (room + kRowsPerSection) / r.page_len + 1 + block.num_lanes());
  while (r.header->num_free_frames.load(kRelaxed) < needed &&
         r.header->frames_committed.load(std::memory_order_acquire) < g.num_frames) {
    Status status = grow_frames(table, deadline);
    if (status.ok()) continue;
    return old_rows_go && status.code() == Code::kStorageFull ? Status() : status;
  }
  const uint64_t rows = old_rows_go ? room + kRowsPerSection : left;  // after these rows old cells come back
  const uint64_t cells = starts.cells_of_block(block, rows);
  while (cells > 0 && r.cells.state->num_free.load(kRelaxed) < cells &&
         r.cells.state->committed.load(std::memory_order_acquire) < r.cells.geometry->num_cells) {
    Status status = grow_cells(table, deadline);
    if (status.ok()) continue;
    return old_rows_go && status.code() == Code::kStorageFull ? Status() : status;
  }
  return {};
}

// The lists of cells get room for their numbers before the lock is taken (rule C4).
Status take_cells(Table& table, const StartValues& starts, LaneBlock block, const Deadline& deadline) {
  Region& r = table.region();
  const auto has_cells = [&](const WriterLane& lane) { return lane.starts->cells.size() >= starts.cells_of_run(lane); };
  for (size_t m = 0; m < block.num_lanes();) {
    if (has_cells(block.lane(m))) {
      ++m;
      continue;
    }
    const size_t end = std::min(m + kRowsPerSection, block.num_lanes());
    for (size_t n = m; n < end; ++n) {
      WriterLane& lane = block.lane(n);
      lane.starts->cells.reserve(lane.run.count + lane.starts->moved.size());
    }
    Locked locked(table.door(), deadline);
    RELIVE_RETURN_IF_ERROR(locked.status());
    for (size_t taken = 0; m < end && taken < kRowsPerSection;) {
      WriterLane& lane = block.lane(m);
      if (has_cells(lane)) {
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
        RELIVE_RETURN_IF_ERROR(grow_cells(table, deadline));
      } else {
        RELIVE_RETURN_IF_ERROR(relieve(table, OpenResult::kNoPage, &locked, deadline));
      }
      break;  // the lock was released
    }
  }
  return {};
}

}  // namespace relive
