// Records: what an index whose items are explicit keeps of each item, and where each hangs (rules X1 to X7).
//
// A record has a place for each window that the index declares, and the values of the item's own columns; an item's leaf
// is its record's number. The word of a record has the same bits as a page's:
// used while the item is there, its generation moves when the item goes. A record *hangs*, for every page that each of
// its windows touches, at the first row that the window has in that page. Rows go in order from the front of a page, so
// what hangs at the row that goes is all that has to end with it.
//
// Owner:   the region owns the bytes; Records and ItemMap are views.
// Locking: written under the table lock only. Words and windows are read at any time, nodes and heads under it alone.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "relive/words/layout.hpp"

namespace relive {

// One window of a record, PRIMARY, as its own columns are. Written while the record is free, before its word says
// otherwise (rule X2). How far its rows lie apart is the window's declaration, not the item's.
struct ItemWindow {
  std::atomic<int64_t> key;                // of its first row
  std::atomic<uint32_t> num_rows;          // 0: the item has no such window
  std::atomic<uint32_t> pending_priority;  // of an item's first one: bits of a float32 that waits for late columns
};
static_assert(sizeof(ItemWindow) == 16);

// One place where a record hangs, DERIVED. Nodes are named by number + 1, so that zeroed memory hangs nowhere.
struct RecordNode {
  uint64_t place;       // row slot + 1; 0: it does not hang
  uint32_t prev, next;  // at the same row
};
static_assert(sizeof(RecordNode) == 16);

struct Records {
  const RecordGeometry* geometry = nullptr;
  const WindowConfig* shapes = nullptr;   // of the windows, as they were declared
  const ColumnLayout* columns = nullptr;  // the items' own
  std::atomic<uint64_t>* words = nullptr;
  ItemWindow* windows = nullptr;
  RecordNode* nodes = nullptr;
  uint32_t* heads = nullptr;  // of each row slot: the first node there, + 1
  std::byte* values = nullptr;
  std::atomic<uint64_t>* joined = nullptr;  // of groups: of each lane the key of its last episode that was looked at

  bool are_groups() const { return geometry->group_size != 0; }
  const WindowConfig& shape(uint64_t window) const { return shapes[are_groups() ? 0 : window]; }
  std::byte* values_of(uint64_t record) const { return values + record * geometry->value_stride; }
  ItemWindow* windows_of(uint64_t record) const { return windows + record * geometry->max_windows; }
  uint64_t node_of(uint64_t record, uint32_t window, uint32_t part) const {
    return record * geometry->nodes_a_record() + uint64_t{window} * geometry->pages_a_window + part;
  }
  uint64_t record_of(uint64_t node) const { return node / geometry->nodes_a_record(); }
};

// How the leaves of an index stand to keys and to the words that hold their generations: row slots, a page's word for
// all of its rows (implicit), or records, each with a word of its own (explicit).
struct ItemMap {
  const std::atomic<uint64_t>* words = nullptr;
  uint64_t first = 0;  // what the key of leaf 0 holds in a slot's place
  uint64_t num_leaves = 0;
  uint32_t shift = 0;  // leaves of one word, as a power of two
  bool is_explicit = false;

  uint64_t word(uint64_t leaf) const { return words[leaf >> shift].load(std::memory_order_acquire); }
  // The word of a leaf's page or record; 0 where that is not in use any more, or by another generation.
  uint64_t word_of(uint64_t leaf, uint64_t generation) const {
    const uint64_t now = word(leaf);
    const bool is_used = (now & 3) == 1 || (now & 3) == 2;
    return is_used && now >> kGenerationShift == generation ? now : 0;
  }
  // Whether it is of the generation that it had when `then` was read. Exact under the lock.
  bool is_same(uint64_t leaf, uint64_t then) const {
    return word(leaf) >> kGenerationShift == then >> kGenerationShift;
  }
  void prefetch(uint64_t leaf) const { __builtin_prefetch(words + (leaf >> shift)); }
};

}  // namespace relive
