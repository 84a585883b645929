// Draws with a condition in difficult cases: pages that are freed during the draw, rounds that pin all pages, use
// counts.
#include <cmath>
#include <set>

#include "core_deaths.hpp"
#include "records_rig.hpp"
#include "relive/index/kinds.hpp"
#include "relive/index/leaves.hpp"
#include "relive/read/where.hpp"

using namespace rig;

namespace {

std::vector<WrittenOperation> at_least(const char* column, double least) {
  WrittenOperation number, load, compare;
  number.code = "real";
  number.real = least;
  load.code = column;
  compare.code = "at_most_real";
  std::vector<WrittenOperation> written = {number, load, compare};
  if (std::string(column) == "episode_step") {
    WrittenOperation real;
    real.code = "to_real";
    written.insert(written.begin() + 2, real);
  } else {
    written[1].code = "column";
    written[1].column = column;
  }
  return written;
}

Where condition(const Region& r, uint32_t index, const char* column, double least) {
  Where where;
  CHECK(make_where(r, index, at_least(column, least), "a test's", &where).ok());
  return where;
}

// Draws keys; Rig::sample also checks the rows.
Code draw_keys(Rig& rig, const Where& where, std::vector<int64_t>* keys) {
  std::vector<double> probabilities(keys->size());
  DrawRequest request;
  request.num_items = keys->size();
  request.where = &where;
  request.keys = keys->data();
  request.probabilities = probabilities.data();
  return relive::sample(*rig.table, request, 0.0).code();
}

Sampling sampler_of(const char* name) {
  Sampling sampling{};
  std::string known;
  CHECK(relive::find_sampler(name, &sampling, &known));
  return sampling;
}

void fill(Rig& rig, size_t steps) {
  CHECK(rig.write({0}, steps, std::vector<int>(steps, 0), NextGiven::kYes) == Code::kOk);
}

// Resets all hooks at the end, even if a test stops early.
struct Tidy {
  Tidy() {
    broken = 0;
    testing::broken_promise_hook = [](const char*) { ++broken; };
  }
  ~Tidy() {
    testing::broken_promise_hook = nullptr;
    testing::fail_point_hook = nullptr;
    testing::most_rounds = ~0u;
  }
  inline static int broken = 0;
};

// Runs a function once, at a fail point.
void (*once)() = nullptr;
testing::FailPoint once_at;
void run_once(testing::FailPoint at, void (*what)()) {
  once = what;
  once_at = at;
  testing::fail_point_hook = [](testing::FailPoint now) {
    if (now != once_at) return;
    testing::fail_point_hook = nullptr;
    once();
  };
}
Rig* seen = nullptr;
RecordsRig* seen_records = nullptr;

}  // namespace

TEST(a_condition_tests_again_an_item_that_took_a_place) {
  Spec spec{.capacity = 64};
  spec.indexes = {{.n_step = 1}};
  for (uint32_t rounds : {8u, 0u}) {
    for (testing::FailPoint at : {testing::FailPoint::where_tested, testing::FailPoint::where_found}) {
      Rig rig(spec);
      fill(rig, 60);
      const Tidy tidy;
      seen = &rig;
      testing::most_rounds = rounds;
      run_once(at, [] { fill(*seen, 60); });
      const Where where = condition(rig.table->region(), 0, "episode_step", 50.0);
      const std::vector<int64_t> keys = rig.sample(0, 24, &where);
      CHECK_EQ(keys.size(), 24u);
      for (int64_t key : keys) CHECK(rig.places.at(key).step >= 50);
      CHECK_EQ(Tidy::broken, 0);
      rig.verify();
    }
  }
}

TEST(found_items_are_read_after_their_page_is_emptied) {
  Spec spec{.capacity = 64};
  spec.indexes = {{.n_step = 3, .stack = 2}};
  Rig rig(spec);
  fill(rig, 40);
  const Tidy tidy;
  seen = &rig;
  testing::most_rounds = 0;
  run_once(testing::FailPoint::sample_gathered, [] { CHECK(relive::clear(*seen->table).ok()); });
  const Where where = condition(rig.table->region(), 0, "episode_step", 30.0);
  CHECK_EQ(rig.sample(0, 16, &where).size(), 16u);  // checked in every byte
  CHECK_EQ(Tidy::broken, 0);
  CHECK_EQ(relive::num_steps(*rig.table), 0u);
  CHECK(relive::check(*rig.table).ok());
}

// The item that had nearly all of the mass has almost none when a draw reaches it. Returns its probability.
double probability_of_what_fell(bool has_condition) {
  Spec spec{.capacity = 64};
  spec.indexes = {{.prioritized = true}};
  Rig rig(spec);
  fill(rig, 8);
  int64_t applied = 0;
  std::vector<float> priorities(8, 1e-38f);
  priorities[3] = 1e38f;
  CHECK(relive::update_priorities(*rig.table, 0, rig.keys.data(), priorities.data(), 8, &applied).ok());
  const Tidy tidy;
  seen = &rig;
  run_once(testing::FailPoint::draw_found, [] {
    const float small = 1e-38f;
    int64_t now = 0;
    CHECK(relive::update_priorities(*seen->table, 0, &seen->keys[3], &small, 1, &now).ok());
  });
  const Where where = condition(rig.table->region(), 0, "episode_step", 0.0);
  int64_t key = 0;
  double probability = 0.0;
  DrawRequest request;
  request.num_items = 1;
  request.keys = &key;
  request.probabilities = &probability;
  request.where = has_condition ? &where : nullptr;
  CHECK(relive::sample(*rig.table, request, 1.0).ok());
  return probability;
}

TEST(an_item_with_a_tiny_share_of_an_outdated_sum_is_drawn_again) {
  for (const bool has_condition : {false, true}) {
    CHECK(std::abs(probability_of_what_fell(has_condition) - 0.125) < 1e-9);
    testing::rule_switched_off[static_cast<uint32_t>(testing::Rule::G2_likely)] = true;
    CHECK(probability_of_what_fell(has_condition) < 1e-40);
    testing::rule_switched_off[static_cast<uint32_t>(testing::Rule::G2_likely)] = false;
  }
}

// In an order: an item that changes between the listing and the look leaves its place to the next one that passes.
TEST(an_order_with_a_condition_stays_in_order_while_items_end) {
  for (const uint32_t rounds : {8u, 0u}) {
    for (const testing::FailPoint at :
         {testing::FailPoint::draw_found, testing::FailPoint::where_tested, testing::FailPoint::where_found}) {
      Spec spec{.capacity = 200};
      spec.indexes = {{.n_step = 1, .kind = sampler_of("lifo")}};
      Rig rig(spec);
      fill(rig, 100);
      const Tidy tidy;
      seen = &rig;
      testing::most_rounds = rounds;
      run_once(at, [] { seen->remove({seen->keys[95], seen->keys[90]}); });
      const Where where = condition(rig.table->region(), 0, "episode_step", 60.0);
      std::vector<int64_t> keys(20);
      CHECK(draw_keys(rig, where, &keys) == Code::kOk);
      for (size_t k = 1; k < keys.size(); ++k) CHECK(rig.places.at(keys[k]).step < rig.places.at(keys[k - 1]).step);
      CHECK_EQ(Tidy::broken, 0);
      CHECK(relive::check(*rig.table).ok());
    }
  }
}

TEST(an_order_with_a_condition_uses_each_item_max_times) {
  for (const uint32_t rounds : {8u, 0u}) {
    Spec spec{.capacity = 64};
    spec.indexes = {{.n_step = 1, .kind = sampler_of("fifo"), .max_times = 2}};
    Rig rig(spec);
    fill(rig, 40);
    const Tidy tidy;
    testing::most_rounds = rounds;
    const Where where = condition(rig.table->region(), 0, "episode_step", 30.0);
    std::map<int64_t, int> uses;
    for (int k = 0; k < 4; ++k)
      for (int64_t key : rig.sample(0, 5, &where)) ++uses[key];
    CHECK_EQ(uses.size(), 10u);
    for (const auto& [key, count] : uses) CHECK_EQ(count, 2);
    std::vector<int64_t> one(1);
    CHECK(draw_keys(rig, where, &one) == Code::kRareItems);
    CHECK_EQ(rig.sample(0, 30).size(), 30u);  // the others have their uses
    CHECK(relive::check(*rig.table).ok());
  }
}

TEST(each_item_that_passes_is_used_exactly_max_times) {
  for (uint32_t rounds : {8u, 0u}) {
    Spec spec{.capacity = 64};
    spec.indexes = {{.n_step = 1, .max_times = 2}};
    Rig rig(spec);
    fill(rig, 40);
    const Tidy tidy;
    testing::most_rounds = rounds;
    const Where where = condition(rig.table->region(), 0, "episode_step", 30.0);
    std::map<int64_t, int> uses;
    for (int k = 0; k < 4; ++k)
      for (int64_t key : rig.sample(0, 5, &where)) ++uses[key];
    CHECK_EQ(uses.size(), 10u);
    for (const auto& [key, count] : uses) CHECK_EQ(count, 2);
    std::vector<int64_t> keys(4);
    std::vector<double> probabilities(4);
    DrawRequest request;
    request.num_items = 4;
    request.where = &where;
    request.keys = keys.data();
    request.probabilities = probabilities.data();
    CHECK(relive::sample(*rig.table, request, 0.0).code() == Code::kRareItems);
    CHECK_EQ(relive::num_items(*rig.table, 0), 30u);
    CHECK_EQ(Tidy::broken, 0);
    rig.has_holes = true;
    rig.verify();
  }
}

TEST(records_that_end_between_being_found_and_noted_are_drawn_again) {
  for (uint32_t max_times : {0u, 3u}) {
    const RecordSpec items{.max_items = 8, .windows = {{4, 1}}, .max_times = max_times};
    RecordsRig rig({.capacity = 200, .has_state = false}, items);
    CHECK(rig.rig.write({0}, 100, std::vector<int>(100, 0), NextGiven::kNo) == Code::kOk);
    const auto insert = [](RecordsRig& into, size_t from) {
      for (size_t k = 0; k < 6; ++k) (void)into.insert({{{into.rig.keys[from + k], 3}}});
    };
    insert(rig, 0);
    const Tidy tidy;
    seen_records = &rig;
    testing::most_rounds = 0;
    const Where where = condition(rig.region(), rig.index(), "weight", 1.0);
    run_once(testing::FailPoint::where_found, [] {
      for (size_t k = 0; k < 6; ++k) (void)seen_records->insert({{{seen_records->rig.keys[20 + k], 3}}});
    });
    const std::vector<int64_t> keys = rig.sample(6, &where);
    CHECK_EQ(keys.size(), 6u);
    for (int64_t key : keys) CHECK(rig.items.at(key).own >= 3);
    CHECK_EQ(Tidy::broken, 0);
    rig.verify();
  }
}

namespace {

// A table with one index of the steps of an episode from the fifth on, and one index of all steps.
Spec choosy_spec(bool has_late = false) {
  Spec spec{.capacity = 64, .has_late = has_late};
  spec.indexes = {{.n_step = 1}, {.n_step = 1}};
  spec.conditions = {{}, at_least("episode_step", 5.0)};
  return spec;
}

// Checks every existing step against both indexes.
void check_items(Rig& rig) {
  const Status checked = relive::check(*rig.table);
  if (!checked.ok()) harness::fail(__FILE__, __LINE__, checked.fields()[0].text);
  const Region& r = rig.table->region();
  int64_t expected = 0;
  for (int64_t key : rig.keys) {
    if (!rig.is_step_alive(key)) continue;
    const uint64_t slot = r.leaf_of_key(1, key);
    const uint16_t all = Leaves(r, 0).state(slot), some = Leaves(r, 1).state(slot);
    if (all > kMostUses) continue;
    const bool passes = rig.places.at(key).step >= 5;
    CHECK_EQ(some, passes ? 0 : kStateDropped);
    expected += passes ? 1 : 0;
  }
  CHECK_EQ(relive::num_items(*rig.table, 1), expected);
}

}  // namespace

TEST(items_that_an_index_keeps_out_are_settled_wherever_the_writer_dies) {
  int deaths = 0;
  for (uint32_t point = 0; point < static_cast<uint32_t>(testing::FailPoint::kCount); ++point) {
    if (!has_way_out(static_cast<testing::FailPoint>(point))) continue;
    for (int passages = 1; passages <= 12; passages += 3) {
      Rig rig(choosy_spec());
      fill(rig, 60);
      const size_t known = rig.keys.size();
      const bool died = dies_at(point, passages, [&] {
        std::vector<int> ends(20, 0);
        ends[3] = ends[15] = 1;
        (void)rig.write({0}, 20, ends, NextGiven::kYes);
      });
      if (!died) break;
      ++deaths;
      CHECK_EQ(rig.keys.size(), known);
      recover_all(*rig.table);
      end_writers(*rig.table);
      const Status checked = relive::check(*rig.table);
      if (!checked.ok()) harness::fail(__FILE__, __LINE__, checked.fields()[0].text);
      rig.forget_writer();
    }
  }
  CHECK(deaths > 20);
}

TEST(an_item_that_is_kept_out_stays_a_step_of_other_indexes) {
  Rig rig(choosy_spec());
  for (int block = 0; block < 12; ++block) {
    std::vector<int> ends(17, 0);
    ends[static_cast<size_t>(block)] = 1;
    CHECK(rig.write({0}, 17, ends, NextGiven::kYes) == Code::kOk);
    check_items(rig);
  }
  recover_all(*rig.table);
  check_items(rig);
  CHECK(rig.table->region().header->index_state[1].filtered.load() > 20);
}

TEST(a_condition_on_late_columns_waits_for_them) {
  Rig rig(choosy_spec(true));
  fill(rig, 40);
  const std::vector<int64_t> keys = rig.keys;
  CHECK_EQ(relive::num_items(*rig.table, 1), 0);
  die_at(testing::FailPoint::late_kept_out, *rig.table, [&] { rig.complete({keys.begin(), keys.begin() + 20}); });
  CHECK(relive::check(*rig.table).ok());
  const int64_t done = relive::num_items(*rig.table, 0);  // of the page that it had begun with
  CHECK(done > 5 && done < 20);
  CHECK_EQ(relive::num_items(*rig.table, 1), done - 5);
  rig.complete({keys.begin() + 20, keys.end()});
  CHECK(relive::check(*rig.table).ok());
  CHECK_EQ(relive::num_items(*rig.table, 1), done - 5 + 20);
}

TEST(a_published_item_that_its_condition_keeps_out_is_noticed) {
  Rig rig(choosy_spec());
  constexpr auto kRule = static_cast<uint32_t>(testing::Rule::Q1_condition);
  testing::rule_switched_off[kRule] = true;
  fill(rig, 10);
  testing::rule_switched_off[kRule] = false;
  CHECK(!relive::check(*rig.table).ok());
}

TEST_MAIN()
