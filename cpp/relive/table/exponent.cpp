// The exponent of priorities changes while the index is in use (rules H2 to H5).
#include <cmath>

#include "relive/index/exponent_change.hpp"
#include "relive/index/kinds.hpp"
#include "relive/table/settings.hpp"

namespace relive {

Status set_priority_exponent(Table& table, uint32_t index, double exponent) {
  Entered entered(table, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  const IndexConfig& config = table.region().header->indexes[index];
  const auto refused = [&](const char* expected) {
    return Status(Code::kInvalidConfig).with_text("what", "priority_exponent").with_text("expected", expected);
  };
  if (!has_exponent(config))
    return refused("an index whose sampler is Prioritized").with_text("got", kind_of(config.sampling).name);
  if (!(exponent >= 0.0) || !std::isfinite(exponent))
    return refused("a finite number >= 0").with_double("got", exponent);
  Locked locked(table.door(), table.own_deadline());
  RELIVE_RETURN_IF_ERROR(locked.status());
  const double before = exponent_of(config);
  if (before == exponent) return {};
  if (before == 0.0) {
    locked.release();
    return refused("0, as it is: all masses are 1, and the priorities that they came of are not kept")
        .with_double("got", exponent);
  }
  change_exponent(locked.held(), index, exponent);
  locked.items_came();  // items with a priority of 0 can be drawn if the exponent is 0
  return {};
}

}  // namespace relive
