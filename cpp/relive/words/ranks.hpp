// The items of an index in classes of like priority: how many stand in each, and which is the j-th of one.
//
// Two priorities are of one class where the exponents and the first kBits bits behind the point agree: classes are at most
// 1/128 apart. Priorities below 2^-126, 0 among them, are one class, the last. Ordinals count classes from 1, the best
// one; 0 is none. A class has its members in blocks of 64, found by a radix directory of the same blocks:
//   position -> directory of 64 -> ... -> block of 64 leaves
// A member that goes leaves its place to the class's last one, so that blocks are only ever given back from the end, and
// where a member stands changes only then. Sums of counts stand in a tree of 32 a node.
//
// Owner:   the region owns the memory; a Ranks is a view of it, cheap to copy. Memory of zeros is an empty one.
// Locking: follow, rebuild, broken: only under the table lock. The rest at any time, without: what it says may be half
//          changed, never outside of the memory; a caller asks the leaf that it was given for its class (rule U2).
// Cost:    follow() about 50 ns a leaf that changed its class; rebuild() some ns a leaf; a look O(1), about 50 ns.
//
// Counts are whole numbers: they do not drift. DERIVED: recovery makes all of it anew from the leaves (rule U3).
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "relive/words/tree.hpp"

namespace relive {

class Ranks final {
 public:
  static constexpr uint32_t kBits = 7;
  static constexpr uint64_t kMostLeaves = uint64_t{1} << 31;
  static constexpr uint64_t kNoLeaf = ~uint64_t{0};

  // The class of a leaf's value, by its bits alone: no mode of a thread's arithmetic changes it. 0: of a value below 0.
  static uint32_t ordinal_of(double leaf) {
    const auto bits = std::bit_cast<uint64_t>(leaf);
    const uint64_t top = bits >> (52 - kBits);
    if (bits >> 63 != 0) return 0;
    return top < kLowest ? kClasses : top > kHighest ? 1 : static_cast<uint32_t>(kHighest - top) + 1;
  }

  // Bytes for so many leaves, at most kMostLeaves; a multiple of 64.
  static size_t num_bytes(uint64_t num_leaves);
  // Binds to `memory` (64-byte aligned, num_bytes(num_leaves) long). Does not touch it.
  void bind(void* memory, uint64_t num_leaves);

  // The leaves of these slots have changed. A slot may come twice. Nothing where somebody died in here before.
  void follow(const Tree& tree, const uint64_t* slots, size_t count);
  // Everything anew from the leaves.
  void rebuild(const Tree& tree);

  uint64_t size() const;
  struct Class {
    uint32_t ordinal;  // 0: none
    uint32_t members;
    uint64_t before;  // members of better classes
  };
  // The class that the item of a rank stands in; 0 is the best one. None where others change it, or rank >= size().
  Class class_at(uint64_t rank) const;
  // A member's leaf by its position, below `members`; kNoLeaf where others change the class.
  uint64_t member(const Class& of, uint64_t position) const;

  void prefetch(const Class& of) const { __builtin_prefetch(&chain(of.ordinal)); }

  // What does not follow from the leaves, in words; null if all does.
  const char* broken(const Tree& tree) const;

 private:
  static constexpr uint64_t kLowest = uint64_t{1023 - 126} << kBits;         // of the least normal float32
  static constexpr uint64_t kHighest = (uint64_t{1023 + 128} << kBits) - 1;  // of the largest one
  static constexpr uint32_t kClasses = static_cast<uint32_t>(kHighest - kLowest) + 2;
  static constexpr uint32_t kFan = 32, kLevels = 3;
  static constexpr uint32_t kSizes[kLevels] = {kFan * kFan * kFan, kFan* kFan, kFan};
  static_assert(kClasses <= kSizes[0]);
  static constexpr uint32_t kRoom = 64, kShift = 6;  // members, or children, of a block

  struct Head {
    uint32_t free;                      // first free block + 1
    uint32_t made;                      // blocks that were ever taken
    std::atomic<uint32_t> is_changing;  // 1: or whoever changed them died; nobody goes on from there but rebuild()
    uint32_t unused[13];
  };
  struct Chain {
    std::atomic<uint32_t> root;  // block that a position is looked for from
    uint32_t tail;               // block of the last member
  };
  struct Place {
    uint32_t ordinal;  // 0: of no class
    uint32_t at;       // block * kRoom + place in it
  };
  using Entry = std::atomic<uint32_t>;
  static_assert(sizeof(Head) == 64 && sizeof(Chain) == 8 && sizeof(Place) == 8 && sizeof(Entry) == 4);

  static uint64_t num_blocks(uint64_t num_leaves);
  // Levels of directories above the blocks of so many members.
  static uint32_t height(uint64_t members) {
    return members <= kRoom ? 0 : (static_cast<uint32_t>(std::bit_width(members - 1)) - 1) / kShift;
  }
  static bool begins_block(uint64_t position, uint32_t level) {
    return position != 0 && (position & ((uint64_t{1} << kShift * level) - 1)) == 0;
  }
  static uint32_t child(uint64_t position, uint32_t level) {
    return static_cast<uint32_t>(position >> kShift * level) & (kRoom - 1);
  }
  Entry& entry(uint32_t block, uint32_t place) const { return entries_[uint64_t{block} * kRoom + place]; }
  Chain& chain(uint32_t ordinal) const { return chains_[ordinal - 1]; }
  Entry& count(uint32_t ordinal) const { return counts_[0][ordinal - 1]; }
  uint32_t take_block();
  void free_block(uint32_t block);
  uint32_t block_of(uint32_t root, uint64_t position, uint32_t levels) const;
  void change_counts(uint32_t ordinal, int32_t change);
  void push(uint32_t ordinal, uint32_t slot);
  void remove(uint32_t slot);
  void drop_tail(uint32_t ordinal, uint32_t members);
  void link_blocks(uint32_t ordinal, uint32_t first, uint32_t members);
  uint64_t blocks_below(uint64_t members) const;

  Head* head_ = nullptr;
  Entry* counts_[kLevels] = {};
  Chain* chains_ = nullptr;
  Place* places_ = nullptr;
  Entry* entries_ = nullptr;
  uint64_t num_leaves_ = 0;
  uint64_t num_blocks_ = 0;
};

}  // namespace relive
