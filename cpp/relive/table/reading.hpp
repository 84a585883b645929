// Reading a table: batches drawn, items gathered by their keys, credits handed out or given back.
//
// Owner:   outputs, keys and presence are the caller's memory.
// Locking: no lock is taken while rows are copied (rule C4).
// Cost:    about 90 ns an item of a small transition; large rows at the speed of memory, or of the disk (tiered.hpp).
#pragma once

#include <string>
#include <vector>

#include "relive/read/draw.hpp"
#include "relive/read/gather.hpp"
#include "relive/table/table.hpp"

namespace relive {

Status make_plan(Table& table, uint32_t index, const std::vector<std::string>& names, GatherPlan* plan);
// Draws num_items items as the index's sampler says (by mass: with replacement, stratified, in permuted rows); with a
// plan, also gathers their rows. Blocks until the limiter and min_size admit the draw, at most timeout_s.

Status sample(Table& table, const DrawRequest& request, double timeout_s);
// Claims the keys of a draw that the caller made (request.keys) instead of drawing. request.taken: which of them were
// there.
Status claim(Table& table, const DrawRequest& request, double timeout_s);
// The same for a plan whose items lie end to end.
Status sample_ragged(Table& table, const DrawRequest& request, double timeout_s);
Status gather_ragged(Table& table, const GatherPlan& plan, const int64_t* keys, size_t count, RaggedBatch* ragged,
                     uint8_t* present);
// If the item of keys[i] is gone: present[i] = 0, and zeros.
Status gather(Table& table, const GatherPlan& plan, const int64_t* keys, size_t count, std::byte* const* out,
              uint8_t* present);
// For a draw with `hold`: its items were handed out, or will not be. positions: those that it took of an epoch.
Status commit_held(Table& table, uint32_t index, int64_t num_items);
Status return_held(Table& table, uint32_t index, int64_t num_items, const Positions& positions = {});

}  // namespace relive
