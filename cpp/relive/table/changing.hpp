// What changes items that are there: their priorities, their end; and what the learner says of its policy.
//
// Locking: under the table lock, 256 leaves a hold (rule C3); what must be refused is refused before the first.
// Cost:    about 35 ns a key that was just drawn.
#pragma once

#include "relive/table/table.hpp"

namespace relive {

// Applied = how many were still there (pending ones included). All are checked before the first is applied.
Status update_priorities(Table& table, uint32_t index, const int64_t* keys, const float* priorities, size_t count,
                         int64_t* applied);
Status delete_items(Table& table, const int64_t* keys, size_t count, int64_t* deleted);
Status clear(Table& table);
Status set_policy_version(Table& table, uint32_t version);

}  // namespace relive
