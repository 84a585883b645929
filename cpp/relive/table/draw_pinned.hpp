// The rows of a batch that rounds without the table lock did not bring: their items are chosen (and claimed) under the
// lock, a few at a time, and read without it while this participant pins every page (rules G5, D7). No chosen item can
// go, so this ends in bounded time under any load.
//
// Owner:   the pins are the participant's, so a death ends them (rule E4).
// Locking: the table lock, for at most 256 items at a time (rule C3); a batch that is in order is chosen in one
//          critical section (rule R4). No row is read under it (rule C4).
// Cost:    writers that find no free page meanwhile wait.
#pragma once

#include "relive/table/draw_rounds.hpp"

namespace relive {

// Fills every missing row. attempt: number of the next round. *too_few: the index has too few items for the batch.
Status fill_pinned(DrawRounds& rounds, uint32_t attempt, bool* too_few);

}  // namespace relive
