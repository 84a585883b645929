// A region seen from outside: no handle, no participant.
#include <algorithm>

#include "relive/table/kept_file.hpp"
#include "relive/table/table.hpp"

namespace relive {
namespace {

Status with_path(Status status, const std::string& path) {
  return status.ok() ? std::move(status) : std::move(status).with_text("path", path);
}

}  // namespace

Status probe_region(const std::string& path, Probe* out) {
  std::unique_ptr<Storage> storage;
  RELIVE_RETURN_IF_ERROR(Storage::open_file(path, Access::kReadOnly, sizeof(Header), &storage));
  Region region;
  RELIVE_RETURN_IF_ERROR(with_path(region.open(storage->base(), storage->num_bytes()), path));
  const Header& h = *region.header;
  const uint64_t last_frame = std::max<uint64_t>(1, h.frames_committed.load()) - 1;
  const std::byte* const end = region.frame_base(static_cast<uint32_t>(last_frame)) + region.geometry->frame_bytes;
  out->num_bytes = static_cast<uint64_t>(end - region.base);
  if (region.cells) out->num_bytes += region.cells.state->committed.load() * region.cells.geometry->stride;
  out->num_steps = h.live_steps.load() - h.removed_steps.load();
  out->capacity = region.geometry->capacity;
  for (uint32_t p = 0; p < region.geometry->max_participants; ++p)
    out->num_attached += region.participants[p].live.load() != 0 && !storage->is_byte_free(kLifeByte + p) ? 1 : 0;
  out->is_attached = !storage->is_byte_free(kAttachedByte);
  constexpr char kDigits[] = "0123456789abcdef";
  for (const uint8_t byte : h.uuid) {
    out->uuid += kDigits[byte >> 4];
    out->uuid += kDigits[byte & 15];
  }
  out->is_lost = !out->is_attached && is_lost(region, *storage);
  return {};
}

Status remove_region(const std::string& path) {
  std::unique_ptr<Storage> storage;
  RELIVE_RETURN_IF_ERROR(Storage::open_file(path, Access::kReadWrite, sizeof(Header), &storage));
  Region region;
  RELIVE_RETURN_IF_ERROR(with_path(region.open(storage->base(), storage->num_bytes()), path));
  if (!storage->try_lock_byte(kAttachedByte, true)) return Status(Code::kInUse).with_text("path", path);
  return storage->unlink();
}

}  // namespace relive
