// Explicit items with a remover other than Fifo: the state after a death at every store, and records that retire.
#include <algorithm>
#include <vector>

#include "die_everywhere.hpp"
#include "records_rig.hpp"

using namespace rig;

namespace {

constexpr uint64_t kMost = 6;
constexpr uint32_t kItems = 1;  // the index of items, after the index of steps
constexpr const char* kRemovers[] = {"lifo", "min_priority", "max_priority", "uniform", "prioritized", "reservoir"};

Spec spec_of(const char* remover, Initial initial, uint32_t max_times) {
  Spec spec{.capacity = 64, .has_state = false};
  spec.indexes = {{.n_step = 1}};
  IndexConfig index = explicit_index({.max_items = kMost, .windows = {{3, 1}}, .initial = initial});
  index.max_times_sampled = max_times;
  std::string known;
  CHECK(relive::find_remover(remover, &index.removal, &known));
  spec.explicit_indexes.push_back(index);
  return spec;
}

// Inserts an item on up to three rows. Returns its key, or -1.
int64_t insert(Rig& rig, size_t row, float priority) {
  const WindowRows window{rig.keys[row], 2};
  const NewItems items{1, &window, priority < 0.0f ? nullptr : &priority, nullptr};
  int64_t key = -1;
  size_t stored = 0;
  const Status status = relive::insert_items(*rig.table, kItems, items, 1.0, &key, &stored);
  return status.ok() ? key : -1;
}

bool draw(Rig& rig, size_t n) {
  std::vector<int64_t> keys(n);
  std::vector<double> probabilities(n);
  DrawRequest request;
  request.index = kItems;
  request.num_items = n;
  request.keys = keys.data();
  request.probabilities = probabilities.data();
  return relive::sample(*rig.table, request, 0.0).ok();
}

void update(Rig& rig, const std::vector<int64_t>& keys) {
  std::vector<float> priorities;
  for (size_t k = 0; k < keys.size(); ++k) priorities.push_back(static_cast<float>(1 + (k * 7) % 5));
  int64_t applied = 0;
  CHECK(relive::update_priorities(*rig.table, kItems, keys.data(), priorities.data(), keys.size(), &applied).ok());
}

int die_with(const char* remover) {
  std::vector<int64_t> keys;  // of the continuing calls
  const auto prepare = [&keys](Rig& rig) {
    CHECK(rig.write({0}, 40, std::vector<int>(40, 0), NextGiven::kNo) == Code::kOk);
    keys.clear();
    for (size_t k = 0; k < 5; ++k) keys.push_back(insert(rig, k, static_cast<float>(k)));
    keys.push_back(insert(rig, 20, -1.0f));  // waits for its priority
  };
  const auto call = [&keys](Rig& rig) {
    CHECK(insert(rig, 21, 2.0f) >= 0);
    CHECK(insert(rig, 22, -1.0f) >= 0);
    update(rig, keys);
    CHECK(draw(rig, 4));
    CHECK(!draw(rig, 100));  // more than there are: the claims are given back
    for (size_t k = 23; k < 26; ++k) CHECK(insert(rig, k, 1.0f) >= 0);
    const int64_t last = insert(rig, 26, 3.0f);
    int64_t deleted = 0;
    CHECK(relive::delete_items(*rig.table, &last, 1, &deleted).ok());
    CHECK(rig.write({0}, 24, std::vector<int>(24, 0), NextGiven::kNo) == Code::kOk);  // old rows are evicted
  };
  const auto judge = [](Rig& rig, const char*) {
    CHECK(Leaves(rig.table->region(), kItems).num_live() <= static_cast<int64_t>(kMost));
    for (size_t k = rig.keys.size() - 12; k + 1 < rig.keys.size(); ++k) CHECK(insert(rig, k, 1.0f) >= 0);
    CHECK(draw(rig, 3));
  };
  return die_everywhere(spec_of(remover, Initial::kGiven, 2), prepare, call, judge);
}

}  // namespace

TEST(a_death_at_any_store_leaves_a_record_free_and_the_order_of_removal) {
  for (const char* remover : kRemovers) CHECK(die_with(remover) > 60);
}

// R5: without the rule the next item finds no free record, or the records have a wrong order of removal; check()
// reports both.
TEST(without_the_rule_a_death_leaves_no_record_free) {
  for (const bool with_rule : {true, false}) {
    Rig rig(spec_of("lifo", Initial::kNumber, 0));
    CHECK(rig.write({0}, 40, std::vector<int>(40, 0), NextGiven::kNo) == Code::kOk);
    for (size_t k = 0; k < kMost; ++k) CHECK(insert(rig, k, -1.0f) >= 0);
    testing::rule_switched_off[static_cast<uint32_t>(testing::Rule::R5_room)] = !with_rule;
    die_at(testing::FailPoint::insert_counted, *rig.table, [&] { (void)insert(rig, 30, -1.0f); });
    CHECK_EQ(relive::check(*rig.table).ok(), with_rule);
    testing::rule_switched_off[static_cast<uint32_t>(testing::Rule::R5_room)] = false;
  }
}

// A record that has used up its generations no longer gets items; the other records continue.
TEST(records_that_retire_leave_fewer) {
  Rig rig(spec_of("lifo", Initial::kNumber, 0));
  CHECK(rig.write({0}, 40, std::vector<int>(40, 0), NextGiven::kNo) == Code::kOk);
  const Region& r = rig.table->region();
  const uint64_t last = (uint64_t{1} << (kLeafBits - r.geometry->slot_bits)) - 1;
  constexpr int64_t kOld = 3;
  for (uint64_t record = kMost + 1 - kOld; record <= kMost; ++record)
    r.records[kItems].words[record].store(last << kGenerationShift);
  for (size_t k = 0; k < kMost; ++k) CHECK(insert(rig, k, -1.0f) >= 0);
  CHECK_EQ(relive::num_items(*rig.table, kItems), static_cast<int64_t>(kMost));
  for (size_t k = 10; k < 20; ++k) {
    CHECK(insert(rig, k, -1.0f) >= 0);
    CHECK(relive::check(*rig.table).ok());
    CHECK_EQ(relive::num_items(*rig.table, kItems), static_cast<int64_t>(kMost) - kOld);
  }
}

TEST_MAIN()
