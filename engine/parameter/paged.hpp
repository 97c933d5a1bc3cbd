// Pages: every rank keeps its shard; a whole parameter is there only while an operator uses it, and
// a little before (prefetch) and after (reuse: until the next page is used at least). The model's
// tensor keeps its shape; its storage has no data in between, so an access that nobody saw fails
// loudly.
//
// Invariants: those of parameters.hpp; pages of a leaf module come and go together; what gather()
// holds stays. Persistent pages are whole from one publish() to the next; outside of leaf modules
// operators that read only them are not watched, and are no uses.
// Units: elements, operators.
// Errors: those of parameters.hpp.
// Depends on: page_table, leaf_pages, use_trace, operator_observer, parameters.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/autograd/operator_observer.hpp"
#include "engine/parameter/leaf_pages.hpp"
#include "engine/parameter/page.hpp"
#include "engine/parameter/page_table.hpp"
#include "engine/parameter/store.hpp"
#include "engine/parameter/use_trace.hpp"

namespace equigrad::parameter {

class Pages final : public Parameters, public autograd::OperatorListener {
 public:
  explicit Pages(const Context& context);
  ~Pages() override { observation_.reset(); }

  void publish() override;
  void publish(std::size_t parameter, const at::Tensor& slice) override;
  at::Tensor whole(std::size_t parameter) override;
  void pin(std::size_t parameter) override;
  void unpin(std::size_t parameter, bool keep) override;
  at::Tensor as_seen(const at::Tensor& masters, bool lower_precision) const override {
    return context_.as_seen(masters, lower_precision);
  }
  void settle() override;
  Traffic end_of_pass() noexcept override;
  void rethrow_failure() override;

 private:
  void before(const std::vector<std::size_t>& pages) noexcept override;
  void after(const std::vector<std::size_t>& pages) noexcept override;

  void use(const std::vector<std::size_t>& pages);
  void start_gathers(const std::vector<std::size_t>& pages);
  void start_gather(const std::vector<std::size_t>& pages);
  void renew(const std::vector<std::size_t>& pages);
  void spoil(const std::vector<std::size_t>& pages);
  void say_failure() const;
  void release(Page& page);
  void release_far(std::size_t page);
  void release_idle();
  void release_all();
  bool should_stay(std::size_t page) const;
  std::vector<std::size_t> lookahead(int64_t budget_numel) const;

  Context context_;
  std::recursive_mutex mutex_;
  PageTable table_;
  std::vector<Page>& pages_;
  LeafPages leaves_;
  std::optional<UseTrace> trace_;
  int64_t clock_ = 0;
  int64_t live_numel_ = 0;
  int64_t gathered_numel_ = 0;  // for operators, in this cycle
  std::exception_ptr failure_;
  std::unique_ptr<autograd::Observation> observation_;
};

}  // namespace equigrad::parameter
