#include "relive/table/by_key.hpp"

#include <algorithm>

#include "relive/pages/pin_all.hpp"

namespace relive {
namespace {

constexpr uint32_t kGatherRounds = 16;
constexpr uint32_t kReadOnlyRounds = 4096;  // it cannot pin pages; in each failed round another process made progress

// One attempt at the keys of which[0 .. left). *left: the number of items that changed while they were read; they are
// now at the front of `which`.
Status gather_round(const Region& r, const ByKey& asked, RowSource& source, ByKeyScratch* s, size_t* left) {
  Window* const windows = s->windows.data();
  uint32_t* const which = s->which.data();
  s->runs.clear();
  const size_t tried = look_up(r, asked.plan, asked.keys, windows, which, *left);
  RELIVE_RETURN_IF_ERROR(source.read(asked.plan, windows, which, tried, asked.batch, &s->runs, asked.out));
  RELIVE_FAIL_POINT(sample_gathered);
  acquire_fence();
  recheck(r, asked.plan, windows, s->runs, which, tried);
  *left = 0;
  for (size_t k = 0; k < tried; ++k) {
    const uint32_t i = which[k];
    if (windows[i].ok) {
      asked.present[i] = 1;
    } else {
      which[(*left)++] = i;  // it went, moved or was spilled: the next round finds out
    }
  }
  return {};
}

}  // namespace

Status check_keys(const Region& r, uint32_t index, const int64_t* keys, size_t count) {
  for (size_t i = 0; i < count; ++i)
    if (!r.is_item_key(index, keys[i]))
      return Status(Code::kForeignKey).with_int("position", static_cast<int64_t>(i)).with_int("key", keys[i]);
  return {};
}

Status gather_by_key(Table& table, const ByKey& asked, RowSource& source, ByKeyScratch* s) {
  const Region& r = table.region();
  const size_t count = asked.count;
  s->windows.resize(std::max(s->windows.size(), count));
  s->which.resize(count);
  for (size_t i = 0; i < count; ++i) {
    s->which[i] = static_cast<uint32_t>(i);
    s->windows[i].slot = r.leaf_of_key(asked.plan.index, asked.keys[i]);
    s->windows[i].row = static_cast<uint32_t>(asked.first + i);
    asked.present[i] = 0;
  }
  if (asked.picks != nullptr)
    for (size_t i = 0; i < count; ++i) s->windows[i].pick = asked.picks[i];
  size_t left = count;
  if (asked.places != nullptr) {
    left = 0;
    for (size_t i = 0; i < count; ++i)
      if (asked.places->has_rows(asked.first + i)) s->which[left++] = static_cast<uint32_t>(i);
    asked.places->place(s->windows.data(), s->which.data(), left);
  }
  const uint32_t patience = table.is_read_only() ? kReadOnlyRounds : RELIVE_ROUNDS(kGatherRounds);
  for (uint32_t round = 0; round < patience && left > 0; ++round)
    RELIVE_RETURN_IF_ERROR(gather_round(r, asked, source, s, &left));
  if (left > 0 && !table.is_read_only()) {  // pages move faster than they are read: pin them
    PinAll pins(table.door(), table.own_deadline());
    {
      Locked locked(table.door(), table.own_deadline());
      RELIVE_RETURN_IF_ERROR(locked.status());
      pins.begin(locked);
    }
    // A second round only if a recovery gave the pages new words (rule D6).
    for (uint32_t round = 0; round < kGatherRounds && left > 0; ++round)
      RELIVE_RETURN_IF_ERROR(gather_round(r, asked, source, s, &left));
    RELIVE_PROMISE(left == 0, "an item went while every page was pinned");
  }
  for (size_t i = 0; i < count; ++i)
    if (!asked.present[i]) zero_item(asked.plan, static_cast<uint32_t>(asked.first + i), asked.batch, asked.out);
  return {};
}

Status gather_ragged(Table& table, const ByKey& asked, RaggedBatch* ragged, RowSource& source, ByKeyScratch* s) {
  FrameSource heads(table.region());
  RELIVE_RETURN_IF_ERROR(gather_by_key(
      table,
      {ragged->lengths_plan(), asked.keys, asked.count, ragged->lengths_out(), asked.present, asked.batch, asked.first},
      heads, s));
  RELIVE_RETURN_IF_ERROR(ragged->lay_out());
  RELIVE_RETURN_IF_ERROR(gather_by_key(
      table, {asked.plan, asked.keys, asked.count, ragged->out(), asked.present, asked.batch, asked.first, ragged},
      source, s));
  for (size_t i = 0; i < asked.count; ++i) {
    if (asked.present[i]) {
      ragged->note(asked.first + i);
    } else {
      ragged->forget(asked.first + i);
    }
  }
  return {};
}

}  // namespace relive
