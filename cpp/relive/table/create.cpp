// A table is created: its region is laid out, gets its first frames, and its name is published last (rule J1).
#include <algorithm>
#include <mutex>
#include <utility>

#include "relive/index/kinds.hpp"
#include "relive/pages/cells.hpp"
#include "relive/table/handles.hpp"
#include "relive/table/table.hpp"
#include "relive/tiers/tier.hpp"
#include "relive/words/predicate.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// The number of frames that a new region has: all of them if its memory is only promised (local), else the first few,
// and those that are asked for.
uint64_t first_frames(const Geometry& g, bool is_local, uint64_t asked) {
  return is_local ? g.num_frames : std::min(std::max(g.grow_frames, asked), g.num_frames);
}

uint64_t end_of_frame(const Geometry& g, uint64_t frame) {
  const uint64_t mask = (uint64_t{1} << g.frames_per_slab_shift) - 1;
  return g.slabs_offset + (frame >> g.frames_per_slab_shift) * g.slab_bytes + ((frame & mask) + 1) * g.frame_bytes;
}

// The least number of start cells that `capacity` rows need, in an index whose windows begin at fixed steps.
uint64_t least_cells(const TableConfig& config) {
  uint64_t cells = 0;
  for (const IndexConfig& index : config.indexes)
    if (index.sequence.period != 0) cells = std::max(cells, config.capacity / index.sequence.period);
  return cells;
}

void offer_frames(Region& r, uint64_t count) {
  for (uint64_t f = 0; f < count; ++f) r.free_frames[f].store(static_cast<uint32_t>(count - 1 - f), kRelaxed);
  r.header->num_free_frames.store(count, kRelaxed);
  r.header->frames_committed.store(count, kRelaxed);
}

// The layout that a tiered table would have with the same pages in memory alone.
Status make_plain_layout(TableConfig config, uint32_t page_len, std::unique_ptr<const Layout>* out) {
  config.tier = {};
  config.page_len = page_len;
  auto layout = std::make_unique<Layout>();
  RELIVE_RETURN_IF_ERROR(make_layout(config, layout.get()));
  *out = std::move(layout);
  return {};
}

// Removes a region of that name that no process is attached to (rule J2).
Status replace_leftover(const std::string& path) {
  std::unique_ptr<Storage> leftover;
  Status status = Storage::open_file(path, Access::kReadWrite, 1, &leftover);
  if (status.code() == Code::kNoSuchTable) return {};
  RELIVE_RETURN_IF_ERROR(std::move(status));
  if (!leftover->try_lock_byte(kAttachedByte, true)) return Status(Code::kNameTaken).with_text("path", path);
  return leftover->unlink();
}

}  // namespace

Status Table::create(const TableConfig& config, const std::string& path, std::unique_ptr<Table>* out) {
  std::unique_ptr<Table> table;
  RELIVE_RETURN_IF_ERROR(make(config, path, 0, &table));
  RELIVE_RETURN_IF_ERROR(table->publish());
  *out = std::move(table);
  return {};
}

Status Table::make(const TableConfig& asked, const std::string& path, uint64_t num_frames,
                   std::unique_ptr<Table>* out) {
  TableConfig config = asked;
  for (IndexConfig& index : config.indexes) RELIVE_RETURN_IF_ERROR(settle_kinds(&index));
  Layout layout;
  RELIVE_RETURN_IF_ERROR(make_layout(config, &layout));
  RELIVE_RETURN_IF_ERROR(settle_conditions(layout, &config));
  const Geometry& g = layout.geometry;
  std::unique_ptr<Table> table(new Table);
  const bool is_local = path.empty();
  const uint64_t frames = first_frames(g, is_local, num_frames);
  if (is_local) {
    // The areas before the slabs are written now, so they must fit: the system promises more memory than it has, and
    // kills the process that uses it.
    const size_t has = physical_memory_bytes();
    if (has != 0 && g.slabs_offset > has)
      return Status(Code::kStorageFull)
          .with_text("path", "memory")
          .with_int("needs_bytes", static_cast<int64_t>(g.slabs_offset))
          .with_int("has_bytes", static_cast<int64_t>(has));
    RELIVE_RETURN_IF_ERROR(Storage::create_local(g.region_bytes, &table->storage_));
  } else {
    // The pages of a full table, and one that is being written. More lanes need more pages.
    const uint64_t expected = g.slabs_offset + ((g.capacity + g.page_len - 1) / g.page_len + 1) * g.frame_bytes +
                              least_cells(config) * g.cells.stride;
    const std::lock_guard<std::mutex> guard(handles().mutex);
    RELIVE_RETURN_IF_ERROR(
        Storage::create_file(path, g.region_bytes, end_of_frame(g, frames - 1), expected, &table->storage_));
  }
  table->fork_epoch_.store(fork_epoch());
  table->path_ = path;
  table->region_.create(table->storage_->base(), config, layout);
  table->region_.header->keeps_file.store(config.keeps_file ? 1 : 0);
  table->region_.header->file_number = table->storage_->file_number();
  table->door_.scratch.reserve(layout.geometry);
  offer_frames(table->region_, frames);
  if (is_local && table->region_.cells) offer_cells(Alone(table->door_).held(), 0, g.cells.num_cells);
  if (config.tier.is_tiered()) RELIVE_RETURN_IF_ERROR(make_plain_layout(config, g.page_len, &table->plain_layout_));
  if (has_bulk(layout.bulk))
    RELIVE_RETURN_IF_ERROR(Tier::create(config.tier, layout.bulk, table->door_, &table->tier_));
  Participant& me = table->region_.participants[0];
  me.live.store(1);
  me.pid.store(process_id());
  me.pid_namespace.store(pid_namespace());
  table->joined_ = true;
  if (!is_local) {
    table->storage_->try_lock_byte(kAttachedByte, false);
    table->storage_->try_lock_byte(kLifeByte, true);
  }
  *out = std::move(table);
  return {};
}

Status Table::publish() {
  if (tier_ != nullptr) return tier_->start();
  if (is_local()) return {};
  Status published = storage_->publish();
  for (int tries = 0; published.code() == Code::kNameTaken && tries < 8; ++tries) {
    RELIVE_RETURN_IF_ERROR(replace_leftover(path_));
    published = storage_->publish();
  }
  return published;
}

}  // namespace relive
