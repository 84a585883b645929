// Start cells: the large columns of kind start, kept for those rows alone where a window may begin (rules B4).
//
// A cell is free, or hangs at the page whose writer took it, and goes back with that page: nobody frees one by itself, so
// there is nothing to reckon when a lane ends early. A row names its cell by a word behind its head, which is written
// with the row, or, where its episode's end moves a window back to it, in the hold of that end. Locking: all of it under
// the table lock. Cost: one load and three stores a cell taken or given back.
#pragma once

#include <cstdint>

#include "relive/words/held.hpp"

namespace relive {

// The word of a row that names its cell. Of a row that is a step already only name_cell() stores it.
void store_cell_word(std::byte* record, uint32_t cell);
uint32_t load_cell_word(const std::byte* record);

// A cell for a row of a page that the caller writes; kNoCell where none is free.
uint32_t take_cell(Held& held, uint64_t page);
// A cell that its owner took for page `from` and has written: it hangs at the page of a step, which names it from now on.
// Before whatever makes the row the first of an item.
void name_cell(Held& held, uint64_t from, uint32_t cell, uint64_t slot);
// Cells [from, to) have memory now.
void offer_cells(Held& held, uint64_t from, uint64_t to);
// Gives back what hangs at a page whose generation is over.
void release_cells(Held& held, uint64_t page);
// After a death: what hangs at pages in use is taken, all else that has memory is free. taken: one mark a cell.
void recover_cells(Held& held, uint8_t* taken);
// What is wrong with them, null where nothing is. owner: one word a cell.
const char* broken_cells(const Region& r, uint32_t* owner);

}  // namespace relive
