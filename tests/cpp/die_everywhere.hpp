// Deaths at every passage of every fail point of a call, each in a table of its own.
#pragma once

#include "core_deaths.hpp"
#include "core_rig.hpp"

namespace rig {

// For every passage of every fail point: runs `prepare`, stops `call` there, recovers and ends the writers, and lets
// `judge` inspect the table. Returns the number of deaths.
template <class Prepare, class Call, class Judge>
int die_everywhere(const Spec& spec, Prepare&& prepare, Call&& call, Judge&& judge) {
  int deaths = 0;
  for (uint32_t point = 0; point < static_cast<uint32_t>(testing::FailPoint::kCount); ++point) {
    const auto at = static_cast<testing::FailPoint>(point);
    if (!has_way_out(at)) continue;
    for (int passages = 1; passages < 20; ++passages) {
      Rig rig(spec);
      prepare(rig);
      if (!dies_at(point, passages, [&] { call(rig); })) break;
      ++deaths;
      recover_all(*rig.table);
      end_writers(*rig.table);
      judge(rig, testing::fail_point_name(point));
      const Status checked = relive::check(*rig.table);
      if (!checked.ok()) harness::fail(__FILE__, __LINE__, checked.fields()[0].text);
    }
  }
  return deaths;
}

}  // namespace rig
