// One round of a draw without the lock: strata to points, points to leaves, leaves to windows, windows to rows.
//
// Owner:   a DrawScratch belongs to one thread; between calls it holds nothing.
// Locking: none. What was read is checked afterwards (rules G2 to G4); what changed meanwhile is drawn again.
// Cost:    about 45 ns an item for its key and probability, as much again for the rows of a small transition.
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
  double order;     // of an index with max_items: where its remover found it
  double exponent;  // that the mass was made with
};

struct DrawRequest {
  uint32_t index = 0;
  size_t num_items = 0;
  const Where* where = nullptr;      // what items must pass; null: every one does
  const GatherPlan* plan = nullptr;  // null: keys and probabilities only
  std::byte* const* out = nullptr;   // one buffer an output of the plan
  RaggedBatch* ragged = nullptr;     // of a plan whose items lie end to end: where they go, in place of `out`
  int64_t* keys = nullptr;           // [num_items]
  double* probabilities = nullptr;   // [num_items]: mass / total at the draw
  double* picks = nullptr;           // [num_items]: of hindsight, what chooses their goals (Window::pick)
  int64_t* num_live_items = nullptr;
  bool hold = false;         // stays in flight until commit_held or return_held
  uint8_t* taken = nullptr;  // of the caller's own choice: `keys` are given, and this says which of them were claimed
  const int64_t* beside = nullptr;  // [num_beside]: keys of what the batch has already, beside what is asked for
  size_t num_beside = 0;
  bool is_planned = false;  // of a tiered table: gathered later, by whom its claims are decided upon
  std::vector<Claimed>* claims =
      nullptr;  // of one that is held: where its uses are noted, to be given back or committed
};

// What a draw that does not take every item it meets has seen so far.
struct Looks {
  uint64_t tried = 0;       // leaves that points fell on
  uint64_t looked = 0;      // of these, items
  uint64_t passed = 0;      // of these, items that pass
  uint64_t brought = 0;     // of these, items that the batch took
  size_t num_unfilled = 0;  // rows that the last round found nothing for within its looks
  bool has_raced = false;   // they were looked for among all leaves (distinct.hpp)
  bool is_short = false;    // there are too few for a batch that has none twice
};

// The batch that a thread is drawing. Windows and strata go by row of the batch, points and drawn by place in `missing`.
struct DrawScratch {
  std::vector<Window> windows;
  Runs runs;  // of the block being read
  std::vector<uint32_t> strata;
  std::vector<uint32_t> missing;        // rows still to be drawn
  std::vector<uint32_t> still_missing;  // of these, rows the round did not bring
  std::vector<uint32_t> chosen;         // rows whose items are chosen and still to be read, while pages are held
  std::vector<Leaves::Node> open;       // of a draw of the best, as the next two
  std::vector<Leaves::Node> best;
  std::vector<uint64_t> turns;            // of a shuffled index, by row: slot + 1 that its turn fell on; 0: none yet
  uint64_t first_turn = 0, end_turn = 0;  // those the draw took, where nobody else took one in between
  bool is_one_run = true;
  std::vector<uint64_t> taken;  // slots that the batch has already: each comes once before any comes again
  RankLaws laws;
  const RankLaw* law = nullptr;      // of a draw by ranks
  std::vector<uint32_t> by_stratum;  // of one, as the next: rows in the order of their strata
  std::vector<Chosen> places;
  std::vector<double> points;
  std::vector<uint64_t> drawn;
  std::vector<Claimed> claimed;
  BatchSlots has;               // of a draw without replacement
  std::vector<uint32_t> unfit;  // of one with a condition: rows whose first point brought nothing that passes
  Looks looks;

  // Room for n items, of windows over so many pages; a random stratum for each row: any slice of a batch is a fair
  // sub-batch. Nothing grows behind this: a round may run under the lock.
  void begin(const CounterRng& rng, size_t n, size_t pages_a_window);
  // Of an index that is drawn from by ranks, its law and room for n choices.
  void begin_ranked(const IndexConfig& config, size_t n);
  // Of an index that is drawn from without replacement: a batch that has none yet.
  void begin_distinct(size_t n);
};

// What a point in the sum of masses never leads to, but where the heaviest items went after the sum was read: of less of
// it than this an item is not drawn (rule G2). 0 where items are not drawn by their part of a sum.
double least_probability(const Leaves& leaves);

// The random numbers of a call permute from this one on; those below it draw.
inline constexpr uint64_t kPermutation = uint64_t{1} << 40;

// Row of the batch that each stratum's draw goes to: rows[j], j < n.
void shuffle_rows(const CounterRng& rng, uint32_t* rows, size_t n);

// One attempt at every row of scratch.missing; the others are left as they are. What it could not bring is then in
// still_missing; returns how many of these pointed at nothing (the others went away while they were read).
// total: of the index's tree, above 0.
uint64_t draw_round(const Region& r, const DrawRequest& request, const CounterRng& rng, double total,
                    DrawScratch* scratch);

// Whether where the rows of chosen items lie must be noted under the lock: a record may be rewritten behind it.
bool is_noted_when_chosen(const GatherPlan& plan);
// So many items may be noted in one hold: their own columns are copied in it.
size_t noted_a_hold(const Region& r, uint32_t index);
// Notes it, under the lock, and copies the items' own columns, which lie in the records: of scratch.chosen[begin .. end).
void note_chosen(const Region& r, const DrawRequest& request, DrawScratch* scratch, size_t begin, size_t end);
// Reads the rows of what the round brought of scratch.missing, where items lie end to end and the round read their lengths
// (request.ragged). What went in between is added to scratch.still_missing.
Status read_ragged(const Region& r, const DrawRequest& request, DrawScratch* scratch);
// Reads the windows of scratch.chosen, which were drawn without a plan, while somebody holds every page since then (rule
// D7): none of them can have gone. False where one has all the same; then there is no batch.
bool read_chosen(const Region& r, const DrawRequest& request, DrawScratch* scratch);

}  // namespace relive
