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
  // Ends lanes and credits of every participant that died. Returns how many.
  uint32_t sweep_dead() { return sweep(held_, *door_.storage, door_.me); }
  void release();

 private:
  Door& door_;
  Held held_;
  Status status_;
  bool is_held_ = false;
  bool items_ = false;
  bool room_ = false;
};

// The lock where nobody else can want it: a region at birth, or whose users all died.
class Alone final {
 public:
  explicit Alone(Door& door) : held_(door.region, door.dirty) {}
  Held& held() { return held_; }

 private:
  Held held_;
};

}  // namespace relive
