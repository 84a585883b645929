// The only file of sync.hpp that knows Linux: mappings, nameless files, open-file-description locks, futexes.
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <ctime>

#include "relive/words/sync.hpp"

namespace relive {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr double kByteSlice_s = 0.005;

Status system_error(std::string what, int error) {
  return Status(Code::kSystemError).with_text("what", std::move(what)).with_int("errno", error);
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string descriptor_name(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

timespec to_timespec(double seconds) {
  timespec out{};
  const double whole = std::floor(seconds);
  out.tv_sec = static_cast<time_t>(whole);
  out.tv_nsec = static_cast<long>((seconds - whole) * 1e9);
  return out;
}

// Closes a descriptor at the end of its scope unless it was kept.
class Descriptor final {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int keep() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }

 private:
  int fd_;
};

// Maps memory with the base on a huge page boundary, if the size is worth it, by cutting a wider reservation.
// fd < 0: anonymous private memory. nullptr with errno set on failure.
std::byte* map_aligned(size_t num_bytes, int fd, int protection) {
  const size_t slack = num_bytes >= kHugePage ? kHugePage : 0;
  void* reserved = mmap(nullptr, num_bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  const uintptr_t first = reinterpret_cast<uintptr_t>(reserved);
  const uintptr_t begin = slack == 0 ? first : (first + kHugePage - 1) / kHugePage * kHugePage;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t end = (begin + num_bytes + page - 1) / page * page;
  const uintptr_t last = (first + num_bytes + slack + page - 1) / page * page;
  if (begin > first) munmap(reserved, begin - first);
  if (last > end) munmap(reinterpret_cast<void*>(end), last - end);
  const int kind = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* base = mmap(reinterpret_cast<void*>(begin), num_bytes, protection, kind | MAP_FIXED | MAP_NORESERVE, fd, 0);
  if (base == MAP_FAILED) {
    const int error = errno;
    munmap(reinterpret_cast<void*>(begin), end - begin);
    errno = error;
    return nullptr;
  }
  return static_cast<std::byte*>(base);
}

// One open-file-description lock operation on one byte; type F_RDLCK, F_WRLCK or F_UNLCK.
bool set_lock(int fd, uint64_t byte, short type) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(byte);
  lock.l_len = 1;
  int result;
  do {
    result = fcntl(fd, F_OFD_SETLK, &lock);
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

void futex(std::atomic<uint32_t>* word, int operation, uint32_t value, const timespec* timeout) {
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, value, timeout, nullptr, 0);
}

}  // namespace

Status Storage::create_local(size_t num_bytes, std::unique_ptr<Storage>* out) {
  std::byte* base = map_aligned(num_bytes, -1, PROT_READ | PROT_WRITE);
  if (base == nullptr) return system_error("reserving " + std::to_string(num_bytes) + " bytes of memory", errno);
  madvise(base, num_bytes, MADV_HUGEPAGE);  // a hint: it fails on a system without huge pages, which is fine
  std::unique_ptr<Storage> storage(new Storage());
  storage->base_ = base;
  storage->num_bytes_ = num_bytes;
  *out = std::move(storage);
  return Status();
}

Status Storage::create_file(const std::string& path, size_t num_bytes, size_t commit_bytes, size_t num_bytes_expected,
                            std::unique_ptr<Storage>* out) {
  const std::string folder = folder_of(path);
  const size_t total = file_system_total_bytes(folder);  // 0: no limit known
  if (total != 0 && total < num_bytes_expected) {
    return Status(Code::kStorageFull)
        .with_text("path", path)
        .with_int("needs_bytes", static_cast<int64_t>(num_bytes_expected))
        .with_int("has_bytes", static_cast<int64_t>(total));
  }
  Descriptor file(open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (file.get() < 0) return system_error("creating a nameless file in " + folder, errno);
  if (ftruncate(file.get(), static_cast<off_t>(num_bytes)) != 0) {
    return system_error("setting the size of a file in " + folder, errno);
  }
  // A second open file of the same inode: the mapping keeps the first one alive in forked children (rule E1).
  Descriptor locks(open(descriptor_name(file.get()).c_str(), O_RDWR | O_CLOEXEC));
  if (locks.get() < 0) return system_error("opening " + descriptor_name(file.get()), errno);
  std::unique_ptr<Storage> storage(new Storage());
  storage->num_bytes_ = num_bytes;
  storage->path_ = path;
  storage->lock_fd_ = locks.keep();
  RELIVE_RETURN_IF_ERROR(storage->commit(0, std::min(commit_bytes, num_bytes)));
  storage->base_ = map_aligned(num_bytes, file.get(), PROT_READ | PROT_WRITE);
  if (storage->base_ == nullptr) return system_error("mapping " + path, errno);
  storage->file_fd_ = file.keep();
  *out = std::move(storage);
  return Status();
}

Status Storage::publish() {
  if (file_fd_ < 0) return Status();
  if (linkat(AT_FDCWD, descriptor_name(file_fd_).c_str(), AT_FDCWD, path_.c_str(), AT_SYMLINK_FOLLOW) != 0) {
    if (errno == EEXIST) return Status(Code::kNameTaken).with_text("path", path_);
    return system_error("naming " + path_, errno);
  }
  close(file_fd_);
  file_fd_ = -1;
  return Status();
}

Status Storage::open_file(const std::string& path, Access access, size_t min_bytes, std::unique_ptr<Storage>* out) {
  const bool writes = access == Access::kReadWrite;
  const int flags = (writes ? O_RDWR : O_RDONLY) | O_CLOEXEC;
  Descriptor file(open(path.c_str(), flags | O_NONBLOCK));  // non-blocking: the name may lead to a pipe
  if (file.get() < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return Status(Code::kNoSuchTable).with_text("path", path);
    if (errno == EISDIR) return Status(Code::kNotARegion).with_text("path", path).with_text("what", "a folder");
    return system_error("opening " + path, errno);
  }
  struct stat facts{};
  if (fstat(file.get(), &facts) != 0) return system_error("reading the size of " + path, errno);
  if (!S_ISREG(facts.st_mode)) {
    return Status(Code::kNotARegion).with_text("path", path).with_text("what", "not a regular file");
  }
  if (static_cast<size_t>(facts.st_size) < std::max<size_t>(min_bytes, 1)) {
    return Status(Code::kNotARegion)
        .with_text("path", path)
        .with_text("what", std::to_string(facts.st_size) + " bytes, too short for a region");
  }
  // Opened through the descriptor, because the name may lead to another file by now.
  Descriptor locks(open(descriptor_name(file.get()).c_str(), flags));
  if (locks.get() < 0) return system_error("opening " + descriptor_name(file.get()), errno);
  std::unique_ptr<Storage> storage(new Storage());
  storage->num_bytes_ = static_cast<size_t>(facts.st_size);
  storage->path_ = path;
  storage->access_ = access;
  storage->lock_fd_ = locks.keep();
  storage->base_ = map_aligned(storage->num_bytes_, file.get(), writes ? PROT_READ | PROT_WRITE : PROT_READ);
  if (storage->base_ == nullptr) return system_error("mapping " + path, errno);
  *out = std::move(storage);
  return Status();
}

Storage::~Storage() {
  if (base_ != nullptr) munmap(base_, num_bytes_);
  if (file_fd_ >= 0) close(file_fd_);
  if (lock_fd_ >= 0) close(lock_fd_);
}

Status Storage::commit(size_t offset, size_t num_bytes) {
  if (is_local() || num_bytes == 0) return Status();
  int error;
  do {
    error = posix_fallocate(lock_fd_, static_cast<off_t>(offset), static_cast<off_t>(num_bytes));
  } while (error == EINTR);
  if (error == 0) return Status();
  if (error == ENOSPC || error == EFBIG || error == ENOMEM) {
    return Status(Code::kStorageFull)
        .with_text("path", path_)
        .with_int("needs_bytes", static_cast<int64_t>(num_bytes))
        .with_int("has_bytes", static_cast<int64_t>(file_system_free_bytes(folder_of(path_))));
  }
  return system_error("allocating memory of " + path_, error);
}

bool Storage::try_lock_byte(uint64_t byte, bool exclusive) const {
  return is_local() || set_lock(lock_fd_, byte, exclusive ? F_WRLCK : F_RDLCK);
}

bool Storage::lock_byte(uint64_t byte, bool exclusive, const Deadline& deadline,
                        const std::atomic<bool>* is_over) const {
  double slice_s = 0.0001;
  Hearing hearing(deadline, is_over);
  while (!try_lock_byte(byte, exclusive)) {
    if (deadline.passed() || hearing.ends()) return false;
    const timespec pause = to_timespec(std::min(slice_s, deadline.remaining_s()));
    nanosleep(&pause, nullptr);
    slice_s = std::min(2.0 * slice_s, kByteSlice_s);
  }
  return true;
}

void Storage::unlock_byte(uint64_t byte) const {
  if (!is_local()) set_lock(lock_fd_, byte, F_UNLCK);
}

bool Storage::is_byte_free(uint64_t byte) const {
  if (is_local()) return true;
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(byte);
  lock.l_len = 1;
  return fcntl(lock_fd_, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;  // after an error no process is dead
}

bool Storage::become_last(uint64_t byte) {
  if (is_local()) return true;
  unlock_byte(byte);
  if (access_ == Access::kReadOnly) {
    const int writes = open(descriptor_name(lock_fd_).c_str(), O_RDWR | O_CLOEXEC);
    if (writes < 0) return false;
    close(lock_fd_);
    lock_fd_ = writes;
  }
  return try_lock_byte(byte, true);
}

Status Storage::sync() {
  if (is_local() || fsync(lock_fd_) == 0) return Status();
  return system_error("syncing " + path_, errno);
}

uint64_t Storage::file_number() const {
  struct stat facts{};
  return !is_local() && fstat(lock_fd_, &facts) == 0 ? static_cast<uint64_t>(facts.st_ino) : 0;
}

bool Storage::is_unlinked() const {
  struct stat facts{};
  return !is_local() && fstat(lock_fd_, &facts) == 0 && facts.st_nlink == 0;
}

bool Storage::is_same_file_as_name() const {
  struct stat mine{}, named{};
  return !is_local() && fstat(lock_fd_, &mine) == 0 && stat(path_.c_str(), &named) == 0 &&
         mine.st_dev == named.st_dev && mine.st_ino == named.st_ino;
}

Status Storage::unlink() {
  if (!is_same_file_as_name()) return Status();
  if (::unlink(path_.c_str()) == 0 || errno == ENOENT) return Status();
  return system_error("removing " + path_, errno);
}

void Storage::close_locks() {
  if (file_fd_ >= 0) close(file_fd_);
  if (lock_fd_ >= 0) close(lock_fd_);
  file_fd_ = -1;
  lock_fd_ = -1;
}

void futex_wait(std::atomic<uint32_t>* word, uint32_t expected, double slice_s) {
  const timespec timeout = to_timespec(std::min(std::max(slice_s, 0.0), 1e6));
  futex(word, FUTEX_WAIT, expected, &timeout);  // no PRIVATE flag: the word may lie in shared memory
}

void futex_wake(std::atomic<uint32_t>* word, int how_many) {
  futex(word, FUTEX_WAKE, static_cast<uint32_t>(how_many), nullptr);
}

int64_t process_id() { return static_cast<int64_t>(getpid()); }

uint64_t pid_namespace() {
  struct stat facts{};
  return stat("/proc/self/ns/pid", &facts) == 0 ? static_cast<uint64_t>(facts.st_ino) : 0;
}

std::string boot_id() {
  Descriptor file(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  char text[64];
  const ssize_t size = file.get() < 0 ? 0 : read(file.get(), text, sizeof(text));
  std::string id(text, size > 0 ? static_cast<size_t>(size) : 0);
  while (!id.empty() && id.back() == '\n') id.pop_back();
  return id;
}

void random_bytes(void* out, size_t num_bytes) {
  char* next = static_cast<char*>(out);
  while (num_bytes > 0) {
    const ssize_t got = getrandom(next, num_bytes, 0);
    if (got < 0 && errno != EINTR) std::abort();  // Linux has it since 3.17; without it a region would not be unique
    if (got <= 0) continue;
    next += got;
    num_bytes -= static_cast<size_t>(got);
  }
}

void on_fork(void (*before)(), void (*in_parent)(), void (*in_child)()) { pthread_atfork(before, in_parent, in_child); }

size_t file_system_free_bytes(const std::string& folder) {
  struct statvfs facts{};
  return statvfs(folder.c_str(), &facts) == 0 ? size_t{facts.f_bavail} * facts.f_frsize : 0;
}

size_t physical_memory_bytes() {
  const long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
  return pages > 0 && bytes > 0 ? static_cast<size_t>(pages) * static_cast<size_t>(bytes) : 0;
}

size_t file_system_total_bytes(const std::string& folder) {
  struct statvfs facts{};
  return statvfs(folder.c_str(), &facts) == 0 ? size_t{facts.f_blocks} * facts.f_frsize : 0;
}

uint64_t file_system_kind(const std::string& folder) {
  struct statfs facts{};
  return statfs(folder.c_str(), &facts) == 0 ? static_cast<uint64_t>(facts.f_type) & 0xffffffffu : 0;
}

}  // namespace relive
