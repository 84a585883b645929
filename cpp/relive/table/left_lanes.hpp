// Lanes of writers that were dropped and did not get the table lock: the next writer that opens cuts them, or the
// handle's end does.
//
// Owner:   the handle. Locking: leave() takes none, so that a drop never waits; nor does end(), whose caller takes the
//          table lock for as many lanes as one hold may cut.
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
    end([](std::vector<uint32_t>& lanes) { lanes.clear(); });
  }
  LeftLanes(const LeftLanes&) = delete;
  LeftLanes& operator=(const LeftLanes&) = delete;

  void leave(std::vector<uint32_t> lanes) {
    auto* const left = new Left{std::move(lanes), first_.load()};
    while (!first_.compare_exchange_weak(left->next, left)) {
    }
  }
  // Calls cut(lanes) for each writer, which takes lanes that it has cut off the back; where some are left they stay noted.
  // Returns how many writers have none left.
  template <class Cut>
  int32_t end(Cut&& cut) {
    int32_t writers = 0;
    for (Left* left = first_.exchange(nullptr); left != nullptr;) {
      cut(left->lanes);
      writers += left->lanes.empty() ? 1 : 0;
      if (!left->lanes.empty()) leave(std::move(left->lanes));
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
