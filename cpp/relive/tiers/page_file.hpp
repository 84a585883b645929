// The file of a tiered table's spilled bulk: a nameless file that nobody else can open and that a crash leaves nothing
// of. page_file_linux.cpp is the one file that knows how; page_file_portable.cpp says that there is none.
//
// Owner:   a PageFile belongs to one Tier.
// Locking: read and write from any thread; two writes never touch the same bytes at a time, as positions have one owner.
// Cost:    a system call each; direct I/O keeps the page cache out where the file system has it.
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

// A stretch of memory, as one part of a scattered read or a gathered write.
struct Stretch {
  std::byte* memory;
  size_t num_bytes;
};

class PageFile final {
 public:
  // A nameless file in `directory`. kSystemError {what, errno} where the directory is not there or not writable.
  static Status create(const std::string& directory, std::unique_ptr<PageFile>* out);
  ~PageFile();
  PageFile(const PageFile&) = delete;
  PageFile& operator=(const PageFile&) = delete;

  // Fills / writes the stretches, one after the other, from byte `at` on. Whole or not at all for the caller: an error
  // leaves what was read undefined and what was written to be written again. kStorageFull, kSystemError.
  Status read(uint64_t at, const std::vector<Stretch>& to);
  Status write(uint64_t at, const std::vector<Stretch>& from);

  bool is_direct() const { return is_direct_; }
  const std::string& directory() const { return directory_; }

  // For tests: the errno that reads or writes fail with from now on, 0 for none.
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
