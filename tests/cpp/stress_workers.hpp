// The workers of the stress programme: writers, samplers, updaters. Each runs until the control ends the run.
#pragma once

#include <cmath>
#include <memory>

#include "relive/pages/publish.hpp"
#include "relive/pages/recover.hpp"
#include "relive/read/where.hpp"
#include "relive/table/writer.hpp"
#include "stress_control.hpp"
#include "stress_world.hpp"

namespace stress {

inline constexpr double kTimeout_s = 0.25;
inline constexpr double kSlack_s = 3.0;  // for the scheduler of a small, busy machine
inline constexpr uint32_t kLanes = 2;

// Called before every attach; null if no worker shall die.
inline void (*new_orders)(Random*) = nullptr;

// One worker: its handle (its own in a process, shared between threads) and its slot in the control.
class Worker {
 public:
  Worker(const Options& options, Control* control, uint32_t position, uint64_t seed, Table* shared)
      : options_(options), control_(*control), slot_(control->workers[position]), random_{seed}, shared_(shared) {}
  virtual ~Worker() = default;

  int run() {
    while (control_.is_over.load() == 0) {
      if (new_orders != nullptr) new_orders(&random_);
      if (!attach()) continue;
      begin();
      const uint64_t calls = 100 + random_.below(1000);
      for (uint64_t call = 0; call < calls && control_.is_over.load() == 0; ++call) {
        step();
        slot_.progress.fetch_add(1);
      }
      end();
      if (own_ != nullptr) expect(own_->close(), "close");
      own_.reset();
    }
    return 0;
  }

 protected:
  virtual void begin() {}
  virtual void step() = 0;
  virtual void end() {}

  Table& table() { return shared_ != nullptr ? *shared_ : *own_; }

  // A deadline may pass, because workers are stopped on purpose. Any other refusal is a violation, unless the disk or
  // the memory of the tier's threads is made to fail.
  bool expect(const Status& status, const char* what) {
    if (status.ok()) return true;
    const bool is_short = status.code() == Code::kStorageFull || status.code() == Code::kNoMemory;
    if (status.code() == Code::kDeadlineExceeded || (is_short && options_.disk_fails)) {
      control_.timeouts.fetch_add(1);
      return false;
    }
    std::string text = std::string(what) + " returned code " + std::to_string(static_cast<uint32_t>(status.code()));
    for (const Field& field : status.fields())
      text += " " + field.name + "=" + (field.text.empty() ? std::to_string(field.integer) : field.text);
    control_.found_violation(text.c_str());
    return false;
  }

  // Runs one call and checks that it returns by its deadline. A call during which this worker was stopped does not
  // count.
  template <class Call>
  Status timed(double timeout_s, const char* what, Call&& call) {
    const uint64_t stops = slot_.stops.load();
    const double begin = now_s();
    Status status = call();
    const double took = now_s() - begin;
    if (stops % 2 != 0 || slot_.stops.load() != stops) return status;
    const auto took_us = static_cast<uint64_t>(took * 1e6);
    uint64_t longest = control_.longest_call_us.load();
    while (took_us > longest && !control_.longest_call_us.compare_exchange_weak(longest, took_us)) {
    }
    if (took > timeout_s + kSlack_s) {
      control_.overruns.fetch_add(1);
      control_.say("overrun", "%s took %.2f s, its deadline was %.2f s", what, took, timeout_s);
    }
    return status;
  }

  const Options& options_;
  Control& control_;
  WorkerSlot& slot_;
  Random random_;
  Table* shared_;

 private:
  bool attach() {
    if (shared_ != nullptr) return true;
    const Status status = timed(2.0, "attach", [&] {
      return Table::attach(options_.path, Access::kReadWrite, random_.next() % 1000, 2.0, &own_);
    });
    if (expect(status, "attach")) return true;
    slot_.progress.fetch_add(1);
    return false;
  }

  std::unique_ptr<Table> own_;
};

class WriterWorker final : public Worker {
 public:
  using Worker::Worker;

 private:
  struct LaneState {
    uint64_t tag = 0;
    uint32_t episode = 0, step = 0;
  };

  void begin() override { open(); }
  void end() override { close(); }

  void open() {
    writer_.reset();
    num_lanes_ = options_.short_lanes ? 1 + static_cast<uint32_t>(random_.below(kLanes)) : kLanes;
    if (!expect(Writer::open(&table(), num_lanes_, &writer_), "opening a writer")) return;
    for (LaneState& lane : lanes_) lane = {control_.next_tag.fetch_add(1), 0, 0};
  }
  void close() {
    if (writer_ != nullptr) expect(writer_->close(), "closing a writer");
    writer_.reset();
  }

  void step() override {
    if (writer_ == nullptr) return open();
    if (random_.below(options_.short_lanes ? 6 : 300) == 0) return close();
    const auto number = static_cast<int32_t>(random_.below(num_lanes_));
    LaneState& lane = lanes_[number];
    if (options_.abandons && lane.step > 0 && random_.below(8) == 0) return abandon(number);
    const uint32_t mode = mode_of(lane.tag, lane.episode, options_.stateless);
    const uint32_t left = length_of(lane.tag, lane.episode) - lane.step;
    const uint32_t count = mode < 2 ? 1 : std::min<uint32_t>(left, 1 + static_cast<uint32_t>(random_.below(12)));
    Status status = write(lane, number, mode, count, count == left);
    if (options_.saves && mode == 3) usleep(static_cast<useconds_t>(random_.below(300)));  // a save may come between
    if (status.ok() && mode == 3 && count == left) status = end_episode(lane, number);
    // The number of rows that were stored before the deadline is unknown.
    if (!expect(status, "write")) return close();
    note_rows(lane, count);
    control_.steps.fetch_add(count);
    lane.step += count;
    if (count == left) ++lane.episode, lane.step = 0;
  }

  // An item of the episode that is drawn after this call is a violation.
  void abandon(int32_t number) {
    LaneState& lane = lanes_[number];
    StepBlock block;
    block.num_lanes = 1;
    block.lanes = &number;
    if (!expect(timed(kTimeout_s, "abandon", [&] { return writer_->abandon(block, kTimeout_s); }), "abandon"))
      return close();
    control_.note_given_up(lane.tag, lane.episode, now_s());
    lane = {control_.next_tag.fetch_add(1), 0, 0};
  }

  // Notes the rows of these keys for workers that insert explicit items and that complete rows.
  void note_rows(const LaneState& lane, uint32_t count) {
    for (uint32_t k = 0; (options_.explicit_items || options_.late) && k < count; ++k)
      control_.note_row(table().region().key_slot(keys_[k]), {keys_[k], lane.tag, lane.episode, lane.step + k});
  }

  Status write(const LaneState& lane, int32_t number, uint32_t mode, uint32_t count, bool ends) {
    const Region& r = table().region();
    const bool terminates = is_terminated(lane.tag, lane.episode);
    StepBlock block;
    block.num_rows = count;
    block.num_lanes = 1;
    block.lanes = &number;
    block.has_next = !options_.stateless && (mode == 0 || (mode == 1 && ends && !terminates));
    block.has_last_state = !options_.stateless && mode == 2;
    block.columns.resize(r.geometry->num_columns);
    block.next.resize(r.geometry->num_columns);
    cells_.resize(2 * r.geometry->num_columns);
    for (uint32_t c = 0; c < r.geometry->num_columns; ++c) {
      const size_t num_bytes = r.columns[c].num_bytes;
      for (const bool next : {false, true}) {
        std::vector<std::byte>& cells = cells_[2 * c + next];
        cells.resize((count + 1) * num_bytes);
        for (uint32_t k = 0; k <= count; ++k) {
          const uint32_t at = lane.step + k + (next ? 1 : 0);
          std::byte* to = cells.data() + k * num_bytes;
          if (num_bytes == 4) {
            const float reward = reward_of(lane.tag, lane.episode, at);
            std::memcpy(to, &reward, 4);
          } else if (num_bytes == 8) {
            const int64_t prompt = prompt_of(lane.tag, lane.episode);
            std::memcpy(to, &prompt, 8);
          } else {
            write_cell(to, num_bytes, lane.tag, lane.episode, at, c);
          }
        }
        const Cells view{cells.data(), static_cast<int64_t>(num_bytes), 0};
        (next ? block.next[c] : block.columns[c]) = next && !block.has_next ? Cells{} : view;
      }
    }
    const std::vector<uint8_t> no(count, 0);
    std::vector<uint8_t> last(count, 0);
    last.back() = ends && mode != 3;
    block.terminated = {reinterpret_cast<const std::byte*>(terminates ? last.data() : no.data()), 1, 0};
    block.truncated = {reinterpret_cast<const std::byte*>(terminates ? no.data() : last.data()), 1, 0};
    std::vector<float> discounts(count);
    for (uint32_t k = 0; k < count; ++k) discounts[k] = discount_of(lane.tag, lane.episode, lane.step + k);
    if (ends && mode == 3 && terminates) discounts.back() = 0.5f;  // end_episode makes it 0
    if (gives_discounts(lane.tag, lane.episode))
      block.discount = {reinterpret_cast<const std::byte*>(discounts.data()), sizeof(float), 0};
    writer_->set_policy_version(version_of(lane.tag, lane.episode));
    keys_.resize(count);
    return timed(kTimeout_s, "write", [&] { return writer_->write(block, kTimeout_s, keys_.data()); });
  }

  Status end_episode(const LaneState& lane, int32_t number) {
    const Region& r = table().region();
    const bool terminates = is_terminated(lane.tag, lane.episode);
    StepBlock block;
    block.num_rows = 1;
    block.num_lanes = 1;
    block.lanes = &number;
    block.has_next = !options_.stateless && !terminates;
    block.columns.resize(r.geometry->num_columns);
    block.next.resize(r.geometry->num_columns);
    for (uint32_t c = 0; c < r.geometry->num_columns; ++c) {
      const size_t num_bytes = r.columns[c].num_bytes;
      cells_[2 * c].resize(num_bytes);
      if (num_bytes >= 16)
        write_cell(cells_[2 * c].data(), num_bytes, lane.tag, lane.episode, length_of(lane.tag, lane.episode), c);
      if (block.has_next) block.next[c] = Cells{cells_[2 * c].data(), 0, 0};
    }
    control_.note_end(lane.tag, lane.episode, now_s());
    return timed(kTimeout_s, "end_episode", [&] { return writer_->end_episode(block, terminates, kTimeout_s); });
  }

  std::unique_ptr<Writer> writer_;
  LaneState lanes_[kLanes];
  uint32_t num_lanes_ = kLanes;
  std::vector<std::vector<std::byte>> cells_;
  std::vector<int64_t> keys_;
};

class SamplerWorker final : public Worker {
 public:
  using Worker::Worker;

 private:
  static constexpr size_t kBatch = 32;

  void begin() override {
    batch_ = std::make_unique<Batch>();
    again_ = std::make_unique<Batch>();
    index_ = options_.two_indexes ? static_cast<uint32_t>(random_.below(2)) : 0;
    expect(batch_->prepare(&table(), index_, kBatch, options_.ragged), "planning");
    expect(again_->prepare(&table(), index_, kBatch, options_.ragged), "planning");
    if (options_.where)
      expect(make_where(table().region(), index_, from_step(kLeastDrawn), "", &where_), "reading a condition");
  }

  // Sets another limiter of the same kind, whose two numbers belong together (CheckerWorker::wrong_limiter).
  void change_limiter() {
    LimiterConfig limiter = table().region().header->indexes[index_].limiter;
    if (limiter.kind != LimiterConfig::kMinSize) return;
    limiter.min_size += static_cast<int64_t>(random_.below(8));
    limiter.tolerance = static_cast<double>(limiter.min_size);
    expect(relive::set_limiter(table(), index_, limiter), "changing a limiter");
  }

  void step() override {
    const bool hold = random_.below(4) == 0;
    if (random_.below(32) == 0) change_limiter();
    begin_s_ = now_s();
    look_at_short_ones();
    int64_t live = 0;
    DrawRequest request;
    request.index = index_;
    request.num_items = kBatch;
    request.num_live_items = &live;
    request.hold = hold;
    if (options_.where && random_.below(2) == 0) request.where = &where_;
    const Status status = timed(kTimeout_s, "sample", [&] { return batch_->sample(table(), request, kTimeout_s); });
    if (status.code() == Code::kRareItems) return;
    if (!expect(status, "sample")) return;
    if (!batch_->wrong_offsets.empty()) control_.found_torn(batch_->wrong_offsets.c_str());
    verify_all();
    if (options_.where && !batch_->sequence.is_set()) verify_condition(request.where != nullptr);
    if (hold && random_.below(2) == 0) {
      expect(relive::return_held(table(), index_, kBatch), "giving back");
    } else if (hold) {
      expect(relive::commit_held(table(), index_, kBatch), "handing out");
    }
    if (random_.below(4) == 0) gather_again();
  }

  void verify_condition(bool is_drawn_by_one) {
    const int64_t least = std::max(index_ == 0 ? kLeastStep : 0, is_drawn_by_one ? kLeastDrawn : 0);
    for (size_t row = 0; row < kBatch; ++row)
      if (batch_->episode_step(row) < least) control_.found_violation("an item that does not pass the condition");
  }

  void verify_all() {
    for (size_t row = 0; row < kBatch; ++row) {
      bool torn = false;
      const std::string wrong = batch_->verify(row, &who_[row], &torn);
      if (!wrong.empty()) torn ? control_.found_torn(wrong.c_str()) : control_.found_violation(wrong.c_str());
      if (wrong.empty() && !control_.is_lane_of(who_[row].tag, batch_->lane(row)))
        control_.found_violation("rows of one lane that have two tags, or of one tag that have two lanes");
      if (control_.was_given_up(who_[row].tag, who_[row].episode, begin_s_))
        control_.found_violation("an item of an episode that was given up before");
      if (batch_->is_short(row, who_[row])) short_.push_back(who_[row]);
      if (!(batch_->probabilities[row] > 0.0) || batch_->probabilities[row] > 1.0 + 1e-9)
        control_.found_violation("a probability outside (0, 1]");
      if (options_.max_times != 0 && index_ == 0)
        control_.count_use(table().region().key_slot(batch_->keys[row]), batch_->keys[row], options_.max_times);
    }
    if (batch_->sequence.draws_one()) verify_one_each();
    if (options_.distinct && index_ < (options_.two_indexes ? 2 : 1)) verify_distinct();
    control_.windows.fetch_add(kBatch);
    control_.batches.fetch_add(1);
  }

  void verify_distinct() {
    std::vector<int64_t> keys = batch_->keys;
    std::sort(keys.begin(), keys.end());
    if (std::adjacent_find(keys.begin(), keys.end()) != keys.end())
      control_.found_violation("an item twice in a batch without replacement");
  }

  // At most one window of an episode is ever an item.
  void verify_one_each() {
    for (size_t row = 0; row < kBatch; ++row) {
      for (size_t other = 0; other < row; ++other) {
        const Identity &one = who_[row], &two = who_[other];
        if (one.tag == two.tag && one.episode == two.episode && one.step != two.step)
          control_.found_violation("two windows of one episode");
      }
    }
  }

  // An abandoned episode's lane was not cut before, so no window of that episode may end without one of its ends.
  void look_at_short_ones() {
    for (const Identity& who : short_)
      if (control_.was_given_up(who.tag, who.episode, begin_s_))
        control_.found_torn("a window cut short by rows that were given up");
    if (short_.size() > 2000) short_.erase(short_.begin(), short_.begin() + 1000);
  }

  // A gather by key must return the same items, or none.
  void gather_again() {
    const Status status = timed(kTimeout_s, "gather", [&] { return again_->gather(table(), batch_->keys); });
    if (!expect(status, "gather")) return;
    if (!again_->wrong_offsets.empty()) control_.found_torn(("gather: " + again_->wrong_offsets).c_str());
    for (size_t row = 0; row < kBatch; ++row) {
      if (!again_->present[row]) continue;
      Identity who;
      bool torn = false;
      const std::string wrong = again_->verify(row, &who, &torn);
      if (!wrong.empty())
        torn ? control_.found_torn(("gather: " + wrong).c_str())
             : control_.found_violation(("gather: " + wrong).c_str());
      if (!(who == who_[row])) control_.found_violation("a key leads to another item");
      if (again_->salt(row) != batch_->salt(row)) control_.found_violation("a row was completed twice");
      control_.gathered_again.fetch_add(1);
    }
  }

  uint32_t index_ = 0;
  Where where_;
  std::unique_ptr<Batch> batch_, again_;
  double begin_s_ = 0.0;
  std::vector<Identity> short_;
  Identity who_[kBatch];
};

// Draws keys and gives each the priority that is a function of it, outdated keys included. So the checker knows every
// legal mass.
class UpdaterWorker final : public Worker {
 public:
  using Worker::Worker;

 private:
  static constexpr size_t kBatch = 64;

  // Gives every mass another exponent. The checker uses the present one (CheckerWorker::wrong_mass).
  void change_exponent() {
    constexpr double kExponents[] = {0.4, 0.6, 1.0, 1.3};
    const double exponent = kExponents[random_.below(4)];
    expect(timed(10.0, "raising", [&] { return relive::set_priority_exponent(table(), 0, exponent); }),
           "changing an exponent");
  }

  // If an index depends on the version: sets any of the versions, in both directions.
  void step_version() {
    const auto version = static_cast<uint32_t>(random_.below(kVersions));
    expect(timed(10.0, "a version", [&] { return relive::set_policy_version(table(), version); }), "a version");
  }

  void step() override {
    const Region& r = table().region();
    if (!(r.aged_indexes().empty() && r.fading_indexes().empty()) && random_.below(32) == 0) step_version();
    if (has_exponent(table().region().header->indexes[0]) && random_.below(64) == 0) change_exponent();
    if (options_.with_moves && random_.below(40) == 0) {
      uint64_t moved = 0;
      expect(timed(12.0, "moving pages", [&] { return relive::move_all_pages(table(), &moved); }), "moving pages");
      control_.moved.fetch_add(moved);
    }
    int64_t keys[kBatch];
    double probabilities[kBatch];
    int64_t live = 0;
    DrawRequest request;
    request.num_items = kBatch;
    request.keys = keys;
    request.probabilities = probabilities;
    request.num_live_items = &live;
    if (options_.max_times == 0 || random_.below(8) == 0) {
      if (!expect(timed(kTimeout_s, "draw", [&] { return relive::sample(table(), request, kTimeout_s); }), "draw"))
        return;
      late_.insert(late_.end(), keys, keys + kBatch);
      if (options_.max_times != 0 || options_.second_priorities)
        for (int64_t key : keys)
          late_.push_back(key +
                          static_cast<int64_t>(random_.below(16)));  // neighbours, used or not, some of them pending
    }
    if (late_.size() > 40 * kBatch)
      late_.erase(late_.begin(), late_.begin() + static_cast<std::ptrdiff_t>(20 * kBatch));
    if (late_.empty()) return;
    std::vector<int64_t> chosen;
    std::vector<float> priorities;
    const auto index = static_cast<uint32_t>(options_.second_priorities ? random_.below(2) : 0);
    for (size_t k = 0; k < kBatch; ++k) {
      const int64_t key =
          late_[late_.size() - 1 - random_.below(std::min<size_t>(late_.size(), k % 4 == 0 ? late_.size() : kBatch))];
      if (!table().region().is_row_key(key)) continue;
      chosen.push_back(key);
      priorities.push_back(priority_of(key, index));
    }
    int64_t applied = 0;
    if (options_.with_deletes && random_.below(30) == 0) {
      expect(timed(10.0, "delete", [&] { return relive::delete_items(table(), chosen.data(), 4, &applied); }),
             "delete");
      control_.deleted.fetch_add(static_cast<uint64_t>(applied));
    } else if (Leaves(table().region(), index).has_priorities()) {
      expect(timed(10.0, "update",
                   [&] {
                     return relive::update_priorities(table(), index, chosen.data(), priorities.data(), chosen.size(),
                                                      &applied);
                   }),
             "update");
      control_.updates_applied.fetch_add(static_cast<uint64_t>(applied));
      control_.updates_stale.fetch_add(chosen.size() - static_cast<size_t>(applied));
    }
  }

  std::vector<int64_t> late_;
};

}  // namespace stress
