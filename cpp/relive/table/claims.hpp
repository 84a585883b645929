// Claims of a draw on items with use counts (rule G7): each use is counted under the lock, and decided when the draw is
// over. Then it is handed out or given back. Until then the page of the item's row counts the claim, and does not go
// early.
//
// Owner:   the list of claims belongs to the draw, or to the caller of a draw in flight. If the process dies, uses stay
//          counted and pages go at their usual time.
// Locking: the table lock.
// Cost:    about 20 ns a claim.
#pragma once

#include <vector>

#include "relive/read/draw.hpp"
#include "relive/table/table.hpp"

namespace relive {

// Counts one use of an item that is there and can be drawn, and notes the values that are needed to give it back.
// The place of an item that is used up stays taken in a queue until the claim is decided (rule P7).
void claim_use(Table& table, Held& held, uint32_t index, uint64_t slot, uint64_t word, std::vector<Claimed>* claimed);
// The claims will not be given back: the places of items that are used up are free. decide_claims() frees the pages.
void free_places(Table& table, uint32_t index, const std::vector<Claimed>& claimed);
// The batch was handed out. is_read: pages whose items are all used up are freed. If the rows are still to be read,
// such pages stay until a later call frees them. If the lock is not available, pages go at their usual time.

void decide_claims(Table& table, uint32_t index, const std::vector<Claimed>& claimed, bool is_read);
// Gives the uses back. An item that has ended stays ended.
void undo_claims(Table& table, uint32_t index, const std::vector<Claimed>& claimed, const Deadline& deadline);
// A draw that was in flight with its claims is handed out (is_read: see decide_claims), or given back with all its
// uses and the positions that it took of an epoch.
Status commit_batch(Table& table, uint32_t index, int64_t num_items, const std::vector<Claimed>& claims, bool is_read);
Status give_back_batch(Table& table, uint32_t index, int64_t num_items, const std::vector<Claimed>& claims,
                       const Positions& positions = {});

}  // namespace relive
