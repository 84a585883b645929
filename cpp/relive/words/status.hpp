// Structured outcomes of core calls. The core throws nothing and writes no message: a Status has a code and named
// numbers or texts, from which the bindings make an exception of relive.errors.
//
// Owner:   a plain value. Locking: none. Cost: a Status that is ok allocates nothing.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace relive {

// Every outcome, once: X(Name) makes the code kName, and "Name" is the exception of relive.errors that tells of it. The
// comment lists the fields of the status; those in brackets may be absent.
// clang-format off: it would pull the comments apart
#define RELIVE_CODES(X)                                                     \
  X(Ok)                                                                     \
  X(DeadlineExceeded)    /* needs, has, waited_s, [holder_pid] */           \
  X(WaitsForItself)      /* needs, has */                                   \
  X(RequestTooLarge)     /* requested, window */                            \
  X(CapacityTooSmall)    /* capacity, needed, lanes */                      \
  X(SeamMismatch)        /* lane, column */                                 \
  X(MissingNext)         /* lane */                                         \
  X(AlreadyPublished)    /* lane */                                         \
  X(ForeignKey)          /* position, key */                                \
  X(InvalidPriority)     /* position, value */                              \
  X(NoPriorities)        /* the index has no priorities */                  \
  X(StorageFull)         /* path, needs_bytes, has_bytes */                 \
  X(NameTaken)           /* path */                                         \
  X(NoSuchTable)         /* path */                                         \
  X(NotARegion)          /* path, what */                                   \
  X(FormatMismatch)      /* what, expected, got */                          \
  X(TooManyLanes)        /* asked, free */                                  \
  X(TooManyParticipants) /* max */                                          \
  X(TableClosed)                                                            \
  X(WriterClosed)                                                           \
  X(ForkedHandle)                                                           \
  X(ReadOnly)                                                               \
  X(InUse)               /* path: a process is attached */                  \
  X(CheckFailed)         /* what */                                         \
  X(SystemError)         /* what, errno */                                  \
  X(NoMemory)            /* it allocates nothing; Python: MemoryError */     \
  X(Interrupted)         /* a signal came */                                \
  X(InvalidConfig)       /* what, expected, got */                          \
  X(RowGone)             /* item, window, key, why */                       \
  X(EpisodeTooLong)      /* lane, max_length */                             \
  X(AlreadyCompleted)    /* position, key, column, [applied] */             \
  X(RowsApart)           /* item, window, key, why */                       \
  X(EpisodeMismatch)     /* lane, column */                                 \
  X(RareItems)           /* where, asked, found, looked_at, share */         \
  X(DamagedSave)         /* what */
// clang-format on

enum class Code : uint32_t {
#define RELIVE_X(name) k##name,
  RELIVE_CODES(RELIVE_X)
#undef RELIVE_X
};

inline const char* name_of(Code code) {
#define RELIVE_X(name) #name,
  static constexpr const char* kNames[] = {RELIVE_CODES(RELIVE_X)};
#undef RELIVE_X
  return kNames[static_cast<uint32_t>(code)];
}

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
