// "Under the lock" as a type: whoever changes what the lock protects is handed a Held.
//
// Owner:   a Held lives on the stack of a Locked (pages/lock.hpp) or of whoever is alone with a region at birth; it is
//          never kept. Its list of touched leaves belongs to the handle and is empty whenever the lock is free.
// Locking: this is the lock. No allocation, no system call and no Python while one exists (rule C4).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "relive/words/region.hpp"
#include "relive/words/sync.hpp"

namespace relive {

// Leaves touched in one critical section, whose ancestors are recomputed at its end. One a handle.
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
  // Explicit items that may still end in this hold before their rows go (rule X7), each as many as eight of its nodes.
  uint32_t ends_left = kEndsAHold;
  // Rows that it may still look at for explicit items that have all their late columns now (rule L6).
  uint32_t looks_left = kLooksAHold;
  // Counts that nobody changes without the lock, but everybody may read: a load and a store, since a locked instruction
  // waits for all stores before it, which cost a written step a tenth of its time.
  template <class T>
  static void add(std::atomic<T>& count, std::type_identity_t<T> change) {
    count.store(count.load(std::memory_order_relaxed) + change, std::memory_order_relaxed);
  }
  template <class T>
  static void subtract(std::atomic<T>& count, std::type_identity_t<T> change) {
    count.store(count.load(std::memory_order_relaxed) - change, std::memory_order_relaxed);
  }
  // The time of this hold, asked for once.
  double now_s() {
    if (now_s_ == 0.0) now_s_ = clock_s();
    return now_s_;
  }

 private:
  static constexpr uint32_t kEndsAHold = 256;
  static constexpr uint32_t kLooksAHold = 4096;
  friend class Locked;  // the table lock
  friend class Alone;   // nobody else is attached: birth, and the first to attach after all others died
  Held(Region& r, Dirty& d) : region(r), dirty(d) {}
  double now_s_ = 0.0;
};

}  // namespace relive
