// A change of bytes of committed rows. Each such change is made inside a ChangedRows, so that a page's ref and ticket
// name the bytes of a CLOSED page: every copy of the page can tell whether it is outdated (rule J3).
//
// Owner:   a ChangedRows lives on the stack of a critical section.
// Locking: under the table lock. One at a time: the header has one note.
// Cost:    three stores, and nothing for an OPEN page, which gets its ticket when it closes.
#pragma once

#include <cstdint>

#include "relive/words/held.hpp"

namespace relive {

// Notes the page; gives it a new ticket and clears the note at the end. If the process dies in between, recovery gives
// the page of the note a new ticket.
class ChangedRows final {
 public:
  ChangedRows(Held& held, uint64_t page);
  ~ChangedRows();
  ChangedRows(const ChangedRows&) = delete;
  ChangedRows& operator=(const ChangedRows&) = delete;

 private:
  Held& held_;
  const uint64_t page_;  // kNoPage: the page is OPEN
};

// Gives a page a new ticket.
void renew_ticket(Held& held, uint64_t page);

// Ends a change that a dead process has begun. recover() calls this before it reads a ticket.
void finish_changed_rows(Held& held);

}  // namespace relive
