// The law of rank-based draws against direct summation.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "harness.hpp"
#include "relive/words/rank_law.hpp"

using namespace relive;

namespace {
constexpr uint64_t kMost = 200'000;
const double kExponents[] = {0.0, 0.3, 0.7, 1.0 - 1e-12, 1.0, 1.0 + 1e-9, 1.5, 3.0, 10.0};

std::vector<double> added_up(double exponent) {
  std::vector<double> sums{0.0};
  long double sum = 0.0L;
  for (uint64_t i = 1; i <= kMost; ++i) {
    sum += std::pow(static_cast<long double>(i), static_cast<long double>(-exponent));
    sums.push_back(static_cast<double>(sum));
  }
  return sums;
}
}  // namespace

TEST(sums_are_those_of_direct_summation) {
  for (const double exponent : kExponents) {
    const auto law = std::make_unique<RankLaw>(exponent);
    const std::vector<double> sums = added_up(exponent);
    double worst = 0.0;
    for (uint64_t n = 0; n <= kMost; ++n)
      worst = std::max(worst, std::abs(law->sum(n) - sums[n]) / std::max(sums[n], 1.0));
    CHECK(worst < 2e-11);
  }
}

TEST(weights_of_ranks_are_right_even_if_their_sums_are_equal) {
  for (const double exponent : kExponents) {
    const auto law = std::make_unique<RankLaw>(exponent);
    for (const uint64_t first : {0, 1, 30, 40, 1'000, 1'030, 50'000})
      for (const uint64_t count : {1, 2, 700, 5'000}) {
        long double direct = 0.0L;
        for (uint64_t i = first; i < first + count; ++i)
          direct += std::pow(static_cast<long double>(i + 1), static_cast<long double>(-exponent));
        const double weight = law->weight(first, first + count);
        CHECK(std::abs(weight - static_cast<double>(direct)) <= 1e-5 * static_cast<double>(direct));
      }
    CHECK_EQ(law->weight(7, 7), 0.0);
  }
}

TEST(points_fall_on_the_rank_whose_share_they_are_in) {
  for (const double exponent : kExponents) {
    const auto law = std::make_unique<RankLaw>(exponent);
    const std::vector<double> sums = added_up(exponent);
    for (const uint64_t n : {uint64_t{1}, uint64_t{2}, uint64_t{1023}, uint64_t{1024}, uint64_t{1025}, kMost}) {
      for (uint64_t i = 0; i < 5000; ++i) {
        const double point = law->sum(n) * (static_cast<double>(i) + 0.5) / 5000.0;
        const uint64_t rank = law->rank_at(point, n);
        CHECK(rank < n);
        if (rank >= n) continue;
        const double slack = 4e-11 * std::max(point, 1.0);
        CHECK(sums[rank] <= point + slack && point < sums[rank + 1] + slack);
      }
      CHECK_EQ(law->rank_at(0.0, n), uint64_t{0});
      CHECK(law->rank_at(law->sum(n), n) < n);  // rounding may lead a point to the end
    }
  }
}

TEST(a_point_on_a_border_belongs_to_the_next_rank) {
  const auto law = std::make_unique<RankLaw>(0.7);
  for (uint64_t rank = 0; rank < 3 * RankLaw::kExact; ++rank) {
    if (rank < RankLaw::kExact) CHECK_EQ(law->rank_at(law->sum(rank), 1'000'000), rank);
    CHECK_EQ(law->rank_at(0.5 * (law->sum(rank) + law->sum(rank + 1)), 1'000'000), rank);
  }
}

TEST_MAIN()
