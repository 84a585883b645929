// The present limiter of an index, in the region: two places, and a turn that says which of them counts.
//
// Locking: store() under the table lock, load() at any time (rule P1). Who dies inside store() leaves the old limiter or
//          the new one, whole: the turn is the commit, and the place that it does not name means nothing.
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
      const uint64_t turn = turn_.load(std::memory_order_acquire);
      Words words;
      for (size_t k = 0; k < words.size(); ++k) words[k] = places_[turn & 1][k].load(std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_acquire);
      // Two changes later somebody writes into this very place.
      if (turn_.load(std::memory_order_relaxed) == turn) return std::bit_cast<LimiterConfig>(words);
    }
  }

  void store(const LimiterConfig& limiter) {
    const uint64_t turn = turn_.load(std::memory_order_relaxed) + 1;
    const Words words = std::bit_cast<Words>(limiter);
    if (!RELIVE_RULE(P1_turn)) turn_.store(turn, std::memory_order_release);
    // Who still reads this place, as it was two turns ago, sees the turn before any of these words.
    std::atomic_thread_fence(std::memory_order_release);
    for (size_t k = 0; k < words.size(); ++k) {
      places_[turn & 1][k].store(words[k], std::memory_order_relaxed);
      RELIVE_FAIL_POINT(limiter_word);
    }
    turn_.store(turn, std::memory_order_release);
    RELIVE_FAIL_POINT(limiter_turned);
  }

  uint64_t num_changes() const { return turn_.load(std::memory_order_relaxed); }

 private:
  using Words = std::array<uint64_t, sizeof(LimiterConfig) / sizeof(uint64_t)>;
  static_assert(sizeof(Words) == sizeof(LimiterConfig));

  std::atomic<uint64_t> turn_;  // PRIMARY
  std::atomic<uint64_t> places_[2][sizeof(LimiterConfig) / sizeof(uint64_t)];
};

}  // namespace relive
