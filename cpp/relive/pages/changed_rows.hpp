// A change of bytes of committed rows. Each such change is made by change_rows(), so that a page's ref and ticket name
// the bytes of a CLOSED page: every copy of the page can tell whether it is outdated (rule J3).
//
// Owner:   nothing; the header has one note.
// Locking: under the table lock. A change makes no other change.
// Cost:    three stores, and nothing for an OPEN page, which gets its ticket when it closes.
#pragma once

#include <cstdint>

#include "relive/words/held.hpp"

namespace relive {

// The two halves of change_rows().
void begin_change(Held& held, uint64_t page);
void end_change(Held& held, uint64_t page);

// Notes the page, calls change(), gives the page a new ticket and clears the note. If the process dies in between,
// recovery gives the page of the note a new ticket.
template <class Change>
void change_rows(Held& held, uint64_t page, Change&& change) {
  const bool is_closed =
      Region::state_of(held.region.words[page].load(std::memory_order_relaxed)) == PageState::kClosed;
  if (is_closed) begin_change(held, page);
  change();
  if (is_closed) end_change(held, page);
}

// Gives a page a new ticket.
void renew_ticket(Held& held, uint64_t page);

// Ends a change that a dead process has begun. recover() calls this before it reads a ticket.
void finish_changed_rows(Held& held);

}  // namespace relive
