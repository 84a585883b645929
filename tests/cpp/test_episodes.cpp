// Items that exist once their episode has ended, whichever process dies (rule S5). Deaths at every store of a commit,
// of a later end and of a cut: an episode that had ended is an item with all its steps, and one that had not ended is
// none.
#include "core_deaths.hpp"
#include "core_rig.hpp"
#include "die_everywhere.hpp"

using namespace rig;

namespace {

constexpr uint32_t kMost = 16;  // steps of a whole episode

Spec episodes_spec(bool has_state, TooLong too_long) {
  Spec spec;
  spec.capacity = 64;
  spec.has_state = has_state;
  SequenceConfig sequence{kMost, 0, has_state ? 1u : 0u, 0, AtEnd::kPad, PadSide::kRight, 1, 0, 0};
  if (too_long == TooLong::kRefuse) sequence.longest = kMost;
  if (too_long == TooLong::kTail) sequence.only_the_last = 1, sequence.at_end = AtEnd::kShift;
  spec.indexes = {{.sequence = sequence}, {.n_step = 3}};
  return spec;
}

// The same, and the process that recovers from a death at `first` dies, too; the next one continues.
template <class Prepare, class Call, class Judge>
int die_again_everywhere(const Spec& spec, testing::FailPoint first, Prepare&& prepare, Call&& call, Judge&& judge) {
  const auto die_first = [&](Rig& rig) {
    prepare(rig);
    CHECK(dies_at(static_cast<uint32_t>(first), 1, [&] { call(rig); }));
  };
  const auto clean_up = [](Rig& rig) {
    recover_all(*rig.table);
    end_writers(*rig.table);
  };
  return die_everywhere(spec, die_first, clean_up, judge);
}

void judge_ended(const Rig& rig, size_t num_steps, const char* point) {
  const uint64_t live = relive::num_steps(*rig.table);
  const int64_t items = relive::num_items(*rig.table, 0);
  const bool is_sound = (live == num_steps && items == 1) || (live == 0 && items == 0);
  if (!is_sound)
    harness::fail(__FILE__, __LINE__,
                  std::to_string(items) + " items of " + std::to_string(live) + " steps, of an episode of " +
                      std::to_string(num_steps) + ", after a death at " + point);
}

std::vector<int> ending(size_t num_steps, int end) {
  std::vector<int> ends(num_steps, 0);
  ends.back() = end;
  return ends;
}

// Tails inside the page, as its last row, and as the first row of the next one; windows over two pages.
#if defined(RELIVE_TSAN) || defined(__SANITIZE_ADDRESS__)
const std::vector<size_t> kLengths{7, 8};  // one thread only: the sanitizers find stray bytes, not logic errors
#else
const std::vector<size_t> kLengths =
    harness::is_short() ? std::vector<size_t>{1, 7, 8, 11} : std::vector<size_t>{1, 5, 7, 8, 11, 16};
#endif

}  // namespace

TEST(an_ended_episode_is_an_item_wherever_its_writer_dies) {
  for (const bool has_state : {true, false})
    for (const TooLong too_long : {TooLong::kRefuse, TooLong::kHead, TooLong::kTail})
      for (const size_t length : kLengths)
        for (const int end : {1, 2}) {
          const Spec spec = episodes_spec(has_state, too_long);
          const NextGiven given = !has_state || end == 1 ? NextGiven::kNo : NextGiven::kYes;
          const auto nothing = [](Rig&) {};
          const auto call = [&](Rig& rig) { (void)rig.write({0}, length, ending(length, end), given); };
          const auto judge = [&](const Rig& rig, const char* point) {
            // One critical section commits up to the end of a page: a death afterwards leaves a part of the episode.
            if (length > 8 && relive::num_steps(*rig.table) < length) return;
            judge_ended(rig, length, point);
          };
          CHECK(die_everywhere(spec, nothing, call, judge) > 3);
          CHECK(die_again_everywhere(spec, testing::FailPoint::commit_range, nothing, call, judge) > 3);
        }
}

TEST(an_end_that_came_later_makes_an_item_or_none) {
  for (const bool has_state : {true, false})
    for (const bool terminated : {true, false})
      for (const size_t length : kLengths) {
        if (terminated && !has_state) continue;  // refused
        const Spec spec = episodes_spec(has_state, TooLong::kRefuse);
        const auto write = [&](Rig& rig) { (void)rig.write({0}, length, std::vector<int>(length, 0), NextGiven::kNo); };
        const auto end = [&](Rig& rig) { (void)rig.end_episode({0}, terminated, !terminated); };
        const auto judge = [&](const Rig& rig, const char* point) {
          // The episode has not ended: without its state the last row becomes the tail, and there is no item.
          const uint64_t live = relive::num_steps(*rig.table);
          const bool is_cut = relive::num_items(*rig.table, 0) == 0 && live == length - (has_state ? 1 : 0);
          if (!is_cut) judge_ended(rig, length, point);
        };
        CHECK(die_everywhere(spec, write, end, judge) > 3);
      }
}

TEST(a_cut_episode_is_no_item_wherever_the_cutting_process_dies) {
  for (const bool has_state : {true, false})
    for (const TooLong too_long : {TooLong::kRefuse, TooLong::kHead, TooLong::kTail})
      for (const NextGiven given : {NextGiven::kNo, NextGiven::kYes})
        for (const size_t length : kLengths) {
          if (!has_state && given == NextGiven::kYes) continue;
          const Spec spec = episodes_spec(has_state, too_long);
          const auto write = [&](Rig& rig) { (void)rig.write({0}, length, std::vector<int>(length, 0), given); };
          const auto close = [](Rig& rig) { (void)rig.writer->close(); };
          const auto judge = [&](const Rig& rig, const char* point) {
            const uint64_t live = relive::num_steps(*rig.table);
            const int64_t expected = too_long == TooLong::kHead && live >= kMost ? 1 : 0;
            CHECK_EQ(live, length - (has_state && given == NextGiven::kNo ? 1 : 0));
            if (relive::num_items(*rig.table, 0) != expected)
              harness::fail(__FILE__, __LINE__, std::string("an item of a cut episode, after a death at ") + point);
          };
          CHECK(die_everywhere(spec, write, close, judge) > 3);
          CHECK(die_again_everywhere(spec, testing::FailPoint::close_tail, write, close, judge) > 3);
        }
}

TEST_MAIN()
