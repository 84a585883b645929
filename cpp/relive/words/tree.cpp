#include "relive/words/tree.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <limits>

namespace relive {
namespace {

constexpr uint64_t kFan = Tree::kFanout;
constexpr size_t kChunk = 256;           // points that a draw handles at once: two kilobytes of stack a buffer
constexpr uint64_t kBitmapNodes = 4096;  // levels up to this size are deduplicated by a bitmap on the stack
constexpr size_t kBitmapWords = kBitmapNodes / 64;
constexpr size_t kFewNodes = 8;  // below this a bitmap costs more than a few repeated parents
constexpr size_t kPrefetchAhead = 8;
constexpr uint64_t kCachedNodes = 1024;  // a level of at most so many nodes stays in the cache

using Vec = double __attribute__((vector_size(32)));
using IntVec = int64_t __attribute__((vector_size(32)));

double load(const double* node, std::memory_order order = std::memory_order_relaxed) {
  return std::atomic_ref<double>(*const_cast<double*>(node)).load(order);
}

void store(double* node, double value, std::memory_order order = std::memory_order_relaxed) {
  std::atomic_ref<double>(*node).store(value, order);
}

double identity_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::kMin:
      return std::numeric_limits<double>::infinity();
    case Reduction::kMax:
      return -std::numeric_limits<double>::infinity();
    case Reduction::kSum:
      break;
  }
  return 0.0;
}

// Children are combined from left to right. draw() adds in the same order, so its last running sum equals the parent. A
// child of 0 leaves the running sum bit for bit as it was, so it can never be the first sum beyond a point.
// Plain loads suffice: only the owner of the table lock stores, and only the owner calls this on nodes of the tree.
template <Reduction kReduction>
double reduce_group(const double* group) {
  double value = group[0];
#pragma GCC unroll 8
  for (uint64_t child = 1; child < kFan; ++child) {
    const double next = group[child];
    if constexpr (kReduction == Reduction::kSum) {
      value += next;
    } else if constexpr (kReduction == Reduction::kMin) {
      value = next < value ? next : value;
    } else {
      value = next > value ? next : value;
    }
  }
  return value;
}

template <Reduction kReduction>
void refresh_parent(const double* children, double* parents, uint64_t parent) {
  store(parents + parent, reduce_group<kReduction>(children + parent * kFan));
}

// One level of refresh: `nodes` has `count` positions of the level below and receives their parents. On small levels
// every parent comes once, in order. On large levels a parent may come again, unless it is that of the node before.
template <Reduction kReduction>
size_t refresh_level(const double* children, double* parents, uint64_t num_parents, uint64_t* nodes, size_t count) {
  if (num_parents <= kBitmapNodes && count > kFewNodes) {
    uint64_t touched[kBitmapWords];
    const size_t num_words = static_cast<size_t>((num_parents + 63) / 64);
    std::fill(touched, touched + num_words, 0);
    for (size_t i = 0; i < count; ++i) touched[nodes[i] >> 9] |= uint64_t{1} << ((nodes[i] >> 3) & 63);
    size_t kept = 0;
    for (size_t w = 0; w < num_words; ++w) {
      for (uint64_t bits = touched[w]; bits != 0; bits &= bits - 1) {
        const uint64_t parent = w * 64 + static_cast<uint64_t>(__builtin_ctzll(bits));
        refresh_parent<kReduction>(children, parents, parent);
        nodes[kept++] = parent;  // kept <= parents so far <= count: all of `nodes` was read before
      }
    }
    return kept;
  }
  size_t kept = 0;
  uint64_t last = Tree::kNone;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t parent = nodes[i] >> 3;
    if (parent == last) continue;
    last = parent;
    nodes[kept++] = parent;
  }
  for (size_t i = 0; i < kept; ++i) {
    if (i + kPrefetchAhead < kept) {
      __builtin_prefetch(children + nodes[i + kPrefetchAhead] * kFan);
      __builtin_prefetch(parents + nodes[i + kPrefetchAhead], 1);
    }
    refresh_parent<kReduction>(children, parents, nodes[i]);
  }
  return kept;
}

template <Reduction kReduction>
void refresh_all(double* const* levels, const uint64_t* level_sizes, uint32_t num_levels, uint64_t* nodes,
                 size_t count) {
  for (uint32_t level = 1; level < num_levels && count > 0; ++level) {
    count = refresh_level<kReduction>(levels[level - 1], levels[level], level_sizes[level], nodes, count);
  }
}

template <Reduction kReduction>
void rebuild_all(double* const* levels, const uint64_t* level_sizes, uint32_t num_levels) {
  for (uint32_t level = 1; level < num_levels; ++level) {
    for (uint64_t node = 0; node < level_sizes[level]; ++node) {
      refresh_parent<kReduction>(levels[level - 1], levels[level], node);
    }
  }
}

// The eight children of a group in two registers. The supported machines read every 8-byte part of an aligned vector
// load whole, as a relaxed load would. The empty asm keeps the compiler from reading twice.
inline __attribute__((always_inline)) void load_group(const double* group, Vec& low, Vec& high) {
#if defined(RELIVE_TSAN) || defined(__SANITIZE_THREAD__)
  for (int i = 0; i < 4; ++i) {
    low[i] = load(group + i);
    high[i] = load(group + 4 + i);
  }
#else
  const Vec* halves = reinterpret_cast<const Vec*>(__builtin_assume_aligned(group, 64));
  low = halves[0];
  high = halves[1];
#if defined(__AVX__)
  asm volatile("" : "+x"(low), "+x"(high));
#else
  asm volatile("" ::: "memory");
#endif
#endif
}

inline __attribute__((always_inline)) void transpose(Vec& a, Vec& b, Vec& c, Vec& d) {
  const Vec ab_even = __builtin_shufflevector(a, b, 0, 4, 2, 6);
  const Vec ab_odd = __builtin_shufflevector(a, b, 1, 5, 3, 7);
  const Vec cd_even = __builtin_shufflevector(c, d, 0, 4, 2, 6);
  const Vec cd_odd = __builtin_shufflevector(c, d, 1, 5, 3, 7);
  a = __builtin_shufflevector(ab_even, cd_even, 0, 1, 4, 5);
  b = __builtin_shufflevector(ab_odd, cd_odd, 0, 1, 4, 5);
  c = __builtin_shufflevector(ab_even, cd_even, 2, 3, 6, 7);
  d = __builtin_shufflevector(ab_odd, cd_odd, 2, 3, 6, 7);
}

// Descends four points by one level. rest: the rest of each point inside its node; +inf past the end, where it stays on
// every level below. first: on entry the position of the first child of each node; on return that of the first child of
// the chosen child (0 for a point past the end, so that the next load stays inside the tree).
inline __attribute__((always_inline)) void descend_four(const double* level, double* rests, uint64_t* firsts) {
  Vec a, b, c, d, e, f, g, h;  // by point as loaded, then by child. An array would live in memory
  load_group(level + firsts[0], a, e);
  load_group(level + firsts[1], b, f);
  load_group(level + firsts[2], c, g);
  load_group(level + firsts[3], d, h);
  transpose(a, b, c, d);
  transpose(e, f, g, h);
  Vec rest;
  IntVec first;
  std::memcpy(&rest, rests, sizeof rest);
  std::memcpy(&first, firsts, sizeof first);
  Vec running = a;
  IntVec beyond = running <= rest;  // -1 if the point lies after this child
  IntVec chosen = first - beyond;
  Vec base = beyond ? running : Vec{0.0, 0.0, 0.0, 0.0};
  for (const Vec& child : {b, c, d, e, f, g, h}) {
    running += child;
    beyond = running <= rest;
    chosen -= beyond;
    base = beyond ? running : base;
  }
  const double infinity = std::numeric_limits<double>::infinity();
  rest = beyond ? Vec{infinity, infinity, infinity, infinity} : rest - base;
  first = beyond ? IntVec{0, 0, 0, 0} : chosen * 8;
  std::memcpy(rests, &rest, sizeof rest);
  std::memcpy(firsts, &first, sizeof first);
}

}  // namespace

size_t Tree::num_bytes(uint64_t num_leaves) {
  size_t doubles = 0;
  for (uint64_t size = std::max<uint64_t>(num_leaves, 1);; size = (size + kFan - 1) / kFan) {
    doubles += static_cast<size_t>((size + kFan - 1) / kFan * kFan);
    if (size <= kFan) break;
  }
  return doubles * sizeof(double);
}

void Tree::bind(void* memory, uint64_t num_leaves, Reduction reduction) {
  num_leaves_ = num_leaves;
  reduction_ = reduction;
  num_levels_ = 0;
  double* next = static_cast<double*>(memory);
  for (uint64_t size = std::max<uint64_t>(num_leaves, 1);; size = (size + kFan - 1) / kFan) {
    levels_[num_levels_] = next;
    level_sizes_[num_levels_] = size;
    ++num_levels_;
    next += (size + kFan - 1) / kFan * kFan;
    if (size <= kFan) break;
  }
}

void Tree::clear() {
  const double empty = identity();
  for (uint32_t level = 0; level < num_levels_; ++level) {
    const uint64_t padded = (level_sizes_[level] + kFan - 1) / kFan * kFan;
    for (uint64_t node = 0; node < padded; ++node) store(levels_[level] + node, empty);
  }
}

double Tree::identity() const { return identity_of(reduction_); }

void Tree::set_leaf(uint64_t slot, double mass) { store(levels_[0] + slot, mass, std::memory_order_release); }

double Tree::node(uint32_t level, uint64_t position) const { return load(levels_[level] + position); }

void Tree::refresh(uint64_t* slots, size_t count) {
  switch (reduction_) {
    case Reduction::kSum:
      return refresh_all<Reduction::kSum>(levels_.data(), level_sizes_.data(), num_levels_, slots, count);
    case Reduction::kMin:
      return refresh_all<Reduction::kMin>(levels_.data(), level_sizes_.data(), num_levels_, slots, count);
    case Reduction::kMax:
      return refresh_all<Reduction::kMax>(levels_.data(), level_sizes_.data(), num_levels_, slots, count);
  }
}

void Tree::rebuild() {
  switch (reduction_) {
    case Reduction::kSum:
      return rebuild_all<Reduction::kSum>(levels_.data(), level_sizes_.data(), num_levels_);
    case Reduction::kMin:
      return rebuild_all<Reduction::kMin>(levels_.data(), level_sizes_.data(), num_levels_);
    case Reduction::kMax:
      return rebuild_all<Reduction::kMax>(levels_.data(), level_sizes_.data(), num_levels_);
  }
}

double Tree::total() const {
  double top[kFan];
  for (uint64_t child = 0; child < kFan; ++child) top[child] = load(levels_[num_levels_ - 1] + child);
  switch (reduction_) {
    case Reduction::kMin:
      return reduce_group<Reduction::kMin>(top);
    case Reduction::kMax:
      return reduce_group<Reduction::kMax>(top);
    case Reduction::kSum:
      break;
  }
  return reduce_group<Reduction::kSum>(top);
}

void Tree::descend(uint32_t from, uint32_t to, double* points, uint64_t* nodes, size_t count) const {
  const size_t whole = count / 4 * 4;
  double last_points[4] = {};
  uint64_t last_nodes[4] = {};
  std::copy(points + whole, points + count, last_points);
  std::copy(nodes + whole, nodes + count, last_nodes);
  for (size_t i = 0; i < whole; ++i) nodes[i] *= kFan;
  for (uint64_t& node : last_nodes) node *= kFan;
  for (uint32_t at = from; at-- > to;) {
    const double* below = at > 0 && level_sizes_[at - 1] > kCachedNodes ? levels_[at - 1] : nullptr;
    for (size_t i = 0; i < whole; i += 4) {
      descend_four(levels_[at], points + i, nodes + i);
      if (below == nullptr) continue;
#pragma GCC unroll 4
      for (size_t lane = 0; lane < 4; ++lane) __builtin_prefetch(below + nodes[i + lane]);
    }
    if (whole < count) descend_four(levels_[at], last_points, last_nodes);
  }
  std::copy(last_points, last_points + (count - whole), points + whole);
  std::copy(last_nodes, last_nodes + (count - whole), nodes + whole);
  for (size_t i = 0; i < count; ++i) nodes[i] /= kFan;
}

void Tree::draw(const double* points, size_t count, uint64_t* slots) const {
  double rest[kChunk];
  for (size_t begin = 0; begin < count; begin += kChunk) {
    const size_t size = std::min(kChunk, count - begin);
    std::copy(points + begin, points + begin + size, rest);
    std::fill(slots + begin, slots + begin + size, 0);
    descend(num_levels_, 0, rest, slots + begin, size);
    for (size_t i = 0; i < size; ++i)
      if (rest[i] == std::numeric_limits<double>::infinity()) slots[begin + i] = kNone;
  }
}

uint64_t Tree::best() const {
  if (reduction_ == Reduction::kSum || num_leaves_ == 0) return kNone;
  const double sign = reduction_ == Reduction::kMin ? 1.0 : -1.0;  // look for the smallest of sign * value
  uint64_t position = 0;
  double chosen = identity();
  for (uint32_t level = num_levels_; level-- > 0;) {
    const double* group = levels_[level] + position * kFan;
    uint64_t child = 0;
    chosen = load(group);
    for (uint64_t k = 1; k < kFan; ++k) {
      const double value = load(group + k);
      if (sign * value < sign * chosen) {
        chosen = value;
        child = k;
      }
    }
    position = position * kFan + child;
  }
  return chosen == identity() ? kNone : position;
}

void Tree::best(size_t count, std::vector<Node>* found, std::vector<Node>* open) const {
  found->clear();
  open->clear();
  if (reduction_ == Reduction::kSum || num_leaves_ == 0) return;
  constexpr uint32_t kShift = std::bit_width(kFan) - 1;
  const bool is_min = reduction_ == Reduction::kMin;
  const auto is_worse = [&](const Node& a, const Node& b) {
    if (a.value != b.value) return is_min ? a.value > b.value : a.value < b.value;
    return a.place << (kShift * a.level) > b.place << (kShift * b.level);  // its first leaf
  };
  const auto look_into = [&](uint32_t level, uint64_t group) {
    for (uint64_t k = 0; k < kFan; ++k) {
      const double value = load(levels_[level] + group * kFan + k);
      if (value == identity()) continue;
      open->push_back({value, group * kFan + k, level});
      std::push_heap(open->begin(), open->end(), is_worse);
    }
  };
  look_into(num_levels_ - 1, 0);
  while (found->size() < count && !open->empty()) {
    const Node best = open->front();
    std::pop_heap(open->begin(), open->end(), is_worse);
    open->pop_back();
    if (best.level == 0) {
      found->push_back(best);
    } else {
      look_into(best.level - 1, best.place);
    }
  }
  const auto is_better = [&](const Node& a, const Node& b) { return is_worse(b, a); };
  if (!std::is_sorted(found->begin(), found->end(), is_better)) std::sort(found->begin(), found->end(), is_better);
}

}  // namespace relive
