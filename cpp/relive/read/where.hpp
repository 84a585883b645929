// Draws with a condition: items that do not pass are drawn again (rule G10). By mass: points are independent over the
// whole total, because one point for each stratum would favour strata in which few items pass; so items come in
// proportion to their mass among those that pass. By order: the best items are tested in order until enough pass.
//
// Owns:    a Where is an immutable value.
// Locking: none; the functions never run under the table lock, because they read rows.
// Cost:    a draw of n items that pass with a share s of the mass takes n / s looks, each about as much as a draw of a
//          key. If all items pass, a tenth more than a draw without a condition.
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
  GatherPlan length;  // if num_steps is used: the plan that finds it
};

// After this many looks, plus this many for each item, a draw with a condition reports RareItems.
inline constexpr uint64_t kLeastLooks = 1 << 16;
inline constexpr uint64_t kLooksAnItem = 1 << 10;

// Returns kInvalidConfig if the program is invalid, or if the index's sampler is Shuffle.
Status make_where(const Region& r, uint32_t index, const std::vector<WrittenOperation>& written, std::string text,
                  Where* out);

// Whether each row of a draw with a condition has a first point of its own, as in a draw without one; if all items
// pass, the draw is then complete. Otherwise all points are tested in waves (candidates.hpp).
bool has_first_points(const Region& r, const DrawRequest& request);
// Prefetches the values that the condition reads for the windows of these rows, unless the rows' own prefetch covers
// them.
void ask_for_first(const Region& r, const DrawRequest& request, const uint32_t* rows, size_t count,
                   const Window* windows);
// Tests the windows of these rows, which first points led to. A window that does not pass is not ok any more, and its
// row is added to scratch.unfit, like the row of a point without an item. Adds to scratch.looks.
void sift_first(const Region& r, const DrawRequest& request, const uint32_t* rows, size_t count, DrawScratch* scratch);

// Chooses an item that passes for each row of scratch.missing, within the looks of one round; windows without one are
// not ok. Adds to scratch.looks and returns the number of points without an item. first: number of the first point;
// earlier numbers are used.
uint64_t find_passing(const Region& r, const DrawRequest& request, const CounterRng& rng, uint64_t first, double total,
                      DrawScratch* scratch);

// Tests the items of these leaves, as they were when their words were read. An item that has changed does not pass.
void sift(const Region& r, const Where& where, const uint64_t* leaves, const uint64_t* words, size_t count,
          DrawScratch* scratch, bool* passes);

}  // namespace relive
