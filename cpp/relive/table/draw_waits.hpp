// A draw waits: for its limiter, for items with a mass, for items that are not used up.
//
// Owner:   reserve() adds the batch to the participant's credit (credits.hpp); the caller commits it or returns it.
// Locking: reserve() takes the table lock if the limiter paces draws. A wait takes no lock; it sleeps in slices of 0.1
//          s.
// Cost:    one atomic add if nothing has to be waited for.
#pragma once

#include "relive/table/draw_call.hpp"

namespace relive {

// Waits until the limiter admits the draw and the index has an item to draw; then the batch is in flight.
// kRequestTooLarge: the limiter, or the number of items of a draw without replacement, can never admit it.
Status reserve_draw(const DrawCall& call);

// The index has items, but too few unused ones for the whole batch. note_lack() lets a writer pass (rule P4);
// wait_for_unused() sleeps one slice. The first time that the thread finds itself alone it does not sleep, and sets
// was_alone: a thread that has ended may have changed the table after the draw looked, so the caller draws once more.
void note_lack(const DrawCall& call);
Status wait_for_unused(const DrawCall& call, bool* was_alone);

// The error of a draw that gives up: what it needs, and what the index has.
Status draw_error(const DrawCall& call, Code code);

}  // namespace relive
