// Pins every page for one reading: between begin() and end() rows can be read without the lock, and no page is freed or
// moved (rule D7).
//
// Owns:    a PinAll lives on the stack of a call and owns one count of its participant (Participant.pinning_all). A sweep
//          takes the count off if the process dies (rule E4).
// Locking: begin() runs under the lock; end() takes the lock, so the thread must own no Locked then.
// Cost:    two critical sections. Writers that find no free page wait meanwhile: pin all pages for one reading only.
#pragma once

#include "relive/pages/lock.hpp"

namespace relive {

class PinAll final {
 public:
  // deadline: for taking the lock in end(). After the deadline, the next critical section of the handle takes the pin
  // off.
  PinAll(Door& door, const Deadline& deadline) : door_(door), deadline_(deadline.deaf()) {}
  ~PinAll() { end(); }
  PinAll(const PinAll&) = delete;
  PinAll& operator=(const PinAll&) = delete;

  void begin(Locked& locked);  // a second call changes nothing
  void end();

 private:
  Door& door_;
  const Deadline deadline_;
  const int64_t process_ = process_id();  // asked before the lock is taken
  bool has_begun_ = false;
};

}  // namespace relive
