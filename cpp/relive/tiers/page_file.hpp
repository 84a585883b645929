// The file with a tiered table's spilled bulk. The file has no name, so no other process can open it, and a crash
// leaves nothing of it. page_file_linux.cpp implements the file; page_file_portable.cpp reports that there is none.
//
// Owns:    a PageFile belongs to one Tier and owns its file descriptor.
// Locking: read and write may run on any thread. Two writes never overlap, because each position has one owner.
// Cost:    one system call each; direct I/O bypasses the page cache if the file system supports it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "relive/words/bulk_layout.hpp"
#include "relive/words/status.hpp"

namespace relive {

// A part of memory for a scattered read or a gathered write.
struct Stretch {
  std::byte* memory;
  size_t num_bytes;
};

class PageFile final {
 public:
  // Creates a nameless file in `directory`. Returns kSystemError {what, errno} if the directory does not exist or is
  // not writable.
  static Status create(const std::string& directory, std::unique_ptr<PageFile>* out);
  ~PageFile();
  PageFile(const PageFile&) = delete;
  PageFile& operator=(const PageFile&) = delete;

  // Reads or writes the stretches one after the other, from byte `at` on. After an error the caller treats the call as
  // not done: bytes that were read are undefined, and a write must be repeated. Returns kStorageFull or kSystemError.
  Status read(uint64_t at, const std::vector<Stretch>& to);
  Status write(uint64_t at, const std::vector<Stretch>& from);

  bool is_direct() const { return is_direct_; }
  const std::string& directory() const { return directory_; }

  // For tests: the errno of every read or write from now on, 0 for none.
  void fail_reads(int error) { read_error_ = error; }
  void fail_writes(int error) { write_error_ = error; }

 private:
  PageFile() = default;
  Status probe_direct();

  std::string directory_;
  int fd_ = -1;
  bool is_direct_ = false;
  std::atomic<int> read_error_{0};
  std::atomic<int> write_error_{0};
};

}  // namespace relive
