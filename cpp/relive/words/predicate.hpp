// A condition over the columns of an item: a small program in postfix order. It is made once and runs for many items at
// a time.
//
// Values are whole numbers (int64; a truth value is 0 or 1) or real numbers (float64). The code of an operation says on
// which of the two it works: relive/config/where.py checked the types when it wrote the program, and nothing is checked here.
//
// Owner:   a Predicate is a plain value.
// Locking: none. A caller that reads rows without the lock reads the words of their pages again afterwards.
// Cost:    some nanoseconds an item, and the cache misses of its columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "relive/words/program.hpp"
#include "relive/words/region.hpp"

namespace relive {

inline constexpr uint32_t kMostStacked = 16;       // values on the stack
inline constexpr size_t kEvaluatedTogether = 128;  // items

// Reads a program for the items of an index. kInvalidConfig if the program is too long, leaves a value too few or too
// many, or names a column that is not there or is no plain number.
Status read_predicate(const Region& r, uint32_t index, const std::vector<WrittenOperation>& written, Predicate* out);

// Reads the conditions of a configuration's indexes into indexes[i].where, after the layout was made. kInvalidConfig
// also if the items are explicit, or if the condition asks for a value that may change after an item is published.
Status settle_conditions(const Layout& layout, TableConfig* config);

// An item that a condition is asked about. base and row: the frame of its page and its row there, or the own columns of
// its record and row 0.
struct Subject {
  uint64_t slot;
  const std::byte* base;
  uint32_t row;
  uint32_t num_steps;  // valid if asks_length
};
// The item in this slot of an index. Its page or record must be there.
Subject subject_of(const Region& r, uint32_t index, uint64_t slot);

// The cells that a condition reads of every item, one for each line of memory. Computed once for a condition.
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

// Prefetches the cells that evaluate() will read.
inline void prefetch(const Region& r, const Reads& reads, const Subject& item) {
  for (uint32_t k = 0; k < reads.num_cells; ++k)
    __builtin_prefetch(item.base + reads.cells[k].offset + uint64_t{item.row} * reads.cells[k].stride);
  if (reads.has_marks) __builtin_prefetch(&r.marks[item.slot]);
}

// Whether the item in this slot of an index of rows passes the index's own condition (rule Q1), if it has one. Under
// the lock, so that the row cannot go.
inline bool has_condition(const Region& r, uint32_t index) {
  return r.header->indexes[index].where.num_operations != 0;
}
bool passes_condition(const Region& r, uint32_t index, uint64_t slot);

// The same for rows of one page that are asked about in order. It lies on the stack and runs the condition for many
// rows at a time.
class PassingRows final {
 public:
  PassingRows(const Region& r, uint32_t index) : r_(r), index_(index), is_choosy_(has_condition(r, index)) {}
  // page: the same in all calls. end: the rows before it are there.
  bool has(uint64_t page, uint32_t offset, uint32_t end) { return !is_choosy_ || looks_at(page, offset, end); }
  // Whether all rows of [offset, end) pass, at most kEvaluatedTogether. Only of an index that has a condition.
  bool has_all(uint64_t page, uint32_t offset, uint32_t end) {
    return looks_at(page, offset, end) && (end - offset == 1 || are_all_);
  }

 private:
  bool looks_at(uint64_t page, uint32_t offset, uint32_t end);
  [[gnu::noinline]] void look_ahead(uint64_t page, uint32_t offset, uint32_t end);

  const Region& r_;
  const uint32_t index_;
  const bool is_choosy_;
  uint32_t first_ = 0, end_ = 0;  // the rows of passes_
  bool are_all_ = false;
  bool passes_[kEvaluatedTogether];
};

// passes[i]: whether items[i] passes the condition, i < count <= kEvaluatedTogether.
void evaluate(const Region& r, const Predicate& predicate, const Subject* items, size_t count, bool* passes);
// The same for rows of one page, from `first` on; their num_steps is 0.
void evaluate_rows(const Region& r, const Predicate& predicate, const Subject& first, size_t count, bool* passes);

}  // namespace relive
