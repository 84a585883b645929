#include <algorithm>
#include <bit>

#include "relive/words/bulk_view.hpp"
#include "relive/words/layout.hpp"

namespace relive {
namespace {

constexpr uint64_t kMostBlock = 64 << 10;
constexpr uint64_t kRowsOfBlock = 8;   // a row is about so many blocks, so a read fetches few bytes of other rows
constexpr uint64_t kMostPadding = 8;   // rows are padded to whole blocks if that costs at most an eighth
constexpr uint64_t kLeastFrames = 4;   // one open, one opened ahead, one being written out, one for the next writer
constexpr uint64_t kLeastUnits = 2;    // in staging
constexpr uint64_t kReservePart = 16;  // of the bulk frames are kept free
constexpr uint64_t kReserveBytes = 64 << 20;

uint64_t round_up(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

bool is_bulk(const TableConfig& config, const ColumnConfig& column, uint64_t num_bytes) {
  // A scalar of any size stays packed, because returns are summed from the records. A late column stays packed, because
  // it is written under the lock, into memory.
  return config.tier.is_tiered() && column.kind != ColumnKind::kLate && !column.shape.empty() &&
         num_bytes > config.tier.min_column_bytes;
}

void choose_block(const TableConfig& config, Layout* out) {
  if (!config.tier.is_tiered()) return;
  uint64_t largest = 0;
  for (const ColumnLayout& column : out->columns)
    if (column.area == Area::kBulk) largest = std::max(largest, column.num_bytes);
  if (largest == 0) return;
  out->bulk.block_bytes =
      std::clamp(std::bit_floor(std::max<uint64_t>(1, largest / kRowsOfBlock)), kDirectAlign, kMostBlock);
}

uint64_t bulk_stride(const BulkGeometry& bulk, uint64_t num_bytes) {
  const uint64_t whole = round_up(num_bytes, bulk.block_bytes);
  return whole - num_bytes <= num_bytes / kMostPadding ? whole : round_up(num_bytes, 64);
}

Status place_bulk(const TableConfig& config, Layout* out) {
  BulkGeometry& bulk = out->bulk;
  const Geometry& g = out->geometry;
  uint64_t offset = 0, largest_unit = 0;
  bulk.num_columns = g.num_columns;
  for (uint32_t c = 0; c < g.num_columns; ++c) {
    ColumnLayout& column = out->columns[c];
    bulk.first_unit[c] = ~0u;
    if (column.area != Area::kBulk) continue;
    const uint64_t area = round_up(g.page_len * column.stride, bulk.block_bytes);
    const bool is_row = column.stride % bulk.block_bytes == 0;
    bulk.unit_blocks[c] = is_row ? static_cast<uint32_t>(column.stride / bulk.block_bytes) : 1;
    bulk.first_unit[c] = bulk.num_units;
    bulk.num_units += static_cast<uint32_t>(area / bulk.unit_bytes(c));
    largest_unit = std::max(largest_unit, bulk.unit_bytes(c));
    column.offset = offset;
    offset += area;
  }
  bulk.frame_bytes = offset;
  bulk.num_positions = g.num_pages;
  const uint64_t ram = config.tier.ram_bytes;
  const uint64_t least_staging = kLeastUnits * largest_unit, least_frames = kLeastFrames * bulk.frame_bytes;
  if (ram < least_staging + least_frames)
    return Status(Code::kInvalidConfig)
        .with_text("what", "ram_bytes of Tiered")
        .with_text("expected", "at least " + std::to_string(least_staging + least_frames) + " bytes, for " +
                                   std::to_string(kLeastFrames) + " pages and " + std::to_string(kLeastUnits) +
                                   " staged rows of this spec")
        .with_int("got", static_cast<int64_t>(ram));
  const auto asked = static_cast<uint64_t>(config.tier.staging_fraction * static_cast<double>(ram));
  const uint64_t staging = std::clamp(asked, least_staging, ram - least_frames);
  bulk.num_blocks = staging / bulk.block_bytes;
  bulk.num_frames = std::min((ram - staging) / bulk.frame_bytes, g.num_pages + 1);
  bulk.reserve = std::clamp(std::min(bulk.num_frames / kReservePart, kReserveBytes / bulk.frame_bytes), uint64_t{1},
                            bulk.num_frames / 2);
  return {};
}

void place_bulk_areas(const std::function<uint64_t(uint64_t)>& take, uint64_t num_pages, BulkGeometry* bulk) {
  bulk->places_offset = take(sizeof(uint64_t) * num_pages);
  bulk->links_offset = take(sizeof(BulkLink) * num_pages);
  bulk->positions_offset = take(sizeof(uint32_t) * bulk->num_positions);
  bulk->free_offset = take(sizeof(uint32_t) * bulk->num_frames);
  bulk->leaving_offset = take(sizeof(uint32_t) * bulk->num_frames);
  bulk->state_offset = take(sizeof(BulkState));
}

}  // namespace relive
