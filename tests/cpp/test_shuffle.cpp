// Shuffle: the permutation, positions that one draw alone takes (rule O1), and items that are read again (rule O2).
#include <algorithm>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core_deaths.hpp"
#include "core_rig.hpp"
#include "relive/index/kinds.hpp"
#include "relive/read/shuffle.hpp"

using namespace rig;

namespace {

Spec shuffled() {
  Spec spec{.capacity = 2000};
  IndexSpec index{.n_step = 1};
  std::string known;
  CHECK(relive::find_sampler("shuffle", &index.kind, &known));
  spec.indexes = {index};
  return spec;
}

std::vector<int64_t> draw(Table& table, size_t n) {
  std::vector<int64_t> keys(n);
  std::vector<double> probabilities(n);
  DrawRequest request;
  request.num_items = n;
  request.keys = keys.data();
  request.probabilities = probabilities.data();
  CHECK(relive::sample(table, request, 5.0).ok());
  return keys;
}

void switch_off(testing::Rule rule, bool off) { testing::rule_switched_off[static_cast<uint32_t>(rule)] = off; }

void write_some(Rig& rig, size_t n) { CHECK(rig.write({0}, n, std::vector<int>(n, 0), NextGiven::kYes) == Code::kOk); }

// Another sampler takes positions between the read and the write of this one.
Table* beside = nullptr;
std::vector<int64_t> others;
void take_beside(testing::FailPoint point) {
  if (point != testing::FailPoint::shuffle_claimed || beside == nullptr) return;
  Table* const table = beside;
  beside = nullptr;
  std::thread([&] { others = draw(*table, 4); }).join();
}

// Draws an epoch of 64 items in batches of 4; another sampler draws during the first one. Returns the number of
// different items.
size_t count_distinct() {
  Rig rig(shuffled());
  write_some(rig, 64);
  const size_t items = static_cast<size_t>(relive::num_items(*rig.table, 0));
  beside = rig.table.get();
  testing::fail_point_hook = take_beside;
  std::vector<int64_t> seen = draw(*rig.table, 4);
  testing::fail_point_hook = nullptr;
  seen.insert(seen.end(), others.begin(), others.end());
  while (seen.size() < items) {
    const std::vector<int64_t> more = draw(*rig.table, std::min<size_t>(4, items - seen.size()));
    seen.insert(seen.end(), more.begin(), more.end());
  }
  const size_t distinct = std::set<int64_t>(seen.begin(), seen.end()).size();
  return distinct * 1000 + items;
}

// All pages move while the rows of a batch are read: the chosen items are read again.
Rig* moving = nullptr;
void move_beside(testing::FailPoint point) {
  if (point != testing::FailPoint::sample_gathered || moving == nullptr) return;
  Rig* const rig = moving;
  moving = nullptr;
  std::thread([&] { rig->move_pages(); }).join();
}

size_t count_distinct_of_moved() {
  Rig rig(shuffled());
  write_some(rig, 64);
  rig.close_writer();
  const size_t items = static_cast<size_t>(relive::num_items(*rig.table, 0));
  std::set<int64_t> seen;
  for (size_t left = items; left > 0;) {
    const size_t n = std::min<size_t>(8, left);
    moving = &rig;
    testing::fail_point_hook = move_beside;
    for (int64_t key : rig.sample(0, n)) seen.insert(key);
    testing::fail_point_hook = nullptr;
    left -= n;
  }
  return seen.size() * 1000 + items;
}

bool is_all(size_t counted) { return counted / 1000 == counted % 1000; }

}  // namespace

TEST(a_permutation_has_every_number_once) {
  for (const uint64_t count : {1ull, 2ull, 3ull, 7ull, 64ull, 1000ull, 4097ull}) {
    for (uint64_t epoch = 0; epoch < 5; ++epoch) {
      const Permutation order(7, 0, epoch, count);
      std::vector<bool> seen(count);
      for (uint64_t place = 0; place < count; ++place) {
        const uint64_t at = order.at(place);
        CHECK(at < count && !seen[at]);
        seen[at] = true;
      }
    }
  }
}

TEST(each_number_comes_equally_often_at_each_place) {
  constexpr uint64_t kCount = 12, kEpochs = 24000;
  std::vector<double> seen(kCount * kCount);
  for (uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const Permutation order(3, 1, epoch, kCount);
    for (uint64_t place = 0; place < kCount; ++place) seen[place * kCount + order.at(place)] += 1;
  }
  const double expected = static_cast<double>(kEpochs) / kCount;
  double chi_square = 0.0;
  for (double count : seen) chi_square += (count - expected) * (count - expected) / expected;
  CHECK(chi_square < 200.0);  // 121 degrees of freedom: 1e-5
}

TEST(ten_million_numbers_come_once) {
  constexpr uint64_t kCount = 10'000'000;
  const Permutation order(11, 0, 3, kCount);
  std::vector<bool> seen(kCount);
  for (uint64_t place = 0; place < kCount; ++place) {
    const uint64_t at = order.at(place);
    CHECK(at < kCount && !seen[at]);
    seen[at] = true;
  }
}

TEST(positions_are_taken_in_one_step) {
  CHECK(is_all(count_distinct()));
  switch_off(testing::Rule::O1_one_step, true);
  const bool all = is_all(count_distinct());
  switch_off(testing::Rule::O1_one_step, false);
  CHECK(!all);
}

TEST(an_item_that_moved_during_its_read_keeps_its_position) {
  CHECK(is_all(count_distinct_of_moved()));
  switch_off(testing::Rule::O2_same_slot, true);
  const bool all = is_all(count_distinct_of_moved());
  switch_off(testing::Rule::O2_same_slot, false);
  CHECK(!all);
}

// Only the positions that the dead process had taken are lost to the epoch.
TEST(a_death_loses_only_the_positions_that_it_had_taken) {
  Rig rig(shuffled());
  write_some(rig, 64);
  const auto items = static_cast<size_t>(relive::num_items(*rig.table, 0));
  const uint64_t leaves = rig.table->region().map(0).num_leaves;
  die_at(testing::FailPoint::shuffle_claimed, *rig.table, [&] { (void)draw(*rig.table, 4); });
  std::set<int64_t> seen;
  while (rig.table->region().visited[0]->load() < leaves)
    for (int64_t key : draw(*rig.table, 1)) seen.insert(key);
  CHECK(seen.size() + 4 >= items);
  CHECK(relive::check(*rig.table).ok());
}

TEST_MAIN()
