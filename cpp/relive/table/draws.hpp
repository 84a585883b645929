// The sampler: reserve, draw without the lock, gather from frames, re-check, claim, commit (rules G1 to G8, I1).
//
// Owner:   the state of a draw is the call's; its arrays are the thread's, handed down and reused.
#pragma once

#include "relive/read/draw.hpp"
#include "relive/table/claims.hpp"
#include "relive/table/table.hpp"

namespace relive {

// As sample() of reading.hpp, for a plan that needs no bulk.
Status draw_batch(Table& table, const DrawRequest& request, double timeout_s);

}  // namespace relive
