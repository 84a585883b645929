// The geometry, the layout and the statistics of a table, as dicts and lists.
#include <cstddef>

#include <nanobind/stl/string.h>

#include "module.hpp"
#include "relive/table/inspect.hpp"
#include "relive/table/settings.hpp"

namespace relive::bindings {
namespace {

const char* kind_name(ColumnKind kind) {
  constexpr const char* kNames[] = {"step", "state", "start", "late", "episode"};
  return kNames[static_cast<uint32_t>(kind)];
}

// The offsets inside the structs of docs/format.md, for readers that share no code with the core.
nb::dict structs() {
  nb::dict page, lane, mark, header, all;
  page["num_bytes"] = sizeof(PageRecord);
  page["range"] = offsetof(PageRecord, range);
  page["prev"] = offsetof(PageRecord, prev);
  page["next"] = offsetof(PageRecord, next);
  page["lane_uid"] = offsetof(PageRecord, lane_uid);
  page["lane_slot"] = offsetof(PageRecord, lane_slot);
  lane["num_bytes"] = sizeof(Lane);
  lane["state"] = offsetof(Lane, state);
  lane["uid"] = offsetof(Lane, uid);
  mark["num_bytes"] = sizeof(Mark);
  mark["policy_version"] = offsetof(Mark, policy_version);
  mark["discount"] = offsetof(Mark, discount);
  mark["lane"] = offsetof(Mark, lane);
  header["num_bytes"] = sizeof(Header);
  header["policy_version"] = offsetof(Header, policy_version);
  all["page"] = page;
  all["lane"] = lane;
  all["mark"] = mark;
  all["header"] = header;
  return all;
}

}  // namespace

nb::dict geometry(const CoreTable& self) {
  const OpenRegion open(self);
  const Region& r = *open;
  const Geometry& g = *r.geometry;
  nb::dict d;
  d["capacity"] = g.capacity;
  d["page_len"] = g.page_len;
  d["num_pages"] = g.num_pages;
  d["num_slots"] = g.num_slots;
  d["num_frames"] = g.num_frames;
  d["frame_bytes"] = g.frame_bytes;
  d["frames_per_slab"] = uint64_t{1} << g.frames_per_slab_shift;
  d["slab_bytes"] = g.slab_bytes;
  d["slabs_offset"] = g.slabs_offset;
  d["cells_offset"] = g.cells.cells_offset;
  d["cell_stride"] = g.cells.stride;
  d["region_bytes"] = g.region_bytes;
  d["row_bytes"] = g.row_bytes;
  d["record_stride"] = g.record_stride;
  d["slot_bits"] = g.slot_bits;
  d["page_bits"] = g.page_bits;
  d["history"] = g.history;
  d["max_n_step"] = g.max_n_step;
  d["max_lanes"] = g.max_lanes;
  d["max_participants"] = g.max_participants;
  d["shard"] = g.shard;
  d["seed"] = g.seed;
  d["format_version"] = r.header->format_version;
  d["abi_tag"] = r.header->abi_tag;
  d["layout_hash"] = r.header->layout_hash;
  d["uuid"] = nb::bytes(reinterpret_cast<const char*>(r.header->uuid), sizeof r.header->uuid);
  d["boot_id"] = r.header->boot_id;
  d["frames_committed"] = r.header->frames_committed.load();
  d["num_free_pages"] = r.header->num_free_pages.load();
  d["words_offset"] = g.words_offset;
  d["frames_offset"] = g.frames_offset;
  d["pages_offset"] = g.pages_offset;
  d["tails_offset"] = g.tails_offset;
  d["marks_offset"] = g.marks_offset;
  d["lanes_offset"] = g.lanes_offset;
  d["tail_words"] = g.tail_words;
  d["has_state"] = g.has_state != 0;
  d["reward_column"] = g.reward_column;
  nb::list trees, states;
  for (uint32_t i = 0; i < g.num_indexes; ++i) trees.append(g.trees_offset[i]);
  for (uint32_t i = 0; i < g.num_indexes; ++i) states.append(g.states_offset[i]);
  d["trees_offset"] = trees;
  d["states_offset"] = states;
  d["structs"] = structs();
  if (r.bulk) {
    const BulkGeometry& b = *r.bulk.geometry;
    nb::dict bulk;
    bulk["frame_bytes"] = b.frame_bytes;
    bulk["num_frames"] = b.num_frames;
    bulk["num_positions"] = b.num_positions;
    bulk["block_bytes"] = b.block_bytes;
    bulk["num_blocks"] = b.num_blocks;
    bulk["num_units"] = b.num_units;
    bulk["reserve"] = b.reserve;
    d["bulk"] = bulk;
  }
  return d;
}

nb::list layout(const CoreTable& self) {
  const OpenRegion open(self);
  const Region& r = *open;
  nb::list columns;
  for (uint32_t c = 0; c < r.geometry->num_columns; ++c) {
    const ColumnLayout& column = r.columns[c];
    nb::list shape;
    for (uint32_t d = 0; d < column.num_dims; ++d) shape.append(column.dims[d]);
    nb::dict d;
    d["name"] = column.name;
    d["dtype"] = column.dtype;
    d["shape"] = nb::tuple(shape);
    d["offset"] = column.offset;
    d["stride"] = column.stride;
    d["num_bytes"] = column.num_bytes;
    d["kind"] = kind_name(column.kind);
    constexpr const char* kAreas[] = {"record", "large", "bulk", "cell"};
    d["area"] = kAreas[static_cast<uint32_t>(column.area)];
    d["block_rows"] = column.block_rows;
    columns.append(d);
  }
  return columns;
}

nb::list limiter_list(const LimiterConfig& limiter) {
  nb::list numbers;
  for (const double number : numbers_of(limiter)) numbers.append(number);
  return numbers;
}

nb::dict stats(const CoreTable& self) {
  TableStats s;
  without_gil([&] { return relive::stats(*self.table, &s); });
  const OpenRegion open(self);
  nb::dict d;
  d["num_steps"] = s.num_steps;
  d["capacity"] = open->geometry->capacity;
  d["num_bytes"] = s.bytes_committed;
  if (const Bulk& bulk = open->bulk; bulk)
    d["num_bytes"] = s.bytes_committed +
                     (bulk.state->pages_in_ram.load() + bulk.state->pages_on_disk.load()) * bulk.geometry->frame_bytes;
  d["num_lanes"] = s.num_open_lanes;
  d["num_participants"] = s.num_participants;
  d["page_len"] = open->geometry->page_len;
  d["num_pages"] = s.num_pages;
  d["num_free_pages"] = s.num_free_pages;
  d["frames_committed"] = s.frames_committed;
  d["frames_used"] = s.frames_used;
  d["policy_version"] = relive::policy_version(*self.table);
  for (const auto& [name, value] : s.counters) d[name] = value;
  nb::list indexes;
  for (size_t i = 0; i < s.live_items.size(); ++i) {
    nb::dict one;
    one["num_items"] = s.live_items[i];
    one["pending"] = s.pending[i];
    one["timed_out"] = s.timed_out[i];
    one["crowded_out"] = s.crowded_out[i];
    one["expired"] = s.expired[i];
    one["filtered"] = s.filtered[i];
    one["inserted"] = s.inserted[i];
    one["sampled"] = s.sampled[i];
    one["in_flight"] = s.in_flight[i];
    one["total_mass"] = s.total_mass[i];
    one["max_priority"] = s.max_priority[i];
    one["limiter"] = limiter_list(s.limiters[i]);
    const WaitStats& wait = s.waits[i];
    one["waiting_samplers"] = wait.num_samplers;
    one["waiting_writers"] = wait.num_writers;
    one["sampler_waits_s"] = wait.sampler_wait_s;
    one["writer_waits_s"] = wait.writer_wait_s;
    one["samplers_wait_for"] = wait.samplers_need;
    one["writers_wait_for"] = wait.writers_need;
    one["draw_size"] = wait.draw_size;
    one["insert_size"] = wait.insert_size;
    one["is_stuck"] = wait.is_stuck;
    indexes.append(one);
  }
  d["indexes"] = indexes;
  d["tiers"] = self.table->is_tiered() ? nb::object(tier_stats(self)) : nb::object(nb::none());
  return d;
}

}  // namespace relive::bindings
