// The 8-ary tree of an index: leaves and, on each level above, the reductions of eight children.
//
// Owner:   the region owns the memory; a Tree is a view (two pointers a level), cheap to copy.
// Locking: set_leaf, refresh and rebuild run under the table lock. leaf, draw, total and best may be called at any
//          time, without the lock: they may see a half-updated tree, so a caller reads the leaf that it was given again
//          (G2).
// Cost:    draw O(log8 n) cache lines a point, interleaved over the batch; refresh O(changed leaves x log8 n).
//
// A parent is recomputed from its children in their stored order, and never incremented: sums do not drift, and a
// repeated refresh changes nothing.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace relive {

enum class Reduction : uint32_t { kSum = 0, kMin = 1, kMax = 2 };

class Tree final {
 public:
  static constexpr uint32_t kFanout = 8;  // one group of siblings is one 64-byte line of doubles
  static constexpr uint32_t kMaxLevels = 16;
  static constexpr uint64_t kNone = ~uint64_t{0};

  // Bytes for all levels (each level rounded up to whole groups of eight), a multiple of 64.
  static size_t num_bytes(uint64_t num_leaves);

  // Binds to `memory` (64-byte aligned, num_bytes(num_leaves) long). Does not touch it.
  void bind(void* memory, uint64_t num_leaves, Reduction reduction);

  // Every leaf and inner node becomes the identity: 0 for sum, +inf for min, -inf for max.
  void clear();

  uint64_t num_leaves() const { return num_leaves_; }
  uint32_t num_levels() const { return num_levels_; }  // level 0 = leaves; the top level has at most 8 nodes
  double identity() const;

  double leaf(uint64_t slot) const { return std::atomic_ref<double>(levels_[0][slot]).load(std::memory_order_acquire); }
  // All leaves, for a caller that has the table lock and reads many. It saves the fields of this tree, which a compiler
  // would otherwise read again after every atomic load.
  class HeldLeaves final {
   public:
    explicit HeldLeaves(double* leaves) : leaves_(leaves) {}
    double operator[](uint64_t slot) const {
      return std::atomic_ref<double>(leaves_[slot]).load(std::memory_order_relaxed);
    }

   private:
    double* const leaves_;
  };
  HeldLeaves held_leaves() const { return HeldLeaves(levels_[0]); }
  void set_leaf(uint64_t slot, double mass);  // release; ancestors are refreshed by refresh()
  void prefetch(uint64_t slot) const { __builtin_prefetch(levels_[0] + slot); }
  double node(uint32_t level, uint64_t position) const;

  // Recomputes the ancestors of these leaves, level by level, each distinct parent about once. `slots` need not be
  // sorted or distinct; it is scratch, with undefined contents afterwards.
  void refresh(uint64_t* slots, size_t count);

  // Recomputes every inner node from the leaves, bottom-up.
  void rebuild();

  double total() const;  // reduction of the top group

  // Sum only. points[i] in [0, total) -> slots[i], or kNone if rounding or a concurrent update led past the end. Only a
  // child with point < running sum is taken, so a child without mass never is.
  void draw(const double* points, size_t count, uint64_t* slots) const;

  // draw() in parts, for a caller that prefetches other memory meanwhile: from level `from` down to level `to` < from.
  // It begins at num_levels(), above the top level, where nodes[i] = 0. points[i] is the rest of a point inside
  // nodes[i]; it becomes +inf past the end, and stays so on every level below. If to > 0, the group of each chosen node
  // is prefetched.
  void descend(uint32_t from, uint32_t to, double* points, uint64_t* nodes, size_t count) const;

  // Min / max only: a leaf that attains total(), the lowest slot among equals; kNone when all are the identity.
  uint64_t best() const;
  // Min / max only: the best `count` leaves, or all leaves, the best first, the lowest slot first among equals. If the
  // tree changes meanwhile, the order is that of the values that were seen. O(count x log8 n): only nodes above a leaf
  // that is returned are opened. `open` is scratch.
  struct Node {
    double value;
    uint64_t place;  // the slot, if level is 0
    uint32_t level;
  };
  void best(size_t count, std::vector<Node>* found, std::vector<Node>* open) const;

 private:
  uint64_t num_leaves_ = 0;
  uint32_t num_levels_ = 0;
  Reduction reduction_ = Reduction::kSum;
  std::array<double*, kMaxLevels> levels_{};
  std::array<uint64_t, kMaxLevels> level_sizes_{};
};

}  // namespace relive
