// The checker of the stress programme: invariants, legal masses, and the limiter's corridor.
#pragma once

#include "relive/index/leaves.hpp"
#include "relive/save/image.hpp"
#include "stress_items.hpp"
#include "stress_late.hpp"
#include "stress_workers.hpp"

namespace stress {

// Takes the lock every 20 ms and reads the whole table.
class CheckerWorker final : public Worker {
 public:
  using Worker::Worker;

  // Every mass belongs to a priority that was given, and every live item has one: no priority in this programme is 0.
  static std::string wrong_mass(const Region& r) {
    for (uint64_t page = 0; page < r.geometry->num_pages; ++page) {
      const uint64_t word = r.words[page].load();
      if (!Region::is_used(word)) continue;
      const Range range = Range::unpack(r.pages[page].range.load());
      for (const uint32_t i : r.row_indexes()) {
        const IndexConfig& index = r.header->indexes[i];
        const Leaves leaves(r, i);
        for (uint32_t offset = 0; offset < r.page_len; ++offset) {
          const uint64_t slot = r.slot_of(page, offset);
          const double mass = leaves.mass(slot);
          const bool is_step = offset >= range.step_begin && offset < range.step_end && !r.is_tail(page, offset);
          if (mass == leaves.nothing() && is_step && !leaves.is_latest() && leaves.is_drawable(leaves.state(slot)))
            return "an item lives that can never be drawn";
          if (leaves.kind().leaf != LeafKind::kMass || mass == leaves.nothing() || mass == leaf_of(index, 1.0f))
            continue;
          if (mass != leaf_of(index, priority_of(r.key_of(slot, word), i)))
            return "an item has a mass that was never given to it";
        }
      }
    }
    return {};
  }

  // The mean of the rewards of a group's members, computed from their writers' data; 0 if it is negative.
  static double weight_of(const Region& r, uint32_t index, uint64_t record) {
    double rewards = 0.0;
    for (uint32_t w = 0; w < kGroupSize; ++w) {
      const ItemWindow& member = r.records[index].windows_of(record)[w];
      const uint64_t slot = r.key_slot(member.key.load());
      const ColumnLayout& step = r.columns[2];
      const std::byte* const cell = r.page_base(r.page_of(slot)) + step.offset + r.offset_of(slot) * step.stride;
      uint64_t tag;
      uint32_t episode;
      std::memcpy(&tag, cell, 8);
      std::memcpy(&episode, cell + 8, 4);
      for (uint32_t row = 0; row < member.num_rows.load(); ++row) rewards += reward_of(tag, episode, row);
    }
    return std::max(0.0, rewards / kGroupSize);
  }

  static std::string wrong_item_mass(const Region& r) {
    for (const uint32_t i : r.record_indexes()) {
      const IndexConfig& index = r.header->indexes[i];
      const Leaves leaves(r, i);
      for (uint64_t record = 0; record < r.map(i).num_leaves; ++record) {
        const uint64_t word = r.map(i).word(record);
        const double mass = leaves.mass(record);
        if (!Region::is_used(word) && mass != 0.0) return "a record that is free has mass";
        if (!Region::is_used(word)) continue;
        if (!leaves.is_drawable(leaves.state(record))) continue;
        if (index.group.weight != GroupWeight::kNone) {
          if (mass != static_cast<float>(weight_of(r, i, record))) return "a group has another weight than its members";
          continue;
        }
        if (mass == 0.0) return "an explicit item can never be drawn";
        if (mass != 0.0 && mass != leaf_of(index, 1.0f) &&
            mass != leaf_of(index, priority_of(r.key_of_leaf(i, record, word))))
          return "an explicit item has a mass that was never given to it";
      }
    }
    return {};
  }

  static std::string wrong_limiter(const Region& r) {
    for (uint32_t i = 0; i < r.num_indexes; ++i) {
      const LimiterConfig present = r.limiter(i);  // the samplers set two numbers that belong together
      if (present.kind == LimiterConfig::kMinSize && present.tolerance != 0.0 &&
          present.tolerance != static_cast<double>(present.min_size))
        return "half of a limiter and half of another";
    }
    const LimiterConfig limiter = r.limiter(0);
    int64_t in_flight = 0;
    for (uint32_t p = 0; p < r.geometry->max_participants; ++p) in_flight += r.credit(p, 0).in_flight.load();
    if (in_flight < 0) return "less than nothing is in flight";
    // Each worker has one batch, and so has each dead participant until it is swept.
    if (in_flight > 64 * (kMaxWorkers + r.geometry->max_participants))
      return "more in flight than all workers can have";
    if (limiter.kind == LimiterConfig::kMinSize) return {};
    const double difference =
        static_cast<double>(r.header->index_state[0].inserted.load()) * limiter.samples_per_insert -
        static_cast<double>(r.sampled(0));
    // Inserted items are counted after their leaves: a death may lose a few of the count, but never adds any.
    return difference < limiter.lo - 1e-6 ? "more sampled than the limiter allows" : "";
  }

  // Items that are overdue now must be gone after a number of critical sections, each of which drops some of them.
  std::string overdue() {
    const Region& r = table().region();
    if (r.timed_indexes().empty()) return {};
    const double then_s = clock_s();
    for (int section = 0; section < 40; ++section) Locked(table().door(), Deadline::after(2.0)).release();
    Locked locked(table().door(), Deadline::after(2.0));
    for (const uint32_t i : r.timed_indexes())
      if (locked.status().ok() && DueTimes(r, i).soonest(Due::kWait) + r.header->indexes[i].max_wait_s < then_s)
        return "an item waits longer than it may";
    return {};
  }

 private:
  // The bytes of a CLOSED page, by their sum, with the names that stand for them.
  struct Seen {
    uint64_t ref = 0, ticket = 0;
    uint32_t sum = 0;
  };

  // Under the lock: pages whose bytes have changed while their ref and ticket did not (rule J3).
  std::string changed_bytes() {
    const Region& r = table().region();
    if (r.bulk) return {};
    const ImageForm form(r);
    image_.resize(form.most_image_bytes());
    seen_.resize(r.geometry->num_pages);
    for (uint64_t page = 0; page < r.geometry->num_pages; ++page) {
      const uint64_t word = r.words[page].load();
      if (Region::state_of(word) != PageState::kClosed) continue;
      const uint32_t rows = Range::unpack(r.pages[page].range.load()).step_end;
      const uint64_t ref = r.ref_of(page, word), ticket = r.pages[page].ticket.load();
      if (copy_out(form, {page}, {rows, rows}, ref, image_.data(), image_.size()) == 0) return "an image has no room";
      ImageHead head;
      std::memcpy(&head, image_.data(), sizeof head);
      Seen& before = seen_[page];
      if (before.ref == ref && before.ticket == ticket && before.sum != head.sum)
        return "bytes of a closed page changed and its ticket did not";
      before = {ref, ticket, head.sum};
    }
    return {};
  }

  void begin() override { seen_.clear(); }  // the handle may lead to another region

  void step() override {
    {
      const Deadline deadline = Deadline::after(2.0);
      Status checked;
      checked = timed(10.0, "check", [&] { return relive::check(table()); });
      if (expect(checked, "check()")) control_.checks.fetch_add(1);
      Locked locked(table().door(), deadline);
      if (locked.status().ok()) {
        for (const std::string& wrong : {wrong_mass(table().region()), wrong_item_mass(table().region()),
                                         wrong_limiter(table().region()), changed_bytes()})
          if (!wrong.empty()) control_.found_violation(wrong.c_str());
      }
    }
    if (const std::string wrong = overdue(); !wrong.empty()) control_.found_violation(wrong.c_str());
    usleep(20000);
  }

  std::vector<std::byte> image_;
  std::vector<Seen> seen_;  // of each page
};

}  // namespace stress
