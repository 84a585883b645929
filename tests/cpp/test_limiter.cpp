// The rate limiter's arithmetic: a table of cases, and a random walk that never leaves the corridor and never gets
// stuck.
#include <cmath>
#include <limits>

#include "harness.hpp"
#include "relive/words/limiter.hpp"
#include "relive/words/rng.hpp"

using namespace relive;

namespace {
const double kDefault = std::numeric_limits<double>::quiet_NaN();
}

TEST(min_size_asks_only_for_live_items) {
  const LimiterConfig config = make_min_size(100);
  CHECK(!can_sample(config, {99, 1000, 0}, 1));
  CHECK(can_sample(config, {100, 100, 1'000'000'000}, 256));
  CHECK(can_insert(config, {1'000'000, 1'000'000, 0}, 100'000));
  CHECK(sample_can_ever_pass(config, 1'000'000'000) && insert_can_ever_pass(config, 1'000'000'000));
  CHECK(always_moves(config, 1 << 20, 1 << 20));
  CHECK(std::isinf(window(config)));
}

TEST(corridor_and_default_tolerance) {
  const LimiterConfig large = make_samples_per_insert(8.0, 20'000, kDefault);  // 0.1 * 160000 = 16000
  CHECK_EQ(large.lo, 144'000.0);
  CHECK_EQ(large.hi, 176'000.0);
  CHECK_EQ(window(large), 32'000.0);
  const LimiterConfig small = make_samples_per_insert(1.0, 10, kDefault);  // at least 1024
  CHECK_EQ(small.lo, -1014.0);
  CHECK_EQ(small.hi, 1034.0);
  const LimiterConfig given = make_samples_per_insert(4.0, 100, 50.0);
  CHECK_EQ(given.lo, 350.0);
  CHECK_EQ(given.hi, 450.0);
  CHECK_EQ(make_samples_per_insert(4.0, 100, 0.0).hi, 400.0);
}

TEST(can_sample_table) {
  const LimiterConfig config = make_samples_per_insert(4.0, 100, 50.0);  // [350, 450]
  CHECK(!can_sample(config, {99, 99, 0}, 1));                            // too few live
  CHECK(!can_sample(config, {99, 500, 0}, 1));                           // counters far ahead, still too few live
  CHECK(can_sample(config, {100, 100, 0}, 50));                          // 400 - 50 = 350
  CHECK(!can_sample(config, {100, 100, 0}, 51));                         // 349
  CHECK(!can_sample(config, {100, 100, 50}, 1));                         // used up
  CHECK(can_sample(config, {100, 101, 50}, 4));                          // one insert gives four
  CHECK(!can_sample(config, {100, 101, 50}, 5));
}

TEST(can_insert_table) {
  const LimiterConfig config = make_samples_per_insert(4.0, 100, 50.0);  // [350, 450]
  CHECK(can_insert(config, {0, 0, 0}, 100));                             // the first fill, whatever the size
  CHECK(!can_insert(config, {0, 0, 0}, 113));                            // 452 > 450
  CHECK(can_insert(config, {0, 0, 0}, 112));       // 448: past the first fill, inside the corridor
  CHECK(can_insert(config, {100, 100, 0}, 12));    // 448
  CHECK(!can_insert(config, {100, 100, 0}, 13));   // 452
  CHECK(can_insert(config, {100, 112, 2}, 1));     // 452 - 2
  CHECK(can_insert(config, {10, 10'000, 0}, 90));  // after a clear the table fills again
  CHECK(!can_insert(config, {10, 10'000, 0}, 91));
  // 484 > 450, but below min_size no draw could lower it.
  CHECK(can_insert(config, {96, 96, 0}, 25));
  CHECK(!can_insert(config, {96, 96, 0}, 26));    // worth more than the window
  CHECK(!can_insert(config, {100, 100, 0}, 25));  // at min_size the corridor applies
}

TEST(requests_that_can_never_pass) {
  const LimiterConfig config = make_samples_per_insert(4.0, 100, 50.0);  // window 100
  CHECK(sample_can_ever_pass(config, 100));
  CHECK(!sample_can_ever_pass(config, 101));
  CHECK(insert_can_ever_pass(config, 25));
  CHECK(!insert_can_ever_pass(config, 26));
  CHECK(!insert_can_ever_pass(make_samples_per_insert(8.0, 1, 2.0), 1));  // no side can move
  CHECK(always_moves(config, 10, 60));
  CHECK(!always_moves(config, 10, 61));
}

TEST(pairs_that_always_move_never_get_stuck) {
  const CounterRng rng(1, 2, 3, 4);
  uint64_t i = 0;
  for (int round = 0; round < 2000; ++round) {
    const double spi = 0.1 + 10.0 * rng.uniform(i++), tolerance = 1.0 + 300.0 * rng.uniform(i++);
    const LimiterConfig config = make_samples_per_insert(spi, 1 + rng.below(i++, 200), tolerance);
    const int64_t insert_size = 1 + rng.below(i++, 40), draw_size = 1 + rng.below(i++, 300);
    if (!always_moves(config, insert_size, draw_size)) continue;
    int64_t inserted = 0, sampled = 0;
    for (int step = 0; step < 300; ++step) {
      const bool sample = can_sample(config, {inserted, inserted, sampled}, draw_size);
      const bool insert = can_insert(config, {inserted, inserted, sampled}, insert_size);
      CHECK(sample || insert);
      const bool choose_sample = sample && (!insert || rng.below(i++, 2) == 0);
      if (choose_sample) {
        sampled += draw_size;
      } else {
        inserted += insert_size;
      }
      const double difference =
          static_cast<double>(inserted) * config.samples_per_insert - static_cast<double>(sampled);
      if (choose_sample) CHECK(difference >= config.lo);
      if (!choose_sample && inserted - insert_size >= config.min_size) CHECK(difference <= config.hi);
    }
  }
}

TEST(the_most_items_that_are_let_in) {
  const CounterRng rng(5, 6, 7, 8);
  uint64_t i = 0;
  for (int round = 0; round < 20000; ++round) {
    const double spi = rng.below(i++, 3) == 0 ? 1.0 + rng.below(i++, 8) : 0.05 + 10.0 * rng.uniform(i++);
    const int64_t min_size = 1 + rng.below(i++, 200);
    const LimiterConfig config = make_samples_per_insert(spi, min_size, 1.0 + 300.0 * rng.uniform(i++));
    const int64_t live = rng.below(i++, 400), inserted = live + rng.below(i++, 400);
    const int64_t sampled = rng.below(i++, 8000), most = 1 + rng.below(i++, 300);
    const int64_t n = most_insertable(config, {live, inserted, sampled}, most);
    CHECK(n >= 0 && n <= most);
    CHECK(n == 0 || can_insert(config, {live, inserted, sampled}, n));
    CHECK(n == most || !can_insert(config, {live, inserted, sampled}, n + 1));
  }
  CHECK_EQ(most_insertable(make_min_size(5), {100, 100, 0}, 1 << 20), 1 << 20);
}

TEST(draws_that_rows_always_make_room_for) {
  const LimiterConfig whole = make_samples_per_insert(4.0, 10, 10.0);  // [30, 50], whole differences: n + 4 <= 21
  CHECK(draw_always_moves(whole, 17));
  CHECK(!draw_always_moves(whole, 18));  // at d = 47 a row needs 51, the draw 48
  const LimiterConfig one = make_samples_per_insert(1.0, 10, 10.0);
  CHECK(draw_always_moves(one, 20));
  CHECK(!draw_always_moves(one, 21));
  const LimiterConfig broken = make_samples_per_insert(2.5, 10, 10.0);  // [15, 35]: n + 2.5 <= 20
  CHECK(draw_always_moves(broken, 17));
  CHECK(!draw_always_moves(broken, 18));
  CHECK(draw_always_moves(make_min_size(10), 1 << 20));
  CHECK(draw_always_moves(make_samples_per_insert(8.0, 100, 4.5), 1));  // the narrowest window that is accepted
}

TEST(rows_one_at_a_time_never_get_stuck_with_an_accepted_draw) {
  const CounterRng rng(9, 10, 11, 12);
  uint64_t i = 0;
  for (int round = 0; round < 2000; ++round) {
    const double spi = rng.below(i++, 2) == 0 ? 1.0 + rng.below(i++, 8) : 0.1 + 8.0 * rng.uniform(i++);
    const int64_t min_size = 1 + rng.below(i++, 50);
    const LimiterConfig config = make_samples_per_insert(spi, min_size, 1.0 + 60.0 * rng.uniform(i++));
    const int64_t draw = 1 + rng.below(i++, 120);
    if (!draw_always_moves(config, draw)) continue;
    int64_t inserted = 0, sampled = 0;
    for (int step = 0; step < 400; ++step) {
      const bool sample = can_sample(config, {inserted, inserted, sampled}, draw);
      const int64_t room = most_insertable(config, {inserted, inserted, sampled}, 100);
      CHECK(sample || room > 0);
      if (sample && (room == 0 || rng.below(i++, 2) == 0)) {
        sampled += draw;
      } else {
        inserted += 1 + rng.below(i++, static_cast<uint32_t>(room));
      }
    }
  }
}

TEST_MAIN()
