// What a draw has claimed of items with use counts (rule G7): taken under the lock one by one, and decided when the draw
// is over: handed out, or given back. Until then the pages of rows count it and do not go early.
#pragma once

#include <vector>

#include "relive/read/draw.hpp"
#include "relive/table/table.hpp"

namespace relive {

// One use of an item that is there and can be drawn, and what it takes to give it back.
void claim_use(Held& held, uint32_t index, uint64_t slot, uint64_t word, std::vector<Claimed>* claimed);
// Handed out. is_read: pages all of whose items are used up go back; else they stay until somebody else looks, for their
// rows are still to be read. Where the lock is not to be had the pages go in their turn, and no earlier.
void decide_claims(Table& table, uint32_t index, const std::vector<Claimed>& claimed, bool is_read);
// Uses given back. An item that ended meanwhile stays ended.
void undo_claims(Table& table, uint32_t index, const std::vector<Claimed>& claimed, const Deadline& deadline);
// Of a draw that was held with its claims: it is handed out (is_read: see decide_claims), or all of it is given back, its
// uses too.
Status commit_batch(Table& table, uint32_t index, int64_t num_items, const std::vector<Claimed>& claims, bool is_read);
Status give_back_batch(Table& table, uint32_t index, int64_t num_items, const std::vector<Claimed>& claims);

}  // namespace relive
