// The table lock of one handle: Locked takes it, recovers after a holder that died, and tells those who wait.
//
// Owner:   a Door belongs to a handle and outlives its Locked's. Locking: this is it (rules C1 to C4).
// Cost:    5 ns uncontended; ancestors of the leaves touched are recomputed when it is given back.
#pragma once

#include <atomic>
#include <memory>

#include "relive/pages/recover.hpp"
#include "relive/words/held.hpp"
#include "relive/words/sync.hpp"

namespace relive {

// Lock acquisitions wait at least this long, whatever the call's deadline: a holder is preempted for milliseconds.
inline constexpr double kLeastLockWait_s = 0.1;

// What a handle needs to take the lock of its region.
struct Door {
  Region& region;
  std::unique_ptr<Storage>& storage;
  uint32_t& me;                       // participant; max_participants while there is none yet
  const std::atomic<bool>*& is_over;  // raised: the handle closes, and waits for the lock end
  bool has_dead = false;              // the last sweep stopped before its end: the handle's next hold goes on
  Dirty dirty{};
  RecoverScratch scratch{};
  std::atomic<uint32_t> owed_holds{0};  // ended, but the lock was not to be had: the next Locked lowers them
};

class Locked final {
 public:
  Locked(Door& door, const Deadline& deadline);
  ~Locked() { release(); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

  const Status& status() const { return status_; }
  Held& held() { return held_; }        // while status() is ok
  void items_came() { items_ = true; }  // something to draw may have come: samplers are woken after the unlock
  void room_came() { room_ = true; }    // room to insert may have come: writers are
  // Ends every participant that died, so many lanes a hold: gives the lock up in between and takes it again, until all
  // is done or the deadline has passed; what is left then the handle's next holds do. True where anything ended. Look
  // at status() behind it: the lock may be gone, and what was read under it before is old.
  bool sweep_dead();
  // Cuts a lane of a writer of this handle. False where this hold has cut its share: the next one does it.
  bool cut(uint32_t lane_slot);
  // Ends this handle's own participant, the same way.
  bool end_me();
  void release();

 private:
  void take();
  bool sweep_some();

  Door& door_;
  Held held_;
  Deadline deadline_;
  Status status_;
  uint32_t num_cut_ = 0;  // lanes, in this hold
  bool is_held_ = false;
  bool items_ = false;
  bool room_ = false;
};

// The lock where nobody else can want it: a region at birth, or whose users all died.
class Alone final {
 public:
  explicit Alone(Door& door) : held_(door.region, door.dirty) { RELIVE_HOLD(true); }
  ~Alone() { RELIVE_HOLD(false); }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;
  Held& held() { return held_; }

 private:
  Held held_;
};

}  // namespace relive
