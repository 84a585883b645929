#include "relive/read/where.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "relive/index/leaves.hpp"
#include "relive/read/draw.hpp"
#include "relive/read/ranked.hpp"
#include "relive/read/records.hpp"
#include "relive/words/config_check.hpp"

namespace relive {
namespace {

constexpr size_t kTogether = kEvaluatedTogether;
constexpr uint64_t kLooksARound = 4096;  // between two looks at the caller's deadline and signals
constexpr size_t kLonger = 4;            // times as many of the best items, where too few of them passed
constexpr size_t kResolved = 32;         // windows whose runs fit the room that a scratch has
constexpr double kPastTheEnd = std::numeric_limits<double>::infinity();

// Candidates of one step: the same place in each array.
struct Sieve {
  const Region& r;
  const DrawRequest& request;
  const Where& where;
  const Leaves leaves;
  const ItemMap map;
  Runs* runs;
  double total;
  double points[kTogether];
  uint64_t drawn[kTogether];
  Window windows[kTogether];
  uint32_t which[kTogether];  // of the windows that are items, in order, as what follows
  Subject subjects[kTogether];
  bool passes[kTogether];
  size_t num_items = 0;
  std::optional<RankedDraw> ranked;  // of an index that is drawn from by ranks
  Chosen places[kTogether];

  void aim(const CounterRng& rng, uint64_t first, size_t count);
  void look_in_order(const std::vector<uint64_t>& taken, const std::vector<Leaves::Node>& best, size_t* at);
  void look_ranked(size_t count);
  void add(size_t k);
  void look(size_t count);
  void measure();
  void test();
};

void Sieve::aim(const CounterRng& rng, uint64_t first, size_t count) {
  for (size_t k = 0; k < count; ++k) {
    points[k] = rng.uniform(first + k) * total;
    drawn[k] = 0;
  }
  if (leaves.is_ranked()) return ranked->choose(points, count, places);
  leaves.descend_to_groups(points, drawn, count);
  if (map.is_explicit) {
    ask_for_records(r, request.index, drawn, count, Leaves::kGroup);
  } else {
    for (size_t k = 0; k < count; ++k) {
      const uint64_t page = r.page_of(drawn[k] * Leaves::kGroup);
      __builtin_prefetch(&r.words[page]);
      __builtin_prefetch(&r.frames[page]);
    }
  }
  leaves.descend_to_leaves(points, drawn, count);
}

// What the condition reads of a candidate is asked for.
void Sieve::add(size_t k) {
  subjects[num_items] = subject_of(r, request.index, windows[k].slot);
  prefetch_subject(r, where.predicate, subjects[num_items]);
  which[num_items++] = static_cast<uint32_t>(k);
}

void Sieve::look_ranked(size_t count) {
  num_items = 0;
  for (size_t k = 0; k < count; ++k) {
    Window& w = windows[k];
    w.slot = places[k].slot;
    w.word = ranked->look(places[k]);
    w.mass = places[k].probability * total;
    w.ok = w.word != 0;
    if (w.ok) add(k);
  }
}

// Word before leaf (rule G2), and the memory that the condition reads is asked for.
void Sieve::look(size_t count) {
  const double least = least_probability(leaves) * total;
  num_items = 0;
  for (size_t k = 0; k < count; ++k) {
    Window& w = windows[k];
    w.ok = false;
    if (points[k] == kPastTheEnd) continue;
    w.slot = drawn[k];
    double mass = 0.0;
    if (!RELIVE_RULE(G2_word_before_leaf)) mass = leaves.mass(w.slot);
    RELIVE_FAIL_POINT(draw_found);
    w.word = map.word(w.slot);
    RELIVE_FAIL_POINT(draw_word);
    if (RELIVE_RULE(G2_word_before_leaf)) mass = leaves.mass(w.slot);
    w.mass = mass;
    w.ok = Leaves::is_mass(mass) && Region::is_used(w.word) && mass >= least;
    if (w.ok) add(k);
  }
}

// The next of the best items, but for those that the batch has: what has another leaf by now would stand in the wrong
// place.
void Sieve::look_in_order(const std::vector<uint64_t>& taken, const std::vector<Leaves::Node>& best, size_t* at) {
  num_items = 0;
  for (size_t k = 0; k < kTogether && *at < best.size(); ++*at) {
    const Leaves::Node& node = best[*at];
    if (std::binary_search(taken.begin(), taken.end(), node.place)) continue;
    Window& w = windows[k];
    w.slot = node.place;
    RELIVE_FAIL_POINT(draw_found);
    w.word = map.word(w.slot);
    RELIVE_FAIL_POINT(draw_word);
    w.mass = leaves.mass(w.slot);
    w.ok = Region::is_used(w.word) && w.mass == node.value;
    if (w.ok) add(k++);
  }
}

// How many steps the windows have. One that is not whole any more is not ok.
void Sieve::measure() {
  for (size_t begin = 0; begin < num_items; begin += kResolved) {
    const size_t count = std::min(kResolved, num_items - begin);
    runs->clear();
    locate(r, where.length, windows, which + begin, count);
    resolve(r, where.length, windows, which + begin, count, runs);
    acquire_fence();
    recheck(r, where.length, windows, *runs, which + begin, count);
    for (size_t k = begin; k < begin + count; ++k) subjects[k].num_steps = windows[which[k]].num_steps;
  }
}

void Sieve::test() {
  if (where.predicate.asks_length != 0) measure();
  evaluate(r, where.predicate, subjects, num_items, passes);
  RELIVE_FAIL_POINT(where_tested);
  acquire_fence();
  for (size_t k = 0; k < num_items; ++k) {  // what was read is the item's if it is there still (rule G4)
    Window& w = windows[which[k]];
    w.ok = w.ok && (!RELIVE_RULE(G4_recheck) || map.word(w.slot) >> kStateBits == w.word >> kStateBits);
  }
}

// An item that passes, as what a row of the batch is of.
void keep(Sieve& sieve, size_t k, uint32_t row, double probability, DrawScratch* scratch) {
  const Window& one = sieve.windows[sieve.which[k]];
  Window& w = scratch->windows[row];
  w.slot = one.slot;
  w.word = one.word;
  w.mass = one.mass;
  w.row = row;
  w.ok = true;
  sieve.request.keys[row] = sieve.r.key_of_leaf(sieve.request.index, w.slot, w.word);
  sieve.request.probabilities[row] = std::min(1.0, probability);
}

// Where fewer pass than are wanted, they come once more from the first one on, as they do without a condition. Not where
// each draw of them counts.
void repeat_found(const DrawRequest& request, const std::vector<uint32_t>& rows, size_t found, DrawScratch* scratch) {
  for (size_t k = found; k < rows.size(); ++k) {
    const uint32_t from = rows[k % found], row = rows[k];
    scratch->windows[row] = scratch->windows[from];
    scratch->windows[row].row = row;
    request.keys[row] = request.keys[from];
    request.probabilities[row] = request.probabilities[from];
  }
}

// The best items that pass, in order. A list of them is of one moment, so a longer one is gone through from its first.
// Where all there are were looked at, looking on would bring nothing.
uint64_t find_in_order(Sieve& sieve, DrawScratch* scratch) {
  Looks& looks = scratch->looks;
  std::vector<uint32_t>& rows = scratch->missing;
  std::sort(rows.begin(), rows.end());
  std::sort(scratch->taken.begin(), scratch->taken.end());
  const uint64_t most = kLeastLooks + kLooksAnItem * sieve.request.num_items;
  size_t found = 0, looked = 0, passed = 0;
  bool is_all = false;
  for (size_t wanted = rows.size() + scratch->taken.size(); found < rows.size() && !is_all; wanted *= kLonger) {
    sieve.leaves.best(wanted, &scratch->best, &scratch->open);
    is_all = scratch->best.size() < wanted || wanted > most;
    found = looked = passed = 0;
    for (size_t at = 0; found < rows.size() && at < scratch->best.size();) {
      sieve.look_in_order(scratch->taken, scratch->best, &at);
      sieve.test();
      for (size_t k = 0; k < sieve.num_items; ++k) {
        if (!sieve.windows[sieve.which[k]].ok) continue;
        ++looked;
        passed += sieve.passes[k] ? 1 : 0;
        if (sieve.passes[k] && found < rows.size()) keep(sieve, k, rows[found++], 1.0, scratch);
      }
    }
  }
  const bool is_counted = sieve.r.max_times(sieve.request.index) != 0;
  if (found > 0 && found < rows.size() && is_all && !is_counted) {
    repeat_found(sieve.request, rows, found, scratch);
    found = rows.size();
  }
  looks.looked = looked + scratch->taken.size();
  looks.passed = passed + scratch->taken.size();
  looks.tried = most;
  looks.num_unfilled = rows.size() - found;
  RELIVE_FAIL_POINT(where_found);
  return 0;
}

// As many candidates as will bring so many items, by what was seen so far.
size_t candidates(const Looks& looks, size_t missing) {
  const double share = static_cast<double>(looks.passed + 1) / static_cast<double>(looks.looked + 1);
  return static_cast<size_t>(std::min<double>(kTogether, std::ceil(static_cast<double>(missing) / share)));
}

}  // namespace

Status make_where(const Region& r, uint32_t index, const std::vector<WrittenOperation>& written, std::string text,
                  Where* out) {
  if (index >= r.num_indexes) return invalid("index", "one of the table's", index);
  const Choice choice = Leaves(r, index).kind().choice;
  if (choice == Choice::kInTurn)
    return invalid("where of a draw", "an index whose sampler is another: Shuffle gives each item its turn, once",
                   static_cast<int64_t>(index));
  out->index = index;
  out->text = std::move(text);
  RELIVE_RETURN_IF_ERROR(read_predicate(r, index, written, &out->predicate));
  return out->predicate.asks_length != 0 ? make_plan(r, index, {"num_steps"}, &out->length) : Status();
}

uint64_t find_passing(const Region& r, const DrawRequest& request, const CounterRng& rng, double total,
                      DrawScratch* scratch) {
  RELIVE_NOT_LOCKED("items are looked at under the lock");
  Looks& looks = scratch->looks;
  const std::vector<uint32_t>& rows = scratch->missing;
  Window* const windows = scratch->windows.data();
  for (uint32_t row : rows) windows[row].ok = false;
  Sieve sieve{.r = r,
              .request = request,
              .where = *request.where,
              .leaves = Leaves(r, request.index),
              .map = r.map(request.index),
              .runs = &scratch->runs,
              .total = total};
  if (sieve.leaves.kind().choice == Choice::kBest) return find_in_order(sieve, scratch);
  if (sieve.leaves.is_ranked()) sieve.total = sieve.ranked.emplace(r, request.index, scratch->law).total();
  size_t found = 0;
  uint64_t at = 0, empty = 0;
  while (found < rows.size() && at < kLooksARound) {
    const size_t count = candidates(looks, rows.size() - found);
    sieve.aim(rng, at, count);
    sieve.leaves.is_ranked() ? sieve.look_ranked(count) : sieve.look(count);
    sieve.test();
    at += count;
    empty += count - sieve.num_items;
    for (size_t k = 0; k < sieve.num_items; ++k) {
      const Window& one = sieve.windows[sieve.which[k]];
      if (!one.ok) continue;
      ++looks.looked;
      if (!sieve.passes[k]) continue;
      ++looks.passed;
      if (found == rows.size()) continue;  // one more than was needed
      keep(sieve, k, rows[found++], one.mass / sieve.total, scratch);
    }
  }
  looks.tried += at;
  looks.num_unfilled = rows.size() - found;
  RELIVE_FAIL_POINT(where_found);
  return empty;
}

void sift(const Region& r, const Where& where, const uint64_t* leaves, const uint64_t* words, size_t count,
          DrawScratch* scratch, bool* passes) {
  DrawRequest request;
  request.index = where.index;
  Sieve sieve{.r = r,
              .request = request,
              .where = where,
              .leaves = Leaves(r, where.index),
              .map = r.map(where.index),
              .runs = &scratch->runs,
              .total = 0.0};
  for (size_t begin = 0; begin < count; begin += kTogether) {
    sieve.num_items = std::min(kTogether, count - begin);
    for (size_t k = 0; k < sieve.num_items; ++k) {
      Window& w = sieve.windows[k];
      w.slot = leaves[begin + k];
      w.word = words[begin + k];
      w.ok = true;
      sieve.which[k] = static_cast<uint32_t>(k);
      sieve.subjects[k] = subject_of(r, where.index, w.slot);
    }
    sieve.test();
    for (size_t k = 0; k < sieve.num_items; ++k) passes[begin + k] = sieve.windows[k].ok && sieve.passes[k];
  }
}

}  // namespace relive
