// The second map from leaf to windows: explicit items, whose records list them (rules X1, X5).
//
// An item resolves to the runs of its windows, one window after the other. Its batch is the rows of all of them, padded
// with zeros to max_windows x max_rows; num_steps says how many there are.
//
// Locking: none needed, as for implicit items (gather.hpp, which calls these).
// Cost:    an item's record is one more line of memory than a row's item, and each window a page's word and frame.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "relive/read/gather.hpp"

namespace relive {

// Names: declared columns; num_steps; lane, episode_step, first, terminated and policy_version, one a row. What is
// computed over the window of a step (a return, a next state, a stack) means nothing here: kInvalidConfig.
Status make_record_plan(const Region& r, const std::vector<std::string>& names, GatherPlan* plan);

// Asks for the words and first windows of the records of groups of leaves, by the time a leaf is chosen.
void ask_for_records(const Region& r, uint32_t index, const uint64_t* groups, size_t count, uint64_t group_size);

// locate(), resolve() and copy_rows() of explicit items.
void locate_records(const Region& r, const GatherPlan& plan, Window* windows, const uint32_t* which, size_t count);
void resolve_records(const Region& r, const GatherPlan& plan, Window* windows, const uint32_t* which, size_t count,
                     Runs* runs);
void copy_records(const Region& r, const GatherPlan& plan, const Window* windows, const Runs& runs,
                  const uint32_t* which, size_t count, std::byte* const* out);

// Of items whose runs were noted under the lock that began a hold, after their rows were copied: true where a page has a
// new word since (a recovery's doing, rule D6); its run is noted anew, and the rows are to be copied again. *is_gone where
// a page went. The records themselves are not looked at: they may have been rewritten, the rows stay.
bool renew_runs(const Region& r, const Window* windows, const uint32_t* which, size_t count, Runs* runs, bool* is_gone);

}  // namespace relive
