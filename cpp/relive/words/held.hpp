// "Under the lock" as a type: a function that changes words which the table lock protects takes a Held.
//
// Owner:   a Held lives on the stack of a Locked (pages/lock.hpp), or of the process that is alone with a region at
//          birth. It is never stored. Its list of changed leaves belongs to the handle and is empty whenever the lock
//          is free.
// Locking: a Held stands for the table lock. While it exists there is no allocation, no system call and no Python (C4).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "relive/words/region.hpp"
#include "relive/words/sync.hpp"

namespace relive {

// The leaves that one critical section changed: their ancestors are recomputed at its end. A handle has one list.
class Dirty final {
 public:
  static constexpr size_t kRoom = 1024;

 private:
  friend class IndexView;
  std::array<std::array<uint64_t, kRoom>, kMaxIndexes> slots_;
  std::array<size_t, kMaxIndexes> count_{};
};

class Held final {
 public:
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  Region& region;
  Dirty& dirty;
  // Explicit items that may still end in this critical section before their rows go (rule X7); eight nodes count as
  // one.
  uint32_t ends_left = kEndsPerSection;
  // Rows that this critical section may still look at, for explicit items that have all their late columns now (rule
  // L6).
  uint32_t looks_left = kLooksPerSection;
  // Change a count that is written under the lock only, and read at any time. A load and a store suffice. A locked
  // instruction would wait for all stores before it, which cost a written step a tenth of its time.
  template <class T>
  static void add(std::atomic<T>& count, std::type_identity_t<T> change) {
    count.store(count.load(std::memory_order_relaxed) + change, std::memory_order_relaxed);
  }
  template <class T>
  static void subtract(std::atomic<T>& count, std::type_identity_t<T> change) {
    count.store(count.load(std::memory_order_relaxed) - change, std::memory_order_relaxed);
  }
  // The time of this critical section; the clock is read once.
  double now_s() {
    if (now_s_ == 0.0) now_s_ = clock_s();
    return now_s_;
  }

 private:
  static constexpr uint32_t kEndsPerSection = 256;
  static constexpr uint32_t kLooksPerSection = 4096;
  friend class Locked;  // the table lock
  friend class Alone;   // no other process is attached: at birth, or after all others died
  Held(Region& r, Dirty& d) : region(r), dirty(d) {}
  double now_s_ = 0.0;
};

}  // namespace relive
