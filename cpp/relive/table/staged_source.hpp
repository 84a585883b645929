// Rows of a tiered table: records come from frames, large columns from memory or from staging, which reads the disk.
//
// Owner:   a StagedSource lives for one call. The units that it waits for belong to the staging.
// Locking: none. It waits for the disk until its deadline; a cancelled batch, or a signal, ends the wait sooner.
// Cost:    large rows at the speed of memory, or of the disk.
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

// The units that the resolved windows need: sorted, each once.
void list_units(const Region& r, const GatherPlan& plan, const Window* windows, const uint32_t* which, size_t count,
                const Runs& runs, std::vector<UnitId>* units);

}  // namespace relive
