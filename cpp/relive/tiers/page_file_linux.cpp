// Nameless files, direct I/O, scattered reads and gathered writes on Linux.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>

#include "relive/tiers/page_file.hpp"
#include "relive/words/sync.hpp"

namespace relive {
namespace {

constexpr size_t kMostStretches = 1024;  // IOV_MAX

Status failure(const std::string& what, int error) {
  return Status(Code::kSystemError).with_text("what", what).with_int("errno", error);
}

// Opens a file without a name. If the file system does not support that, creates a file and removes its name at once.
int open_nameless(const std::string& directory, int flags) {
  int fd = open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return fd;
  uint64_t tag = 0;
  random_bytes(&tag, sizeof tag);
  const std::string path = directory + "/relive-pages-" + std::to_string(tag);
  fd = open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | flags, 0600);
  if (fd >= 0) (void)unlink(path.c_str());
  return fd;
}

// Continues after short transfers. move(fd, parts, count, at) is preadv or pwritev. Returns an errno, 0 for success.
template <class Move>
int move_all(int fd, uint64_t at, const std::vector<Stretch>& stretches, Move&& move) {
  std::vector<iovec> parts;
  parts.reserve(stretches.size());
  for (const Stretch& stretch : stretches) parts.push_back({stretch.memory, stretch.num_bytes});
  size_t first = 0;
  while (first < parts.size()) {
    const auto count = static_cast<int>(std::min(parts.size() - first, kMostStretches));
    const ssize_t moved = move(fd, parts.data() + first, count, static_cast<off_t>(at));
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return moved == 0 ? EIO : errno;
    at += static_cast<uint64_t>(moved);
    auto left = static_cast<size_t>(moved);
    while (first < parts.size() && left >= parts[first].iov_len) left -= parts[first++].iov_len;
    if (left == 0) continue;
    parts[first].iov_base = static_cast<char*>(parts[first].iov_base) + left;
    parts[first].iov_len -= left;
  }
  return 0;
}

uint64_t sum_of(const std::vector<Stretch>& stretches) {
  uint64_t sum = 0;
  for (const Stretch& stretch : stretches) sum += stretch.num_bytes;
  return sum;
}

}  // namespace

Status PageFile::create(const std::string& directory, std::unique_ptr<PageFile>* out) {
  std::unique_ptr<PageFile> file(new PageFile());
  file->directory_ = directory;
  file->fd_ = open_nameless(directory, O_DIRECT);
  file->is_direct_ = file->fd_ >= 0;
  if (file->fd_ < 0) file->fd_ = open_nameless(directory, 0);
  if (file->fd_ < 0) return failure("making a page file in " + directory, errno);
  RELIVE_RETURN_IF_ERROR(file->probe_direct());
  *out = std::move(file);
  return {};
}

// Some file systems accept the flag and refuse the transfer, or require more than 4 KiB of alignment.
Status PageFile::probe_direct() {
  if (!is_direct_) return {};
  void* block = std::aligned_alloc(kDirectAlign, kDirectAlign);
  if (block == nullptr) return failure("reserving a block of memory", ENOMEM);
  const std::vector<Stretch> stretch{{static_cast<std::byte*>(block), kDirectAlign}};
  std::fill_n(static_cast<std::byte*>(block), kDirectAlign, std::byte{0});
  const int error = move_all(fd_, 0, stretch, pwritev);
  std::free(block);
  if (error == 0) return {};
  if (error != EINVAL) return failure("writing to a page file in " + directory_, error);
  is_direct_ = false;
  if (fcntl(fd_, F_SETFL, 0) != 0) return failure("turning direct I/O off", errno);
  return {};
}

PageFile::~PageFile() {
  if (fd_ >= 0) close(fd_);
}

Status PageFile::read(uint64_t at, const std::vector<Stretch>& to) {
  int error = read_error_.load();
  if (error == 0) error = move_all(fd_, at, to, preadv);
  if (error == 0) return {};
  return failure("reading " + std::to_string(sum_of(to)) + " bytes of the page file in " + directory_, error);
}

Status PageFile::write(uint64_t at, const std::vector<Stretch>& from) {
  int error = write_error_.load();
  if (error == 0) error = move_all(fd_, at, from, pwritev);
  if (error == 0) return {};
  if (error == ENOSPC || error == EDQUOT || error == EFBIG)
    return Status(Code::kStorageFull)
        .with_text("path", directory_)
        .with_int("needs_bytes", static_cast<int64_t>(sum_of(from)))
        .with_int("has_bytes", static_cast<int64_t>(file_system_free_bytes(directory_)));
  return failure("writing " + std::to_string(sum_of(from)) + " bytes to the page file in " + directory_, error);
}

}  // namespace relive
