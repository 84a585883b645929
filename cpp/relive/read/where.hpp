// Draws with a condition: items that do not pass are drawn again (rule G10).
//
// An index that draws by mass: points are independent over the whole total, not one a stratum: a stratum that few items
// pass in would give as many as one where all do. So what comes is in proportion to mass among the items that pass.
// One that draws its best items: they are gone through in order, from the best one on, until enough passed.
//
// Owner:   a Where is a value made once. Locking: none; never under the table lock, for rows are read.
// Cost:    a draw of n items at a share s of the mass takes n / s looks; each costs about what a plain draw of a key does.
//          Where all pass, a tenth more than a draw without a condition.
#pragma once

#include <string>
#include <vector>

#include "relive/read/draw.hpp"
#include "relive/words/predicate.hpp"

namespace relive {

struct Where {
  uint32_t index = 0;
  Predicate predicate{};
  Reads reads;
  std::string text;   // as the caller wrote it, for errors
  GatherPlan length;  // where num_steps is asked for: of the window
};

// Of a draw with a condition: after so many looks, and so many an item, what is missing is rare.
inline constexpr uint64_t kLeastLooks = 1 << 16;
inline constexpr uint64_t kLooksAnItem = 1 << 10;

// kInvalidConfig where the program is none, or the index's sampler gives each item its turn.
Status make_where(const Region& r, uint32_t index, const std::vector<WrittenOperation>& written, std::string text,
                  Where* out);

// Whether each row of a draw with a condition has a first point of its own, looked at as a draw without one does: where all
// pass, that is all there is to do. Else all points are looked at in waves (filter.hpp).
bool has_first_points(const Region& r, const DrawRequest& request);
// Asks memory for what the condition reads of the windows of these rows, beside the rows themselves.
void ask_for_first(const Region& r, const DrawRequest& request, const uint32_t* rows, size_t count,
                   const Window* windows);
// Of the windows of these rows, which first points led to: what does not pass is not ok any more, and its row stands in
// scratch.unfit, as that of a point which led to nothing. Notes what was seen in scratch.looks.
void sift_first(const Region& r, const DrawRequest& request, const uint32_t* rows, size_t count, DrawScratch* scratch);

// Chooses an item that passes for each row of scratch.missing, as far as looks of one round go; the windows of the
// others are not ok. Notes what was seen in scratch.looks; returns how many looks pointed at nothing.
// first: the number of the first point; those below it are taken.
uint64_t find_passing(const Region& r, const DrawRequest& request, const CounterRng& rng, uint64_t first, double total,
                      DrawScratch* scratch);

// Which items of leaves pass, as they were when their words were read; what changed meanwhile does not.
void sift(const Region& r, const Where& where, const uint64_t* leaves, const uint64_t* words, size_t count,
          DrawScratch* scratch, bool* passes);

}  // namespace relive
