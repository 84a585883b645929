// The last round of a draw: notes the items that were chosen under the lock, and reads their rows after the unlock
// while all pages are pinned (rules G5, D7).
#include "relive/read/draw.hpp"
#include "relive/read/records.hpp"
#include "relive/words/testing.hpp"

namespace relive {
namespace {

constexpr size_t kNotedBytes = size_t{128} << 10;  // of items' own columns that one critical section copies
constexpr uint32_t kReadings = 16;                 // of rows that cannot go: each further reading means a recovery

// Gives the present words to windows of a block that recovery touched (recovery gives every CLOSED page a new word,
// rule D6). The caller reads the whole block again. Returns false if there is no such window.
bool look_again(const Region& r, Window* windows, const uint32_t* rows, size_t count, bool* is_gone) {
  bool any = false;
  for (size_t k = 0; k < count; ++k) {
    Window& w = windows[rows[k]];
    if (w.ok) continue;
    const uint64_t word = r.words[r.page_of(w.slot)].load(std::memory_order_acquire);
    *is_gone |= !Region::is_used(word) || Region::generation_of(word) != Region::generation_of(w.word);
    w.word = word;
    w.ok = any = true;
  }
  return any;
}

}  // namespace

bool is_noted_when_chosen(const GatherPlan& plan) { return plan.max_rows != 0; }

size_t noted_per_section(const Region& r, uint32_t index) {
  return std::max<size_t>(1, kNotedBytes / std::max(1u, r.geometry->records[index].value_stride));
}

void note_chosen(const Region& r, const DrawRequest& request, DrawScratch* scratch, size_t begin, size_t end) {
  Window* const windows = scratch->windows.data();
  const uint32_t* const rows = scratch->chosen.data() + begin;
  resolve(r, *request.plan, windows, rows, end - begin, &scratch->runs);
  if (RELIVE_RULE(X5_values)) copy_record_values(r, *request.plan, windows, rows, end - begin, request.out);
}

bool read_chosen(const Region& r, const DrawRequest& request, DrawScratch* scratch) {
  Window* const windows = scratch->windows.data();
  const bool is_noted = is_noted_when_chosen(*request.plan);
  for (size_t begin = 0; begin < scratch->chosen.size(); begin += kBlock) {
    const uint32_t* const rows = scratch->chosen.data() + begin;
    const size_t count = std::min(kBlock, scratch->chosen.size() - begin);
    bool is_left = true, is_gone = false;
    for (uint32_t reading = 0; is_left && !is_gone && reading < kReadings; ++reading) {
      if (!is_noted) {
        scratch->runs.clear();
        locate(r, *request.plan, windows, rows, count);
        resolve(r, *request.plan, windows, rows, count, &scratch->runs);
      }
      if (is_noted && RELIVE_RULE(X5_values)) {
        copy_record_rows(r, *request.plan, windows, scratch->runs, rows, count, request.out);
      } else {
        copy_rows(r, *request.plan, windows, scratch->runs, rows, count, request.num_items, request.out);
      }
      RELIVE_FAIL_POINT(sample_gathered);
      acquire_fence();
      if (is_noted) {
        is_left = renew_runs(r, windows, rows, count, &scratch->runs, &is_gone);
      } else {
        recheck(r, *request.plan, windows, scratch->runs, rows, count);
        is_left = look_again(r, windows, rows, count, &is_gone);
      }
    }
    RELIVE_PROMISE(!is_left && !is_gone, "a chosen row is gone although all pages are pinned");
    if (is_left || is_gone) return false;
  }
  return true;
}

}  // namespace relive
