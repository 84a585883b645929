#include "relive/table/writer.hpp"

#include <utility>

#include "relive/table/writer_check.hpp"
#include "relive/table/writer_commit.hpp"
#include "relive/table/writer_ends.hpp"
#include "relive/table/writer_room.hpp"
#include "relive/table/writer_rows.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// Cuts the lanes of writers that were dropped while the lock was not available, as many in a critical section as it may
// cut. Lanes that are left at the deadline stay in the list.
Status cut_uncut_lanes(Table& table, const Deadline& deadline) {
  Status status;
  const int32_t writers = table.uncut_lanes().cut_all([&](std::vector<uint32_t>& lanes) {
    while (!lanes.empty() && status.ok()) {
      Locked locked(table.door(), deadline);
      status = locked.status();
      while (status.ok() && !lanes.empty() && locked.cut(lanes.back())) lanes.pop_back();
    }
  });
  table.count_writers(-writers);
  return status;
}

uint32_t count_open_lanes(const Region& r) {
  uint32_t count = 0;
  for (uint32_t lane = 0; lane < r.geometry->max_lanes; ++lane)
    count += r.lanes[lane].state.load(kRelaxed) == LaneState::kLive ? 1 : 0;
  return count;
}

// A block that stops half way reports how many of its rows are stored: the first `stored` ones, whose keys are written.
Status with_rows_stored(LaneBlock block, Status status) {
  size_t stored = 0;
  for (size_t m = 0; m < block.num_lanes(); ++m) stored += block.lane(m).num_stored;
  if (stored == 0) return status;
  return std::move(status)
      .with_int("stored", static_cast<int64_t>(stored))
      .with_int("num_rows", static_cast<int64_t>(block.steps.num_rows * block.steps.num_lanes));
}

}  // namespace

Writer::Writer(Table* table) : table_(table), columns_(table->region()), starts_(table->region(), columns_) {}

Status Writer::open(Table* table, uint32_t num_lanes, std::unique_ptr<Writer>* out) {
  Entered entered(*table, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  std::unique_ptr<Writer> writer(new Writer(table));
  writer->closed_ = true;  // until it has its lanes
  writer->lanes_.resize(num_lanes);
  for (WriterLane& lane : writer->lanes_) {
    lane.episode_values.resize(writer->columns_.episode_bytes);
    writer->starts_.set_up(lane);
  }
  writer->fork_epoch_ = fork_epoch();
  const Deadline deadline = table->own_deadline();
  RELIVE_RETURN_IF_ERROR(cut_uncut_lanes(*table, deadline));
  RELIVE_RETURN_IF_ERROR(writer->take_lanes(deadline));
  table->count_writers(+1);
  writer->closed_ = false;
  *out = std::move(writer);  // a writer that *out owned before ends here, after the lock was released
  return {};
}

Status Writer::take_lanes(const Deadline& deadline) {
  const Region& r = table_->region();
  const Geometry& g = *r.geometry;
  const uint32_t num_lanes = this->num_lanes();
  Locked locked(table_->door(), deadline);
  RELIVE_RETURN_IF_ERROR(locked.status());
  // Lanes of dead processes take no slots, and no room of the capacity, from living ones.
  const uint32_t with_dead = count_open_lanes(r);
  if (g.max_lanes - with_dead < num_lanes || needed_steps(g, with_dead + num_lanes) > g.capacity) locked.sweep_dead();
  RELIVE_RETURN_IF_ERROR(locked.status());
  const uint32_t open_lanes = count_open_lanes(r);
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
  size_t taken = 0;  // slots with a parked page first: as few slots are used as lanes were ever open at once
  for (const bool is_parked : {true, false})
    for (uint32_t slot = 0; slot < g.max_lanes && taken < num_lanes; ++slot) {
      if (r.lanes[slot].state.load(kRelaxed) == LaneState::kLive) continue;
      if (!is_parked || parked_page(r, slot) != kNoPage)
        begin_lane(locked.held(), lanes_[taken++], slot, table_->participant());
    }
  return {};
}

Writer::~Writer() {
  if (give_back_lanes(Deadline::after(0.0).deaf()).ok()) return;
  std::vector<uint32_t> slots;
  for (size_t m = num_cut_; m < lanes_.size(); ++m) slots.push_back(lanes_[m].slot);
  table_->uncut_lanes().add(std::move(slots));
}

Status Writer::close() { return give_back_lanes(table_->own_deadline()); }

Status Writer::give_back_lanes(const Deadline& deadline) {
  if (fork_epoch_ != fork_epoch()) closed_ = true;  // lanes and mutex are the parent's
  if (closed_ || lanes_.empty()) return {};
  const TimedLock lock(mutex_, "to close this writer", deadline);
  RELIVE_RETURN_IF_ERROR(lock.status());
  if (closed_) return {};
  Entered entered(*table_, true);
  if (entered.status().code() == Code::kTableClosed) closed_ = true;  // the table has ended all its lanes
  if (closed_) return {};
  RELIVE_RETURN_IF_ERROR(entered.status());
  // A window more or less at a lane's end is no reason to keep the lanes. A signal is: its handler has raised an
  // exception.
  const Status prepared = prepare_cut(*table_, starts_, &lanes_, num_cut_, deadline);
  if (prepared.code() == Code::kInterrupted) return prepared;
  RELIVE_RETURN_IF_ERROR(cut_lanes(*table_, starts_, &lanes_, &num_cut_, deadline));
  table_->count_writers(-1);
  closed_ = true;
  return {};
}

Status Writer::Call::begin(Writer& writer, const Deadline& deadline) {
  if (writer.fork_epoch_ != fork_epoch()) return Status(Code::kForkedHandle).with_text("what", "a writer");
  lock_.emplace(writer.mutex_, "this writer", deadline);
  RELIVE_RETURN_IF_ERROR(lock_->status());
  if (writer.closed_) return Status(Code::kWriterClosed);
  return entered_.emplace(*writer.table_, true).status();
}

Status Writer::write(const StepBlock& steps, double timeout_s, int64_t* keys) {
  const Deadline deadline = Deadline::after(timeout_s);
  const Call call(*this, deadline);
  RELIVE_RETURN_IF_ERROR(call.status());
  if (steps.num_rows == 0 || steps.num_lanes == 0) return {};
  const LaneBlock block{steps, lanes_.data()};
  RELIVE_RETURN_IF_ERROR(abandoning_.finish(*table_, block, deadline));
  RELIVE_RETURN_IF_ERROR(check_block(*table_, columns_, block));
  for (size_t m = 0; m < steps.num_lanes; ++m) block.lane(m).num_stored = 0;
  const size_t total = steps.num_rows * steps.num_lanes;
  ReservedRows reserved(*table_);
  Status status;
  for (size_t stored = 0; stored < total && status.ok();) {
    size_t upto = total;
    status = admit_rows(*table_, block, lanes_, stored, deadline, &reserved, &upto);
    if (status.ok() && stored == 0) status = note_given_priorities(*table_, steps, deadline);
    if (status.ok() && steps.num_rows > 1) status = take_frames(*table_, starts_, block, deadline);
    while (stored < upto && status.ok()) {
      const size_t rows = plan_round(table_->region(), starts_, block, stored, upto);
      status = write_round(block, deadline, &reserved, keys);
      stored += rows;
    }
  }
  return status.ok() ? Status() : with_rows_stored(block, std::move(status));
}

Status Writer::write_round(LaneBlock block, const Deadline& deadline, ReservedRows* reserved, int64_t* keys) {
  const Region& r = table_->region();
  RELIVE_RETURN_IF_ERROR(open_pages(*table_, block, deadline));
  if (starts_.is_used()) RELIVE_RETURN_IF_ERROR(take_cells(*table_, starts_, block, deadline));
  for (size_t m = 0; m < block.num_lanes(); ++m) {
    WriterLane& lane = block.lane(m);
    note_episode_page(r, lane);
    const uint32_t version =
        policy_version_ >= 0 ? static_cast<uint32_t>(policy_version_) : r.header->policy_version.load(kRelaxed);
    write_rows(r, columns_, starts_, block.steps, lane, m, version);
  }
  Status status = commit_round(*table_, starts_, block, deadline, reserved, keys);
  for (size_t m = 0; starts_.keeps_recent() && m < block.num_lanes(); ++m)
    starts_.note_recent(block.steps, block.lane(m), m);
  return status;
}

Status Writer::end_episode(const StepBlock& steps, bool terminated, double timeout_s) {
  const Deadline deadline = Deadline::after(timeout_s);
  const Call call(*this, deadline);
  RELIVE_RETURN_IF_ERROR(call.status());
  const LaneBlock block{steps, lanes_.data()};
  RELIVE_RETURN_IF_ERROR(abandoning_.finish(*table_, block, deadline));
  return end_episodes(*table_, columns_, starts_, block, terminated, deadline);
}

Status Writer::abandon(const StepBlock& steps, double timeout_s) {
  const Deadline deadline = Deadline::after(timeout_s);
  const Call call(*this, deadline);
  RELIVE_RETURN_IF_ERROR(call.status());
  const LaneBlock block{steps, lanes_.data()};
  for (size_t m = 0; m < block.num_lanes(); ++m)
    RELIVE_RETURN_IF_ERROR(abandoning_.abandon(*table_, block.lane(m), deadline));
  return {};
}

}  // namespace relive
