// Limiters that change while they are in use: whole after a death during the change and for every reader (rule P1); the
// arithmetic of queues and budgets; the count of used items after a death (rule P2).
#include <thread>

#include "core_deaths.hpp"
#include "core_rig.hpp"
#include "relive/table/draw_batch.hpp"
#include "relive/table/settings.hpp"
#include "relive/table/waiting.hpp"

using namespace rig;

namespace {

const LimiterConfig kFirst = make_samples_per_insert(1.0, 1000, 800.0);
const LimiterConfig kSecond = make_queue(77);
const LimiterConfig kThird = make_staleness_budget(2.0, 16.0);

bool is_same(const LimiterConfig& a, const LimiterConfig& b) {
  return a.kind == b.kind && a.min_size == b.min_size && a.samples_per_insert == b.samples_per_insert &&
         a.tolerance == b.tolerance && a.eta == b.eta && a.items_per_version == b.items_per_version &&
         a.hi - a.lo == b.hi - b.lo;
}

Spec once() {
  Spec spec{.capacity = 3000};
  spec.indexes = {{.max_times = 1}};
  return spec;
}

LimiterConfig present(Rig& rig) { return rig.table->region().header->index_state[0].limiter.load(); }

// Deaths after each word of a change, between all pairs of limiters. Returns the number of tables with a mixed limiter.
int count_torn(Rig& rig) {
  int torn = 0;
  for (int passage = 1; passage <= 8; ++passage) {
    for (const LimiterConfig& wanted : {kFirst, kSecond, kThird}) {
      const LimiterConfig before = present(rig);
      die_at(testing::FailPoint::limiter_word, *rig.table, [&] { (void)set_limiter(*rig.table, 0, wanted); }, passage);
      torn += is_same(present(rig), before) || is_same(present(rig), wanted) ? 0 : 1;
      CHECK(set_limiter(*rig.table, 0, wanted).ok());
      CHECK(is_same(present(rig), wanted));
    }
  }
  return torn;
}

}  // namespace

TEST(a_death_inside_a_change_leaves_the_old_limiter_or_the_new_one) {
  Rig rig(once());
  CHECK_EQ(count_torn(rig), 0);
  die_at(testing::FailPoint::limiter_switched, *rig.table, [&] { (void)set_limiter(*rig.table, 0, kSecond); });
  CHECK(is_same(present(rig), kSecond));
  CHECK(relive::check(*rig.table).ok());
}

TEST(without_the_change_count_a_death_leaves_neither) {
  Rig rig(once());
  testing::rule_switched_off[static_cast<uint32_t>(testing::Rule::P1_switch)] = true;
  const int torn = count_torn(rig);
  testing::rule_switched_off[static_cast<uint32_t>(testing::Rule::P1_switch)] = false;
  CHECK(torn > 0);
}

TEST(readers_without_the_lock_never_see_half_of_a_change) {
  Rig rig(once());
  std::atomic<bool> is_over{false};
  std::atomic<int> torn{0};
  std::thread reader([&] {
    while (!is_over.load()) {
      const LimiterConfig seen = present(rig);
      if (!is_same(seen, make_min_size(1)) && !is_same(seen, kFirst) && !is_same(seen, kSecond) &&
          !is_same(seen, kThird))
        torn.fetch_add(1);
    }
  });
  for (int k = 0; k < 100'000; ++k)
    CHECK(set_limiter(*rig.table, 0, k % 3 == 0 ? kFirst : k % 3 == 1 ? kSecond : kThird).ok());
  is_over.store(true);
  reader.join();
  CHECK_EQ(torn.load(), 0);
}

TEST(a_refused_limiter_changes_nothing) {
  Rig rig(once());
  const LimiterConfig before = present(rig);
  LimiterConfig limiter;
  const double budget[] = {3.0, -1.0, 4.0}, unknown[] = {4.0, 1.0}, few[] = {1.0, 1.0}, none[] = {0.0};
  CHECK(limiter_of(budget, 3, &limiter).code() == Code::kInvalidConfig);
  CHECK(limiter_of(unknown, 2, &limiter).code() == Code::kInvalidConfig);
  CHECK(limiter_of(few, 2, &limiter).code() == Code::kInvalidConfig);
  CHECK(limiter_of(none, 1, &limiter).code() == Code::kInvalidConfig);
  CHECK(limiter_of(none, 0, &limiter).code() == Code::kInvalidConfig);
  for (const LimiterConfig& wrong : {make_min_size(0), make_min_size(3001), make_queue(0), make_queue(3001),
                                     make_staleness_budget(0.0, 0.5), make_samples_per_insert(4.0, 10, 2.0)})
    CHECK(set_limiter(*rig.table, 0, wrong).code() == Code::kInvalidConfig);
  CHECK(is_same(present(rig), before));
  for (const LimiterConfig& one : {make_min_size(5), kFirst, kSecond, kThird}) {
    const std::vector<double> numbers = numbers_of(one);
    CHECK(limiter_of(numbers.data(), numbers.size(), &limiter).ok());
    CHECK(is_same(limiter, one));
  }
}

TEST(a_death_between_a_use_and_its_count_never_takes_from_a_budget) {
  for (const testing::FailPoint point : {testing::FailPoint::claim_times, testing::FailPoint::claim_leaf}) {
    Rig rig(once());
    CHECK(rig.write({0}, 100, std::vector<int>(100, 0), NextGiven::kYes) == Code::kOk);
    for (int passage = 1; passage < 5; ++passage) die_at(point, *rig.table, [&] { (void)rig.sample(0, 10); }, passage);
    const IndexState& state = rig.table->region().header->index_state[0];
    const int64_t ever = state.used.load() + state.unused.load();
    CHECK(ever <= 100);
    CHECK(ever >= 96);  // one for each death
    CHECK_EQ(state.unused.load(), state.live_items.load());
    CHECK(relive::check(*rig.table).ok());
  }
}

// A draw takes the last items of a page, finds too few for its batch and gives them back. Just before, another draw of
// items of that page ends. Returns the number of items that exist afterwards.
uint64_t left_of_two_draws(bool has_rule) {
  testing::rule_switched_off[static_cast<uint32_t>(testing::Rule::G7_undecided)] = !has_rule;
  Rig rig(once());
  const int rows = static_cast<int>(rig.table->region().page_len);
  CHECK(rig.write({0}, rows, std::vector<int>(rows, 0), NextGiven::kYes) == Code::kOk);
  rig.close_writer();
  static Rig* seen;
  static std::vector<Claimed> others;
  seen = &rig;
  others.clear();
  std::vector<int64_t> keys(2);
  std::vector<double> probabilities(2);
  DrawRequest request;
  request.num_items = 2;
  request.keys = keys.data();
  request.probabilities = probabilities.data();
  request.hold = true;
  request.claims = &others;
  CHECK(relive::draw_batch(*rig.table, request, 0.0).ok());
  testing::fail_point_hook = [](testing::FailPoint at) {
    if (at == testing::FailPoint::claim_undone) CHECK(commit_batch(*seen->table, 0, 2, others, true).ok());
  };
  CHECK(rig.sample(0, static_cast<size_t>(rows) - 1).empty());  // one more than there are
  testing::fail_point_hook = nullptr;
  CHECK(relive::check(*rig.table).ok());
  testing::rule_switched_off[static_cast<uint32_t>(testing::Rule::G7_undecided)] = false;
  const uint64_t left = relive::num_items(*rig.table, 0);
  for (uint64_t item = 0; item < left; ++item) CHECK_EQ(rig.sample(0, 1).size(), 1u);
  CHECK_EQ(relive::num_steps(*rig.table), 0u);  // and then the page is freed
  return static_cast<uint64_t>(rows) - left;
}

TEST(uses_that_a_draw_gives_back_exist_after_other_draws_of_the_page) {
  CHECK_EQ(left_of_two_draws(true), 2u);
  CHECK(left_of_two_draws(false) > 2u);  // the page was freed, with the items to give back
}

// Writes rows of zeros, if they are admitted at once.
Code write_zeros(Table& table, size_t num_rows) {
  std::unique_ptr<Writer> writer;
  CHECK(Writer::open(&table, 1, &writer).ok());
  const Region& r = table.region();
  const int32_t lane = 0;
  const std::vector<std::byte> zeros(1 << 12);
  StepBlock block;
  block.num_rows = num_rows;
  block.num_lanes = 1;
  block.lanes = &lane;
  block.columns.assign(r.geometry->num_columns, Cells{zeros.data(), 0, 0});
  block.next.resize(r.geometry->num_columns);
  block.terminated = block.truncated = {zeros.data(), 1, 0};
  std::vector<int64_t> keys(num_rows);
  const Code code = writer->write(block, 0.0, keys.data()).code();
  CHECK(writer->close().ok());
  return code;
}

// Two writers fill a table up: only one exceeds the corridor, because reserved rows of the other count.
TEST(rows_that_others_have_reserved_count_as_inserted) {
  Spec spec{.capacity = 1000, .has_state = false};
  spec.indexes = {{.n_step = 1, .limiter = make_samples_per_insert(1.0, 100, 8.5)}};
  Rig rig(spec);
  CHECK(rig.write({0}, 96, std::vector<int>(96, 0), NextGiven::kYes) == Code::kOk);
  static Rig* seen;
  static Code second;
  seen = &rig;
  second = Code::kOk;
  testing::fail_point_hook = [](testing::FailPoint at) {
    if (at != testing::FailPoint::cells_written) return;
    testing::fail_point_hook = nullptr;
    second = write_zeros(*seen->table, 16);
  };
  CHECK(rig.write({0}, 16, std::vector<int>(16, 0), NextGiven::kYes) == Code::kOk);
  CHECK(second == Code::kDeadlineExceeded);
  CHECK_EQ(rig.sample(0, 1).size(), 1u);
}

TEST(queues_and_budgets_as_arithmetic) {
  const LimiterConfig queue = make_queue(10);
  CHECK(can_sample(queue, {4, 4, 0}, 4) && !can_sample(queue, {4, 4, 0}, 5) && !can_sample(queue, {0, 0, 0}, 1));
  CHECK(can_insert(queue, {4, 4, 0}, 6) && !can_insert(queue, {4, 4, 0}, 7));
  CHECK(can_insert(queue, {0, 0, 0}, 10) && !can_insert(queue, {0, 0, 0}, 11));
  CHECK(!can_insert(queue, {0, 10, 0}, 2));  // ten are reserved
  CHECK(draw_always_moves(queue, 10) && !draw_always_moves(queue, 11));
  CHECK(insert_can_ever_pass(queue, 10) && !insert_can_ever_pass(queue, 11));
  CHECK_EQ(most_insertable(queue, {7, 7, 0}, 20), 3);
  const LimiterConfig budget = make_staleness_budget(0.5, 10.0);
  CHECK_EQ(most_insertable(budget, {0, 0, 0}, 100), 15);
  CHECK_EQ(most_insertable(budget, {0, 15, 0}, 100), 0);
  CHECK_EQ(most_insertable(at_version(budget, 3), {0, 15, 0}, 100), 30);
  CHECK(!can_insert(budget, {0, 15, 0}, 1));  // no first fill in addition
  CHECK(can_sample(budget, {1, 1, 0}, 1000) && !paces_draws(budget) && paces_inserts(budget));
  CHECK(always_moves(budget, 1, 100) && !always_moves(budget, 2, 1));
  CHECK(at_version(budget, UINT32_MAX).hi > 4e10);
}

TEST_MAIN()
