// The counts of a limiter (rules P2, P4, P5, P6). Each test also switches its rule off, and sees another count.
#include "core_rig.hpp"
#include "relive/table/changing.hpp"
#include "relive/table/draw_batch.hpp"
#include "relive/table/settings.hpp"

using namespace rig;

namespace {

const LimiterConfig kQueue = make_queue(4);

Spec counted(LimiterConfig limiter, SequenceConfig sequence = {}) {
  Spec spec{.capacity = 200, .has_state = false};
  spec.indexes = {{.prioritized = true, .max_times = 1, .limiter = limiter, .sequence = sequence}};
  return spec;
}

void without(testing::Rule rule, const std::function<void()>& call) {
  testing::rule_switched_off[static_cast<uint32_t>(rule)] = true;
  call();
  testing::rule_switched_off[static_cast<uint32_t>(rule)] = false;
}

Code append(Rig& rig, int end = 0) { return rig.write({0}, 1, {end}, NextGiven::kNo); }

// The rows that pass until one does not, at most 20.
int num_passing(Rig& rig) {
  int count = 0;
  while (count < 20 && append(rig) == Code::kOk) ++count;
  return count;
}

// All items of a full queue get priority 0: they make room.
int room_of_massless() {
  Rig rig(counted(kQueue));
  CHECK_EQ(num_passing(rig), 4);
  const std::vector<float> zeros(4, 0.0f);
  int64_t applied = 0;
  CHECK(update_priorities(*rig.table, 0, rig.keys.data(), zeros.data(), 4, &applied).ok() && applied == 4);
  return num_passing(rig);
}

// 40 items went unused. The corridor is 8 samples wide.
int room_after_unused() {
  Rig rig(counted(make_samples_per_insert(1.0, 1, 4.0)));
  for (int k = 0; k < 40; ++k) {
    CHECK(append(rig) == Code::kOk);
    int64_t deleted = 0;
    CHECK(delete_items(*rig.table, &rig.keys.back(), 1, &deleted).ok() && deleted == 1);
  }
  return num_passing(rig);
}

// A draw has claimed all items of a full queue and gives them back: they keep their places.
int room_of_undecided() {
  Rig rig(counted(kQueue));
  CHECK_EQ(num_passing(rig), 4);
  int64_t keys[4];
  double probabilities[4];
  std::vector<Claimed> claims;
  DrawRequest request;
  request.num_items = 4;
  request.keys = keys;
  request.probabilities = probabilities;
  request.hold = true;
  request.claims = &claims;
  CHECK(relive::sample(*rig.table, request, 0.0).ok() && claims.size() == 4);
  const int room = num_passing(rig);
  CHECK(give_back_batch(*rig.table, 0, 4, claims).ok());
  CHECK(relive::check(*rig.table).ok());
  return room;
}

int room_of_version_9() {
  Rig rig(counted(make_staleness_budget(0.0, 2.0)));
  CHECK(relive::set_policy_version(*rig.table, 9).ok());
  return num_passing(rig);
}

// Four lanes of four writers may begin an episode.
int episodes_that_begin() {
  Spec spec = counted(kQueue, {10, 0, 0, 0, AtEnd::kPad, PadSide::kRight, 1, 0, 10});
  spec.max_lanes = 8;
  Rig rig(spec);
  int count = append(rig) == Code::kOk ? 1 : 0;
  std::vector<std::unique_ptr<Writer>> others;
  for (int k = 0; k < 6; ++k) {
    rig.forget_writer();
    rig.open_writer();
    count += append(rig) == Code::kOk ? 1 : 0;
  }
  return count;
}

// One writer with three lanes, which are written one by one.
int lanes_that_begin() {
  Spec spec = counted(make_queue(2), {10, 0, 0, 0, AtEnd::kPad, PadSide::kRight, 1, 0, 10});
  spec.num_lanes = 3;
  Rig rig(spec);
  int count = 0;
  for (const int32_t lane : {0, 1, 2}) count += rig.write({lane}, 1, {0}, NextGiven::kNo) == Code::kOk ? 1 : 0;
  return count;
}

}  // namespace

TEST(lanes_that_stand_still_with_their_writer_do_not_count) {
  CHECK_EQ(lanes_that_begin(), 3);
  without(testing::Rule::P6_stands, [] { CHECK_EQ(lanes_that_begin(), 2); });
}

TEST(items_without_mass_make_room) {
  CHECK_EQ(room_of_massless(), 4);
  without(testing::Rule::P4_massless, [] { CHECK_EQ(room_of_massless(), 0); });
}

TEST(items_that_went_unused_are_no_inserts) {
  CHECK_EQ(room_after_unused(), 5);
  without(testing::Rule::P2_unused, [] { CHECK_EQ(room_after_unused(), 1); });
}

TEST(items_that_may_come_back_keep_their_places) {
  CHECK_EQ(room_of_undecided(), 0);
  without(testing::Rule::P7_places, [] { CHECK_EQ(room_of_undecided(), 4); });
}

TEST(a_budget_has_the_version_of_an_empty_table_as_its_base) {
  CHECK_EQ(room_of_version_9(), 2);
  without(testing::Rule::P5_base, [] { CHECK_EQ(room_of_version_9(), 20); });
}

TEST(episodes_count_from_their_first_step) {
  CHECK_EQ(episodes_that_begin(), 4);
  without(testing::Rule::P6_under_way, [] { CHECK_EQ(episodes_that_begin(), 7); });
}

TEST_MAIN()
