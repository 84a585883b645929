// The present limiter of an index, in the region: two places, and a number of changes whose lowest bit names the
// present place.
//
// Owner:   the region owns the cell.
// Locking: store() under the table lock, load() at any time (rule P1). If a process dies inside store(), the old
//          limiter or the new one is there, whole: the number is the commit, and the other place means nothing.
// Cost:    O(1), 64 bytes.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "relive/words/limiter.hpp"
#include "relive/words/testing.hpp"

namespace relive {

class LimiterCell final {
 public:
  LimiterConfig load() const {
    while (true) {
      const uint64_t number = number_.load(std::memory_order_acquire);
      Words words;
      for (size_t k = 0; k < words.size(); ++k) words[k] = places_[number & 1][k].load(std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_acquire);
      // The change after the next one is written into this place.
      if (number_.load(std::memory_order_relaxed) == number) return std::bit_cast<LimiterConfig>(words);
    }
  }

  void store(const LimiterConfig& limiter) {
    const uint64_t number = number_.load(std::memory_order_relaxed) + 1;
    const Words words = std::bit_cast<Words>(limiter);
    if (!RELIVE_RULE(P1_switch)) number_.store(number, std::memory_order_release);
    // A reader that still reads this place, from two changes ago, sees the new number before any of these words.
    std::atomic_thread_fence(std::memory_order_release);
    for (size_t k = 0; k < words.size(); ++k) {
      places_[number & 1][k].store(words[k], std::memory_order_relaxed);
      RELIVE_FAIL_POINT(limiter_word);
    }
    number_.store(number, std::memory_order_release);
    RELIVE_FAIL_POINT(limiter_switched);
  }

  uint64_t num_changes() const { return number_.load(std::memory_order_relaxed); }

 private:
  using Words = std::array<uint64_t, sizeof(LimiterConfig) / sizeof(uint64_t)>;
  static_assert(sizeof(Words) == sizeof(LimiterConfig));

  std::atomic<uint64_t> number_;  // PRIMARY
  std::atomic<uint64_t> places_[2][sizeof(LimiterConfig) / sizeof(uint64_t)];
};

}  // namespace relive
