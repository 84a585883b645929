// One round of a draw without the lock: strata to points, points to leaves, leaves to windows, windows to rows.
//
// Owns:    a DrawScratch belongs to one thread and refers to no table between calls.
// Locking: none. A round checks its reads afterwards (rules G2 to G4) and draws again for items that changed.
// Cost:    about 45 ns an item for key and probability, and as much again for the rows of a small transition.
#pragma once

#include <cstdint>
#include <vector>

#include "relive/index/leaves.hpp"
#include "relive/read/distinct.hpp"
#include "relive/read/gather.hpp"
#include "relive/read/ragged.hpp"
#include "relive/read/ranked.hpp"
#include "relive/words/region.hpp"
#include "relive/words/rng.hpp"

namespace relive {

struct Where;  // where.hpp

struct Claimed {
  uint64_t slot;
  uint64_t word;
  double mass;
  double order;     // for an index with max_items: the leaf in its remover's tree
  double exponent;  // exponent of the mass
  bool is_last;     // no use is left: the item is used up
};

// The positions of a shuffled index that a draw took, if no other draw took one in between; else none (rule O1).
struct Positions {
  uint64_t first = 0, end = 0;
};

struct DrawRequest {
  uint32_t index = 0;
  size_t num_items = 0;
  const Where* where = nullptr;      // condition of the items; null: every item passes
  const GatherPlan* plan = nullptr;  // null: keys and probabilities only
  std::byte* const* out = nullptr;   // one buffer for each output of the plan
  RaggedBatch* ragged = nullptr;     // for a plan of ragged items: receives the rows instead of `out`
  int64_t* keys = nullptr;           // [num_items]
  double* probabilities = nullptr;   // [num_items]: mass / total at the draw
  double* picks = nullptr;           // [num_items]: for hindsight, selects the goals (Window::pick)
  int64_t* num_live_items = nullptr;
  bool hold = false;                // the draw stays in flight until commit_held or return_held
  uint8_t* taken = nullptr;         // the caller chose `keys`; receives which of them were claimed
  const int64_t* beside = nullptr;  // [num_beside]: keys that the batch has in addition
  size_t num_beside = 0;
  bool is_planned = false;  // for a tiered table: the gather comes later and decides on the claims
  // For a draw in flight: receives its uses, to be given back or committed.
  std::vector<Claimed>* claims = nullptr;
  Positions* positions = nullptr;  // for a draw in flight: receives its positions, to be given back
};

// The counts of a draw that rejects some items.
struct Looks {
  uint64_t tried = 0;       // leaves that points fell on
  uint64_t looked = 0;      // items among them
  uint64_t passed = 0;      // of these, items that pass
  uint64_t brought = 0;     // of these, items that the batch took
  size_t num_unfilled = 0;  // rows for which the last round found no item within its looks
  bool has_raced = false;   // the draw has searched all leaves (distinct.hpp)
  bool is_short = false;    // too few items live for a batch without replacement
};

// The batch that a thread draws. Windows and strata are indexed by row of the batch, points and drawn by position in
// `missing`.
struct DrawScratch {
  std::vector<Window> windows;
  Runs runs;  // of the block that is being read
  std::vector<uint32_t> strata;
  std::vector<uint32_t> missing;        // rows still to be drawn
  std::vector<uint32_t> still_missing;  // rows of these that the round did not complete
  std::vector<uint32_t> chosen;         // rows whose items are chosen and will be read while all pages are pinned
  std::vector<Leaves::Node> open;       // for a draw of the best items, like the next two
  std::vector<Leaves::Node> best;
  std::vector<uint64_t> shuffled;  // for Shuffle, by row: slot + 1 of the row's leaf; 0: none yet
  // For Shuffle: the positions that the draw took, if no other draw took one in between (is_one_run).
  uint64_t first_visit = 0, end_visit = 0;
  bool is_one_run = true;
  std::vector<uint64_t> taken;  // slots in the batch: the best items repeat only after all of them were taken
  RankLaws laws;
  const RankLaw* law = nullptr;      // for a draw by rank
  std::vector<uint32_t> by_stratum;  // for a draw by rank, like the next: rows in the order of their strata
  std::vector<Chosen> places;
  std::vector<double> points;
  std::vector<uint64_t> drawn;
  std::vector<Claimed> claimed;
  BatchSlots has;               // for a draw without replacement
  std::vector<uint32_t> unfit;  // for a condition: rows whose first point led to no item that passes
  Looks looks;

  // Reserves room for n items with windows of this many pages, and gives each row a random stratum, so that any slice
  // of a batch is a fair sample. Nothing grows afterwards, because a round may run under the lock.
  void begin(const CounterRng& rng, size_t n, size_t pages_a_window);
  // For an index that draws by rank: sets its law and reserves room for n choices.
  void begin_ranked(const IndexConfig& config, size_t n);
  // For an index that draws without replacement: begins with an empty batch.
  void begin_distinct(size_t n);
};

// The least share of the total that an item may be drawn with (rule G2); 0 if the sampler does not draw by shares of a
// sum. A point only meets a smaller share if heavier items ended after the total was read.
double least_probability(const Leaves& leaves);

// The random numbers of a call permute from this one on; the numbers below it draw.
inline constexpr uint64_t kPermutation = uint64_t{1} << 40;

// Stores the row of the batch for each stratum: rows[j], j < n.
void shuffle_rows(const CounterRng& rng, uint32_t* rows, size_t n);

// Makes one attempt for every row of scratch.missing; other rows stay as they are. Incomplete rows are then in
// still_missing. Returns how many of them had a point without an item (the items of the others changed during the
// read). total: of the index's tree, above 0.
uint64_t draw_round(const Region& r, const DrawRequest& request, const CounterRng& rng, double total,
                    DrawScratch* scratch);

// Whether the rows of chosen items must be noted under the lock, because their records may be rewritten after the
// unlock.
bool is_noted_when_chosen(const GatherPlan& plan);
// The number of items that one critical section may note, because it copies their own columns.
size_t noted_per_section(const Region& r, uint32_t index);
// Notes the windows of scratch.chosen[begin .. end) under the lock, and copies the items' own columns from their
// records.
void note_chosen(const Region& r, const DrawRequest& request, DrawScratch* scratch, size_t begin, size_t end);
// Reads the rows of the items that the round drew for scratch.missing; items are ragged, and the round read their
// lengths (request.ragged). Items that changed in between are added to scratch.still_missing.
Status read_ragged(const Region& r, const DrawRequest& request, DrawScratch* scratch);
// Reads the windows of scratch.chosen, which were drawn without a plan. The participant has pinned all pages since then
// (rule D7), so no row can be gone. Returns false if a row is gone nevertheless; then there is no batch.
bool read_chosen(const Region& r, const DrawRequest& request, DrawScratch* scratch);

}  // namespace relive
