// Samplers and removers that use an order: the state after a death at every store, and the items that each remover
// keeps.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "die_everywhere.hpp"
#include "relive/index/kinds.hpp"
#include "relive/index/leaves.hpp"

using namespace rig;

namespace {

constexpr uint64_t kMost = 6;
constexpr const char* kSamplers[] = {"uniform", "prioritized", "fifo", "lifo", "min_priority", "max_priority"};
constexpr const char* kRemovers[] = {"fifo",    "lifo",        "min_priority", "max_priority",
                                     "uniform", "prioritized", "reservoir"};

IndexSpec index_of(const char* sampler, const char* remover, uint32_t max_times) {
  IndexSpec index{.n_step = 2, .max_times = max_times, .max_items = kMost};
  std::string known;
  CHECK(relive::find_sampler(sampler, &index.kind, &known));
  CHECK(relive::find_remover(remover, &index.removal, &known));
  return index;
}

bool looks_at_priorities(const Rig& rig) { return Leaves(rig.table->region(), 0).has_priorities(); }

Code update_all(Rig& rig) {
  std::vector<float> priorities;
  for (size_t k = 0; k < rig.keys.size(); ++k) priorities.push_back(static_cast<float>(1 + (k * 7) % 5));
  int64_t applied = 0;
  return relive::update_priorities(*rig.table, 0, rig.keys.data(), priorities.data(), rig.keys.size(), &applied).code();
}

// Draws keys only: no pages are pinned, so a simulated death runs no destructor that would repair something.
bool draw(Rig& rig, size_t n) {
  std::vector<int64_t> keys(n);
  std::vector<double> probabilities(n);
  DrawRequest request;
  request.num_items = n;
  request.keys = keys.data();
  request.probabilities = probabilities.data();
  return relive::sample(*rig.table, request, 0.0).ok();
}

int die_with(const char* sampler, const char* remover) {
  Spec spec{.capacity = 200};
  spec.indexes = {index_of(sampler, remover, 2), {.n_step = 1}};
  const auto prepare = [](Rig& rig) {
    CHECK(rig.write({0}, 9, std::vector<int>(9, 0), NextGiven::kYes) == Code::kOk);
    if (looks_at_priorities(rig)) CHECK(update_all(rig) == Code::kOk);
    CHECK(draw(rig, 5));
  };
  const auto call = [](Rig& rig) {
    if (looks_at_priorities(rig)) CHECK(update_all(rig) == Code::kOk);
    CHECK(draw(rig, 4));
    rig.remove({rig.keys[7]});
    CHECK(rig.write({0}, 3, std::vector<int>(3, 0), NextGiven::kYes) == Code::kOk);
    CHECK(!draw(rig, 100));  // more than there are: the claims are given back
  };
  const auto judge = [](Rig& rig, const char*) {
    const Region& r = rig.table->region();
    CHECK(Leaves(r, 0).num_live() <= static_cast<int64_t>(kMost));
    CHECK(Leaves(r, 1).num_live() >= 8);  // another index still needs the steps
  };
  return die_everywhere(spec, prepare, call, judge);
}

}  // namespace

TEST(a_death_at_any_store_leaves_a_sound_order) {
  for (const char* remover : kRemovers) CHECK(die_with("prioritized", remover) > 50);
  for (const char* sampler : kSamplers) CHECK(die_with(sampler, "min_priority") > 50);
  CHECK(die_with("fifo", "lifo") > 50);
}

// R3: a death between the remover's leaf and the sampler's leaves two priorities of one item. Recovery makes them
// equal, and without it check() reports them.
TEST(an_update_is_whole_or_none_after_a_death) {
  for (const char* sampler : {"prioritized", "min_priority", "max_priority"}) {
    for (const bool with_rule : {true, false}) {
      Spec spec{.capacity = 200};
      spec.indexes = {index_of(sampler, "max_priority", 0)};
      Rig rig(spec);
      CHECK(rig.write({0}, 8, std::vector<int>(8, 0), NextGiven::kYes) == Code::kOk);
      relive::testing::rule_switched_off[static_cast<uint32_t>(testing::Rule::R3_settle)] = !with_rule;
      die_at(testing::FailPoint::order_renewed, *rig.table, [&] { (void)update_all(rig); }, 3);
      CHECK_EQ(relive::check(*rig.table).ok(), with_rule);
      relive::testing::rule_switched_off[static_cast<uint32_t>(testing::Rule::R3_settle)] = false;
    }
  }
}

// A reservoir prefers none of a million possible orders: each of 60 items is equally often among the 6 that stay.
TEST(a_reservoir_keeps_each_item_as_often) {
  constexpr int kTables = 3000, kItems = 60;
  std::vector<int> kept(kItems);
  for (int seed = 0; seed < kTables; ++seed) {
    Spec spec{.capacity = 200};
    spec.seed = static_cast<uint64_t>(seed);
    spec.indexes = {index_of("uniform", "reservoir", 0)};
    spec.indexes[0].n_step = 1;
    Rig rig(spec);
    CHECK(rig.write({0}, kItems, std::vector<int>(kItems, 0), NextGiven::kYes) == Code::kOk);
    const Region& r = rig.table->region();
    for (int k = 0; k < kItems; ++k) kept[k] += Leaves(r, 0).has_mass(r.key_slot(rig.keys[k])) ? 1 : 0;
  }
  const double expected = kTables * static_cast<double>(kMost) / kItems;
  double chi_square = 0.0;
  for (const int times : kept) chi_square += (times - expected) * (times - expected) / expected;
  CHECK(chi_square < 110.0);  // 59 degrees of freedom: one of 20,000
}

// The number of critical sections of a draw whose rounds without the lock all fail.
uint64_t sections_of_a_draw(size_t num_items, uint32_t max_times) {
  Spec spec{.capacity = 2000};
  spec.indexes = {index_of("lifo", "fifo", max_times)};
  spec.indexes[0].max_items = 0;
  Rig rig(spec);
  CHECK(rig.write({0}, 1000, std::vector<int>(1000, 0), NextGiven::kYes) == Code::kOk);
  static uint64_t num_sections;
  num_sections = 0;
  testing::most_rounds = 0;
  testing::section_hook = [](bool begins) { num_sections += begins ? 1 : 0; };
  CHECK_EQ(rig.sample(0, num_items).size(), num_items);
  testing::section_hook = nullptr;
  testing::most_rounds = ~0u;
  return num_sections;
}

// R4: between two critical sections better items could be published, and the batch would not be in order.
TEST(a_batch_in_order_is_chosen_in_one_critical_section) {
  for (const uint32_t max_times : {0u, 2u})
    CHECK_EQ(sections_of_a_draw(900, max_times), sections_of_a_draw(9, max_times));
}

// Items are counted before the tree has them: a draw in between, without the lock, must have none of them twice.
TEST(a_batch_in_order_has_no_item_twice_while_others_are_published) {
  Spec spec{.capacity = 2000};
  spec.indexes = {index_of("lifo", "fifo", 0)};
  spec.indexes[0].max_items = 0;
  Rig rig(spec);
  CHECK(rig.write({0}, 9, std::vector<int>(9, 0), NextGiven::kYes) == Code::kOk);  // 8 items: a group of leaves
  static Rig* seen;
  static bool was_drawn;
  seen = &rig;
  was_drawn = true;
  testing::fail_point_hook = [](testing::FailPoint at) {
    if (at != testing::FailPoint::publish_counted) return;
    testing::fail_point_hook = nullptr;
    was_drawn = draw(*seen, 12);
  };
  CHECK(rig.write({0}, 20, std::vector<int>(20, 0), NextGiven::kYes) == Code::kOk);
  // There are enough items, but the process that could add them to the tree owns the lock.
  CHECK(!was_drawn);
  const std::vector<int64_t> keys = rig.sample(0, 12);
  CHECK_EQ(std::set<int64_t>(keys.begin(), keys.end()).size(), 12u);
}

TEST_MAIN()
