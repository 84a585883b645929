// Rows of a tiered table as a source: records from frames, bulk from memory or, read in, from staging.
//
// Owner:   lives for one call; the units that it waits for are the staging's.
// Locking: none. Waits for the disk, at most until its deadline; cancelled, or a signal, ends it sooner.
#pragma once

#include <atomic>
#include <vector>

#include "relive/read/row_source.hpp"
#include "relive/tiers/tier.hpp"

namespace relive {

class StagedSource final : public RowSource {
 public:
  StagedSource(const Region& region, Tier& tier, uint64_t ticket, const Deadline& deadline,
               const std::atomic<bool>* cancelled)
      : r_(region), tier_(tier), ticket_(ticket), deadline_(deadline), cancelled_(cancelled) {}
  Status read(const GatherPlan& plan, Window* windows, const uint32_t* which, size_t count, size_t batch, Runs* runs,
              std::byte* const* out) override;

 private:
  uint64_t copy_from_ram(const GatherPlan& plan, Window* windows, const uint32_t* which, size_t count, size_t batch,
                         const Runs& runs, std::byte* const* out);

  const Region& r_;
  Tier& tier_;
  const uint64_t ticket_;
  const Deadline deadline_;
  const std::atomic<bool>* const cancelled_;
  std::vector<Piece> pieces_;
  std::vector<uint8_t> stale_;  // by row of the batch
};

// The units that the resolved windows need, each once, in order.
void list_units(const Region& r, const GatherPlan& plan, const Window* windows, const uint32_t* which, size_t count,
                const Runs& runs, std::vector<UnitId>* units);

}  // namespace relive
