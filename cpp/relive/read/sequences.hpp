// Items with a time axis: sequences and episodes (rules S1 to S3 say which there are).
//
// A window is `lead` rows of burn-in, the steps from the item's own on, and the state behind the last of them where the
// episode ends before the window is full. Its T rows come as [T, ...], padded where there are none:
//
//   pad right   | padding: burn-in that the episode does not have | lead | steps | tail | padding |
//   pad left    | padding | lead | steps | tail |
//
// Padding in front repeats the first state of the window (columns of kind state), all else of padding is zero; a tail
// has its states and zeros. The mask is set for steps alone.
//
// Locking: none needed, as for transitions (gather.hpp, which calls these).
// Cost:    the bytes of the rows at the speed of memory, and the head of each of its steps.
#pragma once

#include <string>
#include <vector>

#include "relive/read/gather.hpp"

namespace relive {

// Names: declared columns (of kind start: the first row's, no time axis), next_<state>, discount, mask, terminated,
// truncated, episode_step and first, one a row; lane, num_steps, policy_version (lowest and highest) and staleness (of
// the lowest), one an item. kInvalidConfig for any other.
Status make_sequence_plan(const Region& r, const std::vector<std::string>& names, GatherPlan* plan);

// resolve() and copy_rows() of sequences.
void resolve_sequences(const Region& r, const GatherPlan& plan, Window* windows, const uint32_t* which, size_t count,
                       Runs* runs);
void copy_sequences(const Region& r, const GatherPlan& plan, const Window* windows, const Runs& runs,
                    const uint32_t* which, size_t count, size_t batch, std::byte* const* out);

}  // namespace relive
