// Whether the sections of a save belong together: the numbers of its names, and the lengths that follow from them.
// pages/sound.hpp then asks about the words.
//
// Owner:   nothing. Locking: none: the words are the loader's own copy.
// Cost:    O(sections).
#pragma once

#include "relive/save/loader.hpp"

namespace relive {

// Names what cannot be true; null if all is sound.
const char* unsound_shape(const SavedState& state);

}  // namespace relive
