// The program of a condition as it lies in memory: operations in postfix order. predicate.hpp runs it.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

namespace relive {

inline constexpr uint32_t kMostOperations = 32;

enum class OpCode : uint8_t {
  kWhole,  // a constant, as the next one
  kReal,
  kColumn,  // of the item's row, or its own
  kLane,    // what a row has by itself
  kEpisodeStep,
  kPolicyVersion,
  kStaleness,
  kNumSteps,  // of the item
  kFirst,
  kTerminated,
  kTruncated,
  kToReal,  // of one value
  kNegate,
  kNot,
  kAdd,  // of two
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

// What lies in memory where a column is loaded from.
enum class Loaded : uint8_t { kBool, kInt8, kInt16, kInt32, kInt64, kUint8, kUint16, kUint32, kFloat32, kFloat64 };

struct Operation {
  OpCode code;
  Loaded loaded;
  uint16_t reserved;
  uint32_t stride;  // from row to row; 0 of what an item has one value of
  union {
    int64_t whole;
    double real;
    uint64_t offset;  // of row 0
  };
};
static_assert(sizeof(Operation) == 16 && std::is_trivially_copyable_v<Operation>);

struct Predicate {
  uint32_t num_operations;  // 0: no condition
  uint16_t asks_length;     // whether num_steps is among them
  uint16_t asks_end;        // whether terminated or truncated is: they may come after the step is an item
  Operation operations[kMostOperations];
};
static_assert(std::is_trivially_copyable_v<Predicate>);

// One operation as it is written down: a name of a code, of kColumn a column, of constants a number.
struct WrittenOperation {
  std::string code;
  std::string column;
  double real = 0.0;
  int64_t whole = 0;
};

}  // namespace relive
