// One thread of this process at a time, where the first may take long: whoever waits has a deadline and hears signals.
//
// Owner:   a TurnWord belongs to a handle or a writer; a Turn holds it for one scope.
// Locking: a signal's handler that comes back to what its own thread is in the middle of is told so; waiting for itself
//          it would wait for ever. After a fork the child's copy of a word is reset by reset(), not released.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "relive/words/status.hpp"
#include "relive/words/sync.hpp"

namespace relive {

class TurnWord final {
 public:
  void reset() {
    owner_.store(0, std::memory_order_relaxed);
    taken_.store(0, std::memory_order_relaxed);
  }

 private:
  friend class Turn;
  std::atomic<uint32_t> taken_{0};
  std::atomic<uint64_t> owner_{0};  // thread_id() of who has the turn
};

class Turn final {
 public:
  // what: what the turn is for, for the error of whoever does not get it.
  Turn(TurnWord& word, const char* what, const Deadline& deadline) : word_(word) {
    if (take()) return;
    if (word.owner_.load(std::memory_order_relaxed) == thread_id()) {
      status_ = refused(Code::kWaitsForItself, what,
                        "a call of this same thread, which a signal's handler is called from", deadline);
      return;
    }
    Hearing hearing(deadline, nullptr);
    for (double slice_s = kFirstSlice_s; !take(); slice_s = std::min(2.0 * slice_s, kLastSlice_s)) {
      if (deadline.passed()) {
        status_ = refused(Code::kDeadlineExceeded, what, "another thread's call", deadline);
        return;
      }
      if (hearing.ends()) {
        status_ = Status(Code::kInterrupted);
        return;
      }
      futex_wait(&word.taken_, 1, std::min(slice_s, deadline.remaining_s()));
    }
  }
  ~Turn() {
    if (!status_.ok() || word_.owner_.load(std::memory_order_relaxed) != thread_id()) return;  // reset after a fork
    word_.owner_.store(0, std::memory_order_relaxed);
    word_.taken_.store(0, std::memory_order_release);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  const Status& status() const { return status_; }

 private:
  static constexpr double kFirstSlice_s = 0.0002;
  static constexpr double kLastSlice_s = 0.005;  // nobody is woken: a slice is short

  bool take() {
    uint32_t expected = 0;
    if (!word_.taken_.compare_exchange_strong(expected, 1, std::memory_order_acquire, std::memory_order_relaxed))
      return false;
    word_.owner_.store(thread_id(), std::memory_order_relaxed);
    return true;
  }
  static Status refused(Code code, const char* what, const char* has, const Deadline& deadline) {
    return Status(code).with_text("needs", what).with_text("has", has).with_double("waited_s", deadline.waited_s());
  }

  TurnWord& word_;
  Status status_;
};

}  // namespace relive
