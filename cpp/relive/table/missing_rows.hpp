// The rows of a batch that a draw still has to fill, round by round.
//
// `missing` are the rows that the present round is asked for. Every step of a round may lose a row (its item went,
// changed, or was used up meanwhile); lost rows are collected in `still_missing`. The end of the round makes the lost
// rows the rows of the next round. read/draw.hpp reads and fills the two lists; this class is the only code that
// exchanges them.
//
// Owner:   the lists belong to the thread's DrawScratch.
// Locking: none. Nothing here allocates after DrawScratch::begin(), so a round may run under the table lock.
// Cost:    O(rows).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "relive/read/draw.hpp"

namespace relive {

class MissingRows final {
 public:
  explicit MissingRows(DrawScratch& scratch) : s_(scratch) {}

  bool empty() const { return s_.missing.empty(); }
  size_t size() const { return s_.missing.size(); }
  const std::vector<uint32_t>& rows() const { return s_.missing; }

  // Every row of the batch. A draw without replacement brings the heavy items first, so there each item goes to a row
  // at random (is_shuffled): any slice of the batch is a fair one.
  void ask_for_all(size_t num_items, bool is_shuffled) {
    s_.missing.resize(num_items);
    if (is_shuffled) {
      std::copy_n(s_.strata.begin(), num_items, s_.missing.begin());
    } else {
      for (size_t j = 0; j < num_items; ++j) s_.missing[j] = static_cast<uint32_t>(j);
    }
    s_.taken.clear();
  }
  void ask_for(const uint32_t* rows, size_t count) {
    s_.missing.assign(rows, rows + count);
    s_.still_missing.clear();
  }

  // ---- within a round
  size_t num_lost() const { return s_.still_missing.size(); }
  // Calls keep(window) for each row that the round has filled. If keep() returns false the row is lost.
  template <class Keep>
  void keep_if(Keep&& keep) {
    Window* const windows = s_.windows.data();
    for (const uint32_t row : s_.missing) {
      Window& w = windows[row];
      if (!w.ok || keep(w)) continue;
      w.ok = false;
      s_.still_missing.push_back(row);
    }
  }
  // The whole round counts for nothing.
  void lose_all() {
    s_.still_missing.assign(s_.missing.begin(), s_.missing.end());
    for (const uint32_t row : s_.missing) s_.windows[row].ok = false;
  }

  void end_round() { s_.missing.swap(s_.still_missing); }

 private:
  DrawScratch& s_;
};

}  // namespace relive
