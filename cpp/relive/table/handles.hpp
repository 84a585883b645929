// Every handle of this process.
//
// Owner:   the list lives until the process ends, because handles may. A Table adds itself when it is born and removes
//          itself when it is destroyed.
// Locking: `mutex` is taken over a fork, and over every opening and closing of a lock descriptor. So the child of a
//          fork knows all handles, closes their descriptors, and finds no handle in the middle of a change of its
//          storage.
// Cost:    O(handles) at a fork and when a handle ends.
#pragma once

#include <mutex>
#include <vector>

namespace relive {

class Table;

struct Handles {
  std::mutex mutex;
  std::vector<Table*> all;
};

Handles& handles();

}  // namespace relive
