// A draw that the caller made: its keys are claimed and counted as those of a draw are.
//
// Owner:   the keys, and the flags of those that were there, are the caller's memory (DrawRequest::keys, taken).
// Locking: the table lock, for at most 256 keys at a time (rule C3).
// Cost:    about 30 ns a key.
#pragma once

#include <vector>

#include "relive/table/draw_call.hpp"

namespace relive {

// Waits for the limiter as a draw does. A key whose item is gone or used up is not part of the batch. claimed: an empty
// list that is reused.
Status claim_keys(const DrawCall& call, std::vector<Claimed>* claimed);

}  // namespace relive
