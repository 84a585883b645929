// Powers in batches against the library's, one at a time.
#include <cmath>
#include <limits>
#include <vector>

#include "harness.hpp"
#include "relive/words/power.hpp"
#include "relive/words/rng.hpp"

using relive::CounterRng;
using relive::powers_of;

namespace {

double power_of(double x, double exponent) {
  double result;
  powers_of(&x, 1, 1.0, exponent, &result);
  return result;
}

}  // namespace

TEST(every_power_is_the_librarys) {
  const CounterRng rng(1, 2, 3, 4);
  for (uint64_t round = 0; round < 2000; ++round) {
    const size_t count = rng.below(4 * round, 40);
    const double exponent = 4.0 * rng.uniform(4 * round + 1) - 2.0;
    const double scale = std::exp2(20.0 * rng.uniform(4 * round + 2) - 10.0);
    std::vector<float> from(count);
    for (size_t i = 0; i < count; ++i) from[i] = static_cast<float>(std::exp2(60.0 * rng.uniform(round * 64 + i) - 30));
    std::vector<double> to(count + 1, -7.0);
    powers_of(from.data(), count, scale, exponent, to.data());
    for (size_t i = 0; i < count; ++i) {
      const double exact = std::pow(static_cast<double>(from[i]) * scale, exponent);
      CHECK(std::fabs(to[i] - exact) <= 1e-9 * exact);
    }
    CHECK_EQ(to[count], -7.0);  // nothing after the last one is written
  }
}

TEST(a_power_does_not_depend_on_its_neighbours) {
  const double from[] = {0.25, 3.0, 1e-20, 7.5, 0.0, 2.0, 1.0};
  double together[7];
  powers_of(from, 7, 1.0, 0.6, together);
  for (size_t i = 0; i < 7; ++i) CHECK_EQ(together[i], power_of(from[i], 0.6));
}

TEST(numbers_in_a_vector_get_the_bits_of_one_alone) {
  const CounterRng rng(5, 6, 7, 8);
  std::vector<double> from(61), together(61);  // groups of sixteen, groups of four, and a single one
  for (size_t i = 0; i < from.size(); ++i) from[i] = i % 9 == 0 ? 0.0 : std::exp2(1800.0 * rng.uniform(i) - 900.0);
  for (const double exponent : {0.6, -0.4, 0.0, 1.0})
    for (size_t count = 0; count <= from.size(); ++count) {
      powers_of(from.data(), count, 1.0, exponent, together.data());
      for (size_t i = 0; i < count; ++i) CHECK_EQ(together[i], power_of(from[i], exponent));
    }
}

TEST(edges) {
  CHECK_EQ(power_of(0.0, 0.0), 1.0);
  CHECK_EQ(power_of(0.0, 0.6), 0.0);
  CHECK(power_of(0.0, -0.4) > 1e100);
  CHECK_EQ(power_of(1.0, 0.6), 1.0);
  CHECK_EQ(power_of(1.0, -0.4), 1.0);
  CHECK_EQ(power_of(5.0, 0.0), 1.0);
  const double largest = std::numeric_limits<float>::max(), least = std::numeric_limits<float>::denorm_min();
  for (const double exponent : {0.5, 1.0, 2.0, -0.5, -2.0})
    for (const double x : {largest, least, 1e-45 * 2, 0x1p-126})
      CHECK(std::fabs(power_of(x, exponent) / std::pow(x, exponent) - 1.0) < 1e-9);
}

TEST_MAIN()
