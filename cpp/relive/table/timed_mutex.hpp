// A mutex between the threads of one process, for work that may take long. A thread that waits for it has a deadline
// and stops at a signal.
//
// Owner:   a Table owns one (attaching in a forked child, closing), a Writer owns one (its calls). A TimedLock takes
//          the mutex for one scope.
// Locking: this mutex comes before the table lock. A signal handler that interrupted the owner thread gets an error: it
//          would wait for itself. After a fork the child calls reset(); its copies of a TimedLock then release nothing.
// Cost:    one compare-and-exchange if the mutex is free. Else the thread sleeps in slices of 0.2 to 5 ms.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "relive/words/status.hpp"
#include "relive/words/sync.hpp"

namespace relive {

class TimedMutex final {
 public:
  // purpose: what the caller needs the mutex for; the error names it. kWaitsForItself, kDeadlineExceeded, kInterrupted.
  Status take(const char* purpose, const Deadline& deadline) {
    if (try_take()) return {};
    if (owner_.load(std::memory_order_relaxed) == thread_id())
      return refused(Code::kWaitsForItself, purpose,
                     "a call of this same thread, which a signal's handler is called from", deadline);
    Hearing hearing(deadline, nullptr);
    for (double slice_s = kFirstSlice_s; !try_take(); slice_s = std::min(2.0 * slice_s, kLastSlice_s)) {
      if (deadline.passed()) return refused(Code::kDeadlineExceeded, purpose, "another thread's call", deadline);
      if (hearing.ends()) return Status(Code::kInterrupted);
      futex_wait(&taken_, 1, std::min(slice_s, deadline.remaining_s()));
    }
    return {};
  }
  // Does nothing if this thread does not own the mutex: a fork has reset it.
  void release() {
    if (owner_.load(std::memory_order_relaxed) != thread_id()) return;
    owner_.store(0, std::memory_order_relaxed);
    taken_.store(0, std::memory_order_release);
  }
  void reset() {
    owner_.store(0, std::memory_order_relaxed);
    taken_.store(0, std::memory_order_relaxed);
  }

 private:
  static constexpr double kFirstSlice_s = 0.0002;
  static constexpr double kLastSlice_s = 0.005;  // release() wakes no thread, so a slice is short

  bool try_take() {
    uint32_t expected = 0;
    if (!taken_.compare_exchange_strong(expected, 1, std::memory_order_acquire, std::memory_order_relaxed))
      return false;
    owner_.store(thread_id(), std::memory_order_relaxed);
    return true;
  }
  static Status refused(Code code, const char* needs, const char* has, const Deadline& deadline) {
    return Status(code).with_text("needs", needs).with_text("has", has).with_double("waited_s", deadline.waited_s());
  }

  std::atomic<uint32_t> taken_{0};
  std::atomic<uint64_t> owner_{0};  // thread_id() of the owner; 0: the mutex is free
};

class TimedLock final {
 public:
  TimedLock(TimedMutex& mutex, const char* purpose, const Deadline& deadline)
      : mutex_(mutex), status_(mutex.take(purpose, deadline)) {}
  ~TimedLock() {
    if (status_.ok()) mutex_.release();
  }
  TimedLock(const TimedLock&) = delete;
  TimedLock& operator=(const TimedLock&) = delete;

  const Status& status() const { return status_; }

 private:
  TimedMutex& mutex_;
  Status status_;
};

}  // namespace relive
