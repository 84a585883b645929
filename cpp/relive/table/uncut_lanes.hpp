// Lanes that are still to be cut: their writer was dropped while the table lock was not available. The next writer that
// opens cuts them, or the end of the handle does.
//
// Owner:   a Table owns the list; the list owns its nodes.
// Locking: none. add() never waits, because a destructor calls it. The `cut` of cut_all() takes the table lock, for as
//          many lanes as one critical section may cut.
// Cost:    add() one allocation; cut_all() O(writers in the list).
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

namespace relive {

class UncutLanes final {
 public:
  UncutLanes() = default;
  ~UncutLanes() {
    cut_all([](std::vector<uint32_t>& lanes) { lanes.clear(); });
  }
  UncutLanes(const UncutLanes&) = delete;
  UncutLanes& operator=(const UncutLanes&) = delete;

  // The lanes of one writer.
  void add(std::vector<uint32_t> lanes) {
    auto* const added = new Node{std::move(lanes), first_.load()};
    while (!first_.compare_exchange_weak(added->next, added)) {
    }
  }
  // Calls cut(lanes) once for each writer. `cut` works from the back of `lanes` and pops each lane that it has cut. The
  // remaining lanes stay in the list. Returns the number of writers that have no lane left.
  template <class Cut>
  int32_t cut_all(Cut&& cut) {
    int32_t writers = 0;
    for (Node* node = first_.exchange(nullptr); node != nullptr;) {
      cut(node->lanes);
      writers += node->lanes.empty() ? 1 : 0;
      if (!node->lanes.empty()) add(std::move(node->lanes));
      delete std::exchange(node, node->next);
    }
    return writers;
  }
  // For the child of a fork: the lanes belong to its parent.
  void forget() { first_.store(nullptr); }

 private:
  struct Node {
    std::vector<uint32_t> lanes;
    Node* next;
  };
  std::atomic<Node*> first_{nullptr};
};

}  // namespace relive
