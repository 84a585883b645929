// What a draw has claimed of items with use counts, when the draw is over: handed out, or given back.
#pragma once

#include <vector>

#include "relive/read/draw.hpp"
#include "relive/table/table.hpp"

namespace relive {

// Pages all of whose items are used up go back; in vain at worst, for the batch is there.
void free_used_up(Table& table, uint32_t index, bool is_planned, const std::vector<Claimed>& claimed);
// Uses given back. An item that ended meanwhile stays ended.
void undo_claims(Table& table, uint32_t index, bool is_planned, const std::vector<Claimed>& claimed,
                 const Deadline& deadline);
// Of a draw that was held with its claims: it is handed out, or all of it is given back, its uses too (an item that ended
// meanwhile stays ended). is_planned: it was drawn of rows that are read ahead.
Status commit_batch(Table& table, uint32_t index, int64_t num_items, bool is_planned,
                    const std::vector<Claimed>& claims);
Status give_back_batch(Table& table, uint32_t index, int64_t num_items, bool is_planned,
                       const std::vector<Claimed>& claims);

}  // namespace relive
