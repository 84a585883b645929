// A region whose file stays after the last close (rule J7): whether its bytes may be believed, and its clean end.
//
// Owner:   the storage owns the file.
// Locking: lock byte 0 is exclusive, except in is_lost(), which looks only.
// Cost:    note_opened syncs the file if the last close was clean; close_kept syncs it twice.
#pragma once

#include "relive/words/region.hpp"

namespace relive {

inline constexpr uint64_t kSaverByte = 2;  // lock byte: the process that saves the table into its folder

// Whether the region's bytes may be torn: the machine stopped while the table was in use, or the file is a copy that
// was made meanwhile. The bytes of a boot that has ended are whole only after a clean close.
bool is_lost(const Region& region, const Storage& storage);
// Called by the first user: from now on the file is in use, by this boot. On disk before anything else changes.
// later_s: by how much times of the region (rule T1) are later on this boot's clock; 0 if they are of this clock.
Status note_opened(Region& region, Storage& storage, double* later_s);
// Called by the last user: all bytes are on disk, then the flag that says so.
Status close_kept(Region& region, Storage& storage);

}  // namespace relive
