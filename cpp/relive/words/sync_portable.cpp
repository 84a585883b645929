// sync.hpp on the C++ standard library alone: tables of LocalMemory in one process, waiting by polling.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>

#include "relive/words/sync.hpp"

namespace relive {
namespace {

constexpr size_t kAlignment = 4096;
constexpr double kLongestPoll_s = 0.001;

Status not_in_this_build() {
  return Status(Code::kSystemError).with_text("what", "shared memory is not in this build").with_int("errno", 0);
}

void sleep_s(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

}  // namespace

Status Storage::create_local(size_t num_bytes, std::unique_ptr<Storage>* out) {
  // calloc returns large blocks as zero pages that were not touched. The address to free lies right before the base.
  void* block = std::calloc(num_bytes + kAlignment + sizeof(void*), 1);
  if (block == nullptr) {
    return Status(Code::kSystemError)
        .with_text("what", "reserving " + std::to_string(num_bytes) + " bytes of memory")
        .with_int("errno", 0);
  }
  const uintptr_t first = reinterpret_cast<uintptr_t>(block) + sizeof(void*);
  std::byte* base = reinterpret_cast<std::byte*>((first + kAlignment - 1) / kAlignment * kAlignment);
  std::memcpy(base - sizeof(void*), &block, sizeof(void*));
  std::unique_ptr<Storage> storage(new Storage());
  storage->base_ = base;
  storage->num_bytes_ = num_bytes;
  *out = std::move(storage);
  return Status();
}

Status Storage::create_file(const std::string&, size_t, size_t, size_t, std::unique_ptr<Storage>*) {
  return not_in_this_build();
}

Status Storage::open_file(const std::string&, Access, size_t, std::unique_ptr<Storage>*) { return not_in_this_build(); }

Storage::~Storage() {
  if (base_ == nullptr) return;
  void* block = nullptr;
  std::memcpy(&block, base_ - sizeof(void*), sizeof(void*));
  std::free(block);
}

Status Storage::publish() { return not_in_this_build(); }
Status Storage::commit(size_t, size_t) { return Status(); }
bool Storage::try_lock_byte(uint64_t, bool) const { return true; }
bool Storage::lock_byte(uint64_t, bool, const Deadline&, const std::atomic<bool>*) const { return true; }
bool Storage::become_last(uint64_t) { return true; }
void Storage::unlock_byte(uint64_t) const {}
bool Storage::is_byte_free(uint64_t) const { return true; }
Status Storage::sync() { return Status(); }
uint64_t Storage::file_number() const { return 0; }
bool Storage::is_unlinked() const { return false; }
bool Storage::is_same_file_as_name() const { return false; }
Status Storage::unlink() { return Status(); }
void Storage::close_locks() {}

void futex_wait(std::atomic<uint32_t>* word, uint32_t expected, double slice_s) {
  const Deadline slice = Deadline::after(slice_s);
  double pause_s = 0.00005;
  while (word->load(std::memory_order_seq_cst) == expected && !slice.passed()) {
    sleep_s(std::min(pause_s, slice.remaining_s()));
    pause_s = std::min(2.0 * pause_s, kLongestPoll_s);
  }
}

void futex_wake(std::atomic<uint32_t>*, int) {}  // waiters poll

int64_t process_id() { return 0; }
uint64_t pid_namespace() { return 0; }
std::string boot_id() { return {}; }

void random_bytes(void* out, size_t num_bytes) {
  std::random_device device;
  unsigned char* bytes = static_cast<unsigned char*>(out);
  for (size_t i = 0; i < num_bytes; ++i) bytes[i] = static_cast<unsigned char>(device());
}

void on_fork(void (*)(), void (*)(), void (*)()) {}
size_t file_system_free_bytes(const std::string&) { return 0; }
size_t physical_memory_bytes() { return 0; }
size_t file_system_total_bytes(const std::string&) { return 0; }
uint64_t file_system_kind(const std::string&) { return 0; }

}  // namespace relive
