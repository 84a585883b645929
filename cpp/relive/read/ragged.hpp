// Ragged batches: the rows of all items are concatenated, with offsets [B + 1]. The number of rows of an item is known
// when its window is resolved, and memory is made for exactly the rows of all items. A batch is therefore read twice:
// first the lengths, for which the heads of its steps suffice, then the rows. An item that changes in between, or that
// another draw claims, is drawn again with another length, and the items after it move.
//
// Owns:    a RaggedBatch belongs to the call that makes it; the RowRoom owns the memory.
// Locking: none.
// Cost:    a second walk over the heads of each window; one more copy of the batch if lengths change.
#pragma once

#include <cstdint>
#include <vector>

#include "relive/read/gather.hpp"

namespace relive {

// Makes memory for the outputs of a plan when the number of rows is known.
class RowRoom {
 public:
  virtual ~RowRoom() = default;
  // One buffer for each output, for num_rows rows in total, the batch's items and its offsets. The memory of a call
  // stays valid until the second call after it. Returns null if there is no memory. Does not throw.
  virtual std::byte* const* make(size_t num_rows) = 0;
};

class RaggedBatch final {
 public:
  // plan: of ragged items; it outlives the batch.
  RaggedBatch(const GatherPlan& plan, RowRoom& room);
  // Begins a batch of `count` items that are not drawn yet, and forgets the batch before.
  void begin(size_t count);

  // The plan of the first reading: the number of rows of each item, in lengths_out()[0].
  const GatherPlan& lengths_plan() const { return lengths_plan_; }
  std::byte* const* lengths_out() { return &lengths_buffer_; }
  // An item has no rows: it is drawn again, or its key is gone.
  void forget(size_t item);
  // Places every item by the present lengths, and moves rows that were read. Call this before rows are read, and again
  // after forget(). Returns kSystemError if there is no memory.
  Status lay_out();

  // Prepares the second reading, of rows into out(): sets the place of these windows. Window::row is the item.
  void place(Window* windows, const uint32_t* which, size_t count) const;
  bool has_rows(size_t item) const { return lengths_[item] > 0; }
  std::byte* const* out() const { return out_; }
  // Notes that the rows of this item are read.
  void note(size_t item) { is_read_[item] = 1; }
  // Call this after all rows are read: writes the offsets.
  Status finish();
  int64_t num_rows() const { return offsets_.empty() ? 0 : offsets_.back(); }

 private:
  void move_to(std::byte* const* to, const std::vector<int64_t>& offsets) const;

  const GatherPlan& plan_;
  RowRoom& room_;
  GatherPlan lengths_plan_;
  std::vector<int64_t> lengths_;  // rows of each item, 0: none yet
  std::byte* lengths_buffer_ = nullptr;
  std::vector<int64_t> offsets_;  // places in out_
  std::vector<uint8_t> is_read_;
  std::byte* const* out_ = nullptr;
};

}  // namespace relive
