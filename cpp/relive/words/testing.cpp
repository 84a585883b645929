#include "relive/words/testing.hpp"

#ifdef RELIVE_TESTING
namespace relive::testing {

void (*fail_point_hook)(FailPoint) = nullptr;
void (*broken_promise_hook)(const char* what) = nullptr;
uint32_t most_rounds = ~0u;
thread_local uint32_t locks_held = 0;
bool rule_switched_off[static_cast<uint32_t>(Rule::kCount)] = {};
void (*section_hook)(bool begins) = nullptr;
void (*copy_hook)(bool has_rows) = nullptr;
uint32_t lanes_per_section = 64;

const char* fail_point_name(uint32_t position) {
  static const char* const kNames[] = {
#define RELIVE_X(name) #name,
      RELIVE_FAIL_POINTS(RELIVE_X)
#undef RELIVE_X
  };
  return position < static_cast<uint32_t>(FailPoint::kCount) ? kNames[position] : "?";
}

const char* rule_name(uint32_t position) {
  static const char* const kNames[] = {
#define RELIVE_X(name) #name,
      RELIVE_RULES(RELIVE_X)
#undef RELIVE_X
  };
  return position < static_cast<uint32_t>(Rule::kCount) ? kNames[position] : "?";
}

}  // namespace relive::testing
#endif
