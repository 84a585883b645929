// A batch is drawn: reserved with the limiter, drawn and gathered without the table lock, checked, claimed, committed
// (rules G1 to G11).
//
// Owner:   the state of a draw belongs to its call; the arrays that it works in belong to the thread and are reused.
// Locking: a draw takes the table lock to reserve (if a limiter paces draws), to claim use counts, and for the items
//          that 8 rounds without the lock did not bring (rule G5). No row is read under it.
// Cost:    about 45 ns an item for its key and probability, as much again for the rows of a small transition.
#pragma once

#include "relive/read/draw.hpp"
#include "relive/table/claims.hpp"
#include "relive/table/table.hpp"

namespace relive {

// As sample() and claim() of reading.hpp, for a plan that needs no bulk.
Status draw_batch(Table& table, const DrawRequest& request, double timeout_s);

}  // namespace relive
