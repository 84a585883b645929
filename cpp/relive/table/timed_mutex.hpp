// A mutex between the threads of one process, for work that may take long. A thread that waits for it has a deadline
// and stops at a signal.
//
// Owner:   a Table owns one (attaching in a forked child, closing), a Writer owns one (its calls). A TimedLock takes
//          the mutex for one scope.
// Locking: this mutex comes before the table lock. A signal handler that interrupted the owner thread gets an error: it
//          would wait for itself. After a fork the child calls reset(); its copies of a TimedLock then release nothing.
// Order:   a thread that releases the mutex and takes it again at once would starve the others, which sleep. So the last
//          owner stands back while another thread has waited for longer than kHungry_s.
// Cost:    one compare-and-exchange if the mutex is free. Else the thread sleeps in slices of 0.2 to 5 ms.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>

#include "relive/words/status.hpp"
#include "relive/words/sync.hpp"

namespace relive {

class TimedMutex final {
 public:
  // purpose: what the caller needs the mutex for; the error names it. kWaitsForItself, kDeadlineExceeded, kInterrupted.
  Status take(const char* purpose, const Deadline& deadline) {
    if (!stands_back() && try_take()) return {};
    if (owner_.load(std::memory_order_relaxed) == thread_id())
      return refused(Code::kWaitsForItself, purpose,
                     "a call of this same thread, which a signal's handler is called from", deadline);
    Hearing hearing(deadline, nullptr);
    Hunger hunger(hungry_);
    const Deadline patience = Deadline::after(kLastSlice_s);  // of the last owner
    for (double slice_s = kFirstSlice_s;; slice_s = std::min(2.0 * slice_s, kLastSlice_s)) {
      const bool waits = stands_back() && !patience.passed() && !deadline.passed();
      if (!waits && try_take()) return {};
      if (deadline.passed()) return refused(Code::kDeadlineExceeded, purpose, "another thread's call", deadline);
      if (hearing.ends()) return Status(Code::kInterrupted);
      futex_wait(&taken_, waits ? 0 : 1, std::min(slice_s, deadline.remaining_s()));
      if (slice_s >= kHungry_s) hunger.begin();
    }
  }
  // Does nothing if this thread does not own the mutex: a fork has reset it.
  void release() {
    if (owner_.load(std::memory_order_relaxed) != thread_id()) return;
    owner_.store(0, std::memory_order_relaxed);
    taken_.store(0, std::memory_order_release);
    if (hungry_.load(std::memory_order_relaxed) != 0) futex_wake(&taken_, kAll);
  }
  void reset() {
    hungry_.store(0, std::memory_order_relaxed);
    last_.store(0, std::memory_order_relaxed);
    owner_.store(0, std::memory_order_relaxed);
    taken_.store(0, std::memory_order_relaxed);
  }

 private:
  static constexpr double kFirstSlice_s = 0.0002;
  static constexpr double kLastSlice_s = 0.005;  // release() wakes no thread that is not hungry, so a slice is short
  static constexpr double kHungry_s = 0.0008;    // the length of the slice that makes a thread hungry
  static constexpr int kAll = std::numeric_limits<int>::max();

  // Counts a thread as hungry, from begin() to its end.
  class Hunger final {
   public:
    explicit Hunger(std::atomic<uint32_t>& hungry) : hungry_(hungry) {}
    ~Hunger() {
      uint32_t count = has_begun_ ? hungry_.load(std::memory_order_relaxed) : 0;
      while (count != 0 && !hungry_.compare_exchange_weak(count, count - 1, std::memory_order_relaxed)) {
      }  // 0: a fork has reset the mutex meanwhile
    }
    Hunger(const Hunger&) = delete;
    Hunger& operator=(const Hunger&) = delete;
    void begin() {
      if (!has_begun_) hungry_.fetch_add(1, std::memory_order_relaxed);
      has_begun_ = true;
    }

   private:
    std::atomic<uint32_t>& hungry_;
    bool has_begun_ = false;
  };

  // Whether another thread has waited for long, and this thread was the last owner.
  bool stands_back() const {
    return hungry_.load(std::memory_order_relaxed) != 0 && last_.load(std::memory_order_relaxed) == thread_id();
  }
  bool try_take() {
    uint32_t expected = 0;
    if (!taken_.compare_exchange_strong(expected, 1, std::memory_order_acquire, std::memory_order_relaxed))
      return false;
    owner_.store(thread_id(), std::memory_order_relaxed);
    last_.store(thread_id(), std::memory_order_relaxed);
    return true;
  }
  static Status refused(Code code, const char* needs, const char* has, const Deadline& deadline) {
    return Status(code).with_text("needs", needs).with_text("has", has).with_double("waited_s", deadline.waited_s());
  }

  std::atomic<uint32_t> taken_{0};
  std::atomic<uint64_t> owner_{0};  // thread_id() of the owner; 0: the mutex is free
  std::atomic<uint64_t> last_{0};   // of the last owner, also after its release
  std::atomic<uint32_t> hungry_{0};
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
