// page_file.hpp without Linux: every call reports that tiered tables are not supported.
#include "relive/tiers/page_file.hpp"

namespace relive {
namespace {

Status not_in_this_build() {
  return Status(Code::kSystemError).with_text("what", "Tiered storage is not in this build").with_int("errno", 0);
}

}  // namespace

Status PageFile::create(const std::string&, std::unique_ptr<PageFile>*) { return not_in_this_build(); }
PageFile::~PageFile() = default;
Status PageFile::probe_direct() { return not_in_this_build(); }
Status PageFile::read(uint64_t, const std::vector<Stretch>&) { return not_in_this_build(); }
Status PageFile::write(uint64_t, const std::vector<Stretch>&) { return not_in_this_build(); }

}  // namespace relive
