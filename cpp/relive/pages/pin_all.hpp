// Every page stays where it is while a Hold has begun: rows can be read without the lock, and nothing can go (rule D7).
//
// Owner:   lives on the stack of a call; what it holds belongs to the handle's participant, so a death ends it (E4).
// Locking: begins under the lock, ends by taking it: no Locked of this thread may live by then.
// Cost:    two holds of the lock. Writers that find no free page meanwhile wait: hold for one reading, not for long.
#pragma once

#include "relive/pages/lock.hpp"

namespace relive {

class Hold final {
 public:
  // deadline: for the lock when it ends. Where that is not to be had in time the handle's next hold of it lowers this.
  Hold(Door& door, const Deadline& deadline) : door_(door), deadline_(deadline.deaf()) {}
  ~Hold() { end(); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

  void begin(Locked& locked);  // again: nothing
  void end();

 private:
  Door& door_;
  const Deadline deadline_;
  const int64_t process_ = process_id();  // asked before the lock is taken
  bool has_begun_ = false;
};

}  // namespace relive
