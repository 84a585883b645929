// Room for rows: pages opened before their rows are written, frames committed, the limiters' admission.
#include "relive/table/writer.hpp"

#include <algorithm>

#include "relive/table/writer_cells.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

}  // namespace

// Whether a page must be opened before the lane's run is written: its own, or the one that the cell after it falls on.
bool Writer::needs_page(const LaneWriter& lane, bool* ahead) const {
  *ahead = lane.page != kNoPage;
  if (lane.run.count == 0 && !lane.run.ends) return false;
  if (lane.page == kNoPage) return true;
  const Region& r = table_->region_;
  const bool on_next = lane.run.first + lane.run.count == r.page_len;
  return on_next && lane.ahead_frame == nullptr && r.geometry->has_state != 0 && (lane.run.has_seam || lane.run.ends);
}

void Writer::take_page(LaneWriter& lane, bool ahead, uint64_t ref) {
  const Region& r = table_->region_;
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
}

// After commit_run: where the next row goes.
void Writer::advance(LaneWriter& lane, bool has_tail) {
  const Region& r = table_->region_;
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
  Region& r = table_->region_;
  const Geometry& g = *r.geometry;
  const uint64_t from = r.header->frames_committed.load(std::memory_order_acquire);
  const uint64_t to = std::min(from + g.grow_frames, g.num_frames);
  for (uint64_t frame = from; frame < to;) {  // slab by slab: there may be padding between them
    const uint64_t in_slab = uint64_t{1} << g.frames_per_slab_shift;
    const uint64_t end = std::min(to, (frame / in_slab + 1) * in_slab);
    const auto offset = static_cast<uint64_t>(r.frame_base(static_cast<uint32_t>(frame)) - r.base);
    RELIVE_RETURN_IF_ERROR(table_->storage_->commit(offset, (end - frame) * g.frame_bytes));
    frame = end;
  }
  RELIVE_FAIL_POINT(grow_committed);
  Locked locked(table_->door_, deadline);
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
  Region& r = table_->region_;
  if (result == OpenResult::kNoFrame && r.header->frames_committed.load(kRelaxed) < r.geometry->num_frames) {
    locked->release();
    return grow(deadline);
  }
  if (result == OpenResult::kNoBulk) {
    locked->release();
    return table_->wait_for_bulk(deadline);
  }
  if (locked->sweep_dead() > 0 && r.header->num_free_pages.load(kRelaxed) > 0) return {};
  if (relieve_pressure(locked->held())) return {};
  return Status(Code::kDeadlineExceeded)
      .with_text("needs", "a free page")
      .with_text("has", "every page open or pinned")
      .with_double("waited_s", deadline.waited_s());
}

// Before rows are written: a page for each lane's next row and, where a cell will fall on the page after it, that too.
Status Writer::open_pages(const StepBlock& block, const Deadline& deadline) {
  bool ahead = false;
  for (size_t m = 0; m < block.num_lanes;) {
    if (!needs_page(lane_of(block, m), &ahead)) {
      ++m;
      continue;
    }
    Locked locked(table_->door_, deadline);
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
    table_->wake_spill_if_low();
  }
  return {};
}

Status Writer::wait_for_room(uint32_t index, int64_t num_rows, const Deadline& deadline) {
  Table& table = *table_;
  Region& r = table.region_;
  const LimiterConfig& limiter = r.header->indexes[index].limiter;
  const IndexState& state = r.header->index_state[index];
  const auto ready = [&] {
    return table.closed_.load(kRelaxed) ||
           can_insert(limiter, state.live_items.load(kRelaxed), state.inserted.load(kRelaxed) + r.reserved_rows(),
                      r.sampled(index), num_rows);
  };
  const auto error = [&](Code code) {
    return Status(code)
        .with_text("needs", "(inserted + n) x samples_per_insert - sampled <= " + std::to_string(limiter.hi))
        .with_double("has", static_cast<double>(state.inserted.load(kRelaxed) + num_rows) * limiter.samples_per_insert -
                                static_cast<double>(r.sampled(index)))
        .with_double("waited_s", deadline.waited_s());
  };
  if (ready()) return {};
  if (!insert_can_ever_pass(limiter, num_rows))
    return Status(Code::kRequestTooLarge)
        .with_int("requested", num_rows)
        .with_double("window", window(limiter) / limiter.samples_per_insert)
        .with_text("arithmetic", limiter_text(r.header->indexes[index]));
  if (deadline.passed()) return error(Code::kDeadlineExceeded);
  const bool samples_itself = table.sampling_thread_.load(kRelaxed) != 0;
  if (only_thread_hook != nullptr && table.is_alone() && (samples_itself || table.storage_->is_local()) &&
      only_thread_hook())
    return error(Code::kWaitsForItself);
  r.header->counters.writer_waits.fetch_add(1, kRelaxed);
  const double before = deadline.waited_s();
  wait_slice(&r.header->room_event, deadline, kWaitSlice_s, ready);
  r.header->counters.writer_wait_ns.fetch_add(static_cast<uint64_t>((deadline.waited_s() - before) * 1e9), kRelaxed);
  if (interrupt_hook != nullptr && interrupt_hook()) return Status(Code::kInterrupted);
  if (!table.storage_->is_local() && deadline.waited_s() - before > kWaitSlice_s / 2) {
    Locked locked(table.door_, deadline);
    if (locked.status().ok() && locked.sweep_dead() > 0) locked.room_came();
  }
  return {};
}

// The limiters of all indexes let the block in whole, before its first row.
Status Writer::admit(int64_t num_rows, const Deadline& deadline) {
  Table& table = *table_;
  Region& r = table.region_;
  bool is_limited = false;
  for (uint32_t i = 0; i < r.num_indexes; ++i)
    is_limited |= r.header->indexes[i].limiter.kind != LimiterConfig::kMinSize;
  while (is_limited) {
    if (table.closed_.load(kRelaxed)) return Status(Code::kTableClosed);
    uint32_t refused = r.num_indexes;
    {
      Locked locked(table.door_, deadline);
      RELIVE_RETURN_IF_ERROR(locked.status());
      const int64_t reserved = r.reserved_rows();
      for (uint32_t i = 0; i < r.num_indexes && refused == r.num_indexes; ++i) {
        const IndexState& state = r.header->index_state[i];
        if (!can_insert(r.header->indexes[i].limiter, state.live_items.load(kRelaxed),
                        state.inserted.load(kRelaxed) + reserved, r.sampled(i), num_rows))
          refused = i;
      }
      if (refused == r.num_indexes) {
        r.credit(table.me_, 0).reserved.fetch_add(num_rows, kRelaxed);
        rows_left_admitted_ = num_rows;
        return {};
      }
    }
    RELIVE_RETURN_IF_ERROR(wait_for_room(refused, num_rows, deadline));
  }
  return {};
}

}  // namespace relive
