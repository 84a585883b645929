// A condition over the columns of an item: a small program in postfix order, made once, run for items some at a time.
//
// Values are whole numbers (int64; a truth is 0 or 1) or real ones (float64). Which of the two an operation works on is
// in its code: the program was typed when it was written (relive/where.py), and nothing is asked of a type here.
//
// Owner:   a Predicate is a plain value. Locking: none; who reads rows without the lock looks at their words afterwards.
// Cost:    some nanoseconds an item, beside the memory that the columns lie in; operations go over items in a loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "relive/words/program.hpp"
#include "relive/words/region.hpp"

namespace relive {

inline constexpr uint32_t kMostStacked = 16;       // values that wait for their operation
inline constexpr size_t kEvaluatedTogether = 128;  // items

// Reads a program for the items of an index. kInvalidConfig where it is none: too long, a value too few or too many, a
// column that is not there or no plain number.
Status read_predicate(const Region& r, uint32_t index, const std::vector<WrittenOperation>& written, Predicate* out);

// The same for the conditions of a configuration's indexes, whose layout is made: into indexes[i].where.
// kInvalidConfig, too, where the items are explicit, and where what is asked is not settled when an item is published.
Status settle_conditions(const Layout& layout, TableConfig* config);

// An item that is asked about. base: the frame of its page and its row there, or its record's own columns and row 0.
struct Subject {
  uint64_t slot;
  const std::byte* base;
  uint32_t row;
  uint32_t num_steps;  // counts where asks_length
};
// base and row of the item in this slot of an index, which are to be there.
Subject subject_of(const Region& r, uint32_t index, uint64_t slot);

// Where what a condition reads of an item lies, each line of memory once: found out once, and not for each item.
struct Reads {
  struct Cell {
    uint64_t offset;  // of row 0, from Subject::base on
    uint32_t stride;  // from row to row
  };
  uint32_t num_cells = 0;
  bool has_marks = false;
  Cell cells[kMostOperations];
};
Reads reads_of(const Region& r, const Predicate& predicate);

// Asks memory for what evaluate() will read.
inline void prefetch(const Region& r, const Reads& reads, const Subject& item) {
  for (uint32_t k = 0; k < reads.num_cells; ++k)
    __builtin_prefetch(item.base + reads.cells[k].offset + uint64_t{item.row} * reads.cells[k].stride);
  if (reads.has_marks) __builtin_prefetch(&r.marks[item.slot]);
}

// Whether the item in this slot of an index of rows passes the index's own condition (rule Q1), if it has one. Asked of
// rows that cannot go: under the lock.
inline bool has_condition(const Region& r, uint32_t index) {
  return r.header->indexes[index].where.num_operations != 0;
}
bool passes_condition(const Region& r, uint32_t index, uint64_t slot);

// The same of rows of one page, asked in order, on the stack: the condition runs for many of them at a time.
class PassingRows final {
 public:
  PassingRows(const Region& r, uint32_t index) : r_(r), index_(index), is_choosy_(has_condition(r, index)) {}
  // page: the one that all questions to this object are of. end: rows before it are there.
  bool has(uint64_t page, uint32_t offset, uint32_t end) { return !is_choosy_ || looks_at(page, offset, end); }
  // Whether all of [offset, end) pass, at most kEvaluatedTogether rows; where the condition is asked.
  bool has_all(uint64_t page, uint32_t offset, uint32_t end) {
    return looks_at(page, offset, end) && (end - offset == 1 || are_all_);
  }

 private:
  bool looks_at(uint64_t page, uint32_t offset, uint32_t end);
  [[gnu::noinline]] void look_ahead(uint64_t page, uint32_t offset, uint32_t end);

  const Region& r_;
  const uint32_t index_;
  const bool is_choosy_;
  uint32_t first_ = 0, end_ = 0;  // rows that passes_ is of
  bool are_all_ = false;
  bool passes_[kEvaluatedTogether];
};

// passes[i]: whether the condition holds for items[i], i < count <= kEvaluatedTogether.
void evaluate(const Region& r, const Predicate& predicate, const Subject* items, size_t count, bool* passes);
// The same of rows of one page, from `first` on; num_steps is 0.
void evaluate_rows(const Region& r, const Predicate& predicate, const Subject& first, size_t count, bool* passes);

}  // namespace relive
