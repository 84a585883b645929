// Reading from a tiered table: batches drawn ahead, their rows read ahead, copied, looked at once more.
//
// It wraps a table: keys are drawn and looked up as in any other, rows come from frames and from what is staged.
//
// Owner:   a StagedReader is a view for one call; the table owns its Tier. PlannedBatch: tiers/tier.hpp.
// Locking: none is held while rows are copied; claims of planned batches are counts a page, under the lock.
#pragma once

#include <memory>
#include <vector>

#include "relive/read/draw.hpp"
#include "relive/table/by_key.hpp"
#include "relive/table/table.hpp"
#include "relive/tiers/tier.hpp"

namespace relive {

class StagedReader final {
 public:
  explicit StagedReader(Table& table) : table_(table) {}  // of a table that is tiered

  // As sample() and gather() of reading.hpp, for a plan that needs bulk. gather: the caller is counted in.
  Status sample(const DrawRequest& request, double timeout_s);
  Status gather(const GatherPlan& plan, const int64_t* keys, size_t count, std::byte* const* out, uint8_t* present);

  Status gather_ragged(const ByKey& asked, RaggedBatch* ragged);

  // Draws n items (in flight until commit_held or return_held) and begins to read what they need of the disk.
  // where: may be null; of the caller, for as long as the batch lives.
  // claims: where uses are noted; then commit_batch or give_back_batch lets go of their pages (claims.hpp).
  Status plan_batch(const GatherPlan& plan, size_t num_items, const Where* where, double timeout_s,
                    std::unique_ptr<PlannedBatch>* out, std::vector<Claimed>* claims = nullptr);
  // Waits for the rows of a planned batch and copies them; items gone since are drawn anew. kInterrupted when cancelled.
  // timeout_s: for items to draw anew, where there are none; the disk has a minute for each read.
  // ragged: where items lie end to end, in place of out; its finish() is the caller's.
  Status gather_batch(PlannedBatch& batch, const GatherPlan& plan, std::byte* const* out, RaggedBatch* ragged,
                      double timeout_s);
  void drop_batch(PlannedBatch& batch);  // its rows are not wanted any more; the credit is the caller's to return

 private:
  Status redraw(PlannedBatch& batch, const std::vector<uint32_t>& gone, const Deadline& deadline);
  void release_claims(const int64_t* keys, size_t count);
  void expect_rows(const GatherPlan& plan, PlannedBatch& batch);

  Tier& tier() const { return *table_.tier(); }  // for who is counted in: a table that closed has none

  Table& table_;
};

Status tier_stats(Table& table, TierStats* out);
void note_late_batch(Table& table);

}  // namespace relive
