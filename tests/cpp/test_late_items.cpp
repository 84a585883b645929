// Explicit items over rows that wait for their late columns, against the naive model: items stay unfilled, the last of
// their own rows publishes them, and items whose row is evicted first are dropped and counted. A completer may die at
// any point (rules L2, L4 to L6).
#include "core_deaths.hpp"
#include "records_rig.hpp"
#include "relive/index/leaves.hpp"

using namespace rig;

namespace {

Spec late_spec(uint64_t capacity, bool has_state = false) {
  Spec spec;
  spec.capacity = capacity;
  spec.has_state = has_state;
  spec.has_late = true;
  return spec;
}

// A table of one lane with 40 rows that wait.
struct Small {
  explicit Small(RecordSpec items = {}, uint64_t capacity = 64, bool has_state = false)
      : rig(late_spec(capacity, has_state), items) {
    append(40);
  }
  void append(size_t count) {
    CHECK(rig.rig.write({0}, count, std::vector<int>(count, 0), NextGiven::kNo) == Code::kOk);
  }
  const std::vector<int64_t>& keys() const { return rig.rig.keys; }
  std::vector<int64_t> some(size_t begin, size_t end) const {
    return {keys().begin() + static_cast<std::ptrdiff_t>(begin), keys().begin() + static_cast<std::ptrdiff_t>(end)};
  }
  uint16_t state(int64_t key) {
    return Leaves(rig.region(), rig.index()).state(rig.region().leaf_of_key(rig.index(), key));
  }
  int64_t pending() { return rig.region().header->index_state[rig.index()].pending.load(); }
  uint64_t num_incomplete() { return rig.region().header->counters.incomplete_items.load(); }

  RecordsRig rig;
};

void run_programme(const Spec& spec, const RecordSpec& items, int num_operations) {
  RecordsRig rig(spec, items);
  std::vector<int64_t> waiting;
  size_t known = 0;
  for (int operation = 0; operation < num_operations && harness::failures() == 0; ++operation) {
    const uint64_t kind = rig.rig.below(100);
    if (kind < 35) {
      const size_t count = 1 + rig.rig.below(9);
      std::vector<int> ends(count, 0);
      for (int& end : ends) end = rig.rig.below(9) == 0 ? 1 : 0;
      const auto given = spec.has_state ? static_cast<NextGiven>(rig.rig.below(3)) : NextGiven::kNo;
      CHECK(rig.rig.write({0}, count, ends, given) == Code::kOk);
    } else if (kind < 60 && !rig.rig.keys.empty()) {
      for (int tries = 0; tries < 8; ++tries) {
        std::vector<WindowRows> windows;
        bool is_there = false;
        for (size_t w = 0; w < items.windows.size(); ++w) {
          const WindowRows window{rig.rig.some_key(50),
                                  1 + static_cast<int64_t>(rig.rig.below(items.windows[w].first))};
          const bool has = rig.rig.below(3) != 0 && !rig.rows_of(window.key, rig.span(window, w)).empty();
          windows.push_back(has ? window : WindowRows{0, 0});
          is_there |= has;
        }
        if (!is_there) continue;
        const bool gives = items.prioritized && rig.rig.below(2) == 0;
        (void)rig.insert({windows}, gives ? std::vector<float>{2.5f} : std::vector<float>{});
        break;
      }
    } else if (kind < 82 && !waiting.empty()) {
      std::vector<int64_t> chosen;
      for (uint64_t k = 1 + rig.rig.below(14); k > 0 && !waiting.empty(); --k) {
        const size_t at = rig.rig.below(4) == 0 ? 0 : rig.rig.below(waiting.size());
        if (rig.rig.places.count(waiting[at]) != 0) chosen.push_back(waiting[at]);
        waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(at));
      }
      if (rig.rig.below(2) == 0) std::sort(chosen.begin(), chosen.end());
      rig.complete(chosen);
    } else if (kind < 88 && !rig.item_keys.empty()) {
      const size_t most = std::min<size_t>(30, rig.item_keys.size());
      const int64_t key = rig.item_keys[rig.item_keys.size() - 1 - rig.rig.below(most)];
      if (items.prioritized && kind < 86) rig.update({key}, {3.0f});
      if (kind >= 86) rig.remove({key});
    } else if (kind < 92) {
      (void)rig.sample(1 + rig.rig.below(6));
    } else if (kind < 94 && !rig.rig.keys.empty()) {
      rig.rig.remove({rig.rig.some_key(20)});
    } else if (kind < 96) {
      rig.rig.move_pages();
    } else if (kind < 98) {
      rig.rig.close_writer();
      if (rig.rig.below(2) == 0) recover_all(rig.table());
      rig.rig.open_writer();
    } else if (rig.rig.below(6) == 0) {
      CHECK(relive::clear(rig.table()).ok());
    }
    for (known = std::min(known, rig.rig.keys.size()); known < rig.rig.keys.size(); ++known)
      if (rig.rig.below(20) != 0) waiting.push_back(rig.rig.keys[known]);  // the others are never completed
    rig.verify();
    if (harness::failures() != 0) fail_at(spec, operation, kind);
  }
}

void run_programmes(const Spec& spec, const RecordSpec& items, int num_seeds) {
  run_with_seeds(spec, num_seeds, [&](const Spec& one) { run_programme(one, items, 250); });
}

}  // namespace

TEST(an_item_comes_with_the_last_of_its_rows) {
  for (const size_t last : {0, 3, 9}) {
    Small small;
    const int64_t key = small.rig.insert({{{small.keys()[10], 10}}})[0];
    small.rig.verify();
    CHECK_EQ(small.state(key), kStateUnfilled);
    CHECK_EQ(small.pending(), 1);
    for (size_t row : {9, 0, 5, 6, 1, 2, 3, 4, 8, 7})
      if (row != last) small.rig.complete({small.keys()[10 + row]});
    small.rig.verify();
    CHECK_EQ(small.rig.num_live(), 0);
    small.rig.complete({small.keys()[10 + last]});
    small.rig.verify();
    CHECK_EQ(small.rig.num_live(), 1);
    CHECK_EQ(small.pending(), 0);
    CHECK_EQ(small.rig.sample(4).size(), 4u);
  }
}

TEST(an_item_comes_at_once_if_its_rows_are_complete) {
  Small small;
  small.rig.complete(small.some(2, 8));
  const std::vector<int64_t> keys =
      small.rig.insert({{{small.keys()[2], 6}}, {{small.keys()[2], 7}}, {{0, 0}, {0, 0}, {small.keys()[3], 2}}});
  small.rig.verify();
  CHECK_EQ(small.state(keys[0]), 0u);
  CHECK_EQ(small.state(keys[1]), kStateUnfilled);
  CHECK_EQ(small.state(keys[2]), 0u);  // its rows are 3 and 7: rows that the stride skips may wait
  small.rig.complete({small.keys()[8]});
  small.rig.verify();
  CHECK_EQ(small.rig.num_live(), 3);
}

TEST(an_unfilled_item_that_ends_is_counted_and_no_longer_pending) {
  Small small({.max_items = 3});
  const std::vector<int64_t> keys =
      small.rig.insert({{{small.keys()[0], 5}}, {{small.keys()[20], 5}}, {{small.keys()[25], 5}}});
  small.append(25);  // evicts row 0
  small.rig.verify();
  CHECK_EQ(small.num_incomplete(), 2u);  // and the row's own item
  small.rig.remove({keys[1]});           // deleted by the caller, so not counted
  CHECK_EQ(small.num_incomplete(), 2u);
  CHECK_EQ(small.pending(), 1);
  (void)small.rig.insert({{{small.keys()[40], 2}}, {{small.keys()[41], 2}}, {{small.keys()[42], 2}}});
  CHECK_EQ(small.num_incomplete(), 3u);  // the oldest item made room
  CHECK_EQ(small.pending(), 3);
  small.rig.complete(small.some(0, 65));
  small.rig.verify();
  CHECK_EQ(small.rig.num_live(), 3);
  CHECK_EQ(small.pending(), 0);
}

TEST(priorities_wait_with_their_items) {
  for (const Initial initial : {Initial::kNumber, Initial::kGiven}) {
    Small small({.initial = initial});
    const std::vector<int64_t> keys = small.rig.insert({{{small.keys()[0], 3}}, {{small.keys()[1], 3}}}, {4.0f, 0.5f});
    const std::vector<int64_t> without = small.rig.insert({{{small.keys()[2], 2}}, {{small.keys()[0], 4}}});
    small.rig.update({keys[1], without[0]}, {7.0f, 2.0f});
    small.rig.complete(small.some(0, 4));
    small.rig.verify();  // compares masses, too
    CHECK_EQ(small.rig.num_live(), initial == Initial::kGiven ? 3 : 4);
    CHECK_EQ(small.pending(), initial == Initial::kGiven ? 1 : 0);
    small.rig.update({without[1]}, {1.5f});
    small.rig.verify();
    CHECK_EQ(small.rig.num_live(), 4);
    CHECK_EQ(small.pending(), 0);
  }
}

TEST(a_row_that_became_a_tail_is_completed_for_its_items) {
  Small small({}, 64, true);
  const int64_t last = small.keys().back();
  const int64_t key = small.rig.insert({{{small.keys()[36], 4}}})[0];
  small.rig.rig.close_writer();  // without its next state: the last row becomes that state
  CHECK(small.rig.rig.places.count(last) == 0);
  small.rig.complete({last});
  small.rig.complete(small.some(36, 39));
  small.rig.verify();
  CHECK_EQ(small.state(key), 0u);
  small.rig.complete({last});  // again: stale, not refused
}

TEST(pending_items_count_with_their_limiter) {
  RecordSpec items;
  Spec spec = with_items(late_spec(64), items);
  spec.explicit_indexes[0].limiter = make_samples_per_insert(1.0, 2, 4.0);  // inserted - sampled in [-2, 6]
  spec.item_columns.clear();
  Rig rig(spec);
  CHECK(rig.write({0}, 40, std::vector<int>(40, 0), NextGiven::kNo) == Code::kOk);
  const uint32_t index = 1;
  size_t stored = 0;
  const auto insert = [&](size_t row) {
    const WindowRows windows[] = {{rig.keys[row], 1}, {0, 0}, {0, 0}};
    int64_t key = 0;
    return relive::insert_items(*rig.table, index, {1, windows, nullptr, nullptr}, 0.0, &key, &stored).code();
  };
  for (size_t row = 0; row < 6; ++row) CHECK(insert(row) == Code::kOk);
  CHECK(insert(6) == Code::kDeadlineExceeded);
  rig.complete({rig.keys[2]});
  CHECK(insert(6) == Code::kDeadlineExceeded);  // published instead of pending
  int64_t deleted = 0;
  const Region& r = rig.table->region();
  const int64_t first = r.key_of_leaf(index, 0, r.map(index).word(0));
  CHECK(relive::delete_items(*rig.table, &first, 1, &deleted).ok());
  CHECK_EQ(deleted, 1);
  CHECK(insert(6) == Code::kOk);  // a dropped item no longer counts
  CHECK(relive::check(*rig.table).ok());
}

TEST(more_items_on_a_row_than_one_critical_section_publishes) {
  Small small({.max_items = 2000});
  std::vector<std::vector<WindowRows>> items(1500, std::vector<WindowRows>{{small.keys()[7], 3}});
  (void)small.rig.insert(items);
  small.rig.complete({small.keys()[9], small.keys()[7]});
  static uint32_t most, count;
  most = count = 0;
  testing::section_hook = [](bool begins) {
    if (begins) count = 0;
  };
  testing::fail_point_hook = [](testing::FailPoint at) {
    if (at == testing::FailPoint::late_item) most = std::max(most, ++count);
  };
  small.rig.complete({small.keys()[8]});
  testing::section_hook = nullptr;
  testing::fail_point_hook = nullptr;
  CHECK(most > 0 && most <= 256);
  small.rig.verify();
  CHECK_EQ(small.rig.num_live(), 1500);
}

TEST(a_death_between_two_sections_leaves_the_rest_to_the_next_owner) {
  for (const int way : {0, 1, 2}) {
    Small small({.max_items = 2000});
    const std::vector<std::vector<WindowRows>> items(1500, std::vector<WindowRows>{{small.keys()[7], 3}});
    (void)small.rig.insert(items);
    small.rig.complete({small.keys()[7], small.keys()[9]});
    struct Death {};
    testing::fail_point_hook = [](testing::FailPoint at) {
      if (at == testing::FailPoint::late_unlocked) throw Death{};
    };
    try {
      small.rig.complete({small.keys()[8]});
    } catch (const Death&) {
    }
    testing::fail_point_hook = nullptr;
    CHECK(small.rig.region().header->late_rest.slot.load() != 0);
    if (way == 2) recover_all(small.rig.table());
    if (way == 0) small.rig.complete({small.keys()[20]});
    if (way == 1)
      while (small.rig.region().header->late_rest.slot.load() != 0) (void)small.rig.insert({{{small.keys()[30], 1}}});
    small.rig.look_what_is_filled();
    small.rig.verify();
    CHECK_EQ(small.rig.num_live(), 1500);
  }
}

TEST(a_death_while_an_item_waits_or_is_made_leaves_it_or_nothing) {
  using testing::FailPoint;
  for (const FailPoint point :
       {FailPoint::insert_windows, FailPoint::insert_hung, FailPoint::insert_word, FailPoint::late_insert,
        FailPoint::insert_done, FailPoint::late_begin, FailPoint::late_cells, FailPoint::late_filled,
        FailPoint::late_noted, FailPoint::publish_leaf, FailPoint::late_item})
    for (int passage = 1; passage < 4; ++passage) {
      Small small;
      (void)small.rig.insert({{{small.keys()[4], 3}}, {{small.keys()[4], 3}}, {{small.keys()[5], 4}}});
      const std::vector<WindowRows> windows = {{small.keys()[10], 3}, {0, 0}, {0, 0}};
      die_at(
          point, small.rig.table(),
          [&] {
            for (int k = 0; k < 4; ++k) {
              std::vector<int64_t> keys;
              size_t stored = 0;
              CHECK(small.rig.try_insert({windows}, {}, &keys, &stored).ok());
            }
            for (size_t row = 4; row < 14; ++row) small.rig.complete({small.keys()[row]});
          },
          passage);
      CHECK(relive::check(small.rig.table()).ok());
      small.rig.look_what_is_filled();
      std::vector<int64_t> left;
      for (size_t row = 0; row < 40; ++row)
        if (small.rig.region().head_of(small.rig.region().key_slot(small.keys()[row])).load() & kLateBit)
          left.push_back(small.keys()[row]);
      small.rig.complete(left);
      CHECK(relive::check(small.rig.table()).ok());
      CHECK_EQ(small.pending(), 0);
      CHECK(relive::num_items(small.rig.table(), small.rig.index()) >= 3);
    }
}

TEST(late_programmes_of_items) {
  run_programmes(late_spec(60), {}, 20);
  run_programmes(late_spec(60, true), {}, 20);
  run_programmes(late_spec(200), {.max_items = 70, .windows = {{30, 1}, {9, 3}}}, 12);
  run_programmes(late_spec(40, true), {.max_items = 5, .windows = {{1, 1}}, .prioritized = false}, 12);
  run_programmes(late_spec(60), {.initial = Initial::kGiven, .max_times = 2}, 12);
}

TEST_MAIN()
