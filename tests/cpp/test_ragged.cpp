// Ragged batches whose items end between the reading of their lengths and of their rows: another item with another
// length takes the place, and the rows after it move.
#include "core_rig.hpp"
#include "relive/read/ragged.hpp"

using namespace rig;

namespace {

constexpr uint32_t kMost = 24;  // steps of an episode
constexpr size_t kItems = 12;   // of a batch: one block

Spec ragged_spec(bool has_state, uint32_t max_times, uint64_t seed) {
  Spec spec;
  spec.capacity = 300;
  spec.has_state = has_state;
  spec.indexes = {
      {.max_times = max_times, .sequence = {kMost, 0, has_state ? 1u : 0u, 0, AtEnd::kPad, PadSide::kRight, 1, 0, 0}}};
  spec.seed = seed;
  return spec;
}

// Memory for the batches of one plan. As the contract says, the memory of the call before the last one is freed.
class TestRoom final : public RowRoom {
 public:
  explicit TestRoom(const GatherPlan& plan, size_t num_items) : plan_(plan), num_items_(num_items) {}
  std::byte* const* make(size_t num_rows) override {
    rows_made.push_back(num_rows);
    Made& made = made_[rows_made.size() % 2];
    for (std::vector<std::byte>& buffer : made.buffers) std::fill(buffer.begin(), buffer.end(), std::byte{0xee});
    made.buffers.clear();
    made.pointers.clear();
    for (const Output& output : plan_.outputs)
      made.buffers.emplace_back(output_bytes(plan_, output, num_items_, num_rows), std::byte{0xcc});
    for (std::vector<std::byte>& buffer : made.buffers) made.pointers.push_back(buffer.data());
    return made.pointers.data();
  }

  std::vector<size_t> rows_made;  // of each call

 private:
  struct Made {
    std::vector<std::vector<std::byte>> buffers;
    std::vector<std::byte*> pointers;
  };

  const GatherPlan& plan_;
  size_t num_items_;
  Made made_[2];
};

// Runs once, at the passage of the fail point that the test has chosen.
std::function<void()> in_between;
int passages_left = 0;

template <class Call>
void with_hook(int passage, std::function<void()> what, Call&& call) {
  in_between = std::move(what);
  passages_left = passage;
  testing::fail_point_hook = [](testing::FailPoint at) {
    if (at == testing::FailPoint::sample_gathered && passages_left > 0 && --passages_left == 0) in_between();
  };
  call();
  testing::fail_point_hook = nullptr;
}

class RaggedRig {
 public:
  RaggedRig(bool has_state, uint32_t max_times, uint64_t seed) : rig(ragged_spec(has_state, max_times, seed)) {
    std::vector<std::string> names = {"action", "reward", "episode_step", "num_steps", "lane", "offsets"};
    if (has_state) names.push_back("observation");
    CHECK(relive::make_plan(*rig.table, 0, names, &plan).ok());
    while (rig.keys.size() < 600) write_episode();
  }

  void write_episode() {
    const size_t length = 1 + rig.below(kMost);
    std::vector<int> ends(length, 0);
    ends.back() = 2;
    const auto given = rig.table->region().geometry->has_state != 0 ? NextGiven::kYes : NextGiven::kNo;
    CHECK(rig.write({0}, length, ends, given) == Code::kOk);
  }
  // Writes this many steps of new episodes, which evict the oldest others.
  void replace_oldest(size_t num_steps) {
    for (const size_t end = rig.keys.size() + num_steps; rig.keys.size() < end;) write_episode();
  }
  uint64_t num_redraws() { return rig.table->region().header->counters.redraws_generation.load(); }

  // Checks that every item has all rows of its episode with the written bytes, or no rows if the item is absent.
  void check_batch(std::byte* const* out, const int64_t* keys, const uint8_t* present, int64_t num_rows) const {
    const auto value = [&](size_t output, size_t at, auto number) {
      std::memcpy(&number, out[output] + at * sizeof number, sizeof number);
      return number;
    };
    const bool has_state = plan.outputs.size() == 7;
    CHECK_EQ(value(5, 0, int64_t{}), 0);
    CHECK_EQ(value(5, kItems, int64_t{}), num_rows);
    for (size_t item = 0; item < kItems; ++item) {
      const auto begin = static_cast<size_t>(value(5, item, int64_t{})),
                 end = static_cast<size_t>(value(5, item + 1, int64_t{}));
      if (present != nullptr && present[item] == 0) {
        CHECK_EQ(end, begin);
        continue;
      }
      const Place& place = rig.places.at(keys[item]);
      const ModelLane& lane = rig.lanes[place.lane];
      const size_t length = lane.episodes[place.episode].steps.size();
      CHECK_EQ(place.step, 0u);
      CHECK_EQ(end - begin, length + (has_state ? 1 : 0));
      CHECK_EQ(value(3, item, int64_t{}), static_cast<int64_t>(length));
      CHECK_EQ(value(4, item, int64_t{}), static_cast<int64_t>(lane.tag));
      for (size_t step = 0; begin + step < end; ++step) {
        if (has_state) check_cell(6, out, begin + step, lane.tag, place.episode, step);
        if (step == length) continue;
        check_cell(0, out, begin + step, lane.tag, place.episode, step);
        CHECK_EQ(value(1, begin + step, float{}), reward_of(lane.tag, place.episode, step));
        CHECK_EQ(value(2, begin + step, int64_t{}), static_cast<int64_t>(step));
      }
    }
  }

  Rig rig;
  GatherPlan plan;

 private:
  void check_cell(size_t output, std::byte* const* out, size_t row, uint64_t tag, size_t episode, size_t step) const {
    const size_t num_bytes = plan.outputs[output].row_bytes;
    std::vector<std::byte> expected(num_bytes);
    write_cell(expected.data(), num_bytes, tag, episode, step, plan.outputs[output].column);
    CHECK_EQ(std::memcmp(expected.data(), out[output] + row * num_bytes, num_bytes), 0);
  }
};

}  // namespace

TEST(rows_that_were_read_move_if_an_item_before_them_is_drawn_again) {
  for (const bool has_state : {true, false})
    for (const uint32_t max_times : {0u, 3u})
      for (const int passage : {1, 2})
        for (uint64_t seed = 0; seed < 8 && harness::failures() == 0; ++seed) {
          RaggedRig one(has_state, max_times, seed);
          TestRoom room(one.plan, kItems);
          RaggedBatch batch(one.plan, room);
          std::vector<int64_t> keys(kItems);
          std::vector<double> probabilities(kItems);
          DrawRequest request;
          request.num_items = kItems;
          request.plan = &one.plan;
          request.ragged = &batch;
          request.keys = keys.data();
          request.probabilities = probabilities.data();
          with_hook(
              passage, [&] { one.replace_oldest(60 + 20 * seed); },
              [&] {
                const Status status = relive::sample_ragged(*one.rig.table, request, 1.0);
                CHECK(status.ok());
              });
          one.check_batch(batch.out(), keys.data(), nullptr, batch.num_rows());
          CHECK_EQ(passages_left, 0);
          CHECK(one.num_redraws() > 0);
          CHECK_EQ(room.rows_made.size(), 2u);  // for the first lengths, and for the changed ones
          CHECK(room.rows_made.back() == static_cast<size_t>(batch.num_rows()));
          CHECK(relive::check(*one.rig.table).ok());
        }
}

TEST(rows_that_were_read_move_if_an_item_before_them_is_gone) {
  int num_moved = 0;
  for (const bool has_state : {true, false})
    for (const int passage : {1, 2})
      for (uint64_t seed = 0; seed < 8 && harness::failures() == 0; ++seed) {
        RaggedRig one(has_state, 0, seed);
        std::vector<int64_t> keys;  // from the newest episode back: evicted ones are in between
        for (size_t k = one.rig.keys.size(); k-- > 0 && keys.size() < kItems;)
          if (one.rig.places.at(one.rig.keys[k]).step == 0) keys.push_back(one.rig.keys[k]);
        for (size_t k = 0; k < kItems; ++k) std::swap(keys[k], keys[one.rig.below(kItems)]);
        TestRoom room(one.plan, kItems);
        RaggedBatch batch(one.plan, room);
        std::vector<uint8_t> present(kItems);
        const auto gather = [&] {
          CHECK(relive::gather_ragged(*one.rig.table, one.plan, keys.data(), kItems, &batch, present.data()).ok());
        };
        with_hook(passage, [&] { one.replace_oldest(200); }, gather);
        one.check_batch(batch.out(), keys.data(), present.data(), batch.num_rows());
        const auto num_there = std::count(present.begin(), present.end(), 1);
        num_moved += room.rows_made.size() > 1 && num_there > 0 && num_there < static_cast<int64_t>(kItems) ? 1 : 0;
      }
  CHECK(num_moved > 12);
}

TEST_MAIN()
