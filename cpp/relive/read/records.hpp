// The second map from leaf to windows: explicit items, whose records list them (rules X1, X5).
//
// An item resolves to the runs of its windows, one window after the other. Its batch has columns for each window, named
// `window/column` (the column's own name where the index has one window without a name), padded with zeros behind the
// window's rows to its length; `mask` and `num_steps` say how many there are. The item's own columns stand beside them.
//
// Locking: none needed, as for implicit items (gather.hpp, which calls these).
// Cost:    an item's record is one more line of memory than a row's item, and each window a page's word and frame.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "relive/read/gather.hpp"

namespace relive {

// Names, of a window: declared columns; mask, lane, episode_step, first, terminated, truncated, discount, policy_version
// and staleness, one a row; num_steps. Of the item: its own columns. What is computed over the window of a step (a
// return, a next state, a stack) means nothing here: kInvalidConfig.
Status make_record_plan(const Region& r, const std::vector<std::string>& names, GatherPlan* plan);

// Asks for the words and first windows of the records of groups of leaves, by the time a leaf is chosen.
void ask_for_records(const Region& r, uint32_t index, const uint64_t* groups, size_t count, uint64_t group_size);

// locate(), resolve() and copy_rows() of explicit items.
void locate_records(const Region& r, const GatherPlan& plan, Window* windows, const uint32_t* which, size_t count);
void resolve_records(const Region& r, const GatherPlan& plan, Window* windows, const uint32_t* which, size_t count,
                     Runs* runs);
void copy_records(const Region& r, const GatherPlan& plan, const Window* windows, const Runs& runs,
                  const uint32_t* which, size_t count, std::byte* const* out);

// Its two parts: what comes of rows, and the items' own columns, which lie in records and may go while their rows stay.
void copy_record_rows(const Region& r, const GatherPlan& plan, const Window* windows, const Runs& runs,
                      const uint32_t* which, size_t count, std::byte* const* out);
void copy_record_values(const Region& r, const GatherPlan& plan, const Window* windows, const uint32_t* which,
                        size_t count, std::byte* const* out);

// Of items whose runs were noted under the lock that began a hold, after their rows were copied: true where a page has a
// new word since (a recovery's doing, rule D6); its run is noted anew, and the rows are to be copied again. *is_gone where
// a page went. The records themselves are not looked at: they may have been rewritten, the rows stay.
bool renew_runs(const Region& r, const Window* windows, const uint32_t* which, size_t count, Runs* runs, bool* is_gone);

}  // namespace relive
