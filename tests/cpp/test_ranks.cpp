// Classes of priorities against a map of lists.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "harness.hpp"
#include "relive/words/ranks.hpp"
#include "relive/words/rng.hpp"
#include "relive/words/tree.hpp"

using relive::CounterRng;
using relive::Ranks;
using relive::Reduction;
using relive::Tree;

namespace {

struct Owned {
  explicit Owned(uint64_t num_leaves)
      : tree_memory(std::aligned_alloc(64, Tree::num_bytes(num_leaves))),
        memory(std::aligned_alloc(64, Ranks::num_bytes(num_leaves))) {
    tree.bind(tree_memory, num_leaves, Reduction::kMax);
    tree.clear();
    std::memset(memory, 0, Ranks::num_bytes(num_leaves));
    ranks.bind(memory, num_leaves);
  }
  ~Owned() {
    std::free(tree_memory);
    std::free(memory);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;

  void set(uint64_t slot, double leaf) {
    tree.set_leaf(slot, leaf);
    ranks.follow(tree, &slot, 1);
  }

  void* tree_memory;
  void* memory;
  Tree tree;
  Ranks ranks;
};

const double kNothing = -std::numeric_limits<double>::infinity();

void check_whole(const Owned& owned) {
  const char* const broken = owned.ranks.broken(owned.tree);
  if (broken != nullptr) harness::fail(__FILE__, __LINE__, broken);
}

// Every rank leads to its class, and every class to each of its members once.
void check_looks(const Owned& owned, uint64_t num_leaves) {
  std::map<uint32_t, std::set<uint64_t>> classes;
  uint64_t size = 0;
  for (uint64_t slot = 0; slot < num_leaves; ++slot) {
    const uint32_t ordinal = Ranks::ordinal_of(owned.tree.leaf(slot));
    if (ordinal != 0) classes[ordinal].insert(slot), ++size;
  }
  CHECK_EQ(owned.ranks.size(), size);
  CHECK_EQ(owned.ranks.class_at(size).ordinal, 0u);
  uint64_t before = 0;
  for (const auto& [ordinal, members] : classes) {
    for (const uint64_t rank : {before, before + members.size() - 1}) {
      const Ranks::Class found = owned.ranks.class_at(rank);
      CHECK_EQ(found.ordinal, ordinal);
      CHECK_EQ(found.members, members.size());
      CHECK_EQ(found.before, before);
    }
    std::set<uint64_t> listed;
    const Ranks::Class one = owned.ranks.class_at(before);
    for (uint64_t position = 0; position < members.size(); ++position) listed.insert(owned.ranks.member(one, position));
    CHECK(listed == members);
    before += members.size();
  }
}

// Leaves are added, removed and changed among num_values values; phases with more additions alternate with phases with
// more removals.
void run_programme(uint64_t num_leaves, uint32_t num_values, uint64_t seed, int num_steps) {
  Owned owned(num_leaves);
  const CounterRng rng(seed, num_leaves, num_values, 0);
  uint64_t i = 0;
  for (int step = 0; step < num_steps; ++step) {
    const bool comes = rng.below(i++, 100) < (step / 500 % 2 == 0 ? 80u : 20u);
    const uint64_t slot = rng.below(i++, static_cast<uint32_t>(num_leaves));
    const double value = std::exp2(static_cast<double>(rng.below(i++, num_values)) * 0.25 - 8.0);
    owned.set(slot, comes ? value : kNothing);
    if (step % 101 == 0) check_whole(owned);
    if (step % 997 == 0) check_looks(owned, num_leaves);
  }
  check_whole(owned);
  owned.ranks.rebuild(owned.tree);
  check_whole(owned);
  check_looks(owned, num_leaves);
  for (uint64_t slot = 0; slot < num_leaves; ++slot) owned.set(slot, slot % 3 == 0 ? kNothing : 1.0 + slot % 7);
  check_whole(owned);
  for (uint64_t slot = 0; slot < num_leaves; ++slot) owned.set(slot, kNothing);
  check_whole(owned);
  CHECK_EQ(owned.ranks.size(), 0u);
}

}  // namespace

TEST(classes_go_by_exponent_and_seven_bits) {
  CHECK_EQ(Ranks::ordinal_of(kNothing), 0u);
  CHECK_EQ(Ranks::ordinal_of(std::numeric_limits<float>::max()), 1u);
  CHECK(Ranks::ordinal_of(2.0) < Ranks::ordinal_of(1.0));
  CHECK_EQ(Ranks::ordinal_of(1.0), Ranks::ordinal_of(1.0 + 127.0 / 128 / 128));
  CHECK_EQ(Ranks::ordinal_of(1.0), Ranks::ordinal_of(1.0 + 1.0 / 128) + 1);
  const uint32_t last = Ranks::ordinal_of(1e-300);
  CHECK_EQ(last, Ranks::ordinal_of(1e-45));
  CHECK_EQ(last, Ranks::ordinal_of(std::nextafter(0x1p-126, 0.0)));
  CHECK_EQ(last, Ranks::ordinal_of(0x1p-126) + 1);
  CHECK_EQ(last, Ranks::ordinal_of(0x1p-125) + 129);  // 128 classes of the least exponent lie in between
}

TEST(programmes) {
  run_programme(1, 1, 1, 100);
  run_programme(64, 1, 1, 3000);
  run_programme(65, 2, 1, 3000);
  run_programme(500, 40, 2, 6000);
  run_programme(5000, 1, 3, 30000);
  run_programme(5000, 60, 4, 20000);
  run_programme(9000, 9000, 5, 20000);
}

// One class so large that its directories have three levels is filled and emptied.
TEST(a_class_of_many) {
  constexpr uint64_t kMany = 64 * 64 * 64 + 70;
  Owned owned(kMany);
  for (uint64_t slot = 0; slot < kMany; ++slot) owned.set(slot, 1.0);
  check_whole(owned);
  const Ranks::Class one = owned.ranks.class_at(5);
  CHECK_EQ(one.members, kMany);
  for (uint64_t position = 0; position < kMany; position += 1001) CHECK_EQ(owned.ranks.member(one, position), position);
  for (uint64_t slot = 0; slot < kMany; ++slot)
    if (slot % 4097 != 0) owned.set(slot, kNothing);
  check_whole(owned);
  owned.ranks.rebuild(owned.tree);
  check_whole(owned);
  CHECK_EQ(owned.ranks.size(), (kMany + 4096) / 4097);
}

// A death while classes change leaves links that may lead anywhere. No call follows them before they are rebuilt.
TEST(after_a_death_only_a_rebuild_helps) {
  Owned owned(100);
  for (uint64_t slot = 0; slot < 100; ++slot) owned.set(slot, 1.0);
  static_cast<uint32_t*>(owned.memory)[2] = 1;  // is_changing, as after a death
  CHECK(owned.ranks.broken(owned.tree) != nullptr);
  owned.set(7, kNothing);
  CHECK_EQ(owned.ranks.size(), 100u);
  owned.ranks.rebuild(owned.tree);
  check_whole(owned);
  CHECK_EQ(owned.ranks.size(), 99u);
}

// The blocks suffice for every distribution of leaves: over all classes, then in a few classes.
TEST(blocks_suffice) {
  for (const uint64_t num_leaves : {uint64_t{130}, uint64_t{40000}}) {
    Owned owned(num_leaves);
    for (const uint64_t per_class : {1, 65, 4097, 1}) {
      for (uint64_t slot = 0; slot < num_leaves; ++slot) {
        const uint64_t group = slot / per_class;
        owned.set(slot, std::ldexp(1.0 + static_cast<double>(group % 128) / 128, static_cast<int>(group / 128) - 120));
      }
      check_whole(owned);
      owned.ranks.rebuild(owned.tree);
      check_whole(owned);
    }
  }
}

// A read of a half-changed structure stays within the memory: here of classes that never existed.
TEST(looks_stay_within_bounds) {
  Owned owned(1000);
  for (uint64_t slot = 0; slot < 1000; ++slot) owned.set(slot, 1.0 + static_cast<double>(slot % 3));
  Ranks::Class one = owned.ranks.class_at(0);
  for (const uint32_t members : {1u, 64u, 65u, 4097u, 300'000u, 20'000'000u}) {
    one.members = members;
    for (uint64_t position = 0; position < members; position += 1 + members / 100) {
      const uint64_t slot = owned.ranks.member(one, position);
      CHECK(slot == Ranks::kNoLeaf || slot < 1000);
    }
  }
}

// Measures the cost with a million leaves, on request: RELIVE_RANKS_BENCH=1.
TEST(costs) {
  if (std::getenv("RELIVE_RANKS_BENCH") == nullptr) return;
  constexpr uint64_t kMany = 1'000'000;
  Owned owned(kMany);
  const CounterRng rng(1, 2, 3, 4);
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto us = [](auto from, auto to) { return std::chrono::duration<double, std::micro>(to - from).count(); };
  uint64_t i = 0;
  const auto any = [&] { return -std::log(1.0 - rng.uniform(i++)); };
  for (uint64_t slot = 0; slot < kMany; ++slot) owned.tree.set_leaf(slot, any());
  std::vector<double> rebuilds, follows;
  for (int k = 0; k < 25; ++k) {
    const auto from = now();
    owned.ranks.rebuild(owned.tree);
    rebuilds.push_back(us(from, now()) * 1000.0 / kMany);
  }
  for (int k = 0; k < 2000; ++k) {
    std::vector<uint64_t> slots(256);
    for (uint64_t& slot : slots) {
      slot = rng.below(i++, kMany);
      owned.tree.set_leaf(slot, any());
    }
    const auto from = now();
    owned.ranks.follow(owned.tree, slots.data(), slots.size());
    follows.push_back(us(from, now()));
  }
  std::sort(rebuilds.begin(), rebuilds.end());
  std::sort(follows.begin(), follows.end());
  std::printf("rebuild %.1f ns a leaf at least, median %.1f; follow of 256 %.1f us at least, median %.1f\n",
              rebuilds[0], rebuilds[12], follows[0], follows[1000]);
}

TEST_MAIN()
