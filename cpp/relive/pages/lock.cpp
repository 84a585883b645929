#include "relive/pages/lock.hpp"

#include "relive/index/leaves.hpp"
#include "relive/pages/kept.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

}  // namespace

Locked::Locked(Door& door, const Deadline& deadline) : door_(door), held_(door.region, door.dirty) {
  Region& r = door.region;
  const uint32_t nobody = r.geometry->max_participants;
  const double remaining = deadline.remaining_s();
  const bool is_short = remaining < kLeastLockWait_s;
  const Deadline fresh = Deadline::after(is_short ? kLeastLockWait_s : remaining);
  const Deadline least = deadline.is_deaf() ? fresh.deaf() : fresh;
  LockResult result = LockResult::kTaken;
  const std::atomic<bool>* const is_over = least.is_deaf() ? nullptr : door.is_over;
  if (RELIVE_RULE(C1_lock)) result = TableLock::lock(&r.header->lock, door.me, nobody, *door.storage, least, is_over);
  if (result == LockResult::kEnded) {
    status_ = Status(door.is_over->load() ? Code::kTableClosed : Code::kInterrupted);
    return;
  }
  if (result == LockResult::kTimeout) {
    const uint32_t holder = (r.header->lock.load(kRelaxed) & ~TableLock::kWaiters);
    const bool known = holder >= 1 && holder <= nobody;
    status_ = Status(Code::kDeadlineExceeded)
                  .with_text("needs", "the table lock")
                  .with_text("has", "held by another process")
                  .with_double("waited_s", deadline.waited_s())
                  .with_int("holder_pid", known ? r.participants[holder - 1].pid.load(kRelaxed) : 0);
    return;
  }
  is_held_ = true;
  RELIVE_LOCKS_HELD(+1);
  RELIVE_FAIL_POINT(lock_taken);
  if (result == LockResult::kTakenFromDead) {
    recover(held_, door.scratch);
    sweep(held_, *door.storage, door.me);
    items_ = room_ = true;
  }
  if (door.owed_holds.load(kRelaxed) != 0) {
    lower_holds(held_, door.me, door.owed_holds.exchange(0, kRelaxed));
    (void)free_kept(held_, kKeptPerHold);
    room_ = true;
  }
}

void Locked::release() {
  if (!is_held_) return;
  is_held_ = false;
  Leaves::flush_all(held_);
  RELIVE_FAIL_POINT(commit_ancestors);
  RELIVE_LOCKS_HELD(-1);
  if (RELIVE_RULE(C1_lock)) TableLock::unlock(&door_.region.header->lock);
  RELIVE_FAIL_POINT(commit_unlocked);
  if (items_) notify(&door_.region.header->items_event);
  if (room_) notify(&door_.region.header->room_event);
}

}  // namespace relive
