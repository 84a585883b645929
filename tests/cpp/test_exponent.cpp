// Exponents that change while they are in use: all masses have the old exponent or the new one. That must be true if a
// process dies during the change (rule H2), if another process draws (H3) or updates (H4) at the same time, and if a
// draw gives a use back after the change (H5).
#include <cmath>
#include <thread>

#include "die_everywhere.hpp"
#include "relive/index/kinds.hpp"
#include "relive/table/draw_batch.hpp"
#include "relive/table/inspect.hpp"
#include "relive/table/settings.hpp"

using namespace rig;

namespace {

constexpr int kItems = 12;

class WithoutRule final {
 public:
  WithoutRule(testing::Rule rule, bool is_off) : off_(testing::rule_switched_off[static_cast<uint32_t>(rule)]) {
    off_ = is_off;
  }
  ~WithoutRule() { off_ = false; }

 private:
  bool& off_;
};

Spec prioritized(uint32_t max_times = 0) {
  Spec spec{.capacity = 200};
  spec.indexes = {{.prioritized = true, .max_times = max_times}};
  return spec;
}

float priority_of(size_t k) { return k == 3 ? 0.0f : 0.25f * static_cast<float>(k + 1) * static_cast<float>(k + 1); }

void fill(Rig& rig) {
  CHECK(rig.write({0}, kItems, std::vector<int>(kItems, 0), NextGiven::kYes) == Code::kOk);
  std::vector<float> priorities(rig.keys.size());
  for (size_t k = 0; k < priorities.size(); ++k) priorities[k] = priority_of(k);
  int64_t applied = 0;
  CHECK(relive::update_priorities(*rig.table, 0, rig.keys.data(), priorities.data(), priorities.size(), &applied).ok());
}

double exponent(Rig& rig) { return exponent_of(rig.table->region().header->indexes[0]); }

// The number of leaves that are not the mass of their priority by the table's present exponent.
int count_wrong(Rig& rig) {
  const Region& r = rig.table->region();
  int wrong = 0;
  for (size_t k = 0; k < rig.keys.size(); ++k) {
    const double mass = Leaves(r, 0).mass(r.key_slot(rig.keys[k]));
    wrong += mass == leaf_of(r.header->indexes[0], priority_of(k)) ? 0 : 1;
  }
  const auto largest = static_cast<float>(r.header->index_state[0].max_priority.load());
  wrong += r.header->index_state[0].max_mass.load() == leaf_of(r.header->indexes[0], largest) ? 0 : 1;
  wrong += r.header->num_raised.load() % 2 == 0 && r.header->raising.index.load() == 0 ? 0 : 1;
  return wrong;
}

// Deaths at every store of a change. Returns the number of tables with masses of both exponents.
int count_halves(double to) {
  int halves = 0;
  using testing::FailPoint;
  for (const FailPoint at : {FailPoint::raise_noted, FailPoint::raise_leaf, FailPoint::raise_raised,
                             FailPoint::raise_switched, FailPoint::raise_exponent, FailPoint::raise_over}) {
    for (int passage = 1; passage <= kItems - 1; ++passage) {
      Rig rig(prioritized());
      fill(rig);
      const bool died =
          dies_at(static_cast<uint32_t>(at), passage, [&] { (void)set_priority_exponent(*rig.table, 0, to); });
      if (!died) break;
      // The process that recovers may die during the recovery, too.
      (void)dies_at(static_cast<uint32_t>(FailPoint::raise_leaf), 2, [&] { recover_all(*rig.table); });
      recover_all(*rig.table);
      halves += count_wrong(rig) == 0 && relive::check(*rig.table).ok() ? 0 : 1;
      halves += exponent(rig) == to || exponent(rig) == 0.6 ? 0 : 1;
    }
  }
  return halves;
}

struct Drawn {
  std::vector<int64_t> keys;
  std::vector<double> probabilities;
};

Drawn draw(Table& table, size_t n, std::vector<Claimed>* claims = nullptr) {
  Drawn drawn{std::vector<int64_t>(n), std::vector<double>(n)};
  DrawRequest request;
  request.num_items = n;
  request.keys = drawn.keys.data();
  request.probabilities = drawn.probabilities.data();
  request.claims = claims;
  request.hold = claims != nullptr;
  CHECK(draw_batch(table, request, 10.0).ok());
  return drawn;
}

// Draws batches while the exponent changes back and forth. Returns the number of batches with a probability of neither
// exponent.
int count_torn_batches(int num_changes) {
  Rig rig(prioritized());
  fill(rig);
  std::map<int64_t, std::pair<double, double>> expected;
  double sums[2] = {};
  for (size_t k = 0; k < rig.keys.size(); ++k)
    for (int way = 0; way < 2; ++way) sums[way] += std::pow(priority_of(k), way == 0 ? 0.6 : 2.0);
  for (size_t k = 0; k < rig.keys.size(); ++k)
    expected[rig.keys[k]] = {std::pow(priority_of(k), 0.6) / sums[0], std::pow(priority_of(k), 2.0) / sums[1]};
  std::atomic<bool> is_over{false};
  int torn = 0;
  std::thread sampler([&] {
    while (!is_over.load()) {
      const Drawn drawn = draw(*rig.table, 32);
      bool is_old = true, is_new = true;
      for (size_t i = 0; i < drawn.keys.size(); ++i) {
        const auto [before, after] = expected[drawn.keys[i]];
        is_old &= std::abs(drawn.probabilities[i] / before - 1.0) < 1e-6;
        is_new &= std::abs(drawn.probabilities[i] / after - 1.0) < 1e-6;
      }
      torn += is_old || is_new ? 0 : 1;
    }
  });
  for (int k = 0; k < num_changes; ++k) CHECK(set_priority_exponent(*rig.table, 0, k % 2 == 0 ? 2.0 : 0.6).ok());
  is_over.store(true);
  sampler.join();
  return torn;
}

// Updates all items, each many times, so that the call takes several critical sections.
void update_often(Rig& rig) {
  std::vector<int64_t> keys;
  std::vector<float> priorities;
  for (size_t k = 0; k < 4096; ++k) {
    keys.push_back(rig.keys[k % rig.keys.size()]);
    priorities.push_back(priority_of(k % rig.keys.size()));
  }
  int64_t applied = 0;
  CHECK(relive::update_priorities(*rig.table, 0, keys.data(), priorities.data(), keys.size(), &applied).ok());
}

// Updates many items while the exponent changes back and forth. Returns the number of leaves with an outdated exponent.
int count_late_updates(int num_changes) {
  Rig rig(prioritized());
  fill(rig);
  std::atomic<bool> is_over{false};
  std::thread updater([&] {
    while (!is_over.load()) update_often(rig);
  });
  for (int k = 0; k < num_changes; ++k) CHECK(set_priority_exponent(*rig.table, 0, k % 2 == 0 ? 2.0 : 0.6).ok());
  is_over.store(true);
  updater.join();
  return count_wrong(rig);
}

}  // namespace

TEST(a_death_inside_a_change_leaves_the_old_masses_or_the_new_ones) {
  for (const double to : {0.0, 0.3, 1.0, 2.5}) CHECK_EQ(count_halves(to), 0);
}

TEST(without_the_note_a_death_leaves_halves) {
  const WithoutRule off(testing::Rule::H2_note, true);
  CHECK(count_halves(2.5) > 0);
}

TEST(priorities_come_back_as_they_were_given) {
  for (const double from : {1.0 / 16, 0.1, 0.4, 0.6, 1.0, 2.0, 3.0}) {
    int wrong = 0;
    for (int k = 0; k < 20'000; ++k) {
      const float priority = std::exp2(static_cast<float>(k) * 0.00317f - 31.0f);
      const Kind& kind = kind_of(Sampling::kPrioritized);
      double mass, expected;
      kind.masses_of(from, &priority, 1, &mass);
      kind.masses_of(0.7, &priority, 1, &expected);
      raise_masses(from, 0.7, &mass, 1);
      wrong += mass == expected ? 0 : 1;
    }
    CHECK_EQ(wrong, 0);
  }
}

// Runs a call, and changes the exponent during the call, at a point without the lock.
template <class Call>
void change_inside(Rig& rig, testing::FailPoint point, Call&& call) {
  static Rig* seen;
  static testing::FailPoint at;
  seen = &rig;
  at = point;
  testing::fail_point_hook = [](testing::FailPoint now) {
    if (now != at) return;
    testing::fail_point_hook = nullptr;
    CHECK(set_priority_exponent(*seen->table, 0, 2.0).ok());
  };
  call();
  CHECK(testing::fail_point_hook == nullptr);  // the call reached the point
}

TEST(a_batch_is_of_one_exponent) {
  CHECK_EQ(count_torn_batches(20'000), 0);
  for (const bool is_off : {false, true}) {
    const WithoutRule off(testing::Rule::H3_draw, is_off);
    Rig rig(prioritized());
    fill(rig);
    Drawn drawn;
    change_inside(rig, testing::FailPoint::draw_found, [&] { drawn = draw(*rig.table, 32); });
    const double sum = Leaves(rig.table->region(), 0).total();
    int wrong = 0;
    for (size_t i = 0; i < drawn.keys.size(); ++i) {
      const double mass = Leaves(rig.table->region(), 0).mass(rig.table->region().key_slot(drawn.keys[i]));
      wrong += std::abs(drawn.probabilities[i] / (mass / sum) - 1.0) < 1e-6 ? 0 : 1;
    }
    CHECK_EQ(wrong == 0, !is_off);
  }
}

TEST(an_update_is_of_the_present_exponent) {
  CHECK_EQ(count_late_updates(2'000), 0);
  for (const bool is_off : {false, true}) {
    const WithoutRule off(testing::Rule::H4_update, is_off);
    Rig rig(prioritized());
    fill(rig);
    change_inside(rig, testing::FailPoint::commit_unlocked, [&] { update_often(rig); });
    CHECK_EQ(count_wrong(rig) == 0, !is_off);
  }
}

TEST(a_use_given_back_has_the_present_mass) {
  for (const bool is_off : {false, true}) {
    const WithoutRule off(testing::Rule::H5_claim, is_off);
    Rig rig(prioritized(1));
    fill(rig);
    std::vector<Claimed> claims;
    (void)draw(*rig.table, kItems - 1, &claims);
    CHECK_EQ(Leaves(rig.table->region(), 0).num_live(), 1);
    CHECK(set_priority_exponent(*rig.table, 0, 2.0).ok());
    CHECK(give_back_batch(*rig.table, 0, kItems - 1, claims).ok());
    CHECK_EQ(count_wrong(rig) == 0, !is_off);
    CHECK(relive::check(*rig.table).ok());
  }
}

TEST(a_refused_exponent_changes_nothing) {
  Rig rig(prioritized());
  fill(rig);
  for (const double bad : {-1.0, std::nan(""), HUGE_VAL})
    CHECK(set_priority_exponent(*rig.table, 0, bad).code() == Code::kInvalidConfig);
  CHECK_EQ(count_wrong(rig), 0);
  CHECK(set_priority_exponent(*rig.table, 0, 0.0).ok());
  CHECK(set_priority_exponent(*rig.table, 0, 0.6).code() == Code::kInvalidConfig);
  CHECK_EQ(exponent(rig), 0.0);
  CHECK(relive::check(*rig.table).ok());
}

TEST_MAIN()
