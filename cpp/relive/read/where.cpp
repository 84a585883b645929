#include "relive/read/where.hpp"

#include <algorithm>
#include <cmath>

#include "relive/index/leaves.hpp"
#include "relive/read/candidates.hpp"
#include "relive/read/distinct.hpp"
#include "relive/words/config_check.hpp"

namespace relive {
namespace {

constexpr size_t kWaves = 3;             // one is aimed, one looked at, one tested
constexpr uint64_t kLooksARound = 4096;  // between two checks of the caller's deadline and signals
constexpr size_t kLonger = 4;            // factor for the list of best items if too few of them passed

// If fewer items pass than rows are missing, the items repeat from the first one on, as they do without a condition.
// The caller excludes indexes with use counts.
void repeat_found(const DrawRequest& request, const std::vector<uint32_t>& rows, size_t found, DrawScratch* scratch) {
  for (size_t k = found; k < rows.size(); ++k) {
    const uint32_t from = rows[k % found], row = rows[k];
    scratch->windows[row] = scratch->windows[from];
    scratch->windows[row].row = row;
    request.keys[row] = request.keys[from];
    request.probabilities[row] = request.probabilities[from];
  }
}

// Finds the best items that pass, in order. A list of best items belongs to one moment, so a longer list is tested from
// its beginning. Once all items were tested, further looks find nothing.
uint64_t find_in_order(const Region& r, const CandidateFilter& filter, DrawScratch* scratch) {
  Looks& looks = scratch->looks;
  std::vector<uint32_t>& rows = scratch->missing;
  std::sort(rows.begin(), rows.end());
  std::sort(scratch->taken.begin(), scratch->taken.end());
  const uint64_t most = kLeastLooks + kLooksAnItem * filter.request().num_items;
  size_t found = 0, looked = 0, passed = 0;
  bool is_all = false;
  Wave wave;
  for (size_t wanted = rows.size() + scratch->taken.size(); found < rows.size() && !is_all; wanted *= kLonger) {
    filter.leaves().best(wanted, &scratch->best, &scratch->open);
    is_all = scratch->best.size() < wanted || wanted > most;
    found = looked = passed = 0;
    for (size_t at = 0; found < rows.size() && at < scratch->best.size();) {
      filter.look_in_order(scratch->taken, &at, scratch->best, &wave);
      filter.test(&wave);
      for (size_t k = 0; k < wave.num_items; ++k) {
        if (!wave.items[k].is_there) continue;
        ++looked;
        passed += wave.passes[k] ? 1 : 0;
        if (wave.passes[k] && found < rows.size()) filter.keep(wave.items[k], rows[found++], 1.0, scratch);
      }
    }
  }
  const bool is_counted = r.max_times(filter.request().index) != 0;
  if (found > 0 && found < rows.size() && is_all && !is_counted) {
    repeat_found(filter.request(), rows, found, scratch);
    found = rows.size();
  }
  looks.looked = looked + scratch->taken.size();
  looks.passed = passed + scratch->taken.size();
  looks.tried = most;
  looks.num_unfilled = rows.size() - found;
  RELIVE_FAIL_POINT(where_found);
  return 0;
}

// The number of further candidates that should bring `missing` items, judged by the counts so far, minus those under
// way.
size_t candidates(const Looks& looks, size_t missing, size_t under_way) {
  const double share = static_cast<double>(looks.brought + 1) / static_cast<double>(looks.looked + 1);
  const double wanted = std::ceil(static_cast<double>(missing) / share) - static_cast<double>(under_way);
  return static_cast<size_t>(std::clamp<double>(wanted, 0.0, kWave));
}

// Stores the items of a tested wave in rows[*found] and the following ones; surplus items are left.
void take(const CandidateFilter& filter, bool is_distinct, const Wave& wave, const std::vector<uint32_t>& rows,
          size_t* found, DrawScratch* scratch) {
  const double per_mass = 1.0 / filter.total();
  const size_t num_rows = rows.size(), before = *found;
  size_t looked = 0, passed = 0, now = before;
  for (size_t k = 0; k < wave.num_items; ++k) {
    const Candidate& one = wave.items[k];
    looked += one.is_there ? 1 : 0;
    if (!one.is_there || !wave.passes[k]) continue;
    ++passed;
    if (now == num_rows) continue;
    if (is_distinct && !scratch->has.add(one.slot) && RELIVE_RULE(G11_once)) continue;
    filter.keep(one, rows[now++], one.mass * per_mass, scratch);
  }
  scratch->looks.looked += looked;
  scratch->looks.passed += passed;
  scratch->looks.brought += now - before;
  *found = now;
}

// Notes the items that the batch has in its complete rows.
void note_batch(const Region& r, const DrawRequest& request, DrawScratch* scratch) {
  scratch->has.begin(request.num_items + request.num_beside);
  for (size_t k = 0; k < request.num_beside; ++k) scratch->has.add(r.leaf_of_key(request.index, request.beside[k]));
  for (size_t row = 0; row < request.num_items; ++row)
    if (const Window& w = scratch->windows[row]; w.ok) scratch->has.add(w.slot);
}

// Runs one round of candidates. Returns the number of points without an item.
uint64_t look_round(const CandidateFilter& filter, const CounterRng& rng, uint64_t first, bool is_distinct,
                    size_t* found, DrawScratch* scratch) {
  Looks& looks = scratch->looks;
  const std::vector<uint32_t>& rows = scratch->missing;
  Wave waves[kWaves];
  uint64_t at = 0, empty = 0;
  for (size_t step = 0; *found < rows.size(); ++step) {
    Wave& aimed = waves[step % kWaves];
    Wave& looked = waves[(step + 2) % kWaves];
    Wave& tested = waves[(step + 1) % kWaves];
    const size_t under_way = looked.num_points + tested.num_points;
    const size_t count = at < kLooksARound ? candidates(looks, rows.size() - *found, under_way) : 0;
    if (count + under_way == 0) break;
    filter.aim(rng, first + at, count, &aimed);
    at += count;
    filter.look(&looked);
    empty += looked.num_points - looked.num_items;
    filter.test(&tested);
    take(filter, is_distinct, tested, rows, found, scratch);
  }
  looks.tried += at;
  return empty;
}

}  // namespace

Status make_where(const Region& r, uint32_t index, const std::vector<WrittenOperation>& written, std::string text,
                  Where* out) {
  if (index >= r.num_indexes) return invalid("index", "one of the table's", index);
  const Choice choice = Leaves(r, index).kind().choice;
  if (choice == Choice::kOncePerEpoch)
    return invalid("where of a draw", "an index whose sampler is another: Shuffle draws each item once an epoch",
                   static_cast<int64_t>(index));
  out->index = index;
  out->text = std::move(text);
  RELIVE_RETURN_IF_ERROR(read_predicate(r, index, written, &out->predicate));
  out->reads = reads_of(r, out->predicate);
  return out->predicate.asks_length != 0 ? make_plan(r, index, {"num_steps"}, &out->length) : Status();
}

namespace {

// An item whose rows were prefetched, so their place is known.
Subject first_subject(const Region& r, const DrawRequest& request, const Window& w) {
  const bool is_located = request.plan != nullptr && request.plan->max_rows == 0;
  return is_located ? Subject{w.slot, w.base, r.offset_of(w.slot), 0} : subject_of(r, request.index, w.slot);
}

// Whether the gather's own prefetch covers all values that the condition reads.
bool is_asked_for(const Region& r, const DrawRequest& request) {
  if (request.plan == nullptr || request.plan->max_rows != 0 || request.where->reads.has_marks) return false;
  const Reads& reads = request.where->reads;
  return std::all_of(reads.cells, reads.cells + reads.num_cells, [&](const Reads::Cell& cell) {
    return cell.stride == r.geometry->record_stride && cell.offset < request.plan->record_span;
  });
}

}  // namespace

bool has_first_points(const Region& r, const DrawRequest& request) {
  const Leaves leaves(r, request.index);
  const bool is_by_mass = leaves.kind().choice == Choice::kByMass && !leaves.is_ranked();
  return request.where != nullptr && is_by_mass && !is_distinct(r, request.index) &&
         request.where->predicate.asks_length == 0;
}

void ask_for_first(const Region& r, const DrawRequest& request, const uint32_t* rows, size_t count,
                   const Window* windows) {
  if (is_asked_for(r, request)) return;
  for (size_t k = 0; k < count; ++k)
    if (const Window& w = windows[rows[k]]; w.ok) prefetch(r, request.where->reads, first_subject(r, request, w));
}

void sift_first(const Region& r, const DrawRequest& request, const uint32_t* rows, size_t count, DrawScratch* scratch) {
  RELIVE_NOT_LOCKED("items are looked at under the lock");
  const ItemMap& map = r.map(request.index);
  Window* const windows = scratch->windows.data();
  Looks& looks = scratch->looks;
  const bool is_checked_later = request.plan != nullptr;  // passing items are checked later, with their rows (rule G4)
  Subject subjects[kWave];
  bool passes[kWave];
  uint32_t of[kWave];
  for (size_t begin = 0; begin < count;) {
    size_t num_items = 0;
    for (; begin < count && num_items < kWave; ++begin) {
      const uint32_t row = rows[begin];
      if (!windows[row].ok) continue;
      subjects[num_items] = first_subject(r, request, windows[row]);
      of[num_items++] = row;
    }
    if (num_items > 0) evaluate(r, request.where->predicate, subjects, num_items, passes);
    RELIVE_FAIL_POINT(where_tested);
    acquire_fence();
    uint64_t passed = 0, gone = 0;
    for (size_t k = 0; k < num_items; ++k) {
      passed += passes[k] ? 1 : 0;
      if (passes[k] && is_checked_later) continue;
      Window& w = windows[of[k]];
      const bool is_there = map.word(w.slot) >> kStateBits == w.word >> kStateBits || !RELIVE_RULE(G4_recheck);
      w.ok = passes[k] && is_there;
      passed -= passes[k] && !is_there ? 1 : 0;
      gone += is_there ? 0 : 1;
    }
    looks.looked += num_items - gone;
    looks.passed += passed;
    looks.brought += passed;
  }
  for (size_t k = 0; k < count; ++k)
    if (!windows[rows[k]].ok) scratch->unfit.push_back(rows[k]);
  looks.tried += count;
}

uint64_t find_passing(const Region& r, const DrawRequest& request, const CounterRng& rng, uint64_t first, double total,
                      DrawScratch* scratch) {
  RELIVE_NOT_LOCKED("items are looked at under the lock");
  Looks& looks = scratch->looks;
  const std::vector<uint32_t>& rows = scratch->missing;
  for (uint32_t row : rows) scratch->windows[row].ok = false;
  const CandidateFilter filter(r, request, request.where, scratch, total);
  if (filter.leaves().kind().choice == Choice::kBest) return find_in_order(r, filter, scratch);
  const bool once = is_distinct(r, request.index);
  size_t found = 0;
  uint64_t empty = 0;
  if (once) note_batch(r, request, scratch);
  looks.is_short = once && filter.leaves().num_live() < static_cast<int64_t>(rows.size());
  if (looks.is_short) return 0;
  if (once && looks.tried >= looks_before_race(r, request.index, request.num_items)) {
    race(filter, rng, rows, &found, scratch);
  } else {
    empty = look_round(filter, rng, first, once, &found, scratch);
  }
  looks.num_unfilled = rows.size() - found;
  RELIVE_FAIL_POINT(where_found);
  return empty;
}

void sift(const Region& r, const Where& where, const uint64_t* leaves, const uint64_t* words, size_t count,
          DrawScratch* scratch, bool* passes) {
  DrawRequest request;
  request.index = where.index;
  const CandidateFilter filter(r, request, &where, scratch, 0.0);
  Wave wave;
  for (size_t begin = 0; begin < count; begin += kWave) {
    wave.num_items = std::min(kWave, count - begin);
    for (size_t k = 0; k < wave.num_items; ++k) {
      wave.items[k] = {leaves[begin + k], words[begin + k], 0.0, true};
      wave.subjects[k] = subject_of(r, where.index, leaves[begin + k]);
    }
    filter.test(&wave);
    for (size_t k = 0; k < wave.num_items; ++k) passes[begin + k] = wave.items[k].is_there && wave.passes[k];
  }
}

}  // namespace relive
