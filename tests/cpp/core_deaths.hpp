// Deaths without processes: a call that stops at a fail point, and the recovery that follows.
#pragma once

#include "harness.hpp"
#include "relive/pages/recover.hpp"
#include "relive/table/table.hpp"

namespace rig {

using namespace relive;

// Recovers as the next owner of the lock does after a death.
inline void recover_all(Table& table) {
  Locked locked(table.door(), Deadline::after(1.0));
  CHECK(locked.status().ok());
  recover(locked.held(), table.door().scratch);
}

// Whether an exception may leave the call at this point.
inline bool has_way_out(testing::FailPoint at) {
  return at != testing::FailPoint::commit_ancestors && at != testing::FailPoint::commit_unlocked &&
         at != testing::FailPoint::lock_taken;
}

// Stops the call at its k-th passage of the point. Returns whether the call came there.
template <class Call>
bool dies_at(uint32_t point, int passages, Call&& call) {
  static uint32_t wanted;
  static int passages_left;
  struct Death {};
  wanted = point;
  passages_left = passages;
  testing::fail_point_hook = [](testing::FailPoint at) {
    if (static_cast<uint32_t>(at) == wanted && passages_left > 0 && --passages_left == 0) throw Death{};
  };
  bool died = false;
  try {
    call();
  } catch (const Death&) {
    died = true;
  }
  testing::fail_point_hook = nullptr;
  return died;
}

// Stops the call at its k-th passage of `point`, then recovers as after a death.
template <class Call>
void die_at(testing::FailPoint point, Table& table, Call&& call, int passages = 1) {
  static testing::FailPoint wanted;
  static int passages_left;
  struct Death {};
  wanted = point;
  passages_left = passages;
  testing::fail_point_hook = [](testing::FailPoint at) {
    if (at == wanted && passages_left > 0 && --passages_left == 0) throw Death{};
  };
  try {
    call();
  } catch (const Death&) {
  }
  testing::fail_point_hook = nullptr;
  CHECK_EQ(passages_left, 0);
  recover_all(table);
}

// Ends the writers as a sweep does after their process died.
inline void end_writers(Table& table) {
  Locked locked(table.door(), Deadline::after(1.0));
  CHECK(locked.status().ok());
  CHECK(locked.end_me());
}

}  // namespace rig
