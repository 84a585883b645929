// Samplers of new items, and max_staleness: the state after a death, and the purpose of each rule.
#include <functional>
#include <string>
#include <vector>

#include "die_everywhere.hpp"
#include "relive/index/kinds.hpp"
#include "relive/index/leaves.hpp"
#include "relive/pages/expiry.hpp"

using namespace rig;

namespace {

IndexSpec index_of(const char* sampler, uint64_t versions_kept) {
  IndexSpec index{.n_step = 2, .max_times = 2, .versions_kept = versions_kept, .latest = 4, .decay = 1e-60};
  std::string known;
  CHECK(relive::find_sampler(sampler, &index.kind, &known));
  return index;
}

void write(Rig& rig, size_t n) { CHECK(rig.write({0}, n, std::vector<int>(n, 0), NextGiven::kYes) == Code::kOk); }

void without(testing::Rule rule, const std::function<void()>& call) {
  relive::testing::rule_switched_off[static_cast<uint32_t>(rule)] = true;
  call();
  relive::testing::rule_switched_off[static_cast<uint32_t>(rule)] = false;
}

}  // namespace

// A thousand items are dropped in many critical sections. A death between two of them leaves the rest to the next owner
// of the lock.
TEST(a_death_between_two_sections_of_a_version_step_leaves_it_to_others) {
  Spec spec{.capacity = 2000};
  spec.indexes = {{.n_step = 1, .versions_kept = 1}};
  Rig rig(spec);
  for (int k = 0; k < 10; ++k) write(rig, 100);
  die_at(testing::FailPoint::version_swept, *rig.table, [&] { (void)relive::set_policy_version(*rig.table, 2); }, 1);
  const Region& r = rig.table->region();
  const int64_t left = Leaves(r, 0).num_live();
  CHECK(left > 0 && left <= 1000 - 2 * 256);
  CHECK(has_expired(r));
  CHECK(relive::check(*rig.table).ok());
  for (int section = 0; section < 4; ++section) Locked(rig.table->door(), Deadline::after(1.0)).release();
  CHECK_EQ(Leaves(r, 0).num_live(), 0);
  CHECK_EQ(r.header->index_state[0].expired.load(), uint64_t(r.header->index_state[0].inserted.load()));
}

// check(), or a draw, notices each rule that is switched off.
TEST(each_rule_is_needed) {
  const auto is_sound = [](const char* sampler, uint64_t versions_kept) {
    Spec spec{.capacity = 200};
    spec.indexes = {index_of(sampler, versions_kept)};
    Rig rig(spec);
    write(rig, 9);
    bool sound = relive::set_policy_version(*rig.table, 9).ok();
    write(rig, 2);
    sound &= relive::check(*rig.table).ok() && !(versions_kept != 0 && Leaves(rig.table->region(), 0).num_live() > 3);
    if (versions_kept == 0) sound &= Leaves(rig.table->region(), 0).total() <= 4.0;
    return sound;
  };
  CHECK(is_sound("uniform", 2) && is_sound("latest", 0) && is_sound("fading", 0));
  without(testing::Rule::Z1_version, [&] { CHECK(!is_sound("uniform", 2)); });
  without(testing::Rule::Z2_expired, [&] { CHECK(!is_sound("uniform", 2)); });
  without(testing::Rule::Z3_base, [&] { CHECK(!is_sound("fading", 0)); });
  without(testing::Rule::Z4_last, [&] { CHECK(!is_sound("latest", 0)); });
}

// Z3: a death while the base moves leaves masses of both bases; recovery computes all of them again.
TEST(recovery_gives_masses_that_follow) {
  for (const bool with_rule : {true, false}) {
    Spec spec{.capacity = 200};
    spec.indexes = {index_of("fading", 0)};
    Rig rig(spec);
    write(rig, 8);
    CHECK(relive::set_policy_version(*rig.table, 60).ok());
    relive::testing::rule_switched_off[static_cast<uint32_t>(testing::Rule::Z4_settle)] = !with_rule;
    die_at(testing::FailPoint::base_leaf, *rig.table, [&] { write(rig, 3); });
    CHECK_EQ(relive::check(*rig.table).ok(), with_rule);
    relive::testing::rule_switched_off[static_cast<uint32_t>(testing::Rule::Z4_settle)] = false;
  }
}

TEST_MAIN()
