// Structured outcomes of core calls. The core never throws across its boundary and never words a message:
// a Status carries a code and numbers or names; the bindings turn it into an exception of relive.errors.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace relive {

enum class Code : uint32_t {
  kOk = 0,
  kDeadlineExceeded,     // needs, has, waited_s, [holder_pid]
  kWaitsForItself,       // needs, has
  kRequestTooLarge,      // requested, window
  kCapacityTooSmall,     // capacity, needed, lanes
  kSeamMismatch,         // lane, column
  kMissingNext,          // lane
  kAlreadyPublished,     // lane
  kForeignKey,           // position, key
  kInvalidPriority,      // position, value
  kNoPriorities,         // index has no priorities
  kStorageFull,          // path, needs_bytes, has_bytes
  kNameTaken,            // path
  kNoSuchTable,          // path
  kNotARegion,           // path, what
  kFormatMismatch,       // what, expected, got
  kTooManyLanes,         // asked, free
  kTooManyParticipants,  // max
  kTableClosed,
  kWriterClosed,
  kForkedHandle,
  kReadOnly,
  kInUse,             // path: somebody is attached
  kCheckFailed,       // what
  kSystemError,       // what, errno
  kInterrupted,       // a signal came
  kInvalidConfig,     // what, expected, got
  kRowGone,           // item, window, key, why
  kEpisodeTooLong,    // lane, max_length
  kAlreadyCompleted,  // position, key, column, [applied]
  kRowsApart,         // item, window, key, why
  kEpisodeMismatch,   // lane, column
  kRareItems          // where, asked, found, looked_at, share
};

// One field of a structured error: a name and a number or a text.
struct Field {
  std::string name;
  double number = 0.0;
  int64_t integer = 0;
  std::string text;
  enum class Kind { kNumber, kInteger, kText } kind = Kind::kNumber;
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  explicit Status(Code code) : code_(code) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::vector<Field>& fields() const { return fields_; }

  Status&& with_double(std::string name, double value) && {
    fields_.push_back({std::move(name), value, 0, {}, Field::Kind::kNumber});
    return std::move(*this);
  }
  Status&& with_int(std::string name, int64_t value) && {
    fields_.push_back({std::move(name), 0.0, value, {}, Field::Kind::kInteger});
    return std::move(*this);
  }
  Status&& with_text(std::string name, std::string value) && {
    fields_.push_back({std::move(name), 0.0, 0, std::move(value), Field::Kind::kText});
    return std::move(*this);
  }

  void add(const Field& field) { fields_.push_back(field); }

 private:
  Code code_ = Code::kOk;
  std::vector<Field> fields_;
};

}  // namespace relive

#define RELIVE_RETURN_IF_ERROR(expression)           \
  do {                                               \
    ::relive::Status relive_status_ = (expression);  \
    if (!relive_status_.ok()) return relive_status_; \
  } while (0)
