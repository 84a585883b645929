// Records: the words of explicit items, and the rows at which the records hang (rules X1 to X7).
//
// A record has a place for each window that the index declares, and the values of the item's own columns. The leaf of
// an item is the number of its record. The word of a record has the bits of a page word: it is used while the item is
// there, and its generation rises when the item goes. A record *hangs* at the first row that each of its windows has in
// each page. Rows go in order from the front of a page, so the records that hang at a row are all records that must end
// with it.
//
// Owner:   the region owns the bytes; Records and ItemMap are views.
// Locking: written under the table lock only. Words and windows may be read at any time, nodes and heads under the
//          lock.
// Cost:    O(1).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "relive/words/layout.hpp"

namespace relive {

// One window of a record, PRIMARY, as its own columns are. Written while the record is free, before its word changes
// (rule X2). The index declares how far the rows of a window lie apart.
struct ItemWindow {
  std::atomic<int64_t> key;                // of its first row
  std::atomic<uint32_t> num_rows;          // 0: the item has no such window
  std::atomic<uint32_t> pending_priority;  // first window only: the priority of an item that waits for late columns
};
static_assert(sizeof(ItemWindow) == 16);

// One place where a record hangs, DERIVED. The name of a node is its number + 1, so a zeroed node hangs nowhere.
struct RecordNode {
  uint64_t place;       // row slot + 1; 0: nowhere
  uint32_t prev, next;  // nodes at the same row
};
static_assert(sizeof(RecordNode) == 16);

struct Records {
  const RecordGeometry* geometry = nullptr;
  const WindowConfig* shapes = nullptr;   // of the windows, as declared
  const ColumnLayout* columns = nullptr;  // the items' own
  std::atomic<uint64_t>* words = nullptr;
  ItemWindow* windows = nullptr;
  RecordNode* nodes = nullptr;
  uint32_t* heads = nullptr;  // of each row slot: the first node there, + 1
  std::byte* values = nullptr;
  std::atomic<uint64_t>* joined = nullptr;  // of groups, by lane: the key of the last episode that was looked at

  bool are_groups() const { return geometry->group_size != 0; }
  const WindowConfig& shape(uint64_t window) const { return shapes[are_groups() ? 0 : window]; }
  std::byte* values_of(uint64_t record) const { return values + record * geometry->value_stride; }
  ItemWindow* windows_of(uint64_t record) const { return windows + record * geometry->max_windows; }
  uint64_t node_of(uint64_t record, uint32_t window, uint32_t part) const {
    return record * geometry->nodes_a_record() + uint64_t{window} * geometry->pages_a_window + part;
  }
  uint64_t record_of(uint64_t node) const { return node / geometry->nodes_a_record(); }
};

// The keys of an index's leaves, and the words that have their generations. Implicit: leaves are row slots, and one
// page word serves all rows of the page. Explicit: leaves are records, each with its own word.
struct ItemMap {
  const std::atomic<uint64_t>* words = nullptr;
  uint64_t first = 0;  // the key of leaf 0 has this number in the place of a slot
  uint64_t num_leaves = 0;
  uint32_t shift = 0;  // log2 of the leaves of one word
  bool is_explicit = false;

  uint64_t word(uint64_t leaf) const { return words[leaf >> shift].load(std::memory_order_acquire); }
  // The word of a leaf's page or record; 0 if it is no longer in use, or has another generation.
  uint64_t word_of(uint64_t leaf, uint64_t generation) const {
    const uint64_t now = word(leaf);
    const bool is_used = (now & 3) == 1 || (now & 3) == 2;
    return is_used && now >> kGenerationShift == generation ? now : 0;
  }
  // Whether the leaf still has the generation that it had when `then` was read. Exact under the lock.
  bool is_same(uint64_t leaf, uint64_t then) const {
    return word(leaf) >> kGenerationShift == then >> kGenerationShift;
  }
  void prefetch(uint64_t leaf) const { __builtin_prefetch(words + (leaf >> shift)); }
};

}  // namespace relive
