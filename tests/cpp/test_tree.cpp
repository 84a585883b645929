// The tree against a naive twin, under random programmes; exactness of its nodes; statistics of its draws.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "harness.hpp"
#include "relive/words/rng.hpp"
#include "relive/words/tree.hpp"

using relive::CounterRng;
using relive::Reduction;
using relive::Tree;

namespace {

const uint64_t kSizes[] = {1, 2, 7, 8, 9, 63, 64, 65, 511, 512, 513, 4096, 4097, 32769, 100003};

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// A tree with its own memory of exactly the announced size (AddressSanitizer watches its ends).
struct Owned {
  Owned(uint64_t num_leaves, Reduction reduction) : memory(std::aligned_alloc(64, Tree::num_bytes(num_leaves))) {
    tree.bind(memory.get(), num_leaves, reduction);
    tree.clear();
  }
  std::unique_ptr<void, Free> memory;
  Tree tree;
};

double combine(Reduction reduction, double a, double b) {
  return reduction == Reduction::kSum ? a + b : reduction == Reduction::kMin ? std::min(a, b) : std::max(a, b);
}

// Recomputes every level from the leaves alone, children from left to right. Returns whether all nodes are equal.
bool nodes_are_exact(const Tree& tree, Reduction reduction) {
  std::vector<double> below(tree.num_leaves());
  for (uint64_t slot = 0; slot < below.size(); ++slot) below[slot] = tree.leaf(slot);
  uint32_t level = 0;
  while (below.size() > 8) {
    std::vector<double> above;
    for (size_t begin = 0; begin < below.size(); begin += 8) {
      double value = below[begin];
      for (size_t i = begin + 1; i < std::min(begin + 8, below.size()); ++i)
        value = combine(reduction, value, below[i]);
      above.push_back(value);
    }
    ++level;
    for (size_t i = 0; i < above.size(); ++i) {
      if (tree.node(level, i) != above[i]) return false;
    }
    below = above;
  }
  double total = below[0];
  for (size_t i = 1; i < below.size(); ++i) total = combine(reduction, total, below[i]);
  return level + 1 == tree.num_levels() && total == tree.total();
}

// The twin: a list of masses and a walk from the left.
uint64_t naive_draw(const std::vector<double>& masses, double point) {
  double running = 0.0;
  for (uint64_t slot = 0; slot < masses.size(); ++slot) {
    running += masses[slot];
    if (point < running) return slot;
  }
  return Tree::kNone;
}

}  // namespace

TEST(num_bytes_has_ceil_n_over_8_a_level) {
  CHECK_EQ(Tree::num_bytes(1), 64u);
  CHECK_EQ(Tree::num_bytes(8), 64u);
  CHECK_EQ(Tree::num_bytes(9), (16u + 8u) * 8u);
  CHECK_EQ(Tree::num_bytes(64), (64u + 8u) * 8u);
  CHECK_EQ(Tree::num_bytes(65), (72u + 16u + 8u) * 8u);
  CHECK(Tree::num_bytes(1'000'000) < 1'000'000 * 8 * 8 / 7 + 64 * 16);
  for (const uint64_t size : kSizes) CHECK_EQ(Tree::num_bytes(size) % 64, 0u);
}

TEST(an_empty_tree) {
  for (const uint64_t size : kSizes) {
    Owned sum(size, Reduction::kSum), low(size, Reduction::kMin), high(size, Reduction::kMax);
    CHECK_EQ(sum.tree.total(), 0.0);
    CHECK(std::isinf(low.tree.total()) && low.tree.total() > 0);
    CHECK(std::isinf(high.tree.total()) && high.tree.total() < 0);
    CHECK_EQ(low.tree.best(), Tree::kNone);
    CHECK_EQ(high.tree.best(), Tree::kNone);
    const double points[] = {0.0, 1.0};
    uint64_t slots[2];
    sum.tree.draw(points, 2, slots);
    CHECK_EQ(slots[0], Tree::kNone);
    CHECK_EQ(slots[1], Tree::kNone);
  }
}

TEST(random_programmes_against_the_twin) {
  // Whole-number masses: every sum is exact, so the twin's walk must give the same slot.
  for (const uint64_t size : kSizes) {
    Owned owned(size, Reduction::kSum);
    Tree& tree = owned.tree;
    std::vector<double> masses(size, 0.0);
    const int num_rounds = size > 5000 ? 8 : 60;
    uint64_t i = 0;
    const CounterRng rng(size, 0, 0, 0);
    for (int round = 0; round < num_rounds; ++round) {
      const size_t count = 1 + rng.below(i++, 600);
      std::vector<uint64_t> touched(count);
      const bool is_run = rng.below(i++, 2) == 0;  // neighbouring slots, as an append changes them
      const uint64_t first = rng.below(i++, static_cast<uint32_t>(size));
      for (size_t k = 0; k < count; ++k) {
        touched[k] = is_run ? (first + k) % size : rng.below(i++, static_cast<uint32_t>(size));
        masses[touched[k]] = rng.below(i++, 3) == 0 ? 0.0 : static_cast<double>(rng.below(i++, 1000));
        tree.set_leaf(touched[k], masses[touched[k]]);
      }
      tree.refresh(touched.data(), count);
      CHECK(nodes_are_exact(tree, Reduction::kSum));
      double total = 0.0;
      for (const double mass : masses) total += mass;
      CHECK_EQ(tree.total(), total);
      if (total == 0.0) continue;
      const size_t num_points = 1 + rng.below(i++, size > 5000 ? 40 : 700);
      std::vector<double> points(num_points);
      std::vector<uint64_t> slots(num_points);
      for (double& point : points) {
        point = std::floor(rng.uniform(i++) * total);
        point += rng.below(i++, 2) == 0 ? 0.0 : 0.5;
      }
      if (rng.below(i++, 2) == 0) std::sort(points.begin(), points.end());
      tree.draw(points.data(), num_points, slots.data());
      for (size_t k = 0; k < num_points; ++k) CHECK_EQ(slots[k], naive_draw(masses, points[k]));
    }
    Owned again(size, Reduction::kSum);
    for (uint64_t slot = 0; slot < size; ++slot) again.tree.set_leaf(slot, masses[slot]);
    again.tree.rebuild();
    CHECK(nodes_are_exact(again.tree, Reduction::kSum));
    CHECK_EQ(again.tree.total(), tree.total());
  }
}

TEST(the_end_is_past_the_end) {
  for (const uint64_t size : kSizes) {
    Owned owned(size, Reduction::kSum);
    for (uint64_t slot = 0; slot < size; ++slot) owned.tree.set_leaf(slot, 1.0);
    owned.tree.rebuild();
    const double total = owned.tree.total();
    const double points[] = {std::nextafter(total, 0.0), total, 2.0 * total, std::nextafter(1.0, 0.0), 0.0};
    uint64_t slots[5];
    owned.tree.draw(points, 5, slots);
    CHECK(slots[0] == size - 1 || slots[0] == Tree::kNone);
    CHECK_EQ(slots[1], Tree::kNone);
    CHECK_EQ(slots[2], Tree::kNone);
    CHECK_EQ(slots[3], 0u);
    CHECK_EQ(slots[4], 0u);
  }
}

// The best `count` leaves are the first ones of the sorted list of all leaves: by value, then by slot.
void check_the_best(const Tree& tree, const std::vector<double>& values, Reduction reduction, size_t count) {
  std::vector<uint64_t> sorted;
  for (uint64_t slot = 0; slot < values.size(); ++slot)
    if (values[slot] != tree.identity()) sorted.push_back(slot);
  std::stable_sort(sorted.begin(), sorted.end(), [&](uint64_t a, uint64_t b) {
    return reduction == Reduction::kMin ? values[a] < values[b] : values[a] > values[b];
  });
  std::vector<Tree::Node> found, open;
  tree.best(count, &found, &open);
  const size_t expected = std::min(count, sorted.size());
  CHECK_EQ(found.size(), expected);
  for (size_t k = 0; k < expected; ++k) CHECK_EQ(found[k].place, sorted[k]);
}

TEST(min_and_max_against_the_twin) {
  for (const Reduction reduction : {Reduction::kMin, Reduction::kMax}) {
    for (const uint64_t size : kSizes) {
      Owned owned(size, reduction);
      Tree& tree = owned.tree;
      std::vector<double> values(size, tree.identity());
      const CounterRng rng(size, 1, 0, 0);
      uint64_t i = 0;
      for (int round = 0; round < (size > 5000 ? 5 : 40); ++round) {
        std::vector<uint64_t> touched(1 + rng.below(i++, 300));
        for (uint64_t& slot : touched) {
          slot = rng.below(i++, static_cast<uint32_t>(size));
          values[slot] = rng.below(i++, 4) == 0 ? tree.identity() : static_cast<double>(rng.below(i++, 50)) - 25.0;
          tree.set_leaf(slot, values[slot]);
        }
        tree.refresh(touched.data(), touched.size());
        CHECK(nodes_are_exact(tree, reduction));
        const auto best = reduction == Reduction::kMin ? std::min_element(values.begin(), values.end())
                                                       : std::max_element(values.begin(), values.end());
        CHECK_EQ(tree.best(), *best == tree.identity() ? Tree::kNone : static_cast<uint64_t>(best - values.begin()));
        check_the_best(tree, values, reduction, 1 + rng.below(i++, 400));
      }
    }
  }
}

TEST(a_million_updates_then_chi_square) {
  const uint64_t size = 100003;
  Owned owned(size, Reduction::kSum);
  Tree& tree = owned.tree;
  const CounterRng rng(42, 0, 0, 0);
  uint64_t i = 0;
  std::vector<uint64_t> touched(256);
  for (int update = 0; update < 1'000'000; update += 256) {
    for (uint64_t& slot : touched) {
      slot = rng.below(i++, static_cast<uint32_t>(size));
      const double priority = std::pow(10.0, -6.0 + 12.0 * rng.uniform(i++));
      tree.set_leaf(slot, rng.below(i++, 10) == 0 ? 0.0 : priority);
    }
    tree.refresh(touched.data(), touched.size());
  }
  CHECK(nodes_are_exact(tree, Reduction::kSum));

  const uint64_t num_draws = 2'000'000;
  const double total = tree.total();
  std::vector<uint64_t> hits(size);
  std::vector<double> points(500);
  std::vector<uint64_t> slots(500);
  uint64_t drawn = 0;
  for (uint64_t begin = 0; begin < num_draws; begin += 500) {
    for (double& point : points) point = rng.uniform(i++) * total;
    tree.draw(points.data(), 500, slots.data());
    for (const uint64_t slot : slots) {
      if (slot == Tree::kNone) continue;
      CHECK(slot < size && tree.leaf(slot) > 0.0);
      ++hits[slot % size];
      ++drawn;
    }
  }
  CHECK(drawn >= num_draws - 10);  // only rounding at the end leads past it
  // Leaves sorted by mass and merged until a cell expects 50 draws.
  std::vector<uint64_t> order(size);
  for (uint64_t slot = 0; slot < size; ++slot) order[slot] = slot;
  std::sort(order.begin(), order.end(), [&](uint64_t a, uint64_t b) { return tree.leaf(a) < tree.leaf(b); });
  double chi = 0.0, expected = 0.0, seen = 0.0;
  int cells = 0;
  for (const uint64_t slot : order) {
    expected += tree.leaf(slot) / total * static_cast<double>(drawn);
    seen += static_cast<double>(hits[slot]);
    if (expected < 50.0) continue;
    chi += (seen - expected) * (seen - expected) / expected;
    ++cells;
    expected = seen = 0.0;
  }
  CHECK(cells > 1000);
  CHECK(std::abs(chi - (cells - 1)) < 5.0 * std::sqrt(2.0 * (cells - 1)));
}

TEST(draws_during_updates_stay_inside_the_tree) {
  const uint64_t size = 4097;
  Owned owned(size, Reduction::kSum);
  Tree& tree = owned.tree;
  for (uint64_t slot = 0; slot < size; ++slot) tree.set_leaf(slot, 1.0);
  tree.rebuild();
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> outside{0}, drawn{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      double points[128];
      uint64_t slots[128];
      for (uint64_t call = 0; !stop.load() || call < 50; ++call) {
        const CounterRng rng(1, t, call, 0);
        const double total = tree.total();
        for (uint64_t k = 0; k < 128; ++k) points[k] = rng.uniform(k) * total;
        tree.draw(points, 128, slots);
        for (const uint64_t slot : slots) {
          drawn.fetch_add(slot != Tree::kNone, std::memory_order_relaxed);
          if (slot != Tree::kNone && slot >= size) ++outside;
        }
      }
    });
  }
  const CounterRng rng(2, 0, 0, 0);
  uint64_t touched[64];
  for (uint64_t i = 0; i < 2000 * 64;) {
    for (uint64_t& slot : touched) {
      slot = rng.below(i, static_cast<uint32_t>(size));
      tree.set_leaf(slot, rng.uniform(i++) < 0.3 ? 0.0 : std::pow(10.0, 6.0 * rng.uniform(i) - 3.0));
    }
    tree.refresh(touched, 64);
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(outside.load(), 0u);
  CHECK(drawn.load() > 0);
  CHECK(nodes_are_exact(tree, Reduction::kSum));
}

TEST(stratified_points_hit_every_live_leaf_of_a_uniform_tree) {
  const uint64_t size = 4097;
  Owned owned(size, Reduction::kSum);
  for (uint64_t slot = 0; slot < size; slot += 2) owned.tree.set_leaf(slot, 1.0);
  owned.tree.rebuild();
  const uint64_t live = (size + 1) / 2;
  std::vector<double> points(live);
  std::vector<uint64_t> slots(live);
  for (uint64_t k = 0; k < live; ++k) points[k] = static_cast<double>(k) + 0.25;
  owned.tree.draw(points.data(), live, slots.data());
  for (uint64_t k = 0; k < live; ++k) CHECK_EQ(slots[k], 2 * k);
}

TEST_MAIN()
