// Times the tree: batches of 256 over 1e6 leaves (or: bench_tree NUM_LEAVES BATCH). Prints medians and 90th
// percentiles.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "relive/words/rng.hpp"
#include "relive/words/sync.hpp"
#include "relive/words/tree.hpp"

namespace {

using relive::CounterRng;
using relive::Reduction;
using relive::Tree;

template <class Work>
void report(const char* what, size_t items, int rounds, Work&& work) {
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    work(static_cast<uint64_t>(round));
    const auto end = std::chrono::steady_clock::now();
    times.push_back(std::chrono::duration<double, std::micro>(end - begin).count());
  }
  std::sort(times.begin(), times.end());
  std::printf("%-34s median %8.2f us  p90 %8.2f us  %6.1f ns an item\n", what, times[times.size() / 2],
              times[times.size() * 9 / 10], 1000.0 * times[times.size() / 2] / static_cast<double>(items));
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t num_leaves = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1'000'000;
  const size_t batch = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 256;
  const int rounds = 4000;
  std::unique_ptr<relive::Storage> storage;
  if (!relive::Storage::create_local(Tree::num_bytes(num_leaves), &storage).ok()) return 1;
  Tree tree;
  tree.bind(storage->base(), num_leaves, Reduction::kSum);
  tree.clear();
  const CounterRng random(1, 2, 3, 4);
  for (uint64_t slot = 0; slot < num_leaves; ++slot) tree.set_leaf(slot, random.uniform(slot) + 1e-3);
  const auto rebuild_begin = std::chrono::steady_clock::now();
  tree.rebuild();
  const double rebuild_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - rebuild_begin).count();
  std::printf("%llu leaves, batch %zu, rebuild %.2f ms\n", static_cast<unsigned long long>(num_leaves), batch,
              rebuild_ms);

  std::vector<double> points(batch);
  std::vector<uint64_t> slots(batch), scratch(batch);
  uint64_t sink = 0;
  const auto stratify = [&](uint64_t round) {
    const CounterRng rng(5, 6, round, 0);
    const double share = tree.total() / static_cast<double>(batch);
    for (size_t i = 0; i < batch; ++i) points[i] = (static_cast<double>(i) + rng.uniform(i)) * share;
  };
  report("points only", batch, rounds, [&](uint64_t round) { stratify(round); });
  report("points + draw, ascending", batch, rounds, [&](uint64_t round) {
    stratify(round);
    tree.draw(points.data(), batch, slots.data());
    sink += slots[round % batch];
  });
  report("set_leaf of 256 random", batch, rounds, [&](uint64_t round) {
    const CounterRng rng(7, 8, round, 0);
    for (size_t i = 0; i < batch; ++i) slots[i] = rng.below(i, static_cast<uint32_t>(num_leaves));
    for (size_t i = 0; i < batch; ++i) tree.set_leaf(slots[i], 0.5 + rng.uniform(i));
  });
  report("set_leaf + refresh, random", batch, rounds, [&](uint64_t round) {
    const CounterRng rng(7, 8, round, 1);
    for (size_t i = 0; i < batch; ++i) slots[i] = rng.below(i, static_cast<uint32_t>(num_leaves));
    for (size_t i = 0; i < batch; ++i) tree.set_leaf(slots[i], 0.5 + rng.uniform(i));
    tree.refresh(slots.data(), batch);
  });
  report("draw, then set_leaf + refresh", batch, rounds, [&](uint64_t round) {
    stratify(round);
    tree.draw(points.data(), batch, slots.data());
    std::copy(slots.begin(), slots.end(), scratch.begin());
    for (size_t i = 0; i < batch; ++i) tree.set_leaf(slots[i], 0.5 + points[i] * 1e-9);
    tree.refresh(scratch.data(), batch);
  });
  report("set_leaf + refresh of one", 1, rounds, [&](uint64_t round) {
    uint64_t slot = (round * 7919) % num_leaves;
    tree.set_leaf(slot, 0.7);
    tree.refresh(&slot, 1);
  });
  std::printf("(%llu)\n", static_cast<unsigned long long>(sink));
  return 0;
}
