#include "relive/table/kept_file.hpp"

#include <algorithm>
#include <cstring>
#include <string>

namespace relive {
namespace {

void note_boot(Header* h) {
  const std::string boot = boot_id();
  std::memset(h->boot_id, 0, sizeof h->boot_id);
  std::memcpy(h->boot_id, boot.data(), std::min(boot.size(), sizeof h->boot_id - 1));
}

bool is_of_this_boot(const Header& h) {
  return boot_id() == std::string(h.boot_id, strnlen(h.boot_id, sizeof h.boot_id));
}

}  // namespace

bool is_lost(const Region& region, const Storage& storage) {
  const Header& h = *region.header;
  if (h.keeps_file.load() == 0 || h.clean.load() != 0) return false;
  return RELIVE_RULE(J7_boot) && (!is_of_this_boot(h) || h.file_number != storage.file_number());
}

Status note_opened(Region& region, Storage& storage, double* later_s) {
  Header* const h = region.header;
  *later_s = is_of_this_boot(*h) ? 0.0 : clock_s() - h->closed_s;
  const bool was_clean = h->clean.exchange(0) != 0;
  note_boot(h);
  h->file_number = storage.file_number();
  return was_clean && h->keeps_file.load() != 0 ? storage.sync() : Status();
}

Status close_kept(Region& region, Storage& storage) {
  region.header->closed_s = clock_s();
  RELIVE_RETURN_IF_ERROR(storage.sync());
  region.header->clean.store(1);
  return storage.sync();
}

}  // namespace relive
