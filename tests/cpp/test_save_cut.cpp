// The cut of a save (rule J5): late columns that come while a page is copied, ends that come after the cut, and the state
// after the last step of a lane. Each is tried with its part of the rule switched off, too.
#include <utility>

#include "save_rig.hpp"

using namespace rig;

namespace {

constexpr uint32_t kOk = static_cast<uint32_t>(Code::kOk);

Spec spec_of(bool has_late) {
  Spec spec;
  spec.capacity = 150;
  spec.has_late = has_late;
  return spec;
}

// Calls body() with a rule switched off, or without: is_kept.
template <class Body>
auto with_rule(testing::Rule rule, bool is_kept, Body&& body) {
  bool& is_off = testing::rule_switched_off[static_cast<uint32_t>(rule)];
  is_off = !is_kept;
  const auto result = body();
  is_off = false;
  return result;
}

std::unique_ptr<Table> loaded_from(const Spec& spec, const Save& saved) {
  std::unique_ptr<Table> loaded;
  const Status status = load(loading_config(make_config(spec), saved, spec.capacity), saved, &loaded);
  if (!status.ok()) harness::fail(__FILE__, __LINE__, "load: " + text_of(status));
  return loaded;
}

// Late columns that come while the save copies their page: the hook completes these rows.
Rig* completed_by_hook = nullptr;
bool completes_after_rows = false;

void complete_in_copy(bool has_rows) {
  if (has_rows != completes_after_rows || completed_by_hook == nullptr) return;
  Rig& rig = *std::exchange(completed_by_hook, nullptr);
  rig.complete(rig.keys);
}

// Whether each row of a loaded table that counts as completed has its late column.
bool completed_rows_are_whole(bool after_rows, bool is_kept) {
  Spec spec = spec_of(true);
  Rig rig(spec);
  CHECK_EQ(static_cast<uint32_t>(rig.write({0}, 5, std::vector<int>(5, 0), NextGiven::kYes)), kOk);
  completes_after_rows = after_rows;
  testing::copy_hook = &complete_in_copy;
  const Save saved = with_rule(testing::Rule::J5_heads, is_kept, [&] {
    return save_while(*rig.table, [&](int phase) {
      if (phase == 1) completed_by_hook = &rig;
    });
  });
  testing::copy_hook = nullptr;
  CHECK(completed_by_hook == nullptr);
  const std::unique_ptr<Table> loaded = loaded_from(spec, saved);
  if (loaded == nullptr) return false;
  const Region& r = loaded->region();
  const auto is_reward = [](const ColumnLayout& column) { return std::strcmp(column.name, "reward") == 0; };
  const ColumnLayout& reward = *std::find_if(r.columns, r.columns + r.geometry->num_columns, is_reward);
  bool are_whole = true;
  for (const int64_t key : rig.keys) {
    const uint64_t slot = r.key_slot(key);
    float got = 0.0f;
    std::memcpy(&got, r.page_base(r.page_of(slot)) + reward.offset + r.offset_of(slot) * reward.stride, sizeof got);
    const Place place = rig.places.at(key);
    const float given = reward_of(rig.lanes[place.lane].tag, place.episode, place.step);
    are_whole = are_whole && ((r.head_of(slot).load() & kLateBit) != 0 || got == given);
  }
  rig.close_writer();
  return are_whole;
}

// Whether a loaded table has the steps of the cut, although the episode ended after the cut. num_rows: rows of it.
bool last_step_is_as_at_the_cut(size_t num_rows, bool is_kept) {
  Spec spec = spec_of(false);
  Rig rig(spec);
  CHECK_EQ(static_cast<uint32_t>(rig.write({0}, num_rows, std::vector<int>(num_rows, 0), NextGiven::kNo)), kOk);
  const auto end = [&](int phase) {
    if (phase == 1) CHECK_EQ(static_cast<uint32_t>(rig.end_episode({0}, true, false)), kOk);
  };
  const Save saved = with_rule(testing::Rule::J5_last_row, is_kept, [&] { return save_while(*rig.table, end, false); });
  const std::unique_ptr<Table> loaded = loaded_from(spec, saved);
  if (loaded == nullptr) return false;
  // The end came after the cut. So the last row is the state after the step before it, which was truncated there.
  const Region& r = loaded->region();
  const uint64_t slot = r.key_slot(rig.keys.back());
  const bool is_as_at_the_cut = relive::num_steps(*loaded) == num_rows - 1 &&
                                r.is_tail(r.page_of(slot), r.offset_of(slot)) &&
                                (r.head_of(slot).load() & kTerminatedBit) == 0;
  rig.close_writer();
  return is_as_at_the_cut;
}

// Whether a loaded table has the state after the last step of a lane that goes on.
bool next_state_is_saved(size_t num_rows, bool is_kept) {
  Spec spec = spec_of(false);
  Rig rig(spec);
  CHECK_EQ(static_cast<uint32_t>(rig.write({0}, num_rows, std::vector<int>(num_rows, 0), NextGiven::kYes)), kOk);
  const Save saved = with_rule(testing::Rule::J5_frozen_cell, is_kept, [&] { return save_of(*rig.table); });
  const std::unique_ptr<Table> loaded = loaded_from(spec, saved);
  if (loaded == nullptr) return false;
  GatherPlan plan;
  CHECK(relive::make_plan(*loaded, 0, {"next_observation"}, &plan).ok());
  std::vector<std::byte> got(plan.outputs[0].item_bytes), given(got.size());
  std::byte* const out = got.data();
  uint8_t is_present = 0;
  CHECK(relive::gather(*loaded, plan, &rig.keys.back(), 1, &out, &is_present).ok());
  write_cell(given.data(), given.size(), rig.lanes[0].tag, 0, num_rows, 0);
  rig.close_writer();
  return is_present != 0 && got == given;
}

// Lengths of an episode whose last row is the last one of its page, and lies within it.
std::vector<size_t> lengths() {
  Spec spec = spec_of(false);
  Rig rig(spec);
  const size_t page_len = rig.table->region().page_len;
  rig.close_writer();
  return {3, page_len, 2 * page_len, 2 * page_len + 3};
}

}  // namespace

TEST(late_columns_that_come_during_a_copy_are_whole) {
  for (const bool after_rows : {false, true}) CHECK(completed_rows_are_whole(after_rows, true));
  CHECK(!completed_rows_are_whole(true, false));
}

TEST(the_last_row_of_a_lane_is_saved_as_it_was_at_the_cut) {
  for (const size_t num_rows : lengths()) {
    CHECK(last_step_is_as_at_the_cut(num_rows, true));
    CHECK(!last_step_is_as_at_the_cut(num_rows, false));
  }
}

TEST(the_state_after_the_last_step_is_saved) {
  for (const size_t num_rows : lengths()) {
    CHECK(next_state_is_saved(num_rows, true));
    CHECK(!next_state_is_saved(num_rows, false));
  }
}

TEST_MAIN()
