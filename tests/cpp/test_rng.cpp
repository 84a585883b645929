// The counter-based generator: known answers, uniformity, independence of its four words.
#include <cmath>
#include <set>
#include <vector>

#include "harness.hpp"
#include "relive/words/rng.hpp"

using relive::CounterRng;
using relive::SplitMix64;

namespace {

// The first test compares it with the published sequence, the others build on it.
uint64_t splitmix64(uint64_t& state) { return SplitMix64::next(&state); }

uint64_t base_of(uint64_t seed, uint64_t stream, uint64_t call, uint64_t attempt) {
  uint64_t state = seed;
  uint64_t base = splitmix64(state);
  for (const uint64_t word : {stream, call, attempt}) {
    state = base ^ word;
    base = splitmix64(state);
  }
  return base;
}

double chi_square(const std::vector<uint64_t>& counts, double expected) {
  double sum = 0.0;
  for (const uint64_t count : counts) {
    const double distance = static_cast<double>(count) - expected;
    sum += distance * distance / expected;
  }
  return sum;
}

}  // namespace

TEST(finaliser_matches_the_published_sequence) {
  uint64_t state = 1234567;  // the reference output of SplitMix64 for this seed
  for (const uint64_t expected : {6457827717110365317u, 3203168211198807973u, 9817491932198370423u,
                                  4593380528125082431u, 16408922859458223821u}) {
    CHECK_EQ(splitmix64(state), expected);
  }
}

TEST(numbers_are_the_sequence_from_the_base) {
  for (uint64_t word = 0; word < 50; ++word) {
    const CounterRng rng(word, word * 3, word << 40, word % 7);
    uint64_t state = base_of(word, word * 3, word << 40, word % 7);
    for (uint64_t i = 0; i < 100; ++i) CHECK_EQ(rng.bits(i), splitmix64(state));
  }
}

TEST(golden_values) {
  // Batches drawn from equal tables must stay equal over versions: these never change.
  const CounterRng zero(0, 0, 0, 0), one(1, 2, 3, 4);
  CHECK_EQ(zero.bits(0), 0x78AE5A9A6B5FD45Eu);
  CHECK_EQ(zero.bits(1), 0xB9895A2B68592DF1u);
  CHECK_EQ(one.bits(0), 0x68055585A968B899u);
  CHECK_EQ(one.bits(1000), 0x15551C9792A1B037u);
}

TEST(uniform_is_53_bits_in_the_half_open_interval) {
  const CounterRng rng(9, 8, 7, 6);
  for (uint64_t i = 0; i < 100000; ++i) {
    const double u = rng.uniform(i);
    CHECK(u >= 0.0 && u < 1.0);
    CHECK_EQ(u * 0x1.0p53, std::floor(u * 0x1.0p53));
    CHECK_EQ(u, static_cast<double>(rng.bits(i) >> 11) / 9007199254740992.0);
  }
}

TEST(uniform_and_below_pass_chi_square) {
  std::vector<uint64_t> cells(1000), fingers(7);
  const CounterRng rng(3, 1, 4, 1);
  const uint64_t n = 1'000'000;
  for (uint64_t i = 0; i < n; ++i) {
    ++cells[static_cast<size_t>(rng.uniform(i) * 1000.0)];
    const uint32_t finger = rng.below(i, 7);
    CHECK(finger < 7);
    ++fingers[finger % 7];
  }
  CHECK(std::abs(chi_square(cells, n / 1000.0) - 999.0) < 5.0 * std::sqrt(2.0 * 999.0));
  CHECK(std::abs(chi_square(fingers, n / 7.0) - 6.0) < 5.0 * std::sqrt(12.0));
}

TEST(first_numbers_of_neighbouring_words_are_uniform_too) {
  for (int which = 0; which < 4; ++which) {
    std::vector<uint64_t> cells(100);
    for (uint64_t word = 0; word < 100000; ++word) {
      const CounterRng rng(which == 0 ? word : 5, which == 1 ? word : 5, which == 2 ? word : 5, which == 3 ? word : 5);
      ++cells[static_cast<size_t>(rng.uniform(0) * 100.0)];
    }
    CHECK(std::abs(chi_square(cells, 1000.0) - 99.0) < 5.0 * std::sqrt(2.0 * 99.0));
  }
}

TEST(words_do_not_stand_for_each_other) {
  std::set<uint64_t> seen;
  size_t count = 0;
  for (uint64_t seed = 0; seed < 6; ++seed)
    for (uint64_t stream = 0; stream < 6; ++stream)
      for (uint64_t call = 0; call < 6; ++call)
        for (uint64_t attempt = 0; attempt < 6; ++attempt)
          for (uint64_t i = 0; i < 6; ++i, ++count) seen.insert(CounterRng(seed, stream, call, attempt).bits(i));
  CHECK_EQ(seen.size(), count);
}

TEST(below_ends) {
  const CounterRng rng(1, 1, 1, 1);
  CHECK_EQ(rng.below(0, 0), 0u);
  CHECK_EQ(rng.below(0, 1), 0u);
  for (uint64_t i = 0; i < 1000; ++i) CHECK(rng.below(i, 0xFFFFFFFFu) < 0xFFFFFFFFu);
}

TEST_MAIN()
