// Batches whose items lie end to end: the rows of one behind those of the other, and offsets [B + 1] between them.
//
// How many rows an item shows is known when its window is resolved, and memory is made for exactly the rows of all. So
// a batch is read twice: its lengths, which takes the heads of its steps and no more, then its rows. An item that goes
// in between, or that is claimed by somebody else, is drawn anew: its length is another one, and what lies behind it
// moves.
//
// Owner:   one batch, of the call that makes it; memory is the RowRoom's. Locking: none needed.
// Cost:    a second walk over the heads of each window; where lengths change, one more copy of the batch.
#pragma once

#include <cstdint>
#include <vector>

#include "relive/read/gather.hpp"

namespace relive {

// Who makes memory for the outputs of a plan, once it is known for how many rows.
class RowRoom {
 public:
  virtual ~RowRoom() = default;
  // One buffer an output, of so many rows in all, of the batch's items, of its offsets. What it made last stays valid
  // until the next call but one. Null where there is no memory. Does not throw.
  virtual std::byte* const* make(size_t num_rows) = 0;
};

class RaggedBatch final {
 public:
  // plan: of items that lie end to end; it outlives the batch.
  RaggedBatch(const GatherPlan& plan, RowRoom& room);
  // So many items, none of them drawn yet. What was there is forgotten.
  void begin(size_t count);

  // What the first reading asks for: a number of rows for each item, in lengths_out()[0].
  const GatherPlan& lengths_plan() const { return lengths_plan_; }
  std::byte* const* lengths_out() { return &lengths_buffer_; }
  // An item has no rows: it is drawn anew, or its key's is gone.
  void forget(size_t item);
  // Gives every item its place by the lengths that are there now; rows that were read move with it. Call it before
  // rows are read, and where items were forgotten behind that. kSystemError where there is no memory.
  Status lay_out();

  // What the second reading asks for: rows into out(), of windows that have a place (Window::row says whose).
  void place(Window* windows, const uint32_t* which, size_t count) const;
  bool has_rows(size_t item) const { return lengths_[item] > 0; }
  std::byte* const* out() const { return out_; }
  // The rows of this item are read.
  void note(size_t item) { is_read_[item] = 1; }
  // All rows are read: writes the offsets.
  Status finish();
  int64_t num_rows() const { return offsets_.empty() ? 0 : offsets_.back(); }

 private:
  void move_to(std::byte* const* to, const std::vector<int64_t>& offsets) const;

  const GatherPlan& plan_;
  RowRoom& room_;
  GatherPlan lengths_plan_;
  std::vector<int64_t> lengths_;  // rows of each item, 0: none yet
  std::byte* lengths_buffer_ = nullptr;
  std::vector<int64_t> offsets_;  // where they lie in out_
  std::vector<uint8_t> is_read_;
  std::byte* const* out_ = nullptr;
};

}  // namespace relive
