#include "runtime/call/issues.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>

#include "rannc/plan/ahead.h"
#include "rannc/util/error.h"

namespace rannc::runtime {
namespace {

using plan::CommunicationKind;

/// An issue before return_outputs, or before the end, belongs to the phase that ends there.
std::span<const plan::Issue> of_phase(const std::vector<plan::Issue>& all, size_t begin,
                                      size_t end) {
  const auto first =
      begin == 0 ? all.begin()
                 : std::ranges::lower_bound(all, static_cast<int>(begin), {}, &plan::Issue::action);
  const auto last = std::ranges::upper_bound(all, static_cast<int>(end), {}, &plan::Issue::action);
  return {first, last};
}

}  // namespace

Issues::Issues(const plan::Program& program, plan::Rank rank, size_t begin, size_t end, Ways ways)
    : program_(program),
      actions_(program.actions[static_cast<size_t>(rank)]),
      issues_(of_phase(program.issues[static_cast<size_t>(rank)], begin, end)),
      end_(end),
      ways_(std::move(ways)) {}

const plan::Communication& Issues::communication(size_t issue) const {
  return program_.order[static_cast<size_t>(issues_[issue].place)];
}

bool Issues::is_inside(size_t issue) const {
  return issue < issues_.size() && issues_[issue].inside && issues_[issue].action == computation_;
}

void Issues::issue_next() {
  issuing_ = true;
  ways_.issue(communication(next_++));
  issuing_ = false;
}

void Issues::before(size_t action) {
  const auto until = static_cast<int>(action);
  while (next_ < issues_.size() && issues_[next_].action <= until) {
    if (issues_[next_].inside && issues_[next_].action == until) break;
    issue_next();
  }
  RANNC_CHECK(action < end_ || next_ == issues_.size(), c10::str(issues_.size() - next_, " left"));
}

void Issues::enter(size_t action) {
  computation_ = static_cast<int>(action);
  size_t following = action + 1;
  while (following < end_ && !plan::is_computation(actions_[following])) ++following;
  for (size_t issue = next_; issue < issues_.size(); ++issue) {
    const auto at = static_cast<size_t>(issues_[issue].action);
    if (at > following || (at == following && issues_[issue].inside)) break;
    if (communication(issue).kind == CommunicationKind::transfer) {
      ways_.reserve(communication(issue));
    }
  }
  go_on();
}

void Issues::go_on() {
  if (issuing_) return;
  while (is_inside(next_)) {
    const plan::Communication& next = communication(next_);
    if (next.kind == CommunicationKind::statistics) return;
    if (next.kind == CommunicationKind::bucket && !ways_.is_complete(next)) return;
    issue_next();
  }
}

void Issues::reach_statistics(int node) {
  for (size_t issue = next_; is_inside(issue); ++issue) {
    const plan::Communication& one = communication(issue);
    if (one.kind != CommunicationKind::statistics || one.part != node) continue;
    while (next_ < issue) issue_next();
    ++next_;
    return;
  }
  RANNC_CHECK(false, c10::str("statistics of node ", node, " have no place here"));
}

void Issues::leave() {
  while (is_inside(next_)) issue_next();
  computation_ = -1;
}

}  // namespace rannc::runtime
