// Lanes of writers that were dropped and did not get the table lock: the next writer that opens cuts them, or the
// handle's end does.
//
// Owner:   the handle. Locking: leave() takes none, so that a drop never waits; take() is called under the table lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

namespace relive {

class LeftLanes final {
 public:
  LeftLanes() = default;
  ~LeftLanes() {
    take([](uint32_t) {});
  }
  LeftLanes(const LeftLanes&) = delete;
  LeftLanes& operator=(const LeftLanes&) = delete;

  void leave(std::vector<uint32_t> lanes) {
    auto* const left = new Left{std::move(lanes), first_.load()};
    while (!first_.compare_exchange_weak(left->next, left)) {
    }
  }
  // Calls cut(lane) for each; returns how many writers they were of.
  template <class Cut>
  int32_t take(Cut&& cut) {
    int32_t writers = 0;
    for (Left* left = first_.exchange(nullptr); left != nullptr; ++writers) {
      for (uint32_t lane : left->lanes) cut(lane);
      delete std::exchange(left, left->next);
    }
    return writers;
  }
  void forget() { first_.store(nullptr); }  // in the child of a fork: they are the parent's

 private:
  struct Left {
    std::vector<uint32_t> lanes;
    Left* next;
  };
  std::atomic<Left*> first_{nullptr};
};

}  // namespace relive
