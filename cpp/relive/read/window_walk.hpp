// Finds the runs of a window page by page. Used by resolve.cpp, sequences.cpp and hindsight.cpp.
//
// Owns:    a Walk lives on the stack of its caller.
// Locking: none; the caller checks the words again (rule G4).
// Cost:    one page word and one frame for each page.
#pragma once

#include "relive/read/rows.hpp"

namespace relive {

inline void begin_window(Window& w, const Runs& runs) {
  w.pages_after = w.pages_before = 0;
  w.first_run = static_cast<uint32_t>(runs.size());
  w.num_steps = 1;
}

// The last page of a window's runs on the side after the item.
inline Run last_page(const Region& r, const Window& w, const Runs& runs) {
  return w.pages_after == 0 ? Run{r.page_of(w.slot), w.word, w.base} : runs[w.first_run + w.pages_after - 1];
}

// Adds the next page after those that the window has. Call this before any page before the item is added.
inline bool add_next(const Region& r, Window& w, Runs* runs) {
  Run next;
  if (!follow(r, r.pages[last_page(r, w, *runs).page].next, &next)) return false;
  runs->push_back(next);
  ++w.pages_after;
  return true;
}

// Adds the pages before `page`, the window's first page so far, as far as `rows` rows before its row 0 reach.
inline bool add_pages_before(const Region& r, Window& w, uint64_t page, int64_t rows, Runs* runs) {
  for (int64_t left = rows; left > 0; left -= r.page_len) {
    Run prev;
    if (!follow(r, r.pages[page].prev, &prev)) return false;
    runs->push_back(prev);
    ++w.pages_before;
    page = prev.page;
  }
  return true;
}

// Adds the pages before the item's own page, as far as `rows` rows before the item reach.
inline bool add_before(const Region& r, Window& w, int64_t rows, Runs* runs) {
  return add_pages_before(r, w, r.page_of(w.slot), rows - r.offset_of(w.slot), runs);
}

// A cursor over the rows of a window, page by page.
struct Walk {
  const Region& r;
  Window& w;
  Runs* runs;
  Run at;             // the page
  uint32_t row;       // in that page
  uint32_t step_end;  // of that page

  Walk(const Region& region, Window& window, Runs* list)
      : r(region), w(window), runs(list), at{r.page_of(w.slot), w.word, w.base}, row(r.offset_of(w.slot)) {
    look();
  }
  void look() { step_end = Range::unpack(r.pages[at.page].range.load(std::memory_order_acquire)).step_end; }
  // Moves on by `rows` rows, at most to row 0 of the next page. Returns false if that page is gone.
  bool advance(uint32_t rows = 1) {
    row += rows;
    if (row < r.page_len) return true;
    if (!add_next(r, w, runs)) return false;
    at = runs->back();
    row = 0;
    look();
    return true;
  }
  // Whether no page follows the current one.
  bool is_last_page() const { return r.pages[at.page].next.load(std::memory_order_acquire) == 0; }
  bool is_there() const { return row < step_end; }
  bool is_tail() const { return r.is_tail(at.page, row); }
  // The number of steps from this row on, at most `most`: up to the next tail, or to the last row of the page.
  uint32_t num_steps(uint32_t most) const {
    return is_there() ? r.rows_to_tail(at.page, row, std::min(most, step_end - row)) : 0;
  }
  const std::byte* record() const { return at.base + row * r.geometry->record_stride; }
};

}  // namespace relive
