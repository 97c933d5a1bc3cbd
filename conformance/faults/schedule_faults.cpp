// Faults of the learning rates.
#include "conformance/faults/fault_groups.hpp"

namespace equigrad::conformance::faults {
namespace {

// Takes `steps` steps for one.
class Hasty : public schedule::Schedule {
 public:
  Hasty(std::unique_ptr<schedule::Schedule> real, FaultContext& context)
      : real_(std::move(real)), context_(context) {}
  schedule::Rates current() const override { return real_->current(); }
  void check(const schedule::LrKeywords& lr_kwargs) const override { real_->check(lr_kwargs); }
  void step(const schedule::LrKeywords& lr_kwargs) override {
    real_->step(lr_kwargs);
    for (int more = 1; more < std::max(2, context_.micro_batches()); ++more) {
      const auto before = real_->current();
      real_->step({});
      if (!(real_->current() == before)) context_.acted();
    }
  }
  std::int64_t last_batch_iteration() const override { return real_->last_batch_iteration(); }

 private:
  std::unique_ptr<schedule::Schedule> real_;
  FaultContext& context_;
};

void step_per_micro_batch(FaultContext& context) {
  seams().make_schedule = [&context](const SchedulerConfig& config,
                                     const std::vector<double>& group_lr) {
    return std::make_unique<Hasty>(through::make_schedule(config, group_lr), context);
  };
}

// Groups after the first keep their base rate for the first step.
void forget_later_groups_at_first(FaultContext& context) {
  auto calls = std::make_shared<int>(0);
  seams().set_rates = [&context, calls](optimizer::ShardedState& self,
                                        const std::vector<double>& lr,
                                        const std::vector<double>& beta1) {
    auto rates = lr;
    const auto base = self.lr();
    for (std::size_t group = 1; group < rates.size() && *calls == 0; ++group) {
      if (rates[group] != base[group]) context.acted();
      rates[group] = base[group];
    }
    ++*calls;
    through::set_rates(self, rates, beta1);
  };
}

void keep_the_first_rates(FaultContext& context) {
  auto calls = std::make_shared<int>(0);
  seams().set_rates = [&context, calls](optimizer::ShardedState& self,
                                        const std::vector<double>& lr,
                                        const std::vector<double>& beta1) {
    if (++*calls == 1) return through::set_rates(self, lr, beta1);
    if (lr != self.lr()) context.acted();
  };
}

}  // namespace

std::vector<Fault> schedule_faults() {
  const auto of_optimizer = [](Fault fault) {
    fault.seam = "optimizer";
    return fault;
  };
  return {
      of_optimizer(at_seams("schedule.steps_per_micro_batch",
                            "the schedule goes on with every micro-batch", {"HF-05"}, "update",
                            step_per_micro_batch)),
      of_optimizer(at_seams("schedule.first_step_at_full_rate",
                            "later groups take the first step at their base rate", {"DS-76"},
                            "update", forget_later_groups_at_first)),
      of_optimizer(at_seams("schedule.never_applied", "the schedule's rates reach no group", {},
                            "update", keep_the_first_rates)),
  };
}

}  // namespace equigrad::conformance::faults
