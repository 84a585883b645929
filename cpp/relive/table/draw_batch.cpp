#include "relive/table/draw_batch.hpp"

#include <algorithm>
#include <utility>

#include "relive/read/shuffle.hpp"
#include "relive/table/claim_keys.hpp"
#include "relive/table/claims.hpp"
#include "relive/table/credits.hpp"
#include "relive/table/draw_pinned.hpp"
#include "relive/table/draw_rounds.hpp"
#include "relive/table/draw_waits.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint32_t kRoundsWithoutLock = 8;
constexpr uint32_t kMostRestarts = 8;  // for changes of the exponent; after these the deadline of the draw counts

// One draw, from its reservation to its commit.
class Draw final {
 public:
  Draw(const DrawCall& call, DrawScratch& scratch) : call_(call), s_(scratch), rounds_(call, scratch) {}
  ~Draw() {
    if (is_in_flight_) (void)give_up({});  // memory ran out
  }
  Draw(const Draw&) = delete;
  Draw& operator=(const Draw&) = delete;
  Status run();

 private:
  Status fill_of_one_exponent(bool* too_few);
  Status fill(bool* too_few);
  Status give_up(Status status);

  const DrawCall& call_;
  DrawScratch& s_;
  DrawRounds rounds_;
  uint64_t draw_number_ = 0;
  bool is_in_flight_ = false;
};

Status Draw::run() {
  const DrawRequest& request = call_.request;
  bool was_alone = false;
  while (true) {
    RELIVE_RETURN_IF_ERROR(reserve_draw(call_));
    is_in_flight_ = true;
    // A wait takes no number: the same calls draw the same items, however long each of them had to wait.
    draw_number_ = call_.table.take_draw();
    rounds_.begin(draw_number_);
    bool too_few = false;
    if (request.num_live_items != nullptr)  // at the draw, before its use counts take items away
      *request.num_live_items =
          std::max<int64_t>(1, call_.r.header->index_state[request.index].live_items.load(kRelaxed));
    Status status = fill_of_one_exponent(&too_few);
    if (status.ok() && !too_few) break;
    RELIVE_RETURN_IF_ERROR(give_up(std::move(status)));
    note_lack(call_);
    RELIVE_RETURN_IF_ERROR(wait_for_unused(call_, &was_alone));
  }
  if (request.claims != nullptr) {
    request.claims->insert(request.claims->end(), s_.claimed.begin(), s_.claimed.end());
  } else {
    free_places(call_.table, request.index, s_.claimed);
    if (!request.is_planned) decide_claims(call_.table, request.index, s_.claimed, request.plan != nullptr);
  }
  if (request.positions != nullptr && call_.is_shuffled()) *request.positions = positions_of(s_);
  is_in_flight_ = false;
  if (!request.hold) commit_credit(call_.table, request.index, call_.num_items());
  return {};
}

// If the exponent changes between two rounds, each round is of one exponent but the batch is not: it is drawn again
// (rule H3).
Status Draw::fill_of_one_exponent(bool* too_few) {
  for (uint32_t restart = 0;; ++restart) {
    RELIVE_RETURN_IF_ERROR(fill(too_few));
    if (*too_few || rounds_.is_of_one_exponent() || !RELIVE_RULE(H3_draw)) return {};
    if (restart >= kMostRestarts && call_.deadline.passed()) return draw_error(call_, Code::kDeadlineExceeded);
    rounds_.undo_claims(call_.deadline);
    rounds_.begin_again();
  }
}

Status Draw::fill(bool* too_few) {
  *too_few = false;
  MissingRows& missing = rounds_.missing();
  rounds_.ask_for_all();
  s_.claimed.clear();
  const bool can_pin = !call_.table.is_read_only();
  // A draw that uses up an order takes the next items and no others: they are chosen where they are claimed (rule R4).
  if (call_.takes_claims() && call_.is_by_order()) return fill_pinned(rounds_, kRoundsWithoutLock, too_few);
  // A round that lost items counts; a round of a draw with a condition that found too few items does not.
  for (uint32_t attempt = 0, lost = 0; !missing.empty(); ++attempt, lost += s_.looks.num_unfilled == 0 ? 1 : 0) {
    if (can_pin && lost >= RELIVE_ROUNDS(kRoundsWithoutLock))
      return fill_pinned(rounds_, std::max(attempt, kRoundsWithoutLock), too_few);
    if (!can_pin && lost >= kRoundsWithoutLock && call_.deadline.passed())
      return draw_error(call_, Code::kDeadlineExceeded);
    if (call_.request.ragged != nullptr)
      for (const uint32_t row : missing.rows()) call_.request.ragged->forget(row);
    RELIVE_RETURN_IF_ERROR(rounds_.outwait_change());
    *too_few = !rounds_.draw(rounds_.first_request(), attempt);
    if (*too_few) return {};
    RELIVE_RETURN_IF_ERROR(rounds_.read_rows());
    RELIVE_RETURN_IF_ERROR(rounds_.claim());
    missing.end_round();
    // A batch in order that lost items is drawn again from the best item on, so that it is in order and has none twice.
    if (call_.is_by_order() && !missing.empty()) rounds_.ask_for_all();
    if (s_.looks.num_unfilled != 0) RELIVE_RETURN_IF_ERROR(rounds_.look_on());
  }
  return {};
}

// A batch that cannot be completed leaves nothing: it gives back its claims, its credit and its draw number.
Status Draw::give_up(Status status) {
  is_in_flight_ = false;
  rounds_.undo_claims(status.code() == Code::kInterrupted ? Deadline::after(0.0) : call_.deadline);
  if (call_.is_shuffled() && call_.table.is_of_this_process())
    return_positions(call_.r, call_.request.index, positions_of(s_));
  return_credit(call_.table, call_.request.index, call_.num_items());
  (void)call_.table.give_back_draw(draw_number_);
  return status;
}

Status draw(const DrawCall& call, DrawScratch& scratch) {
  if (call.request.taken != nullptr) return claim_keys(call, &scratch.claimed);
  return Draw(call, scratch).run();
}

}  // namespace

Status draw_batch(Table& table, const DrawRequest& request, double timeout_s) {
  const Deadline deadline = Deadline::after(timeout_s);
  Entered entered(table, false);
  RELIVE_RETURN_IF_ERROR(entered.status());
  if (request.num_items == 0) return {};
  const DrawCall call{table, table.region(), request, deadline};
  if (table.is_read_only() && (call.is_shuffled() || request.taken != nullptr)) return Status(Code::kReadOnly);
  table.note_sampling();
  if (is_in_interrupt()) {  // a signal's handler draws while its own thread is drawing
    DrawScratch own;
    return draw(call, own);
  }
  thread_local DrawScratch scratch;
  return draw(call, scratch);
}

}  // namespace relive
