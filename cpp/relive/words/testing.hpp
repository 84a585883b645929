// Fail points and switchable rules of a test build (RELIVE_TESTING); nothing at all in a release build.
//
// A fail point follows each store that the protocol orders: the kill programme lets a process die there.
// A rule is one numbered sentence of docs/design/protocol.md: a run of mutants switches it off to see the programme
// fail.
//
// Owner:   the hooks are set once, before threads start, by the test programme.
#pragma once

#include <cstdint>

// clang-format off: it would break these lists differently every time
#define RELIVE_FAIL_POINTS(X) \
  X(open_popped) X(open_fields) X(open_word) X(open_linked) X(open_lane) X(open_ring) X(commit_begin) \
  X(commit_evicted) X(commit_tail_bit) X(commit_range) X(commit_seam) X(commit_counted) X(commit_closed) X(commit_next_page) \
  X(commit_tail_range) X(publish_leaf) X(publish_item_end) X(publish_counted) X(commit_ancestors) \
  X(commit_unlocked) X(evict_range) X(evict_carry) X(evict_counts) X(retire_state) X(retire_leaf) \
  X(free_begin) X(free_unlinked) X(free_masked) X(free_word) X(free_fence) X(free_listed) X(close_dropped) X(close_mark) X(close_tail) \
  X(close_published) X(close_page) X(close_lane) X(lane_tails) X(lane_fields) X(lane_live) X(update_leaf) X(update_ancestors) X(delete_one) \
  X(delete_done) X(sample_reserved) X(draw_found) X(draw_word) X(sample_gathered) X(claim_times) \
  X(claim_leaf) X(claim_undone) X(claim_back) X(sample_done_added) X(sample_in_flight) X(lock_taken) X(recover_begin) \
  X(recover_pass1) X(recover_pass2) X(recover_pass3) X(recover_lists) X(recover_lanes) X(recover_inner) \
  X(sweep_begin) X(sweep_lane) X(sweep_page_end) X(sweep_credit) X(sweep_pinning_all) X(sweep_live) X(attach_byte) \
  X(attach_slot) X(attach_live) X(move_copied) X(move_frame) X(move_word) X(grow_committed) X(grow_counted) \
  X(cells_written) X(pins_counted) X(pins_raised) X(pins_read) X(pins_lowered) X(kept_removed) \
  X(insert_taken) X(insert_windows) X(insert_hung) X(insert_word) X(insert_done) X(insert_counted) \
  X(record_ended) X(record_word) X(record_unhung) X(record_rows) X(evict_not_yet) X(recover_records) \
  X(publish_unfilled) X(late_begin) X(late_cells) X(late_filled) X(late_published) \
  X(late_insert) X(late_noted) X(late_item) X(late_unlocked) \
  X(abandon_item) X(abandon_word) X(abandon_tail) X(abandon_cut) \
  X(cell_hung) X(cell_unhung) X(cell_moved) X(cell_named) X(grow_cells) X(cells_given_back) \
  X(group_windows) X(group_opened) X(group_key) X(group_member) X(group_full) X(group_counted) X(group_joined) X(group_passed) \
  X(order_ticket) X(order_cleared) X(order_dropped) X(order_renewed) X(record_waits) X(record_chosen) X(page_ranked) X(wait_begun) X(wait_over) X(wait_noted) X(wait_ended) X(wait_counted) X(wait_dropped) \
  X(version_base) X(version_noted) X(version_swept) X(latest_noted) X(latest_left) X(base_begun) X(base_leaf) \
  X(where_tested) X(where_found) X(publish_kept_out) X(late_kept_out) \
  X(limiter_word) X(limiter_switched) X(rank_pushed) X(rank_removed) \
  X(raise_noted) X(raise_leaf) X(raise_raised) X(raise_switched) X(raise_exponent) X(raise_over) X(shuffle_claimed) \
  X(change_noted) X(change_made) X(change_ticket)

#define RELIVE_RULES(X) \
  X(G2_word_before_leaf) X(G2_likely) X(G4_recheck) X(G11_once) X(A1_link_generation) X(H1_check_in_lock) X(H1_state) X(D2d_pending) \
  X(F2_pages) X(F5_free_list) X(F5_inner) X(F5_lanes) X(E2_lock_byte) X(G7_claim_in_lock) X(G7_undecided) X(H1_times) \
  X(G6_in_flight) X(E4_credit) X(D3_reach) X(D3_ahead) X(F3_items) X(F4_leaves) X(C1_lock) X(D6_moves) \
  X(W1_whole) X(D3_fence) X(D7_pin_all) X(E4_pinning_all) X(E5_tails) X(E5_open) X(D8_lighter) X(D8_recover) X(X2_windows_first) X(X3_rows) \
  X(X4_generation) X(X5_recheck) X(X5_values) X(X6_end) X(X6_hang) X(S1_whole) X(S2_last) X(S4_count) X(S5_cut) \
  X(S6_last) X(L1_bit) X(L2_rows) X(L2_items) X(L3_cells_first) X(L4_once) X(L5_recover) X(L6_rest) X(L7_own) X(V1_items) \
  X(V2_word) X(V2_holders) X(B4_recover) X(B4_own) X(B4_none) X(B4_page) X(Y1_once) X(Y2_full) X(Y3_settle) X(Y4_cut) X(Y6_weight) \
  X(R1_order) X(R2_most) X(R3_update) X(R3_settle) X(R5_room) X(R5_settle) X(T1_since) X(T2_overdue) X(T3_count) \
  X(Z1_version) X(Z2_expired) X(Z3_base) X(Z4_last) X(Z4_settle) X(Q1_condition) X(P1_switch) X(P2_unused) X(P4_massless) X(P5_base) X(P6_under_way) X(P6_stands) X(P7_places) \
  X(H1_index) X(U1_follow) X(U2_class) X(U3_rebuild) X(H2_note) X(H3_draw) X(H4_update) X(H5_claim) X(O1_one_step) X(O2_same_slot) \
  X(J3_ticket) X(J3_note) X(J4_floor) X(J4_closed) X(J5_heads) X(J5_last_row) X(J5_frozen_cell) X(J7_boot)
// clang-format on

namespace relive::testing {

enum class FailPoint : uint32_t {
#define RELIVE_X(name) name,
  RELIVE_FAIL_POINTS(RELIVE_X)
#undef RELIVE_X
      kCount
};

enum class Rule : uint32_t {
#define RELIVE_X(name) name,
  RELIVE_RULES(RELIVE_X)
#undef RELIVE_X
      kCount
};

#ifdef RELIVE_TESTING
// Called at every fail point; may be null.
extern void (*fail_point_hook)(FailPoint);
extern bool rule_switched_off[static_cast<uint32_t>(Rule::kCount)];
// Called when a critical section of the table lock begins and when it ends, on its thread; may be null.
extern void (*section_hook)(bool begins);
// Called twice for each page that a save copies: after the heads of its rows are read, and after the rows; may be null.
extern void (*copy_hook)(bool has_rows);
// Lanes that one critical section may cut. With fewer lanes a small table is swept in many critical sections.
extern uint32_t lanes_per_section;
// Called if a state occurs that the protocol rules out and the code survives; may be null. It must not call the core.
extern void (*broken_promise_hook)(const char* what);
// Rounds that a draw or a gather tries before it pins all pages. With fewer rounds every call reaches that point.
extern uint32_t most_rounds;
// The number of table locks that this thread has taken.
extern thread_local uint32_t locks_held;
const char* fail_point_name(uint32_t position);
const char* rule_name(uint32_t position);
#endif

}  // namespace relive::testing

#ifdef RELIVE_TESTING
#define RELIVE_FAIL_POINT(name)                                               \
  do {                                                                        \
    if (::relive::testing::fail_point_hook != nullptr)                        \
      ::relive::testing::fail_point_hook(::relive::testing::FailPoint::name); \
  } while (0)
#define RELIVE_SECTION(begins)                                                               \
  do {                                                                                       \
    if (::relive::testing::section_hook != nullptr) ::relive::testing::section_hook(begins); \
  } while (0)
#define RELIVE_COPIED(has_rows)                                                          \
  do {                                                                                   \
    if (::relive::testing::copy_hook != nullptr) ::relive::testing::copy_hook(has_rows); \
  } while (0)
#define RELIVE_RULE(name) (!::relive::testing::rule_switched_off[static_cast<uint32_t>(::relive::testing::Rule::name)])
#define RELIVE_PROMISE(is_kept, what)                                                                                  \
  do {                                                                                                                 \
    if (!(is_kept) && ::relive::testing::broken_promise_hook != nullptr) ::relive::testing::broken_promise_hook(what); \
  } while (0)
#define RELIVE_NOT_LOCKED(what) RELIVE_PROMISE(::relive::testing::locks_held == 0, what)
#define RELIVE_LOCKS_HELD(change) (::relive::testing::locks_held += (change))
#define RELIVE_ROUNDS(most) (::relive::testing::most_rounds < (most) ? ::relive::testing::most_rounds : (most))
#else
#define RELIVE_FAIL_POINT(name) ((void)0)
#define RELIVE_SECTION(begins) ((void)0)
#define RELIVE_COPIED(has_rows) ((void)0)
#define RELIVE_RULE(name) true
#define RELIVE_PROMISE(is_kept, what) ((void)0)
#define RELIVE_NOT_LOCKED(what) ((void)0)
#define RELIVE_LOCKS_HELD(change) ((void)0)
#define RELIVE_ROUNDS(most) (most)
#endif
