// The rounds of one draw: each is an attempt at every row that is still missing (read/draw.hpp), made without the table
// lock or under it, and the claims that follow it.
//
// Owner:   a DrawRounds lives on the stack of the call; it borrows the thread's DrawScratch.
// Locking: draw() works with and without the table lock. claim() takes it; claim_locked() runs under it.
// Cost:    that of draw_round(), and 20 ns a claim.
#pragma once

#include <optional>

#include "relive/table/draw_call.hpp"
#include "relive/table/missing_rows.hpp"

namespace relive {

class DrawRounds final {
 public:
  DrawRounds(const DrawCall& call, DrawScratch& scratch);

  const DrawCall& call() const { return call_; }
  DrawScratch& scratch() { return s_; }
  MissingRows& missing() { return missing_; }
  // The request that a round makes for the items that it draws: their rows or, if items lie end to end, their lengths.
  const DrawRequest& first_request() const { return first_; }

  // Begins a batch, whose random numbers follow from draw_number.
  void begin(uint64_t draw_number);
  // Asks for every row of the batch, and forgets what earlier rounds looked at.
  void begin_again();
  void ask_for_all() { missing_.ask_for_all(call_.request.num_items, call_.is_distinct()); }

  // Waits while the exponent of the index is being changed (rule H3).
  Status outwait_change();
  // One attempt at every missing row. False: the index has nothing to draw, or too few items for a batch that has none
  // twice.
  bool draw(const DrawRequest& request, uint32_t attempt);
  // If items lie end to end: reads the rows of the items whose lengths the round read.
  Status read_rows();
  // Counts a use of each item of the round (rule G7). Items that can not be used any more are lost.
  Status claim();
  void claim_locked(Held& held);
  // Gives back every use that the batch has claimed.
  void undo_claims(const Deadline& deadline);
  // After a round that did not find enough items: whether the draw looks on. kRareItems, kDeadlineExceeded.
  Status look_on();
  // Whether no change of the exponent lies between the rounds of the batch.
  bool is_of_one_exponent() const { return first_raised_ == last_raised_; }

 private:
  void forget_round();
  bool is_behind(const Leaves& leaves, uint64_t num_wanted) const;

  const DrawCall& call_;
  DrawScratch& s_;
  MissingRows missing_;
  DrawRequest first_;
  const bool has_exponent_;         // which may be changed during the draw
  uint64_t first_raised_ = 0;       // how often it had been changed when the batch had nothing yet
  uint64_t last_raised_ = 0;        // and when the last round began
  uint64_t draw_number_ = 0;        // the random numbers follow from it
  std::optional<Hearing> hearing_;  // for signals, in a draw that looks for its items
};

}  // namespace relive
