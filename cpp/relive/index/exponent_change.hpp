// The exponent of a sampler's priorities changes while the index is in use: every mass is computed again, in one
// critical section (rules H2, H3).
//
// Owner:   the note in the header (Raising) says that a change is under way, from which exponent to which.
// Locking: under the table lock. If the process dies, recovery finishes the change from the note.
// Cost:    O(n), some 60 ns a leaf.
#pragma once

#include <cstdint>

#include "relive/words/held.hpp"

namespace relive {

// The index must have an exponent (has_exponent), and the present exponent must be above 0.
void change_exponent(Held& held, uint32_t index, double exponent);
// Recovery: makes a change to its end, if a process died in one.
void finish_exponent_change(Held& held);

}  // namespace relive
