// The items of an index in classes of like priority: the number of items in each class, and the j-th item of a class.
//
// Two priorities are of one class if their exponents and the first kBits bits of their fractions agree: neighbouring
// classes are at most 1/128 apart. The last class has all priorities below 2^-126, and 0. Ordinals count classes from
// 1, the best; 0 is no class. The members of a class lie in blocks of 64, which a radix directory of such blocks finds:
//   position -> directory of 64 -> ... -> block of 64 leaves
// If a member goes, the last member of the class takes its place. So blocks are freed from the end only, and a member
// moves only then. Sums of counts are in a tree with 32 children a node.
//
// Owner:   the region owns the memory; a Ranks is a view of it, cheap to copy. Zeroed memory is a Ranks without
//          members.
// Locking: follow, rebuild and broken run under the table lock. Every other function may be called at any time, without
//          the lock: its answer may be half changed, but never lies outside of the memory. The caller checks the class
//          of the leaf that it was given (rule U2).
// Cost:    follow() takes about 50 ns a leaf that changed its class, rebuild() some ns a leaf, a look-up about 50 ns.
//
// Counts are whole numbers, so they do not drift. DERIVED: recovery builds all of it from the leaves (rule U3).
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "relive/words/tree.hpp"

namespace relive {

class Ranks final {
 public:
  static constexpr uint32_t kBits = 7;
  static constexpr uint64_t kMostLeaves = uint64_t{1} << 31;
  static constexpr uint64_t kNoLeaf = ~uint64_t{0};

  // The class of a leaf's value, 0 for a value below 0. Only bits are compared, so no floating-point mode of a thread
  // changes the class.
  static uint32_t ordinal_of(double leaf) {
    const auto bits = std::bit_cast<uint64_t>(leaf);
    const uint64_t top = bits >> (52 - kBits);
    if (bits >> 63 != 0) return 0;
    return top < kLowest ? kClasses : top > kHighest ? 1 : static_cast<uint32_t>(kHighest - top) + 1;
  }

  // Bytes for num_leaves leaves, at most kMostLeaves; a multiple of 64.
  static size_t num_bytes(uint64_t num_leaves);
  // Binds to `memory` (64-byte aligned, num_bytes(num_leaves) long). Does not touch it.
  void bind(void* memory, uint64_t num_leaves);

  // Follows the leaves of these slots, which have changed. A slot may come twice. No effect if a process died in here.
  void follow(const Tree& tree, const uint64_t* slots, size_t count);
  // Builds everything from the leaves. order: the first members of the classes, in this order; slots that are no members,
  // and those that come again, do not count. The other members follow by slot.
  void rebuild(const Tree& tree, const uint32_t* order = nullptr, size_t num_ordered = 0);
  // Copies the members of all classes, and no more, to memory for as many leaves that touch_members() has prepared.
  void copy_members(const Ranks& to) const;
  // Writes zeros to the memory that copy_members() may write, so that the copy meets no page for the first time.
  void touch_members() const;
  // The members, class by class.
  void list_members(std::vector<uint32_t>* order) const;

  uint64_t size() const;
  struct Class {
    uint32_t ordinal;  // 0: none
    uint32_t members;
    uint64_t before;  // members of better classes
  };
  // The class of the item of a rank, 0 for the best item. None if rank >= size(), or while another process changes it.
  Class class_at(uint64_t rank) const;
  // The leaf of a member by its position, below `members`. May be kNoLeaf while another process changes the class.
  uint64_t member(const Class& of, uint64_t position) const;

  void prefetch(const Class& of) const { __builtin_prefetch(&chain(of.ordinal)); }

  // A sentence on the first part that does not follow from the leaves; null if all does.
  const char* broken(const Tree& tree) const;

 private:
  static constexpr uint64_t kLowest = uint64_t{1023 - 126} << kBits;         // of the least normal float32
  static constexpr uint64_t kHighest = (uint64_t{1023 + 128} << kBits) - 1;  // of the largest float32
  static constexpr uint32_t kClasses = static_cast<uint32_t>(kHighest - kLowest) + 2;
  static constexpr uint32_t kFan = 32, kLevels = 3;
  static constexpr uint32_t kSizes[kLevels] = {kFan * kFan * kFan, kFan* kFan, kFan};
  static_assert(kClasses <= kSizes[0]);
  static constexpr uint32_t kRoom = 64, kShift = 6;  // members, or children, of a block

  struct Head {
    uint32_t free;                      // first free block + 1
    uint32_t made;                      // blocks taken so far
    std::atomic<uint32_t> is_changing;  // 1 during a change. If a process died in one, only rebuild() may go on
    uint32_t unused[13];
  };
  struct Chain {
    std::atomic<uint32_t> root;  // the block at which a search for a position begins
    uint32_t tail;               // the block of the last member
  };
  struct Place {
    uint32_t ordinal;  // 0: no class
    uint32_t at;       // block * kRoom + place in the block
  };
  using Entry = std::atomic<uint32_t>;
  static_assert(sizeof(Head) == 64 && sizeof(Chain) == 8 && sizeof(Place) == 8 && sizeof(Entry) == 4);

  static uint64_t num_blocks(uint64_t num_leaves);
  // The levels of directories above the blocks of a class of so many members.
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
