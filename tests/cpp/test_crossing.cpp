// Windows that cross ends of episodes, against the model's list of steps: the number of steps that a lane had before
// each row, and the rows that start a whole item (rules S1, S2 and S4).
#include "core_rig.hpp"
#include "relive/index/leaves.hpp"
#include "relive/pages/crossing.hpp"

using namespace rig;

namespace {

constexpr uint32_t kOk = static_cast<uint32_t>(Code::kOk);

Spec crossing_spec(uint32_t length, uint32_t bootstrap, uint32_t period) {
  Spec spec;
  spec.num_lanes = 2;
  IndexSpec index;
  index.sequence = {length, 0, bootstrap, period, AtEnd::kCross, PadSide::kRight, 0, 0, 0};
  spec.indexes = {index};
  return spec;
}

// The steps of a lane in order, one episode after the other.
std::vector<const ModelStep*> steps_of(const ModelLane& lane) {
  std::vector<const ModelStep*> steps;
  for (const ModelEpisode& episode : lane.episodes)
    for (const ModelStep& step : episode.steps) steps.push_back(&step);
  return steps;
}

// The number of steps at the end of the lane that no window may use yet: the last one, if it may become a tail.
uint64_t num_open(const Spec& spec, const ModelLane& lane, bool is_closed) {
  const bool is_step_last = !lane.episodes.back().steps.empty();
  return spec.has_state && !is_closed && is_step_last && !lane.has_seam ? 1 : 0;
}

void verify(const Rig& rig, const Spec& spec, const std::vector<bool>& is_closed) {
  const Region& r = rig.table->region();
  const SequenceConfig& sequence = spec.indexes[0].sequence;
  CHECK(relive::check(*rig.table).ok());
  for (size_t position = 0; position < rig.lanes.size(); ++position) {
    const std::vector<const ModelStep*> steps = steps_of(rig.lanes[position]);
    const uint64_t open = num_open(spec, rig.lanes[position], is_closed[position]);
    for (size_t s = 0; s < steps.size(); ++s) {
      if (!rig.is_step_alive(steps[s]->key)) continue;
      const uint64_t slot = r.key_slot(steps[s]->key);
      CHECK_EQ(lane_step(r, r.page_of(slot), r.offset_of(slot)), s);
      const uint16_t state = Leaves(r, 0).state(slot);
      const bool begins = s % sequence.period == 0;
      const bool is_whole = steps.size() - s >= sequence.length + sequence.bootstrap + open;
      if (begins && (is_whole || is_closed[position])) CHECK(state <= kMostUses);  // a lane's end shortens the item
      if (begins && !is_whole && !is_closed[position]) CHECK_EQ(state, kStatePending);
      if (!begins && is_whole) CHECK_EQ(state, kStateEnded);
      if (!begins) CHECK(state == kStateEnded || state == kStatePending);
    }
  }
}

void run(Spec spec, int num_operations) {
  Rig rig(spec);
  std::vector<bool> is_closed(spec.num_lanes, false);
  for (int operation = 0; operation < num_operations && harness::failures() == 0; ++operation) {
    std::vector<int32_t> which;
    for (uint32_t m = 0; m < spec.num_lanes; ++m)
      if (rig.below(3) != 0) which.push_back(static_cast<int32_t>(m));
    if (which.empty()) which.push_back(0);
    const uint64_t kind = rig.below(100);
    if (kind < 80) {
      const size_t num_rows = kind < 50 ? 1 : 1 + rig.below(20);
      const auto given = spec.has_state ? static_cast<NextGiven>(rig.below(3)) : NextGiven::kNo;
      std::vector<int> ends(num_rows * which.size(), 0);
      for (int& end : ends) end = rig.below(4) == 0 ? 1 : 0;
      CHECK_EQ(static_cast<uint32_t>(rig.write(which, num_rows, ends, given)), kOk);
    } else if (kind < 92) {
      std::vector<int32_t> able;
      for (int32_t m : which)
        if (rig.can_end(m)) able.push_back(m);
      if (!able.empty()) CHECK_EQ(static_cast<uint32_t>(rig.end_episode(able, false, true)), kOk);
    } else {
      rig.close_writer();
      is_closed.assign(rig.lanes.size(), true);
      rig.open_writer();
      is_closed.resize(rig.lanes.size(), false);
    }
    verify(rig, spec, is_closed);
  }
}

void run_programmes(Spec spec) {
  for (const bool has_state : {true, false})
    for (const uint64_t capacity : {10, 25, 100}) {
      spec.has_state = has_state;
      spec.capacity = 16 * spec.indexes[0].sequence.length + capacity;
      for (spec.seed = 0; spec.seed < 12 && harness::failures() == 0; ++spec.seed) run(spec, 60);
    }
}

}  // namespace

TEST(windows_of_one_step_at_every_second) { run_programmes(crossing_spec(1, 0, 2)); }

TEST(windows_with_a_bootstrap_row) { run_programmes(crossing_spec(3, 1, 1)); }

TEST(windows_longer_than_a_page) { run_programmes(crossing_spec(11, 0, 3)); }

TEST(a_page_that_lanes_share_counts_each_from_its_own_first_row) {
  Spec spec = crossing_spec(2, 0, 1);
  spec.num_lanes = 1;
  spec.capacity = 100;
  for (const bool has_state : {true, false}) {
    spec.has_state = has_state;
    run(spec, 400);
  }
}

TEST_MAIN()
