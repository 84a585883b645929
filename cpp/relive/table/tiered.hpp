// A tiered table is read: batches are drawn ahead of their use and their rows are read ahead, copied and checked again.
// Keys are drawn and looked up as in any table; rows come from frames and from staging.
//
// Owner:   a StagedReader is a view for one call; the table owns its Tier. PlannedBatch: tiers/tier.hpp.
// Locking: no lock is taken while rows are copied. Pages count the claims of planned batches, under the table lock.
// Cost:    that of the draw, and of the disk for rows that are not in memory; rows that were read ahead cost no wait.
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
  explicit StagedReader(Table& table) : table_(table) {}  // table: must be tiered

  // As sample() and gather() of reading.hpp, for a plan that needs large columns. gather: the caller is counted in.
  Status sample(const DrawRequest& request, double timeout_s);
  Status gather(const GatherPlan& plan, const int64_t* keys, size_t count, std::byte* const* out, uint8_t* present);

  Status gather_ragged(const ByKey& asked, RaggedBatch* ragged);

  // Draws num_items items, which are in flight until commit_held or return_held, and begins to read their rows from the
  // disk. where: may be null; the caller keeps it for as long as the batch lives. claims: if given, uses are noted
  // there, and commit_batch or give_back_batch (claims.hpp) frees their pages.
  Status plan_batch(const GatherPlan& plan, size_t num_items, const Where* where, double timeout_s,
                    std::unique_ptr<PlannedBatch>* out, std::vector<Claimed>* claims = nullptr);
  // Waits for the rows of a planned batch and copies them. Items that went since the draw are drawn again.
  // kInterrupted: the batch was cancelled. timeout_s: for the items of that second draw; each read of the disk may take
  // a minute. ragged: the outputs, instead of `out`, if items lie end to end; the caller calls finish().
  Status gather_batch(PlannedBatch& batch, const GatherPlan& plan, std::byte* const* out, RaggedBatch* ragged,
                      double timeout_s);
  void drop_batch(PlannedBatch& batch);  // its rows are not needed any more; the caller returns the credit

 private:
  Status gather_all(PlannedBatch& batch, const GatherPlan& plan, std::byte* const* out, RaggedBatch* ragged,
                    double timeout_s);
  // The batch is not handed out: gives back its credit, and the uses that the caller's claims note.
  void give_back(PlannedBatch& batch);
  Status redraw(PlannedBatch& batch, const std::vector<uint32_t>& gone, const Deadline& deadline);
  void release_claims(const int64_t* keys, size_t count);
  void expect_rows(const GatherPlan& plan, PlannedBatch& batch);

  Tier& tier() const { return *table_.tier(); }  // the caller is counted in: a closed table has no tier

  Table& table_;
};

Status tier_stats(Table& table, TierStats* out);
void note_late_batch(Table& table);

}  // namespace relive
