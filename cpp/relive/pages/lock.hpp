// The table lock of one handle. Locked takes the lock, repairs the region if the last owner died, and wakes waiters.
//
// Owns:    a Door belongs to a handle and outlives every Locked made from it. A Locked owns the lock and its Held.
// Locking: this is the table lock (rules C1 to C4). The code between take and release is a critical section.
// Cost:    5 ns uncontended. The release recomputes the ancestors of the leaves that the critical section touched.
#pragma once

#include <atomic>
#include <memory>

#include "relive/pages/recover.hpp"
#include "relive/words/held.hpp"
#include "relive/words/sync.hpp"

namespace relive {

// An attempt to take the lock waits at least this long, whatever the deadline of the call: the scheduler may preempt
// the owner for milliseconds.
inline constexpr double kLeastLockWait_s = 0.1;

// The objects that a handle needs to take the lock of its region.
struct Door {
  Region& region;
  std::unique_ptr<Storage>& storage;
  uint32_t& me;                       // this handle's participant; max_participants before it has one
  const std::atomic<bool>*& is_over;  // true: the handle closes, and waits for the lock end
  bool has_dead = false;              // the last sweep is unfinished: the next critical section continues it
  Dirty dirty{};
  RecoverScratch scratch{};
  // Pins of all pages that have ended, but the lock was not available: the next Locked takes them off (rule D7).
  std::atomic<uint32_t> owed_unpins{0};
};

class Locked final {
 public:
  Locked(Door& door, const Deadline& deadline);
  ~Locked() { release(); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

  const Status& status() const { return status_; }
  Held& held() { return held_; }        // only while status() is ok
  void items_came() { items_ = true; }  // drawable items may be new: wakes samplers after the unlock
  void room_came() { room_ = true; }    // room to insert may be new: wakes writers after the unlock
  // Ends every participant that died. Each critical section cuts a bounded number of lanes, so the sweep releases the
  // lock and takes it again until all of them are cut or the deadline has passed. The next critical sections of this
  // handle continue an unfinished sweep. Returns true if any participant or lane ended. Check status() after the call:
  // the lock may be gone, and values that were read under the lock before the call are outdated.
  bool sweep_dead();
  // Drops every item that has waited too long (rule T2), before this call publishes or completes an item. A critical
  // section drops a bounded number, so it may release the lock and take it again, until the deadline has passed. Check
  // status() after the call: the lock may be gone, and values that were read under the lock before it are outdated.
  void drop_all_overdue();
  // Cuts a lane of a writer of this handle. Returns false if this critical section has cut as many lanes as it may: the
  // caller tries again in the next one.
  bool cut(uint32_t lane_slot);
  // Ends the participant of this handle in the same way.
  bool end_me();
  void release();

 private:
  void take();
  bool sweep_some();

  Door& door_;
  Held held_;
  Deadline deadline_;
  Status status_;
  uint32_t num_cut_ = 0;  // lanes that this critical section has cut
  bool is_held_ = false;
  bool items_ = false;
  bool room_ = false;
};

// Stands for the lock where no other process can take it: at the birth of a region, or after all its users died.
class Alone final {
 public:
  explicit Alone(Door& door) : held_(door.region, door.dirty) { RELIVE_SECTION(true); }
  ~Alone() { RELIVE_SECTION(false); }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;
  Held& held() { return held_; }

 private:
  Held held_;
};

}  // namespace relive
