// Hindsight: transitions whose goal is replaced by one that the episode achieved (Andrychowicz et al. 2017). An item is
// published when its episode has ended, and its window reaches that end, so the rows of its possible goals exist as
// long as the item. Window::pick, a random number of the draw, selects the goal; a gather by key returns the goal that
// the writer stored. With `episode`, goals from rows before the item's come from the rows that still exist.
//
// Owns:    nothing.
// Locking: none; recheck() covers the pages that were walked (rule G4).
// Cost:    one read of the tail bit of each row from the item's to the end of its episode, and one more copy of a goal.
#pragma once

#include "relive/read/gather.hpp"
#include "relive/words/rng.hpp"

namespace relive {

// Draws the random numbers that select the goals of these rows, for one attempt. Stores them in picks unless that is
// null.
void pick_goals(const CounterRng& rng, Window* windows, const uint32_t* which, size_t count, double* picks);

// resolve() and copy_rows() for a plan that has_goals. copy_goals() overwrites the goals that copy_rows() wrote.
void resolve_with_goals(const Region& r, const GatherPlan& plan, Window* windows, const uint32_t* which, size_t count,
                        Runs* runs);
void copy_goals(const Region& r, const GatherPlan& plan, const Window* windows, const Runs& runs, const uint32_t* which,
                size_t count, size_t batch, std::byte* const* out);

}  // namespace relive
