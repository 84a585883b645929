// Compares trees of sums with other fan-outs to the core's, which is eight: microseconds of a batch's draw and update,
// and the cache lines that they touch. study_tree [ROUNDS] prints one JSON object a line; `make study-tree` makes a
// table of them.
//
// One generic loop, with the fan-out as a template parameter, serves all trees, so that they differ in nothing else.
// The core's own tree, which descends four points at once with vector instructions, is added. "displaced" trees begin
// 24 bytes after the start of a cache line: each of their groups of eight lies on two lines.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "relive/words/rng.hpp"
#include "relive/words/sync.hpp"
#include "relive/words/tree.hpp"

namespace {

using relive::CounterRng;
using relive::Storage;
using relive::Tree;
using Clock = std::chrono::steady_clock;

constexpr size_t kLine = 64, kDisplaced = 24;
constexpr size_t kBatches[] = {32, 256, 2048};
constexpr uint64_t kSizes[] = {100'000, 1'000'000, 10'000'000};

// A tree whose times are measured.
class Contestant {
 public:
  virtual ~Contestant() = default;
  virtual const char* name() const = 0;
  virtual uint32_t fanout() const = 0;
  virtual double total() const = 0;
  virtual void draw(const double* points, size_t count, uint64_t* leaves) const = 0;
  virtual void update(const uint64_t* leaves, const double* masses, size_t count) = 0;
  // The number of different cache lines in the groups that lead to these leaves.
  virtual size_t count_lines(const uint64_t* leaves, size_t count) const = 0;
};

// Levels of groups of kFan siblings, like the core's tree.
template <uint32_t kFan>
class Generic final : public Contestant {
 public:
  Generic(uint64_t num_leaves, size_t displaced) : is_displaced_(displaced != 0) {
    uint64_t doubles = 0;
    for (uint64_t size = num_leaves;; size = (size + kFan - 1) / kFan) {
      sizes_.push_back((size + kFan - 1) / kFan * kFan);
      doubles += sizes_.back();
      if (size <= kFan) break;
    }
    if (!Storage::create_local((doubles * sizeof(double) + 2 * kLine) / kLine * kLine, &storage_).ok()) std::exit(1);
    auto* next = reinterpret_cast<double*>(static_cast<std::byte*>(storage_->base()) + displaced);
    for (const uint64_t size : sizes_) levels_.push_back(next), next += size;
    const CounterRng random(1, 2, 3, 4);
    for (uint64_t leaf = 0; leaf < num_leaves; ++leaf) levels_[0][leaf] = random.uniform(leaf) + 1e-3;
    for (size_t level = 1; level < levels_.size(); ++level)
      for (uint64_t node = 0; node < sizes_[level - 1] / kFan; ++node) reduce(level, node);
  }

  const char* name() const override { return is_displaced_ ? "generic, displaced" : "generic"; }
  uint32_t fanout() const override { return kFan; }
  double total() const override { return sum(levels_.back()); }

  void draw(const double* points, size_t count, uint64_t* leaves) const override {
    rests_.assign(points, points + count);
    std::fill(leaves, leaves + count, 0);
    for (size_t level = levels_.size(); level-- > 0;) {
      for (size_t i = 0; i < count; ++i) {
        const double* const group = levels_[level] + leaves[i] * kFan;
        double running = group[0], base = 0.0;
        uint64_t chosen = 0;
#pragma GCC unroll 8
        for (uint32_t child = 1; child < kFan; ++child) {
          const bool beyond = running <= rests_[i];
          chosen += beyond;
          base = beyond ? running : base;
          running += group[child];
        }
        rests_[i] -= base;
        leaves[i] = leaves[i] * kFan + chosen;
        if (level == 0) continue;
        const auto* const below = reinterpret_cast<const std::byte*>(levels_[level - 1] + leaves[i] * kFan);
        for (size_t byte = 0; byte < kFan * sizeof(double); byte += kLine) __builtin_prefetch(below + byte);
      }
    }
  }

  void update(const uint64_t* leaves, const double* masses, size_t count) override {
    for (size_t i = 0; i < count; ++i) levels_[0][leaves[i]] = masses[i];
    parents_.assign(leaves, leaves + count);
    for (size_t level = 1; level < levels_.size(); ++level) {
      for (uint64_t& node : parents_) node /= kFan;
      parents_.erase(std::unique(parents_.begin(), parents_.end()), parents_.end());
      for (const uint64_t node : parents_) __builtin_prefetch(levels_[level - 1] + node * kFan);
      for (const uint64_t node : parents_) reduce(level, node);
    }
  }

  size_t count_lines(const uint64_t* leaves, size_t count) const override {
    std::vector<uintptr_t> lines;
    std::vector<uint64_t> nodes(leaves, leaves + count);
    for (size_t level = 0; level < levels_.size(); ++level) {
      for (uint64_t& node : nodes) {
        node /= kFan;
        const auto first = reinterpret_cast<uintptr_t>(levels_[level] + node * kFan) / kLine;
        const auto last = (reinterpret_cast<uintptr_t>(levels_[level] + (node + 1) * kFan) - 1) / kLine;
        for (uintptr_t line = first; line <= last; ++line) lines.push_back(line);
      }
    }
    std::sort(lines.begin(), lines.end());
    return static_cast<size_t>(std::unique(lines.begin(), lines.end()) - lines.begin());
  }

 private:
  double sum(const double* group) const {
    double value = group[0];
    for (uint32_t child = 1; child < kFan; ++child) value += group[child];
    return value;
  }
  void reduce(size_t level, uint64_t node) { levels_[level][node] = sum(levels_[level - 1] + node * kFan); }

  bool is_displaced_;
  std::vector<uint64_t> sizes_;
  std::vector<double*> levels_;
  std::unique_ptr<Storage> storage_;
  mutable std::vector<double> rests_;
  std::vector<uint64_t> parents_;
};

class Core final : public Contestant {
 public:
  explicit Core(uint64_t num_leaves) {
    if (!Storage::create_local(Tree::num_bytes(num_leaves), &storage_).ok()) std::exit(1);
    tree_.bind(storage_->base(), num_leaves, relive::Reduction::kSum);
    tree_.clear();
    const CounterRng random(1, 2, 3, 4);
    for (uint64_t leaf = 0; leaf < num_leaves; ++leaf) tree_.set_leaf(leaf, random.uniform(leaf) + 1e-3);
    tree_.rebuild();
  }
  const char* name() const override { return "relive"; }
  uint32_t fanout() const override { return Tree::kFanout; }
  double total() const override { return tree_.total(); }
  void draw(const double* points, size_t count, uint64_t* leaves) const override { tree_.draw(points, count, leaves); }
  void update(const uint64_t* leaves, const double* masses, size_t count) override {
    for (size_t i = 0; i < count; ++i) tree_.set_leaf(leaves[i], masses[i]);
    scratch_.assign(leaves, leaves + count);
    tree_.refresh(scratch_.data(), count);
  }
  size_t count_lines(const uint64_t* leaves, size_t count) const override {
    std::vector<std::pair<uint32_t, uint64_t>> groups;
    std::vector<uint64_t> nodes(leaves, leaves + count);
    for (uint32_t level = 0; level < tree_.num_levels(); ++level)
      for (uint64_t& node : nodes) groups.emplace_back(level, node /= Tree::kFanout);
    std::sort(groups.begin(), groups.end());
    return static_cast<size_t>(std::unique(groups.begin(), groups.end()) - groups.begin());
  }

 private:
  Tree tree_;
  std::unique_ptr<Storage> storage_;
  std::vector<uint64_t> scratch_;
};

std::vector<std::unique_ptr<Contestant>> make_contestants(uint64_t num_leaves) {
  std::vector<std::unique_ptr<Contestant>> made;
  made.push_back(std::make_unique<Core>(num_leaves));
  for (const size_t displaced : {size_t{0}, kDisplaced}) {
    made.push_back(std::make_unique<Generic<2>>(num_leaves, displaced));
    made.push_back(std::make_unique<Generic<4>>(num_leaves, displaced));
    made.push_back(std::make_unique<Generic<8>>(num_leaves, displaced));
    made.push_back(std::make_unique<Generic<16>>(num_leaves, displaced));
    made.push_back(std::make_unique<Generic<32>>(num_leaves, displaced));
    made.push_back(std::make_unique<Generic<64>>(num_leaves, displaced));
  }
  return made;
}

struct Readings {
  std::vector<double> draws_us, updates_us;
  double num_lines = 0.0;
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Runs one batch: strata in order, as a table draws them, and new masses for the drawn leaves.
void run_batch(Contestant& tree, size_t batch, uint64_t round, Readings* readings) {
  std::vector<double> points(batch), masses(batch);
  std::vector<uint64_t> leaves(batch);
  const CounterRng rng(5, 6, round, batch);
  const double share = tree.total() / static_cast<double>(batch);
  for (size_t i = 0; i < batch; ++i) {
    points[i] = (static_cast<double>(i) + rng.uniform(i)) * share;
    masses[i] = rng.uniform(batch + i) + 1e-3;
  }
  const auto begin = Clock::now();
  tree.draw(points.data(), batch, leaves.data());
  const auto drawn = Clock::now();
  tree.update(leaves.data(), masses.data(), batch);
  const auto end = Clock::now();
  readings->draws_us.push_back(std::chrono::duration<double, std::micro>(drawn - begin).count());
  readings->updates_us.push_back(std::chrono::duration<double, std::micro>(end - drawn).count());
  readings->num_lines += static_cast<double>(tree.count_lines(leaves.data(), batch));
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t rounds = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 200;
  for (const uint64_t num_leaves : kSizes) {
    const auto trees = make_contestants(num_leaves);
    for (const size_t batch : kBatches) {
      std::vector<Readings> readings(trees.size());
      // The trees alternate, so that other load on the machine affects all of them.
      for (uint64_t round = 0; round < rounds; ++round)
        for (size_t which = 0; which < trees.size(); ++which) run_batch(*trees[which], batch, round, &readings[which]);
      for (size_t which = 0; which < trees.size(); ++which)
        std::printf(
            "{\"tree\": \"%s\", \"fanout\": %u, \"leaves\": %llu, \"batch\": %zu, \"draw_us\": %.3f, \"update_us\": "
            "%.3f, \"lines\": %.1f}\n",
            trees[which]->name(), trees[which]->fanout(), static_cast<unsigned long long>(num_leaves), batch,
            median(readings[which].draws_us), median(readings[which].updates_us),
            readings[which].num_lines / static_cast<double>(rounds));
      std::fflush(stdout);
    }
  }
  return 0;
}
