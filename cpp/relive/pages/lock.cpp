#include "relive/pages/lock.hpp"

#include "relive/index/leaves.hpp"
#include "relive/pages/expiry.hpp"
#include "relive/pages/max_items.hpp"
#include "relive/pages/pins.hpp"
#include "relive/pages/publish.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

}  // namespace

Locked::Locked(Door& door, const Deadline& deadline)
    : door_(door), held_(door.region, door.dirty), deadline_(deadline.at_least(kLeastLockWait_s)) {
  take();
}

void Locked::take() {
  Region& r = door_.region;
  const uint32_t nobody = r.geometry->max_participants;
  LockResult result = LockResult::kTaken;
  const std::atomic<bool>* const is_over = deadline_.is_deaf() ? nullptr : door_.is_over;
  if (RELIVE_RULE(C1_lock))
    result = TableLock::lock(&r.header->lock, door_.me, nobody, *door_.storage, deadline_, is_over);
  if (result == LockResult::kEnded) {
    status_ = Status(door_.is_over->load() ? Code::kTableClosed : Code::kInterrupted);
    return;
  }
  if (result == LockResult::kTimeout) {
    const uint32_t holder = (r.header->lock.load(kRelaxed) & ~TableLock::kWaiters);
    const bool known = holder >= 1 && holder <= nobody;
    status_ = Status(Code::kDeadlineExceeded)
                  .with_text("needs", "the table lock")
                  .with_text("has", "taken by another process")
                  .with_double("waited_s", deadline_.waited_s())
                  .with_int("holder_pid", known ? r.participants[holder - 1].pid.load(kRelaxed) : 0);
    return;
  }
  is_held_ = true;
  num_cut_ = 0;
  RELIVE_SECTION(true);
  RELIVE_LOCKS_HELD(+1);
  RELIVE_FAIL_POINT(lock_taken);
  if (result == LockResult::kTakenFromDead) {
    recover(held_, door_.scratch);
    door_.has_dead = true;
    items_ = room_ = true;
  }
  if (door_.owed_unpins.load(kRelaxed) != 0) {
    unpin_all_pages(held_, door_.me, door_.owed_unpins.exchange(0, kRelaxed));
    (void)free_kept(held_, kKeptPerSection);
    room_ = true;
  }
  if (door_.has_dead) sweep_some();
}

bool Locked::sweep_some() {
  const Swept swept = sweep(held_, *door_.storage, door_.me, &num_cut_);
  door_.has_dead = !swept.is_done;
  if (swept.any) items_ = room_ = true;
  return swept.any;
}

bool Locked::sweep_dead() {
  bool any = sweep_some();
  while (door_.has_dead && !deadline_.passed()) {
    release();
    take();  // this continues the sweep
    if (!status_.ok()) break;
    any = true;
  }
  return any;
}

void Locked::drop_all_overdue() {
  if (held_.region.timed_indexes().empty()) return;
  while (is_held_ && next_due_s(held_.region) <= held_.now_s()) {
    release();  // this drops a bounded number of them
    take();
  }
}

bool Locked::cut(uint32_t lane_slot) {
  if (num_cut_ >= lanes_per_section()) return false;
  cut_lane(held_, lane_slot);
  ++num_cut_;
  items_ = room_ = true;
  return true;
}

bool Locked::end_me() {
  items_ = room_ = true;
  return end_participant(held_, door_.me, &num_cut_);
}

void Locked::release() {
  if (!is_held_) return;
  is_held_ = false;
  keep_to_most(held_);
  if (keep_to_time(held_)) room_ = true;
  if (!held_.region.fading_indexes().empty()) keep_masses_near(held_);
  Leaves::flush_all(held_);
  RELIVE_FAIL_POINT(commit_ancestors);
  RELIVE_SECTION(false);
  RELIVE_LOCKS_HELD(-1);
  if (RELIVE_RULE(C1_lock)) TableLock::unlock(&door_.region.header->lock);
  RELIVE_FAIL_POINT(commit_unlocked);
  if (items_) notify(&door_.region.header->items_event);
  if (room_) notify(&door_.region.header->room_event);
  items_ = room_ = false;
}

}  // namespace relive
