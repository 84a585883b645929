// The core in one thread on LocalMemory, against a naive model, with check() after every operation.
#include <cstdlib>

#include "core_deaths.hpp"
#include "core_rig.hpp"
#include "relive/index/kinds.hpp"

using namespace rig;

namespace {

// Random operations on the table and on the model. Capacity, indexes and columns vary with the case.
void run_programme(const Spec& spec, int num_operations, int verify_every = 1) {
  Rig rig(spec);
  const size_t before = static_cast<size_t>(harness::failures());
  for (int operation = 0; operation < num_operations; ++operation) {
    std::vector<int32_t> which;
    for (uint32_t m = 0; m < spec.num_lanes; ++m)
      if (rig.below(3) != 0) which.push_back(static_cast<int32_t>(m));
    if (which.empty()) which.push_back(0);
    const uint64_t kind = rig.below(100);
    bool wants_priority = false;
    for (const IndexSpec& index : spec.indexes) wants_priority |= index.prioritized;
    if (kind < 70) {
      const size_t num_rows = kind < 50 ? 1 : 1 + rig.below(20);
      const auto given = static_cast<NextGiven>(rig.below(3));
      std::vector<int> ends(num_rows * which.size(), 0);
      for (size_t at = 0; at < ends.size(); ++at) {
        if (rig.below(6) != 0) continue;
        const bool is_last = at / which.size() + 1 == num_rows;
        const bool can_truncate =
            !spec.has_state || given == NextGiven::kYes || (is_last && given == NextGiven::kLastRow);
        ends[at] = can_truncate && rig.below(2) == 0 ? 2 : 1;
      }
      std::vector<float> priorities;
      if (wants_priority && rig.below(2) == 0)
        for (size_t at = 0; at < ends.size(); ++at) priorities.push_back(static_cast<float>(rig.below(9)));
      const Code code = rig.write(which, num_rows, ends, spec.has_state ? given : NextGiven::kNo, priorities);
      CHECK_EQ(static_cast<uint32_t>(code), 0u);
    } else if (kind < 78) {
      const bool terminated = rig.below(2) == 0;
      std::vector<int32_t> able;
      for (int32_t m : which)
        if (rig.can_end(m) && !(terminated && (rig.has_seam(m) || !spec.has_state))) able.push_back(m);
      if (!able.empty())
        CHECK_EQ(static_cast<uint32_t>(rig.end_episode(able, terminated, !terminated || rig.below(2) == 0)), 0u);
    } else if (kind < 90) {
      const auto index = static_cast<uint32_t>(rig.below(spec.indexes.size()));
      const std::vector<int64_t> keys = rig.sample(index, 1 + rig.below(20));
      if (spec.indexes[index].max_times != 0) rig.has_holes = true;
      if (spec.indexes[index].prioritized && !rig.keys.empty()) {
        std::vector<int64_t> updated = keys;
        for (int k = 0; k < 8; ++k) updated.push_back(rig.some_key(40));
        std::vector<float> priorities;
        for (size_t k = 0; k < updated.size(); ++k) priorities.push_back(static_cast<float>(rig.below(7)));
        int64_t applied = 0;
        CHECK(relive::update_priorities(*rig.table, index, updated.data(), priorities.data(), updated.size(), &applied)
                  .ok());
      }
    } else if (kind < 93) {
      std::vector<int64_t> removed;
      for (int k = 0; k < 4 && !rig.keys.empty(); ++k) removed.push_back(rig.some_key(60));
      if (!removed.empty()) rig.remove(removed);
    } else if (kind < 95) {
      rig.close_writer();
      rig.verify();
      rig.open_writer();
    } else if (kind < 98) {
      rig.move_pages();
    } else if (rig.below(4) == 0) {
      CHECK(relive::clear(*rig.table).ok());
    }
    if (spec.reopens != 0 && rig.below(100) < spec.reopens) {
      rig.close_writer();
      if (rig.below(3) == 0) recover_all(*rig.table);
      rig.open_writer();
    }
    if (operation % verify_every == 0) rig.verify();
    if (static_cast<size_t>(harness::failures()) > before + 3) {
      fail_at(spec, operation, kind);
      return;
    }
  }
  rig.close_writer();
  rig.verify();
}

void run_programmes(const Spec& spec, int num_seeds, int num_operations, int verify_every = 1) {
  run_with_seeds(spec, num_seeds, [&](const Spec& one) { run_programme(one, num_operations, verify_every); });
}

}  // namespace

TEST(one_step_appended_with_next_can_be_sampled_at_once) {
  Rig rig(Spec{});
  CHECK(rig.sample(0, 1).empty());
  CHECK_EQ(static_cast<uint32_t>(rig.write({0}, 1, {0}, NextGiven::kYes)), 0u);
  rig.verify();
  CHECK_EQ(rig.sample(0, 4).size(), 4u);
  CHECK_EQ(relive::num_steps(*rig.table), 1u);
  CHECK_EQ(relive::num_items(*rig.table, 0), 1);
}

TEST(capacity_one) {
  Spec spec;
  spec.capacity = 1;
  Rig rig(spec);
  for (int step = 0; step < 50; ++step) {
    CHECK_EQ(static_cast<uint32_t>(rig.write({0}, 1, {step % 7 == 6 ? 1 : 0}, NextGiven::kYes)), 0u);
    rig.verify();
    CHECK_EQ(relive::num_steps(*rig.table), 1u);
    const std::vector<int64_t> keys = rig.sample(0, 3);
    CHECK_EQ(keys.size(), 3u);
    for (int64_t key : keys) CHECK_EQ(key, rig.keys.back());
  }
}

TEST(one_lane_keeps_exactly_the_newest_steps) {
  Spec spec;
  spec.capacity = 37;
  Rig rig(spec);
  for (int step = 0; step < 300; ++step) {
    CHECK_EQ(static_cast<uint32_t>(rig.write({0}, 1, {step % 11 == 10 ? 1 : 0}, NextGiven::kYes)), 0u);
    const size_t count = std::min<size_t>(37, rig.keys.size());
    CHECK_EQ(relive::num_steps(*rig.table), count);
    for (size_t k = 0; k < rig.keys.size(); ++k) CHECK_EQ(rig.is_step_alive(rig.keys[k]), k + count >= rig.keys.size());
    rig.verify();
  }
}

TEST(a_pinned_page_keeps_its_rows_and_goes_when_unpinned) {
  Spec spec;
  spec.capacity = 16;
  Rig rig(spec);
  CHECK(rig.write({0}, 8, std::vector<int>(8, 0), NextGiven::kYes) == Code::kOk);
  const int64_t first = rig.keys.front();
  CHECK(relive::pin_page(*rig.table, first, true).ok());
  const Region& r = rig.table->region();
  const uint64_t page = r.page_of(r.key_slot(first));
  const uint64_t word = r.words[page].load();
  for (int block = 0; block < 12; ++block) {
    CHECK(rig.write({0}, 8, std::vector<int>(8, 0), NextGiven::kYes) == Code::kOk);
    rig.verify();
    CHECK_EQ(rig.is_step_alive(first), block == 0);  // evicted, but its bytes are not reused
    CHECK_EQ(Region::generation_of(r.words[page].load()), Region::generation_of(word));
  }
  CHECK(relive::pin_page(*rig.table, first, false).ok());
  CHECK(Region::generation_of(r.words[page].load()) > Region::generation_of(word));
  rig.verify();
}

TEST(very_short_episodes_exhaust_the_pages_and_the_oldest_steps_go_early) {
  Spec spec;
  spec.capacity = 1000;
  spec.num_lanes = 2;
  spec.indexes = {{.n_step = 3, .stack = 4}};
  Rig rig(spec);
  for (int step = 0; step < 1500; ++step) {
    CHECK(rig.write({0, 1}, 1, {1 + step % 2, 2}, NextGiven::kYes) == Code::kOk);
    CHECK(relive::num_steps(*rig.table) <= spec.capacity);
    if (step % 50 == 0) rig.verify();
  }
  CHECK(rig.table->region().header->counters.pool_pressure.load() > 0);
  CHECK(relive::num_steps(*rig.table) > spec.capacity / 2);
  CHECK_EQ(rig.sample(0, 50).size(), 50u);
}

TEST(programmes_one_lane_uniform) {
  run_programmes({.capacity = 20}, 20, 300);
  run_programmes({.capacity = 2}, 10, 300);
  run_programmes({.capacity = 300}, 10, 300);
}

TEST(programmes_n_step_and_stack) {
  run_programmes({.capacity = 30, .indexes = {{.n_step = 3, .stack = 4}}}, 20, 300);
  run_programmes({.capacity = 7, .indexes = {{.n_step = 3, .stack = 4, .pad = StackPad::kZeros}}}, 20, 300);
  run_programmes({.capacity = 200, .indexes = {{.n_step = 5, .stack = 4}}}, 10, 300);
}

TEST(programmes_several_lanes) {
  run_programmes({.capacity = 60, .num_lanes = 3, .indexes = {{.n_step = 3, .stack = 4}}}, 20, 300);
  run_programmes({.capacity = 21, .num_lanes = 3, .indexes = {{.n_step = 3, .stack = 4, .prioritized = true}}}, 20,
                 300);
  run_programmes({.capacity = 8, .num_lanes = 4}, 20, 300);
}

TEST(programmes_prioritized) {
  run_programmes({.capacity = 40, .num_lanes = 2, .indexes = {{.prioritized = true}}}, 20, 300);
  run_programmes(
      {.capacity = 40, .num_lanes = 2, .indexes = {{.n_step = 3, .prioritized = true, .initial = Initial::kGiven}}}, 20,
      300);
}

TEST(programmes_use_counts) {
  run_programmes({.capacity = 40, .num_lanes = 2, .indexes = {{.n_step = 2, .prioritized = true, .max_times = 1}}}, 20,
                 300);
  run_programmes({.capacity = 40, .num_lanes = 2, .indexes = {{.n_step = 2, .stack = 3, .max_times = 3}}}, 20, 300);
}

TEST(programmes_several_indexes) {
  run_programmes({.capacity = 50,
                  .num_lanes = 2,
                  .indexes = {{.n_step = 3, .stack = 4},
                              {.n_step = 1, .prioritized = true},
                              {.n_step = 5, .prioritized = true, .initial = Initial::kGiven, .max_times = 2}}},
                 20, 300);
}

TEST(programmes_without_state_columns) {
  run_programmes({.capacity = 20, .num_lanes = 2, .has_state = false}, 20, 300);
  run_programmes({.capacity = 30, .num_lanes = 2, .has_state = false, .indexes = {{.n_step = 3}}}, 20, 300);
}

TEST(programmes_windows_over_many_pages) {
  // Pages of 8 rows: a window covers up to 5 pages, and as many before its item.
  run_programmes({.capacity = 90, .indexes = {{.n_step = 30, .stack = 12}}}, 20, 300);
  run_programmes({.capacity = 120, .num_lanes = 2, .indexes = {{.n_step = 17, .stack = 40, .prioritized = true}}}, 20,
                 300);
  run_programmes({.capacity = 60, .num_lanes = 2, .indexes = {{.n_step = 20, .max_times = 2}}}, 20, 300);
  run_programmes({.capacity = 60, .num_lanes = 2, .has_state = false, .indexes = {{.n_step = 20}}}, 20, 300);
  run_programmes({.capacity = 60, .has_state = false, .indexes = {{.n_step = 25, .max_times = 1}}}, 20, 300);
}

TEST(programmes_the_reach_of_one_index_costs_the_others_nothing) {
  run_programmes({.capacity = 80,
                  .num_lanes = 2,
                  .indexes = {{.n_step = 1},
                              {.n_step = 2, .stack = 20, .prioritized = true},
                              {.n_step = 12, .stack = 3, .max_times = 2}}},
                 20, 300);
}

TEST(programmes_of_short_lanes) {
  // Lanes of a few rows each continue in the pages of others: no window joins two lanes, and each row names its lane.
  run_programmes({.capacity = 40, .indexes = {{.n_step = 3, .stack = 4, .prioritized = true}}, .reopens = 30}, 20, 300);
  run_programmes({.capacity = 60, .num_lanes = 3, .indexes = {{.n_step = 3}}, .reopens = 20}, 20, 300);
  run_programmes({.capacity = 30, .has_state = false, .indexes = {{.n_step = 3}}, .reopens = 30}, 20, 300);
  run_programmes({.capacity = 60, .num_lanes = 2, .has_state = false, .indexes = {{.n_step = 20}}, .reopens = 20}, 20,
                 300);
  run_programmes(
      {.capacity = 40, .num_lanes = 2, .indexes = {{.n_step = 2, .stack = 3, .max_times = 1}}, .reopens = 20}, 20, 300);
  run_programmes({.capacity = 120, .indexes = {{.n_step = 17, .stack = 12}, {.n_step = 1}}, .reopens = 20}, 20, 300);
  run_programmes({.capacity = 500, .max_lanes = 1, .indexes = {{.n_step = 3, .stack = 4}}, .reopens = 20}, 10, 400);
}

TEST(programmes_of_the_highest_and_the_lowest) {
  // The purpose of min, max and best(): a draw returns the items with the highest, or the lowest, priorities.
  for (const bool highest : {true, false}) {
    std::string known;
    Sampling kind;
    CHECK(relive::find_sampler(highest ? "max_priority" : "min_priority", &kind, &known));
    Spec spec{.capacity = 40, .num_lanes = 1};
    spec.indexes[0].kind = kind;
    Rig rig(spec);
    CHECK(rig.write({0}, 20, std::vector<int>(20, 0), NextGiven::kYes) == Code::kOk);
    std::vector<float> priorities;
    for (size_t k = 0; k < rig.keys.size(); ++k) priorities.push_back(static_cast<float>(1 + (k * 7) % 20));
    std::vector<size_t> order(rig.keys.size());
    for (size_t k = 0; k < order.size(); ++k) order[k] = k;
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return highest ? priorities[a] > priorities[b] : priorities[a] < priorities[b];
    });
    int64_t applied = 0;
    CHECK(relive::update_priorities(*rig.table, 0, rig.keys.data(), priorities.data(), rig.keys.size(), &applied).ok());
    CHECK_EQ(applied, 20);
    for (size_t at = 0; at < order.size(); ++at) {  // the best three items, in order
      const std::vector<int64_t> drawn = rig.sample(0, 3);
      CHECK_EQ(drawn.size(), 3u);
      const size_t left = std::min<size_t>(3, order.size() - at);
      for (size_t k = 0; k < drawn.size(); ++k) CHECK_EQ(drawn[k], rig.keys[order[at + k % left]]);
      rig.remove({rig.keys[order[at]]});
      CHECK(relive::check(*rig.table).ok());
    }
    CHECK(rig.sample(0, 1).empty());
  }
}

TEST(claims_given_back_revive_no_item_with_evicted_rows) {
  // Items 5 to 7 are drawn and not gathered. Their windows run into the next page, which is freed after its own items
  // are used up. The items are then absent, and not shorter.
  Spec spec{.capacity = 64, .has_state = false};
  spec.indexes = {{.n_step = 3, .max_times = 1}};
  Rig rig(spec);
  CHECK(rig.write({0}, 24, std::vector<int>(24, 0), NextGiven::kNo) == Code::kOk);
  std::vector<int64_t> drawn(8);
  std::vector<double> probabilities(8);
  DrawRequest request;
  request.num_items = 8;
  request.keys = drawn.data();
  request.probabilities = probabilities.data();
  CHECK(relive::sample(*rig.table, request, 0.0).ok());  // may contain items of the first page
  for (int batch = 0; batch < 14; ++batch) (void)rig.sample(0, 1);
  CHECK(relive::check(*rig.table).ok());
  const GatherPlan plan = rig.make_plan(0);
  std::vector<std::vector<std::byte>> out(plan.outputs.size());
  std::vector<std::byte*> pointers;
  for (size_t o = 0; o < out.size(); ++o) {
    out[o].resize(plan.outputs[o].item_bytes * drawn.size());
    pointers.push_back(out[o].data());
  }
  std::vector<uint8_t> present(drawn.size());
  CHECK(relive::gather(*rig.table, plan, drawn.data(), drawn.size(), pointers.data(), present.data()).ok());
  for (size_t k = 0; k < drawn.size(); ++k)
    if (present[k]) rig.check_item(0, plan, out, k, drawn[k]);
}

TEST(publication_continues_after_a_page_that_was_freed_early) {
  // Windows of 12 steps over pages of 8: 13 to 23 of the 24 rows are pending. Rows 5 to 23 are deleted: the third page
  // is freed, and the second stays because rows 0 to 4 need rows of it. The cursor stands in the second page, before
  // rows that will never be items.
  Spec spec{.capacity = 64, .has_state = false};
  spec.indexes = {{.n_step = 12}};
  Rig rig(spec);
  CHECK(rig.write({0}, 24, std::vector<int>(24, 0), NextGiven::kNo) == Code::kOk);
  rig.remove(std::vector<int64_t>(rig.keys.begin() + 5, rig.keys.end()));
  CHECK(!rig.is_step_alive(rig.keys[16]) && rig.is_step_alive(rig.keys[15]));
  CHECK(rig.write({0}, 24, std::vector<int>(24, 0), NextGiven::kNo) == Code::kOk);
  rig.verify();
  CHECK_EQ(relive::num_items(*rig.table, 0), 5u + 13u);
}

TEST(a_death_while_an_unused_page_is_freed_costs_no_item) {
  // The page for the state after row 7 was opened, and row 7 never came. The process that ends the lane dies while it
  // closes that page.
  Spec spec{.capacity = 64};
  spec.indexes = {{.n_step = 3}};
  Rig rig(spec);
  CHECK(rig.write({0}, 7, std::vector<int>(7, 0), NextGiven::kYes) == Code::kOk);
  die_at(testing::FailPoint::commit_begin, *rig.table,
         [&] { (void)rig.write({0}, 1, std::vector<int>(1, 0), NextGiven::kYes); });
  die_at(testing::FailPoint::close_page, *rig.table, [&] { end_writers(*rig.table); }, 2);
  end_writers(*rig.table);
  CHECK(relive::check(*rig.table).ok());
  CHECK_EQ(relive::num_steps(*rig.table), 7u);
  CHECK_EQ(relive::num_items(*rig.table, 0), 7u);
}

TEST(a_death_at_the_end_of_a_page_leaves_no_open_page_without_a_writer) {
  // The page is full and the next one was opened ahead; the lane still names the full page, which is OPEN.
  Spec spec{.capacity = 64};
  Rig rig(spec);
  CHECK(rig.write({0}, 7, std::vector<int>(7, 0), NextGiven::kYes) == Code::kOk);
  die_at(testing::FailPoint::commit_seam, *rig.table,
         [&] { (void)rig.write({0}, 1, std::vector<int>(1, 0), NextGiven::kYes); });
  end_writers(*rig.table);
  const Status checked = relive::check(*rig.table);
  if (!checked.ok()) harness::fail(__FILE__, __LINE__, checked.fields()[0].text);
  CHECK_EQ(relive::num_items(*rig.table, 0), 8u);
}

TEST(a_writer_for_each_episode_strands_no_page) {
  // Nine steps and a tail, or ten steps: each writer continues in the page of the writer before.
  for (const bool has_state : {true, false}) {
    Spec spec{.capacity = 20'000, .max_lanes = 1, .has_state = has_state};
    spec.indexes = {{.n_step = 3, .stack = has_state ? 4u : 1u}};
    Rig rig(spec);
    rig.close_writer();
    CHECK(rig.table->region().page_len > 256);
    for (int episode = 0; episode < 4500; ++episode) {
      rig.open_writer();
      std::vector<int> ends(10, 0);
      if (episode % 3 != 0) ends.back() = episode % 3;
      CHECK(rig.write({0}, 10, ends, NextGiven::kYes) == Code::kOk);
      rig.close_writer();
      if (episode % 500 == 0) rig.verify();
    }
    rig.verify(3000);
    CHECK(relive::num_steps(*rig.table) >= spec.capacity * 97 / 100);
    CHECK(relive::num_items(*rig.table, 0) >= static_cast<int64_t>(spec.capacity * 97 / 100));
    CHECK_EQ(rig.table->region().header->counters.pool_pressure.load(), 0u);
  }
}

TEST(a_lane_that_was_never_ended_leaves_no_tail_to_the_next_one) {
  // A death between the tail's bit and its range leaves the bit of a row that does not exist: row 4. The next lane of
  // the slot writes that row.
  Rig rig(Spec{.capacity = 64});
  CHECK(rig.write({0}, 3, std::vector<int>(3, 0), NextGiven::kYes) == Code::kOk);
  die_at(testing::FailPoint::commit_tail_bit, *rig.table,
         [&] { (void)rig.write({0}, 2, std::vector<int>{0, 1}, NextGiven::kYes); });
  end_writers(*rig.table);
  rig.forget_writer();
  rig.open_writer();
  CHECK_EQ(relive::num_steps(*rig.table), 3u);
  CHECK(rig.write({0}, 3, std::vector<int>(3, 0), NextGiven::kYes) == Code::kOk);
  rig.verify();
  CHECK_EQ(relive::num_items(*rig.table, 0), 6u);
}

TEST(recovery_keeps_a_parked_page) {
  Rig rig(Spec{.capacity = 64});
  CHECK(rig.write({0}, 3, std::vector<int>(3, 0), NextGiven::kYes) == Code::kOk);
  rig.close_writer();
  const Region& r = rig.table->region();
  const uint64_t page = r.page_of(r.key_slot(rig.keys.front()));
  recover_all(*rig.table);
  CHECK_EQ(parked_page(r, 0), page);
  rig.open_writer();
  CHECK(rig.write({0}, 3, std::vector<int>(3, 0), NextGiven::kYes) == Code::kOk);
  rig.verify();
  CHECK_EQ(r.page_of(r.key_slot(rig.keys.back())), page);
}

TEST(a_parked_page_goes_with_its_last_row) {
  // The rows are evicted, used up, deleted or cleared: nothing is left, and the next writer has all its items.
  for (const uint32_t max_times : {0u, 1u}) {
    Spec spec{.capacity = 64};
    spec.indexes = {{.n_step = 1, .stack = 4, .max_times = max_times}};
    Rig rig(spec);
    const uint64_t num_free = rig.table->region().header->num_free_pages.load();
    for (int round = 0; round < 3; ++round) {
      if (round > 0) rig.open_writer();
      CHECK(rig.write({0}, 4, std::vector<int>(4, 0), NextGiven::kYes) == Code::kOk);
      rig.close_writer();
      CHECK_EQ(rig.table->region().header->num_free_pages.load(), num_free - 1);
      CHECK_EQ(relive::num_items(*rig.table, 0), 4u);
      if (round == 1) {
        rig.remove({rig.keys.end() - 4, rig.keys.end()});
      } else if (max_times == 0) {
        CHECK(relive::clear(*rig.table).ok());
      } else {
        CHECK_EQ(rig.sample(0, 4).size(), 4u);
      }
      CHECK_EQ(rig.table->region().header->num_free_pages.load(), num_free);
      CHECK_EQ(relive::num_steps(*rig.table), 0u);
      rig.has_holes = max_times != 0;
      rig.verify();
    }
  }
}

TEST(a_lane_begins_a_page_of_its_own_if_rows_that_it_reaches_are_gone) {
  // The parked page still has 2 of its 6 rows: stacks of 4 would cost the next lane its first item.
  Spec spec{.capacity = 20, .max_lanes = 4};
  spec.indexes = {{.n_step = 1, .stack = 4}};
  Rig rig(spec);
  CHECK(rig.write({0}, 5, {0, 0, 0, 0, 1}, NextGiven::kYes) == Code::kOk);  // and a tail
  std::unique_ptr<Writer> first = std::move(rig.writer);
  const int64_t key = rig.keys.front();
  rig.open_writer();
  CHECK(first->close().ok());  // parked; the second writer has another page
  CHECK(rig.write({0}, 19, std::vector<int>(19, 0), NextGiven::kYes) == Code::kOk);
  CHECK(!rig.is_step_alive(key) && rig.is_step_alive(key + 4));
  rig.close_writer();
  rig.open_writer();
  CHECK(rig.write({0}, 1, {1}, NextGiven::kYes) == Code::kOk);
  rig.verify();
  CHECK(relive::num_items(*rig.table, 0) >= 16);
}

TEST(a_death_in_the_middle_of_a_deletion_counts_the_step_once) {
  Spec spec{.capacity = 64};
  spec.indexes = {{.n_step = 1}, {.n_step = 2}};
  Rig rig(spec);
  CHECK(rig.write({0}, 10, std::vector<int>(10, 0), NextGiven::kYes) == Code::kOk);
  int64_t deleted = 0;
  die_at(testing::FailPoint::delete_one, *rig.table,
         [&] { (void)relive::delete_items(*rig.table, &rig.keys[3], 1, &deleted); });
  CHECK(relive::check(*rig.table).ok());
  CHECK_EQ(relive::num_items(*rig.table, 0), 9u);
  CHECK(relive::delete_items(*rig.table, &rig.keys[3], 1, &deleted).ok());
  const Status checked = relive::check(*rig.table);
  if (!checked.ok()) harness::fail(__FILE__, __LINE__, checked.fields()[0].text);
  CHECK_EQ(relive::num_items(*rig.table, 1), 8u);
  CHECK_EQ(relive::num_steps(*rig.table), 9u);
}

TEST(a_death_while_claims_are_given_back_leaves_no_item_that_cannot_be_drawn) {
  Spec spec{.capacity = 64};
  spec.indexes = {{.n_step = 1, .max_times = 1}};
  Rig rig(spec);
  CHECK(rig.write({0}, 4, std::vector<int>(4, 0), NextGiven::kYes) == Code::kOk);
  die_at(testing::FailPoint::claim_back, *rig.table, [&] { (void)rig.sample(0, 5); });  // one more than there are
  CHECK(relive::check(*rig.table).ok());
  const uint64_t live = relive::num_items(*rig.table, 0);
  for (uint64_t item = 0; item < live; ++item) CHECK_EQ(rig.sample(0, 1).size(), 1u);
  CHECK_EQ(relive::num_items(*rig.table, 0), 0u);
}

TEST(a_claim_given_back_keeps_the_priority_that_came_between_draw_and_claim) {
  Spec spec{.capacity = 64};
  spec.indexes = {{.n_step = 1, .prioritized = true, .max_times = 1}};
  Rig rig(spec);
  CHECK(rig.write({0}, 4, std::vector<int>(4, 0), NextGiven::kYes) == Code::kOk);
  static Rig* seen;
  static bool is_updated;
  seen = &rig;
  is_updated = false;
  testing::fail_point_hook = [](testing::FailPoint at) {
    if (at != testing::FailPoint::sample_gathered || is_updated) return;
    is_updated = true;
    const std::vector<float> priorities(4, 5.0f);
    int64_t applied = 0;
    CHECK(relive::update_priorities(*seen->table, 0, seen->keys.data(), priorities.data(), 4, &applied).ok());
    CHECK_EQ(applied, 4);
  };
  CHECK(rig.sample(0, 5).empty());  // one more than there are: the claims are given back
  testing::fail_point_hook = nullptr;
  CHECK(is_updated);
  TableStats stats;
  CHECK(relive::stats(*rig.table, &stats).ok());
  const double mass = leaf_of(rig.table->region().header->indexes[0], 5.0f);
  CHECK(std::abs(stats.total_mass.at(0) - 4.0 * mass) < 1e-9);
}

TEST(programmes_large_rows) {
  run_programmes({.capacity = 40, .num_lanes = 2, .has_pixels = true, .indexes = {{.n_step = 3, .stack = 4}}}, 4, 200,
                 5);
}

TEST_MAIN()
