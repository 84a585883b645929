#include "relive/writer.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "relive/recover.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr size_t kRowsPerHold = 256;  // rule C3

bool is_state(const Region& r, uint32_t column) { return r.columns[column].kind == ColumnKind::kState; }

std::byte* cell(const Region& r, std::byte* frame, uint32_t column, uint32_t row) {
  return frame + r.columns[column].offset + row * r.columns[column].stride;
}

bool flag_at(const Cells& cells, size_t row, size_t m) { return cells.base != nullptr && *cells.at(row, m) != std::byte{0}; }

// memcpy with the sizes of scalars spelled out: most columns are one.
void copy_cell(std::byte* to, const std::byte* from, size_t num_bytes) {
  if (num_bytes == 4) {
    std::memcpy(to, from, 4);
  } else if (num_bytes == 8) {
    std::memcpy(to, from, 8);
  } else {
    std::memcpy(to, from, num_bytes);
  }
}

uint32_t needed_steps(const Geometry& g, uint64_t lanes) { return static_cast<uint32_t>(lanes * (g.history + g.max_n_step)); }

}  // namespace

Status Writer::open(Table* table, uint32_t num_lanes, std::unique_ptr<Writer>* out) {
  Entered entered(*table, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  Region& r = table->region_;
  const Geometry& g = *r.geometry;
  std::unique_ptr<Writer> writer(new Writer(table));
  writer->lanes_.resize(num_lanes);
  writer->fork_epoch_ = fork_epoch();
  Locked locked(*table, Deadline::after(10.0));
  RELIVE_RETURN_IF_ERROR(locked.status());
  const auto count_open = [&] {
    uint32_t count = 0;
    for (uint32_t lane = 0; lane < g.max_lanes; ++lane) count += r.lanes[lane].state.load(kRelaxed) == LaneState::kLive ? 1 : 0;
    return count;
  };
  if (g.max_lanes - count_open() < num_lanes) sweep(r, *table->storage_, table->me_, table->dirty_);
  const uint32_t open_lanes = count_open();
  if (g.max_lanes - open_lanes < num_lanes)
    return Status(Code::kTooManyLanes).with_int("asked", num_lanes).with_int("free", g.max_lanes - open_lanes);
  if (needed_steps(g, open_lanes + num_lanes) > g.capacity)
    return Status(Code::kCapacityTooSmall)
        .with_int("capacity", static_cast<int64_t>(g.capacity))
        .with_int("needed", needed_steps(g, open_lanes + num_lanes))
        .with_int("lanes", open_lanes + num_lanes);
  uint32_t slot = 0;
  for (LaneWriter& lane : writer->lanes_) {
    while (r.lanes[slot].state.load(kRelaxed) == LaneState::kLive) ++slot;
    lane.slot = slot;
    Lane& shared = r.lanes[slot];
    shared.owner.store(table->me_, kRelaxed);
    shared.uid.store(r.header->next_uid.fetch_add(1, kRelaxed), kRelaxed);
    shared.open.store(0, kRelaxed);
    shared.ahead.store(0, kRelaxed);
    shared.seam.store(0, kRelaxed);
    shared.state.store(LaneState::kLive, std::memory_order_release);
  }
  table->open_writers_.fetch_add(1);
  *out = std::move(writer);
  return {};
}

Writer::~Writer() { (void)close(); }

Status Writer::close() {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (closed_ || lanes_.empty()) return {};
  closed_ = true;
  if (fork_epoch_ != fork_epoch()) return {};  // the parent's lanes are the parent's to end
  Entered entered(*table_, true);
  if (!entered.status().ok()) return {};  // a closed table has ended all its lanes
  table_->open_writers_.fetch_sub(1);
  Locked locked(*table_, Deadline::after(10.0));
  RELIVE_RETURN_IF_ERROR(locked.status());
  for (const LaneWriter& lane : lanes_) cut_lane(table_->region_, lane.slot, table_->dirty_);
  locked.items_came();
  return {};
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

// Everything that can be wrong with a block is found here, before anything changes.
Status Writer::check_block(const StepBlock& block) {
  const Region& r = table_->region_;
  const Geometry& g = *r.geometry;
  const uint32_t extra = g.has_state != 0 && !block.has_next && !block.has_last_state && block.num_rows > 0 ? 1 : 0;
  uint32_t open_lanes = 0;
  if (extra != 0 && g.capacity < 2 * uint64_t{g.max_lanes} * (g.history + g.max_n_step + 1)) {
    for (uint32_t lane = 0; lane < g.max_lanes; ++lane) open_lanes += r.lanes[lane].state.load(kRelaxed) == LaneState::kLive;
    if (needed_steps(g, open_lanes) + open_lanes > g.capacity)
      return Status(Code::kCapacityTooSmall)
          .with_int("capacity", static_cast<int64_t>(g.capacity))
          .with_int("needed", needed_steps(g, open_lanes) + open_lanes)
          .with_int("lanes", open_lanes);
  }
  for (size_t m = 0; m < block.num_lanes; ++m) {
    const auto lane_number = static_cast<int64_t>(block.lanes == nullptr ? m : block.lanes[m]);
    for (size_t row = 0; row < block.num_rows; ++row) {
      const bool truncated = flag_at(block.truncated, row, m);
      const bool terminated = flag_at(block.terminated, row, m);
      if (truncated && !terminated && g.has_state != 0 && !has_next_cell(block, row, true))
        return Status(Code::kMissingNext).with_int("lane", lane_number);
      if (block.priority.base == nullptr) continue;
      float priority;
      std::memcpy(&priority, block.priority.at(row, m), sizeof priority);
      if (!(priority >= 0.0f) || std::isinf(priority))
        return Status(Code::kInvalidPriority)
            .with_int("position", static_cast<int64_t>(row * block.num_lanes + m))
            .with_double("value", priority);
    }
    RELIVE_RETURN_IF_ERROR(check_seams(block, m));
  }
  return {};
}

// A next observation that was given is frozen: the row that follows must say the same.
Status Writer::check_seams(const StepBlock& block, size_t m) {
  const Region& r = table_->region_;
  LaneWriter& writer = lane_of(block, m);
  const Lane& lane = r.lanes[writer.slot];
  const uint64_t page = r.alive(lane.open.load(kRelaxed));
  const bool has_page = page != kNoPage && r.geometry->has_state != 0 && block.num_rows > 0;
  const uint32_t end = has_page ? Range::unpack(r.pages[page].range.load(kRelaxed)).step_end : 0;
  const bool has_seam = has_page && is_seam(r, lane, page, end);
  if (!has_seam && !(block.has_next && block.num_rows > 1)) return {};
  const auto mismatch = [&](uint32_t column) {
    const auto number = static_cast<int64_t>(block.lanes == nullptr ? m : block.lanes[m]);
    return Status(Code::kSeamMismatch).with_int("lane", number).with_text("column", r.columns[column].name);
  };
  for (uint32_t c = 0; c < r.geometry->num_columns; ++c) {
    if (!is_state(r, c)) continue;
    const size_t num_bytes = r.columns[c].num_bytes;
    if (has_seam && std::memcmp(cell(r, r.page_base(page), c, end), block.columns[c].at(0, m), num_bytes) != 0)
      return mismatch(c);
    for (size_t row = 1; block.has_next && row < block.num_rows; ++row) {
      if (ends_at(block, row - 1, m)) continue;
      if (std::memcmp(block.next[c].at(row - 1, m), block.columns[c].at(row, m), num_bytes) != 0) return mismatch(c);
    }
  }
  return {};
}

// The next rows of a lane that fit one page and one episode.
void Writer::plan_run(const StepBlock& block, size_t m, size_t most) {
  LaneWriter& lane = lane_of(block, m);
  const Region& r = table_->region_;
  const uint64_t page = r.alive(r.lanes[lane.slot].open.load(kRelaxed));
  const uint32_t end = page == kNoPage ? r.page_len : Range::unpack(r.pages[page].range.load(kRelaxed)).step_end;
  lane.run = Run{};
  lane.run.lane_slot = lane.slot;
  lane.run.first = end % r.page_len;  // a full page is followed by a new one
  const size_t room = r.page_len - lane.run.first;
  size_t count = std::min({room, most, block.num_rows - lane.done});
  for (size_t row = 0; row < count; ++row) {
    if (!ends_at(block, lane.done + row, m)) continue;
    count = row + 1;
    lane.run.ends = true;
  }
  lane.run.count = static_cast<uint32_t>(count);
  const size_t last = lane.done + count - 1;
  lane.run.has_seam = r.geometry->has_state != 0 && count > 0 && !lane.run.ends && has_next_cell(block, last, false);
}

bool Writer::open_for(LaneWriter& lane, bool ahead, bool history_free, OpenResult* result) {
  uint64_t ref = 0;
  *result = open_page(table_->region_, lane.slot, ahead, history_free, &ref);
  return *result == OpenResult::kOk;
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
  Locked locked(*table_, deadline);
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
  if (sweep(r, *table_->storage_, table_->me_, table_->dirty_) > 0 && r.header->num_free_pages.load(kRelaxed) > 0) return {};
  if (relieve_pressure(r, table_->dirty_)) return {};
  return Status(Code::kDeadlineExceeded)
      .with_text("needs", "a free page")
      .with_text("has", "every page open or pinned")
      .with_double("waited_s", deadline.waited_s());
}

// Before rows are written: a page for each lane's next row and, where a cell will fall on the page after it, that too.
Status Writer::open_pages(const StepBlock& block, const Deadline& deadline) {
  Region& r = table_->region_;
  const bool has_state = r.geometry->has_state != 0;
  const auto needs = [&](const LaneWriter& lane, bool* ahead) {
    const Lane& shared = r.lanes[lane.slot];
    const uint64_t page = r.alive(shared.open.load(kRelaxed));
    if (page == kNoPage || Range::unpack(r.pages[page].range.load(kRelaxed)).step_end == r.page_len) {
      *ahead = false;
      return true;
    }
    *ahead = true;
    const bool on_next = lane.run.first + lane.run.count == r.page_len;
    return on_next && has_state && (lane.run.has_seam || lane.run.ends) && shared.ahead.load(kRelaxed) == 0;
  };
  for (size_t m = 0; m < block.num_lanes;) {
    LaneWriter& first = lane_of(block, m);
    bool ahead = false;
    if ((first.run.count == 0 && !first.run.ends) || !needs(first, &ahead)) {
      ++m;
      continue;
    }
    Locked locked(*table_, deadline);
    RELIVE_RETURN_IF_ERROR(locked.status());
    for (size_t held = 0; m < block.num_lanes && held < kRowsPerHold;) {
      LaneWriter& lane = lane_of(block, m);
      if ((lane.run.count == 0 && !lane.run.ends) || !needs(lane, &ahead)) {
        ++m;
        continue;
      }
      const bool history_free = ahead ? lane.run.ends : lane.episode_step == 0;
      OpenResult result;
      ++held;
      if (open_for(lane, ahead, history_free, &result)) continue;
      RELIVE_RETURN_IF_ERROR(relieve(result, &locked, deadline));
      break;  // the lock may have been let go
    }
  }
  for (size_t m = 0; m < block.num_lanes; ++m) {
    LaneWriter& lane = lane_of(block, m);
    if (lane.run.count == 0 && !lane.run.ends) continue;
    lane.page = r.ref_page(r.lanes[lane.slot].open.load(kRelaxed));
    lane.word = r.words[lane.page].load(kRelaxed);
    lane.frame = r.page_base(lane.page);
    const uint64_t ahead = r.alive(r.lanes[lane.slot].ahead.load(kRelaxed));
    lane.ahead_frame = ahead == kNoPage ? nullptr : r.page_base(ahead);
  }
  return {};
}

// The state cells of the row after the run: the frozen cell of a seam, or the tail of an episode that ended.
void Writer::write_next_cell(const StepBlock& block, LaneWriter& lane, size_t row, size_t m) {
  const Region& r = table_->region_;
  const uint32_t at = lane.run.first + lane.run.count;
  std::byte* frame = at < r.page_len ? lane.frame : lane.ahead_frame;
  const uint32_t offset = at & (r.page_len - 1);
  const bool is_given = has_next_cell(block, row, lane.run.ends);
  for (uint32_t c = 0; c < r.geometry->num_columns; ++c) {
    if (!is_state(r, c)) continue;
    std::byte* to = cell(r, frame, c, offset);
    if (!is_given) {
      std::memset(to, 0, r.columns[c].num_bytes);
    } else {
      copy_cell(to, block.has_next ? block.next[c].at(row, m) : block.columns[c].at(row + 1, m), r.columns[c].num_bytes);
    }
  }
  if (!lane.run.ends) return;
  const RecordHeader tail{(lane.episode_step + lane.run.count) & kStepMask, 0, 0.0f, kNoPriority};
  std::memcpy(frame + offset * r.geometry->record_stride, &tail, sizeof tail);
}

void Writer::write_rows(const StepBlock& block, size_t m) {
  LaneWriter& lane = lane_of(block, m);
  if (lane.run.count == 0 && !lane.run.ends) return;
  const Region& r = table_->region_;
  const uint32_t version =
      policy_version_ >= 0 ? static_cast<uint32_t>(policy_version_) : r.header->policy_version.load(kRelaxed);
  const bool is_frozen = is_seam(r, r.lanes[lane.slot], lane.page, lane.run.first);
  for (uint32_t k = 0; k < lane.run.count; ++k) {
    const size_t row = lane.done + k;
    const uint32_t offset = lane.run.first + k;
    const bool terminated = flag_at(block.terminated, row, m);
    const bool truncated = flag_at(block.truncated, row, m);
    RecordHeader header{(lane.episode_step + k) & kStepMask, version, terminated ? 0.0f : 1.0f, kNoPriority};
    header.step_and_ends |= (terminated ? kTerminatedBit : 0) | (truncated ? kTruncatedBit : 0);
    if (block.discount.base != nullptr) std::memcpy(&header.discount, block.discount.at(row, m), sizeof(float));
    if (block.priority.base != nullptr) std::memcpy(&header.pending_priority, block.priority.at(row, m), sizeof(float));
    std::memcpy(lane.frame + offset * r.geometry->record_stride, &header, sizeof header);
    for (uint32_t c = 0; c < r.geometry->num_columns; ++c) {
      if (k == 0 && is_frozen && is_state(r, c)) continue;  // others read it already, and it says the same
      copy_cell(cell(r, lane.frame, c, offset), block.columns[c].at(row, m), r.columns[c].num_bytes);
    }
  }
  if (r.geometry->has_state != 0 && (lane.run.has_seam || lane.run.ends) && lane.run.count > 0)
    write_next_cell(block, lane, lane.done + lane.run.count - 1, m);
}

Status Writer::commit(const StepBlock& block, const Deadline& deadline, int64_t* keys) {
  Table& table = *table_;
  Region& r = table.region_;
  for (size_t m = 0; m < block.num_lanes;) {
    Locked locked(table, deadline);
    RELIVE_RETURN_IF_ERROR(locked.status());
    for (size_t rows = 0; m < block.num_lanes && rows < kRowsPerHold; ++m) {
      LaneWriter& lane = lane_of(block, m);
      const Run& run = lane.run;
      if (run.count == 0) continue;
      commit_run(r, run, table.dirty_);
      for (uint32_t k = 0; k < run.count; ++k)
        keys[(lane.done + k) * block.num_lanes + m] = r.key_of(r.slot_of(lane.page, run.first + k), lane.word);
      rows += run.count;
      lane.done += run.count;
      lane.has_last = !run.ends;
      lane.last_slot = r.slot_of(lane.page, run.first + run.count - 1);
      lane.last_word = lane.word;
      lane.episode_step = run.ends ? 0 : lane.episode_step + run.count;
      if (rows_left_admitted_ > 0) {
        table.region_.credit(table.me_, 0).reserved.fetch_sub(run.count, kRelaxed);
        rows_left_admitted_ -= run.count;
      }
    }
    locked.items_came();
  }
  return {};
}

Status Writer::wait_for_room(uint32_t index, int64_t num_rows, const Deadline& deadline) {
  Table& table = *table_;
  Region& r = table.region_;
  const LimiterConfig& limiter = r.header->indexes[index].limiter;
  const IndexState& state = r.header->index_state[index];
  const auto ready = [&] {
    return table.closed_.load(kRelaxed) || can_insert(limiter, state.live_items.load(kRelaxed),
                                                      state.inserted.load(kRelaxed) + r.reserved_rows(), r.sampled(index), num_rows);
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
    return Status(Code::kRequestTooLarge).with_int("requested", num_rows).with_double("window", window(limiter) / limiter.samples_per_insert);
  if (deadline.passed()) return error(Code::kDeadlineExceeded);
  const bool samples_itself = table.sampling_thread_.load(kRelaxed) != 0;
  if (only_thread_hook != nullptr && table.is_alone() && (samples_itself || table.storage_->is_local()) && only_thread_hook())
    return error(Code::kWaitsForItself);
  r.header->counters.writer_waits.fetch_add(1, kRelaxed);
  const double before = deadline.waited_s();
  wait_slice(&r.header->room_event, deadline, kWaitSlice_s, ready);
  r.header->counters.writer_wait_ns.fetch_add(static_cast<uint64_t>((deadline.waited_s() - before) * 1e9), kRelaxed);
  if (interrupt_hook != nullptr && interrupt_hook()) return Status(Code::kInterrupted);
  if (!table.storage_->is_local() && deadline.waited_s() - before > kWaitSlice_s / 2) {
    Locked locked(table, deadline);
    if (locked.status().ok() && sweep(r, *table.storage_, table.me_, table.dirty_) > 0) locked.room_came();
  }
  return {};
}

// The limiters of all indexes let the block in whole, before its first row.
Status Writer::admit(int64_t num_rows, const Deadline& deadline) {
  Table& table = *table_;
  Region& r = table.region_;
  bool is_limited = false;
  for (uint32_t i = 0; i < r.num_indexes; ++i) is_limited |= r.header->indexes[i].limiter.kind != LimiterConfig::kMinSize;
  while (is_limited) {
    if (table.closed_.load(kRelaxed)) return Status(Code::kTableClosed);
    uint32_t refused = r.num_indexes;
    {
      Locked locked(table, deadline);
      RELIVE_RETURN_IF_ERROR(locked.status());
      const int64_t reserved = r.reserved_rows();
      for (uint32_t i = 0; i < r.num_indexes && refused == r.num_indexes; ++i) {
        const IndexState& state = r.header->index_state[i];
        if (!can_insert(r.header->indexes[i].limiter, state.live_items.load(kRelaxed), state.inserted.load(kRelaxed) + reserved,
                        r.sampled(i), num_rows))
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

void Writer::note_given_priorities(const StepBlock& block) {
  if (block.priority.base == nullptr) return;
  float largest = 0.0f;
  for (size_t row = 0; row < block.num_rows; ++row)
    for (size_t m = 0; m < block.num_lanes; ++m) {
      float priority;
      std::memcpy(&priority, block.priority.at(row, m), sizeof priority);
      largest = std::max(largest, priority);
    }
  Region& r = table_->region_;
  Locked locked(*table_, Deadline::after(1.0));
  if (!locked.status().ok()) return;
  for (uint32_t i = 0; i < r.num_indexes; ++i) {
    IndexState& state = r.header->index_state[i];
    if (largest <= state.max_priority.load(kRelaxed)) continue;
    state.max_mass.store(mass_of(r.header->indexes[i], largest), kRelaxed);
    state.max_priority.store(largest, kRelaxed);
  }
}

Status Writer::write(const StepBlock& block, double timeout_s, int64_t* keys) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (closed_) return Status(Code::kWriterClosed);
  if (fork_epoch_ != fork_epoch()) return Status(Code::kForkedHandle).with_text("what", "a writer");
  const Deadline deadline = Deadline::after(timeout_s);
  Entered entered(*table_, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  if (block.num_rows == 0 || block.num_lanes == 0) return {};
  RELIVE_RETURN_IF_ERROR(check_block(block));
  RELIVE_RETURN_IF_ERROR(admit(static_cast<int64_t>(block.num_rows * block.num_lanes), deadline));
  note_given_priorities(block);
  for (size_t m = 0; m < block.num_lanes; ++m) lane_of(block, m).done = 0;
  const size_t capacity = table_->region_.geometry->capacity;
  const size_t most = std::max<size_t>(1, std::min(kRowsPerHold, capacity) / block.num_lanes);
  Status status;
  for (bool more = true; more && status.ok();) {
    for (size_t m = 0; m < block.num_lanes; ++m) plan_run(block, m, most);
    status = open_pages(block, deadline);
    if (!status.ok()) break;
    for (size_t m = 0; m < block.num_lanes; ++m) write_rows(block, m);
    status = commit(block, deadline, keys);
    more = false;
    for (size_t m = 0; m < block.num_lanes; ++m) more |= lane_of(block, m).done < block.num_rows;
  }
  if (rows_left_admitted_ > 0) {
    table_->region_.credit(table_->me_, 0).reserved.fetch_sub(rows_left_admitted_, kRelaxed);
    rows_left_admitted_ = 0;
  }
  return status;
}

Status Writer::end_episode(const StepBlock& block, bool terminated, double timeout_s) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (closed_) return Status(Code::kWriterClosed);
  if (fork_epoch_ != fork_epoch()) return Status(Code::kForkedHandle).with_text("what", "a writer");
  const Deadline deadline = Deadline::after(timeout_s);
  Entered entered(*table_, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  Region& r = table_->region_;
  const bool has_state = r.geometry->has_state != 0;
  for (size_t m = 0; m < block.num_lanes; ++m) {
    LaneWriter& lane = lane_of(block, m);
    lane.done = 0;
    plan_run(block, m, 0);
    lane.run.ends = lane.has_last;
    if (!lane.has_last) continue;
    const auto number = static_cast<int64_t>(block.lanes == nullptr ? m : block.lanes[m]);
    const uint64_t page = r.alive(r.lanes[lane.slot].open.load(kRelaxed));
    // Not run.first: on a full page that is 0, where a seam of long ago may have been.
    const uint32_t end = page == kNoPage ? 0 : Range::unpack(r.pages[page].range.load(kRelaxed)).step_end;
    const bool frozen = has_state && page != kNoPage && is_seam(r, r.lanes[lane.slot], page, end);
    if (terminated && (frozen || !has_state)) return Status(Code::kAlreadyPublished).with_int("lane", number);
    if (!has_state) continue;
    for (uint32_t c = 0; frozen && block.has_next && c < r.geometry->num_columns; ++c)
      if (is_state(r, c) && std::memcmp(cell(r, r.page_base(page), c, lane.run.first), block.next[c].at(0, m), r.columns[c].num_bytes) != 0)
        return Status(Code::kSeamMismatch).with_int("lane", number).with_text("column", r.columns[c].name);
    if (!frozen && !terminated && !block.has_next) return Status(Code::kMissingNext).with_int("lane", number);
  }
  if (has_state) RELIVE_RETURN_IF_ERROR(open_pages(block, deadline));
  Locked locked(*table_, deadline);
  RELIVE_RETURN_IF_ERROR(locked.status());
  for (size_t m = 0; m < block.num_lanes; ++m) {
    LaneWriter& lane = lane_of(block, m);
    if (!lane.has_last) continue;
    const uint64_t last_page = r.page_of(lane.last_slot);
    const bool last_is_there = Region::generation_of(r.words[last_page].load(kRelaxed)) == Region::generation_of(lane.last_word);
    if (last_is_there && (terminated || !has_state)) {  // no published window holds this row but as its last
      RecordHeader* record = Region::record(r.page_base(last_page), *r.geometry, r.offset_of(lane.last_slot));
      std::atomic_ref<uint32_t>(record->step_and_ends).fetch_or(terminated ? kTerminatedBit : kTruncatedBit);
      if (terminated) std::atomic_ref<float>(record->discount).store(0.0f);
    }
    lane.run.ends = true;
    if (has_state) {
      if (!is_seam(r, r.lanes[lane.slot], lane.page, lane.run.first)) {
        lane.run.count = 0;
        write_next_cell(block, lane, 0, m);
      }
      commit_run(r, lane.run, table_->dirty_);
    } else {
      publish_lane(r, lane.slot, true, table_->dirty_);
    }
    lane.has_last = false;
    lane.episode_step = 0;
  }
  locked.items_came();
  return {};
}

}  // namespace relive
