// Start cells: memory for the large columns of kind start, given only to rows where a window may begin (rule B4). A
// cell is free, or is linked to the page whose writer took it; all cells of a page become free together with that page,
// so a lane that ends early leaves no cell to account for. A row names its cell in a word after its head. That word is
// written with the row. The exception is a window that an episode's end moves back: its cell is named in the critical
// section of that end.
//
// Owns:    nothing; the region owns the cells.
// Locking: every function with a Held runs under the table lock. A row's word is written by the owner of its lane.
// Cost:    one load and three stores for each cell that is taken or becomes free.
#pragma once

#include <cstdint>

#include "relive/words/held.hpp"

namespace relive {

// The word of a row that names its cell. After the row is a step, only name_cell() stores this word. A save loads it
// without the lock, as it copies the bytes of rows (row_bytes.hpp).
void store_cell_word(std::byte* record, uint32_t cell);
uint32_t load_cell_word(const std::byte* record);

// A free cell for a row of a page that the caller writes; kNoCell if no cell is free.
uint32_t take_cell(Held& held, uint64_t page);
// Moves a cell, which its owner took for page `from` and has written, to the page of a step, and makes that step name
// the cell. Call this before any store that makes the row the first of an item.
void name_cell(Held& held, uint64_t from, uint32_t cell, uint64_t slot);
// Makes cells [from, to), which have memory now, free.
void offer_cells(Held& held, uint64_t from, uint64_t to);
// Frees the cells of a page after the page's generation has ended.
void release_cells(Held& held, uint64_t page);
// After a death: cells linked to used pages are taken, all other cells that have memory are free. taken: one mark for
// each cell.
void recover_cells(Held& held, uint8_t* taken);
// The first broken invariant of the cells; null if none is broken. owner: one word for each cell.
const char* broken_cells(const Region& r, uint32_t* owner);

}  // namespace relive
