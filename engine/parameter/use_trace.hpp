// Use trace: the order in which operators use pages, learnt in one cycle and predicted in the next.
//
// What is to stay between two uses under the budget of live elements is planned when the order is
// learnt (paging_plan.hpp).
//
// A cycle is what lies between the ends of two backward passes: forward, then backward. While the
// uses of a cycle follow the learnt ones, the trace is in step and knows what comes next and how
// far away a page's next use is. A use that is not the expected one puts it out of step for the
// rest of the cycle; the end of the cycle learns anew.
//
// Invariants: a prediction never changes a value, only when a page is fetched and dropped. Uses of
// one page in a row are one.
// Units: distances and budgets count elements.
// Errors: none.
// Depends on: parameter/paging_plan, the C++ standard library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "engine/parameter/paging_plan.hpp"

namespace equigrad::parameter {

class UseTrace {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  // Pages that are `always` whole need no room. The budget is for all that are whole.
  explicit UseTrace(std::vector<int64_t> numel_by_page, const std::vector<bool>& always = {},
                    int64_t budget_numel = kNever);

  void use(std::size_t page);
  void end_cycle();
  bool in_step() const { return in_step_; }
  // The page that was used last of all in this cycle.
  std::optional<std::size_t> current() const {
    return seen_.empty() ? std::nullopt : std::optional(seen_.back());
  }
  // In step: elements used between the page's last use and its next one; kNever if the cycle has
  // none.
  int64_t reuse_distance_numel(std::size_t page) const;
  // In step: by the plan the page stays whole from its last use to its next one.
  bool stays(std::size_t page) const;
  // Of the learnt cycle.
  const PagingPlan& plan() const { return plan_; }
  // In step: the next distinct pages, in order of use, until their elements exceed the budget, or
  // the room that the plan leaves until they are used.
  std::vector<std::size_t> next_pages(int64_t budget_numel) const;

 private:
  std::vector<int64_t> numel_by_page_;
  std::vector<int64_t> planned_numel_;  // by page; 0: always whole
  int64_t room_numel_;
  PagingPlan plan_;
  std::vector<std::size_t> learnt_;
  std::vector<int64_t> distance_numel_;     // by position in learnt_
  std::vector<std::size_t> seen_;           // this cycle's uses
  std::vector<std::size_t> last_position_;  // by page, in this cycle's uses; seen_.size() at most
  bool in_step_ = false;
};

}  // namespace equigrad::parameter
