// The program of a condition as it lies in memory: operations in postfix order. predicate.hpp runs it.
//
// Owner:   plain values; an index's own condition lies in its IndexConfig. Locking: none, they never change.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

namespace relive {

inline constexpr uint32_t kMostOperations = 32;

enum class OpCode : uint8_t {
  kWhole,  // constants
  kReal,
  kColumn,  // a column of the item's row, or of the item itself
  kLane,    // derived columns
  kEpisodeStep,
  kPolicyVersion,
  kStaleness,
  kNumSteps,
  kFirst,
  kTerminated,
  kTruncated,
  kToReal,  // operations of one value
  kNegate,
  kNot,
  kAdd,  // operations of two values
  kSubtract,
  kMultiply,
  kDivide,
  kLessWhole,
  kLessReal,
  kAtMostWhole,
  kAtMostReal,
  kEqualWhole,
  kEqualReal,
  kUnequalWhole,
  kUnequalReal,
  kAnd,
  kOr,
  kNumCodes
};

// The type of a column in memory.
enum class Loaded : uint8_t { kBool, kInt8, kInt16, kInt32, kInt64, kUint8, kUint16, kUint32, kFloat32, kFloat64 };

struct Operation {
  OpCode code;
  Loaded loaded;
  uint16_t reserved;
  uint32_t stride;  // from row to row; 0: the item has one value
  union {
    int64_t whole;
    double real;
    uint64_t offset;  // of row 0
  };
};
static_assert(sizeof(Operation) == 16 && std::is_trivially_copyable_v<Operation>);

struct Predicate {
  uint32_t num_operations;  // 0: no condition
  uint16_t asks_length;     // 1: num_steps is among them
  uint16_t asks_end;        // 1: terminated or truncated is among them, which may come after the step is an item
  Operation operations[kMostOperations];
};
static_assert(std::is_trivially_copyable_v<Predicate>);

// One operation as relive/config/where.py writes it: the name of its code; of kColumn a column, of a constant a number.
struct WrittenOperation {
  std::string code;
  std::string column;
  double real = 0.0;
  int64_t whole = 0;
};

}  // namespace relive
