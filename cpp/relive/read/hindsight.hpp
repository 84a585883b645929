// Hindsight: transitions whose goal is one that was achieved in their episode (Andrychowicz et al. 2017).
//
// An item is published when its episode has ended, and its window runs to that end: so the rows it may take a goal from
// are there as long as it is. Which goal it takes follows from Window::pick, a random number of the draw; who asks for an
// item by its key gets it with the goal that it was written with. Where `episode` may take a goal from rows before the
// item's, it takes it from those that are still there.
//
// Locking: none; recheck() covers the pages that were walked (rule G4).
// Cost:    a look at the tail bit of each row from the item's to the end of its episode, and one more copy of a goal.
#pragma once

#include "relive/read/gather.hpp"
#include "relive/words/rng.hpp"

namespace relive {

// The random numbers that choose the goals of rows of a batch, of one attempt; noted in picks where that is not null.
void pick_goals(const CounterRng& rng, Window* windows, const uint32_t* which, size_t count, double* picks);

// What resolve(), copy_rows() do, for a plan that has_goals; the goals are copied over what copy_rows() wrote.
void resolve_with_goals(const Region& r, const GatherPlan& plan, Window* windows, const uint32_t* which, size_t count,
                        Runs* runs);
void copy_goals(const Region& r, const GatherPlan& plan, const Window* windows, const Runs& runs, const uint32_t* which,
                size_t count, size_t batch, std::byte* const* out);

}  // namespace relive
