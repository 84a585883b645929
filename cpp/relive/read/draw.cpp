#include "relive/read/draw.hpp"

#include <algorithm>
#include <limits>

#include "relive/index/leaves.hpp"
#include "relive/read/hindsight.hpp"
#include "relive/read/ranked.hpp"
#include "relive/read/records.hpp"
#include "relive/read/shuffle.hpp"
#include "relive/read/where.hpp"
#include "relive/words/testing.hpp"

namespace relive {
namespace {

constexpr size_t kAimed = 128;  // points that descend to their leaves together
constexpr double kPastTheEnd = std::numeric_limits<double>::infinity();

// The working state of a round. Plain pointers, because each access to a thread's scratch costs a call.
struct Round {
  const Region& r;
  const DrawRequest& request;
  const Leaves leaves;
  const ItemMap map;
  const uint32_t* missing;
  double* points;
  uint64_t* drawn;
  Window* windows;
  Runs* runs;
  DrawScratch* scratch;
  double total;
  uint64_t num_empty = 0;

  bool is_best() const { return leaves.kind().choice == Choice::kBest; }
  bool is_by_mass() const { return !is_best() && leaves.kind().choice != Choice::kOncePerEpoch; }
  void take_best(size_t count);
  void aim_freely(const CounterRng& rng, size_t count);
  void descend(size_t count);
  void aim(const CounterRng& rng, const uint32_t* strata, double stratum, size_t count);
  void choose(size_t begin, size_t end);
  void look(size_t begin, size_t end);
  void ask(size_t begin, size_t end);
  void read(size_t begin, size_t end);
  void check(size_t begin, size_t end);
};

// One point for each stratum, in order of rows, so that a batch is written from front to end.
void Round::aim(const CounterRng& rng, const uint32_t* strata, double stratum, size_t count) {
  const uint32_t* const rows = missing;
  double* const points = this->points;
  for (size_t k = 0; k < count; ++k) {
    const uint32_t j = strata[rows[k]];
    points[k] = (j + rng.uniform(j)) * stratum;
  }
  descend(count);
}

// For a draw with a condition: points over the whole total (rule G10).
void Round::aim_freely(const CounterRng& rng, size_t count) {
  for (size_t k = 0; k < count; ++k) points[k] = rng.uniform(k) * total;
  descend(count);
}

// All points descend to the groups of leaves first: when the first leaf is chosen, memory has loaded the groups and the
// words of their pages.
void Round::descend(size_t count) {
  double* const points = this->points;
  uint64_t* const drawn = this->drawn;
  std::fill_n(drawn, count, uint64_t{0});
  // In blocks: memory loads the leaves of one block while the next block descends.
  for (size_t begin = 0; begin < count; begin += kAimed)
    leaves.descend_to_groups(points + begin, drawn + begin, std::min(kAimed, count - begin));
  if (map.is_explicit) return ask_for_records(r, request.index, drawn, count, Leaves::kGroup);
  for (size_t k = 0; k < count; ++k) {
    const uint64_t slot = drawn[k] * Leaves::kGroup;
    const uint64_t page = r.page_of(slot);
    if (request.plan != nullptr && r.offset_of(slot) + Leaves::kGroup - 1 + request.plan->after >= r.page_len)
      __builtin_prefetch(&r.pages[page].next);  // a window may run over the end of the page
    __builtin_prefetch(&r.words[page]);
    __builtin_prefetch(&r.frames[page]);
  }
}

// For samplers of the best items: the first row gets the best item that is not in the batch, and so on. If there are
// fewer items than rows, the items repeat from the best one on.
void Round::take_best(size_t count) {
  std::vector<uint64_t>& taken = scratch->taken;
  std::vector<Leaves::Node>& best = scratch->best;
  leaves.best(count + taken.size(), &best, &scratch->open);
  std::sort(taken.begin(), taken.end());
  const auto is_taken = [&](uint64_t slot) { return std::binary_search(taken.begin(), taken.end(), slot); };
  size_t k = 0;
  const auto take = [&](const Leaves::Node& node) {
    drawn[k] = node.place;
    points[k++] = node.value;
  };
  for (size_t i = 0; i < best.size() && k < count; ++i)
    if (!is_taken(best[i].place)) take(best[i]);
  for (size_t i = 0; k < count && !best.empty(); ++i) take(best[i % best.size()]);
  for (; k < count; ++k) drawn[k] = 0, points[k] = kPastTheEnd;
}

// From groups to leaves.
void Round::choose(size_t begin, size_t end) {
  if (is_by_mass()) leaves.descend_to_leaves(points + begin, drawn + begin, end - begin);
}

// Reads the word before the leaf, and returns the mass of this read: the descent's own read does not count (rule G2).
void Round::look(size_t begin, size_t end) {
  // Local copies: the compiler must assume that the stores below change the originals.
  const std::atomic<uint64_t>* const words = map.words;
  const uint32_t shift = map.shift;
  int64_t* const keys = request.keys;
  double* const probabilities = request.probabilities;
  const uint32_t* const rows = missing;
  const uint64_t* const drawn = this->drawn;
  const double* const points = this->points;
  Window* const windows = this->windows;
  const Leaves leaves = this->leaves;
  const bool is_aimed = !is_best();
  const double per_mass = 1.0 / total, at_least = is_aimed ? 0.0 : 1.0;  // the best item is certain
  const double least = least_probability(leaves);
  uint64_t empty = 0;
  const uint64_t slot_bits = r.geometry->slot_bits;
  const uint64_t key_base = (r.geometry->shard << kLeafBits) + map.first;  // parts of a key add up without a carry
  choose(begin, end);
  for (size_t k = begin; k < end; ++k) {
    const uint32_t row = rows[k];
    Window& w = windows[row];
    w.ok = false;
    const uint64_t slot = drawn[k];
    if (points[k] == kPastTheEnd) {
      ++empty;
      continue;
    }
    double mass = 0.0;
    if (!RELIVE_RULE(G2_word_before_leaf)) mass = leaves.mass(slot);
    RELIVE_FAIL_POINT(draw_found);
    const uint64_t word = words[slot >> shift].load(std::memory_order_acquire);
    RELIVE_FAIL_POINT(draw_word);
    if (RELIVE_RULE(G2_word_before_leaf)) mass = leaves.mass(slot);
    w.slot = slot;
    w.row = row;
    w.word = word;
    w.mass = mass;
    // In an order, an item whose leaf has changed would be at the wrong place.
    const double probability = mass * per_mass;
    const bool is_item =
        Leaves::is_mass(mass) && Region::is_used(word) && (is_aimed || mass == points[k]) && probability >= least;
    w.ok = is_item;
    empty += is_item ? 0 : 1;
    // If the window turns out to be gone, the next draw overwrites both.
    keys[row] = static_cast<int64_t>(key_base + slot + (Region::generation_of(word) << slot_bits));
    probabilities[row] = std::max(at_least, std::min(1.0, probability));  // a mass may be younger than the total
  }
  num_empty += empty;
  if (request.plan != nullptr) locate(r, *request.plan, windows, missing + begin, end - begin);
}

// For items that were found before: prefetches their rows.
void Round::ask(size_t begin, size_t end) {
  if (request.plan != nullptr) locate(r, *request.plan, windows, missing + begin, end - begin);
}

void Round::read(size_t begin, size_t end) {
  runs->clear();
  resolve(r, *request.plan, windows, missing + begin, end - begin, runs);
  copy_rows(r, *request.plan, windows, *runs, missing + begin, end - begin, request.num_items, request.out);
}

void Round::check(size_t begin, size_t end) {
  if (request.plan != nullptr) {
    RELIVE_FAIL_POINT(sample_gathered);
    acquire_fence();
    return recheck(r, *request.plan, windows, *runs, missing + begin, end - begin);
  }
  for (size_t k = begin; k < end; ++k) {  // no bytes were read, but key and mass must belong to one item
    Window& w = windows[missing[k]];
    if (w.ok && Region::generation_of(map.word(w.slot)) != Region::generation_of(w.word)) w.ok = false;
  }
}

// Memory loads the rows of one block while the next block is drawn; then the block is copied and checked. is_found: the
// items were found before any of their rows is prefetched.
void bring(Round& round, const CounterRng& rng, size_t count, bool is_found) {
  const DrawRequest& request = round.request;
  const bool has_goals = round.r.header->indexes[request.index].hindsight.is_set();
  const bool is_first = !is_found && request.where != nullptr;
  const auto look = [&](size_t begin, size_t end) {
    is_found ? round.ask(begin, end) : round.look(begin, end);
    if (is_first) ask_for_first(round.r, request, round.missing + begin, end - begin, round.windows);
    if (has_goals) pick_goals(rng, round.windows, round.missing + begin, end - begin, request.picks);
  };
  const size_t block = request.plan != nullptr ? kBlock : count;
  look(0, std::min(count, block));
  for (size_t begin = 0; begin < count; begin += block) {
    const size_t end = std::min(count, begin + block);
    if (end < count) look(end, std::min(count, end + block));
    const size_t num_unfit = round.scratch->unfit.size();
    if (is_first) sift_first(round.r, request, round.missing + begin, end - begin, round.scratch);
    if (request.plan != nullptr) round.read(begin, end);
    round.check(begin, end);
    const std::vector<uint32_t>& unfit = round.scratch->unfit;
    size_t next = num_unfit;  // both lists have the same order
    for (size_t k = begin; k < end; ++k) {
      const uint32_t row = round.missing[k];
      if (round.windows[row].ok) continue;
      if (next < unfit.size() && unfit[next] == row) {
        ++next;
      } else {
        round.scratch->still_missing.push_back(row);
      }
    }
  }
}

// For a draw with a condition: finds other items for the rows whose first point led to no item that passes.
void bring_unfit(Round& round, const CounterRng& rng) {
  DrawScratch& s = *round.scratch;
  s.looks.num_unfilled = 0;
  if (s.unfit.empty()) return;
  s.missing.swap(s.unfit);  // these rows only, for this call
  round.missing = s.missing.data();
  round.num_empty += find_passing(round.r, round.request, rng, round.request.num_items, round.total, &s);
  bring(round, rng, s.missing.size(), true);
  s.missing.swap(s.unfit);
}

}  // namespace

double least_probability(const Leaves& leaves) {
  constexpr double kNeverMet = 0x1.0p-128;
  return leaves.kind().choice == Choice::kByMass && RELIVE_RULE(G2_likely) ? kNeverMet : 0.0;
}

void shuffle_rows(const CounterRng& rng, uint32_t* rows, size_t n) {
  for (size_t j = 0; j < n; ++j) rows[j] = static_cast<uint32_t>(j);
  for (size_t j = n; j-- > 1;) std::swap(rows[j], rows[rng.below(kPermutation + j, static_cast<uint32_t>(j + 1))]);
}

// Shuffles the rows of the strata and then inverts the permutation. Do not change this: regions of all versions must
// draw the same batches.
void DrawScratch::begin(const CounterRng& rng, size_t n, size_t pages_a_window) {
  looks = {};
  windows.resize(std::max(windows.size(), n));
  strata.resize(std::max(strata.size(), n));
  missing.resize(n);
  still_missing.reserve(n);
  unfit.reserve(n);
  chosen.reserve(n);
  claimed.reserve(n);
  runs.reserve(kBlock * pages_a_window);
  points.resize(std::max(points.size(), n));
  drawn.resize(std::max(drawn.size(), n));
  taken.reserve(n);
  shuffled.assign(shuffled.empty() ? 0 : n, 0);
  first_visit = end_visit = 0;
  is_one_run = true;
  best.reserve(2 * n);
  uint32_t* const rows = missing.data();
  shuffle_rows(rng, rows, n);
  for (size_t j = 0; j < n; ++j) strata[rows[j]] = static_cast<uint32_t>(j);
}

void DrawScratch::begin_ranked(const IndexConfig& config, size_t n) {
  law = &laws.of(config.priority_exponent);
  by_stratum.resize(std::max(by_stratum.size(), n));
  places.resize(std::max(places.size(), n));
}

void DrawScratch::begin_distinct(size_t n) {
  for (size_t row = 0; row < n; ++row) windows[row].ok = false;
}

Status read_ragged(const Region& r, const DrawRequest& request, DrawScratch* scratch) {
  RaggedBatch& ragged = *request.ragged;
  Window* const windows = scratch->windows.data();
  for (uint32_t j : scratch->still_missing) ragged.forget(j);  // the length may be torn
  RELIVE_RETURN_IF_ERROR(ragged.lay_out());
  std::vector<uint32_t>& rows = scratch->chosen;
  rows.clear();
  for (uint32_t j : scratch->missing)
    if (windows[j].ok) rows.push_back(j);
  ragged.place(windows, rows.data(), rows.size());
  for (size_t begin = 0; begin < rows.size(); begin += kBlock) {
    const uint32_t* const block = rows.data() + begin;
    const size_t count = std::min(kBlock, rows.size() - begin);
    scratch->runs.clear();
    locate(r, *request.plan, windows, block, count);
    resolve(r, *request.plan, windows, block, count, &scratch->runs);
    copy_rows(r, *request.plan, windows, scratch->runs, block, count, request.num_items, ragged.out());
    RELIVE_FAIL_POINT(sample_gathered);
    acquire_fence();
    recheck(r, *request.plan, windows, scratch->runs, block, count);
    for (size_t k = 0; k < count; ++k) {
      if (windows[block[k]].ok) {
        ragged.note(block[k]);
      } else {
        scratch->still_missing.push_back(block[k]);
      }
    }
  }
  return {};
}

uint64_t draw_round(const Region& r, const DrawRequest& request, const CounterRng& rng, double total,
                    DrawScratch* scratch) {
  const size_t count = scratch->missing.size();
  Round round{r,
              request,
              Leaves(r, request.index),
              r.map(request.index),
              scratch->missing.data(),
              scratch->points.data(),
              scratch->drawn.data(),
              scratch->windows.data(),
              &scratch->runs,
              scratch,
              total};
  const bool is_sifted = request.where != nullptr || is_distinct(r, request.index);
  const bool has_first = has_first_points(r, request);
  scratch->still_missing.clear();
  scratch->unfit.clear();
  if (has_first) {
    round.aim_freely(rng, count);
    bring(round, rng, count, false);
    bring_unfit(round, rng);
    return round.num_empty;
  }
  const bool is_found = is_sifted || round.leaves.is_ranked();  // before their rows are prefetched
  if (is_sifted) {
    round.num_empty = find_passing(r, request, rng, 0, total, scratch);
  } else if (is_found) {
    round.num_empty = find_ranked(r, request, rng, scratch);
  } else if (round.is_by_mass()) {
    round.aim(rng, scratch->strata.data(), total / static_cast<double>(request.num_items), count);
  } else if (round.is_best()) {
    std::sort(scratch->missing.begin(), scratch->missing.end());
    round.take_best(count);
  } else {
    take_positions(r, request.index, scratch, kPastTheEnd);
  }
  bring(round, rng, count, is_found);
  if (round.is_best())
    for (size_t k = 0; k < count; ++k)
      if (round.windows[round.missing[k]].ok) scratch->taken.push_back(round.windows[round.missing[k]].slot);
  return round.num_empty;
}

}  // namespace relive
