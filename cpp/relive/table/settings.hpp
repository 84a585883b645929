// Settings of a table that change while it is in use: limiters, the exponent of priorities, the policy version.
//
// Owner:   the present values lie in the region; every process reads them there (rules P1, H2).
// Locking: limiters and exponents are set under the table lock. The policy version is stored without it; items that are
//          too old are then dropped under it, in as many critical sections as that takes (rule Z2).
// Cost:    an exponent 60 ns a leaf of the index, in one critical section; the others O(participants) or O(1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "relive/table/table.hpp"
#include "relive/words/limiter.hpp"

namespace relive {

// Wakes writers that wait for a staleness budget, which grows with the version.
Status set_policy_version(Table& table, uint32_t version);

// The limiter of an index from now on, for calls that are waiting, too (rule P1). The totals of a corridor continue
// from the present state of the table (begun_at). kInvalidConfig: the index cannot have it. kRequestTooLarge: a draw
// that waits now could never pass it; then the old limiter stays.
Status set_limiter(Table& table, uint32_t index, const LimiterConfig& limiter);
// The exponent of a prioritized index from now on, for every process; computes every mass again. kInvalidConfig: the
// sampler is another one, the exponent is negative or not finite, or it changes from 0 to another number.
Status set_priority_exponent(Table& table, uint32_t index, double exponent);

// A limiter as numbers, its kind first, in the form that callers give and get.
std::vector<double> numbers_of(const LimiterConfig& limiter);
Status limiter_of(const double* numbers, size_t count, LimiterConfig* limiter);

}  // namespace relive
