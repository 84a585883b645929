// Explicit items: maps a leaf to the windows that its record lists (rules X1, X5). An item resolves to the runs of its
// windows, one window after the other. A batch has columns for each window, named `window/column` (without `window/` if
// the index has one unnamed window), with zeros after the window's rows; `mask` and `num_steps` tell the number of
// rows. The item's own columns come in addition.
//
// Owns:    nothing.
// Locking: none, as for implicit items (gather.hpp, which calls these functions).
// Cost:    an item's record is one cache line more than a row's item; each window costs the word and the frame of a
//          page.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "relive/read/gather.hpp"

namespace relive {

// Names for a window: declared columns; mask, lane, episode_step, first, terminated, truncated, discount,
// policy_version and staleness, one for each row; num_steps. Names for the item: its own columns. Outputs that are
// computed over the window of a step (a return, a next state, a stack) do not exist here: kInvalidConfig.
Status make_record_plan(const Region& r, const std::vector<std::string>& names, GatherPlan* plan);

// Prefetches the words and first windows of the records of groups of leaves, before leaves are chosen.
void ask_for_records(const Region& r, uint32_t index, const uint64_t* groups, size_t count, uint64_t group_size);

// locate(), resolve() and copy_rows() for explicit items.
void locate_records(const Region& r, const GatherPlan& plan, Window* windows, const uint32_t* which, size_t count);
void resolve_records(const Region& r, const GatherPlan& plan, Window* windows, const uint32_t* which, size_t count,
                     Runs* runs);
void copy_records(const Region& r, const GatherPlan& plan, const Window* windows, const Runs& runs,
                  const uint32_t* which, size_t count, std::byte* const* out);

// The two parts of copy_records(): outputs made of rows; and the items' own columns, which lie in records and may
// change while the rows stay.
void copy_record_rows(const Region& r, const GatherPlan& plan, const Window* windows, const Runs& runs,
                      const uint32_t* which, size_t count, std::byte* const* out);
void copy_record_values(const Region& r, const GatherPlan& plan, const Window* windows, const uint32_t* which,
                        size_t count, std::byte* const* out);

// For items whose runs were noted under the lock while all pages are pinned, after their rows were copied. Returns true
// if a page has a new word since (recovery gives new words, rule D6): the run takes the new word, and the caller copies
// the rows again. *is_gone: a page was freed. The records are not checked: they may have been rewritten, but the rows
// stay.
bool renew_runs(const Region& r, const Window* windows, const uint32_t* which, size_t count, Runs* runs, bool* is_gone);

}  // namespace relive
