// Pins of all pages: pinned pages stay, waiting calls continue after the pin, and no row is copied under the lock
// (rules C4, D7).
#include <thread>

#include "core_rig.hpp"
#include "relive/pages/pin_all.hpp"
#include "relive/pages/pins.hpp"

using namespace rig;

namespace {

Spec small_spec() {
  Spec spec{.capacity = 64};
  spec.indexes = {{.n_step = 1}};
  return spec;
}

Header& header(Rig& rig) { return *rig.table->region().header; }

void fill(Rig& rig, size_t steps) {
  CHECK(rig.write({0}, steps, std::vector<int>(steps, 0), NextGiven::kYes) == Code::kOk);
}

void begin(PinAll& pin, Rig& rig) {
  Locked locked(rig.table->door(), Deadline::after(1.0));
  CHECK(locked.status().ok());
  pin.begin(locked);
}

uint32_t count_kept(Rig& rig) {
  const Region& r = rig.table->region();
  uint32_t count = 0;
  for (uint32_t page = r.header->kept_head.load(); page != kNoPage; page = r.pages[page].ring_next) ++count;
  return count;
}

void check(Rig& rig) {
  const Status checked = relive::check(*rig.table);
  if (!checked.ok()) harness::fail(__FILE__, __LINE__, checked.fields()[0].text);
}

// Counts the broken promises that the core reports while the object lives.
struct Promises {
  Promises() {
    broken = 0;
    testing::broken_promise_hook = [](const char*) { ++broken; };
  }
  ~Promises() {
    testing::broken_promise_hook = nullptr;
    testing::most_rounds = ~0u;
  }
  inline static int broken = 0;
};

}  // namespace

TEST(an_evicted_page_stays_until_the_last_pin_of_all_pages_ends) {
  Rig rig(small_spec());
  fill(rig, 40);
  const uint32_t free_before = header(rig).num_free_pages.load();
  const uint64_t word = rig.table->region().words[0].load();
  {
    PinAll first(rig.table->door(), Deadline::after(1.0));
    begin(first, rig);
    {
      PinAll second(rig.table->door(), Deadline::after(1.0));
      begin(second, rig);
      CHECK(relive::clear(*rig.table).ok());
      CHECK_EQ(relive::num_steps(*rig.table), 0u);
      CHECK_EQ(header(rig).num_free_pages.load(), free_before);
      CHECK_EQ(count_kept(rig), 5u);  // 40 steps on pages of 8; the next page is open
      CHECK_EQ(rig.table->region().words[0].load(), word);
      uint64_t moved = 1;
      CHECK(relive::move_all_pages(*rig.table, &moved).ok());
      CHECK_EQ(moved, 0u);
      check(rig);
    }
    CHECK_EQ(header(rig).num_pinning_all.load(), 1u);
    CHECK_EQ(count_kept(rig), 5u);
  }
  CHECK_EQ(header(rig).num_pinning_all.load(), 0u);
  CHECK_EQ(count_kept(rig), 0u);
  CHECK_EQ(header(rig).num_free_pages.load(), free_before + 5);
  check(rig);
}

TEST(a_pin_of_one_page_outlives_a_pin_of_all) {
  Rig rig(small_spec());
  fill(rig, 40);
  CHECK(relive::pin_page(*rig.table, rig.keys[0], true).ok());
  {
    PinAll pin(rig.table->door(), Deadline::after(1.0));
    begin(pin, rig);
    CHECK(relive::clear(*rig.table).ok());
  }
  CHECK_EQ(count_kept(rig), 1u);
  check(rig);
  CHECK(relive::pin_page(*rig.table, rig.keys[0], false).ok());
  CHECK_EQ(count_kept(rig), 0u);
  check(rig);
}

TEST(more_pages_than_one_critical_section_frees_are_all_freed) {
  Spec spec = small_spec();
  spec.capacity = 4096;
  spec.max_lanes = 64;  // pages of 8 rows
  Rig rig(spec);
  const uint32_t page_len = rig.table->region().page_len;
  for (int block = 0; block < 16; ++block) fill(rig, 256);
  const uint32_t pages = 4096 / page_len;
  CHECK(pages > kKeptPerSection);
  {
    PinAll pin(rig.table->door(), Deadline::after(1.0));
    begin(pin, rig);
    CHECK(relive::clear(*rig.table).ok());
    CHECK_EQ(count_kept(rig), pages);
  }
  CHECK_EQ(count_kept(rig), 0u);
  check(rig);
}

TEST(a_writer_without_a_free_page_waits_for_the_last_unpin) {
  Rig rig(small_spec());
  const Promises promises;
  PinAll pin(rig.table->door(), Deadline::after(1.0));
  begin(pin, rig);
  // Each write has a timeout of 1 s. The last one ends without a page.
  Code code = Code::kOk;
  for (int block = 0; code == Code::kOk && block < 100; ++block)
    code = rig.write({0}, 8, std::vector<int>(8, 0), NextGiven::kYes);
  CHECK(code == Code::kDeadlineExceeded);
  CHECK_EQ(header(rig).num_free_pages.load(), 0u);
  check(rig);
  std::thread other([&] {
    while (header(rig).room_event.waiters.load() == 0) std::this_thread::yield();
    pin.end();
  });
  CHECK(rig.write({0}, 8, std::vector<int>(8, 0), NextGiven::kYes) == Code::kOk);
  other.join();
  check(rig);
  CHECK_EQ(Promises::broken, 0);
}

TEST(the_pins_of_a_dead_participant_end) {
  Rig rig(small_spec());
  fill(rig, 40);
  {
    Locked locked(rig.table->door(), Deadline::after(1.0));
    pin_all_pages(locked.held(), 3);
    pin_all_pages(locked.held(), 3);
  }
  CHECK(relive::clear(*rig.table).ok());
  CHECK_EQ(count_kept(rig), 5u);
  {
    Locked locked(rig.table->door(), Deadline::after(1.0));
    uint32_t num_cut = 0;
    CHECK(end_participant(locked.held(), 3, &num_cut));
  }
  CHECK_EQ(header(rig).num_pinning_all.load(), 0u);
  CHECK_EQ(count_kept(rig), 0u);
  check(rig);
}

TEST(recovery_counts_pins_again_and_keeps_the_pages) {
  Rig rig(small_spec());
  fill(rig, 40);
  PinAll pin(rig.table->door(), Deadline::after(1.0));
  begin(pin, rig);
  CHECK(relive::clear(*rig.table).ok());
  header(rig).num_pinning_all.fetch_add(1);  // a death between the sum and the participant's word
  {
    Locked locked(rig.table->door(), Deadline::after(1.0));
    recover(locked.held(), rig.table->door().scratch);
  }
  CHECK_EQ(header(rig).num_pinning_all.load(), 1u);
  CHECK_EQ(count_kept(rig), 5u);
  check(rig);
  pin.end();
  CHECK_EQ(count_kept(rig), 0u);
  check(rig);
}

TEST(a_pin_that_ends_without_the_lock_goes_with_the_next_lock) {
  Rig rig(small_spec());
  fill(rig, 40);
  PinAll pin(rig.table->door(), Deadline::after(0.0));
  begin(pin, rig);
  CHECK(relive::clear(*rig.table).ok());
  {
    Locked locked(rig.table->door(), Deadline::after(1.0));
    std::thread([&] { pin.end(); }).join();
    CHECK_EQ(header(rig).num_pinning_all.load(), 1u);
  }
  {
    Locked locked(rig.table->door(), Deadline::after(1.0));
  }
  CHECK_EQ(header(rig).num_pinning_all.load(), 0u);
  CHECK_EQ(count_kept(rig), 0u);
  check(rig);
}

// Items that were chosen under the lock are delivered, even if they are evicted, deleted or moved before they are read.
TEST(chosen_items_are_read_after_their_page_is_emptied) {
  Spec spec = small_spec();
  spec.indexes = {{.n_step = 3, .stack = 2}};
  Rig rig(spec);
  fill(rig, 40);
  const Promises promises;
  static Rig* seen;
  seen = &rig;
  testing::most_rounds = 0;
  testing::fail_point_hook = [](testing::FailPoint at) {
    if (at != testing::FailPoint::sample_gathered) return;
    testing::fail_point_hook = nullptr;
    CHECK(relive::clear(*seen->table).ok());
  };
  CHECK_EQ(rig.sample(0, 16).size(), 16u);  // checked in every byte
  CHECK_EQ(Promises::broken, 0);
  CHECK_EQ(relive::num_steps(*rig.table), 0u);
  CHECK_EQ(count_kept(rig), 0u);
  TableStats stats;
  CHECK(relive::stats(*rig.table, &stats).ok());
  for (const auto& [name, value] : stats.counters)
    if (std::string(name) == "slow_draws") CHECK_EQ(value, 1u);
  check(rig);
}

// Recovery gives every closed page a new word: chosen items are read once more, and no claim is lost.
TEST(chosen_items_are_read_again_after_a_recovery) {
  Spec spec = small_spec();
  spec.indexes = {{.n_step = 1, .max_times = 1}};
  Rig rig(spec);
  fill(rig, 40);
  const Promises promises;
  static Rig* seen;
  seen = &rig;
  testing::most_rounds = 0;
  testing::fail_point_hook = [](testing::FailPoint at) {
    if (at != testing::FailPoint::sample_gathered) return;
    testing::fail_point_hook = nullptr;
    Locked locked(seen->table->door(), Deadline::after(1.0));
    recover(locked.held(), seen->table->door().scratch);
  };
  CHECK_EQ(rig.sample(0, 16).size(), 16u);
  CHECK_EQ(Promises::broken, 0);
  CHECK_EQ(relive::num_items(*rig.table, 0), 24u);
  rig.has_holes = true;
  rig.verify();
}

TEST(rows_copied_under_the_lock_are_noticed) {
  Rig rig(small_spec());
  fill(rig, 8);
  const Promises promises;
  const GatherPlan plan = rig.make_plan(0);
  const Runs runs;
  {
    Locked locked(rig.table->door(), Deadline::after(1.0));
    copy_rows(rig.table->region(), plan, nullptr, runs, nullptr, 0, 0, nullptr);
  }
  CHECK_EQ(Promises::broken, 1);
  copy_rows(rig.table->region(), plan, nullptr, runs, nullptr, 0, 0, nullptr);
  CHECK_EQ(Promises::broken, 1);
}

TEST_MAIN()
