#include "property_tests/relations/planted.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "conformance/faults/fault_groups.hpp"

namespace equigrad::property_tests::relations {
namespace {

using conformance::faults::FaultContext;
using conformance::faults::seams;
namespace through = conformance::faults::through;
using Plant = std::function<void(FaultContext&)>;

Plant every_gradient(std::function<at::Tensor(const at::Tensor&)> change) {
  return [change](FaultContext& context) {
    conformance::faults::change_gradient(context, [&context, change](auto, const at::Tensor& g) {
      return context.has_begun() ? change(g) : at::Tensor();
    });
  };
}

Plant every_update(std::function<void(OptimizerConfig&, int64_t&, const at::Tensor&)> change) {
  return [change](FaultContext&) {
    seams().update = [change](const OptimizerConfig& config, int64_t step,
                              const at::Tensor& parameter, const at::Tensor& gradient,
                              const std::vector<at::Tensor>& state) {
      auto other = config;
      change(other, step, parameter);
      through::update(other, step, parameter, gradient, state);
    };
  };
}

// What scale() gives is too large where `now` says so.
Plant wrong_scale(std::function<bool(const at::Tensor&, const loss::LossScaler*)> now) {
  return [now](FaultContext&) {
    seams().loss_scale = [now](const at::Tensor& tensor,
                               const std::shared_ptr<loss::LossScaler>& scaler) {
      const auto scaled = through::loss_scale(tensor, scaler);
      return now(tensor, scaler.get()) ? scaled * 1.0625 : scaled;
    };
  };
}

// The gradients of passes that `lost` says, asked with the pass's number in its micro-batch and
// whether its graph task is the first's.
Plant lost_passes(std::function<bool(int pass, bool nested)> lost) {
  return [lost](FaultContext& context) {
    struct Place {
      int step = -1, micro = -1, pass = 0, task = -1;
    };
    const auto at = std::make_shared<Place>();
    seams().window_begin = [at, &context](gradient::Window& self, double weight,
                                          bool expects_step) {
      const bool again = at->step == context.step() && at->micro == context.micro_batch();
      *at = {context.step(), context.micro_batch(), again ? at->pass + 1 : 0, -1};
      through::window_begin(self, weight, expects_step);
    };
    conformance::faults::change_gradient(context, [at, lost](std::size_t, const at::Tensor& g) {
      const int task = torch::autograd::get_current_graph_task_id();
      if (at->task == -1) at->task = task;
      return lost(at->pass, task != at->task) ? at::zeros_like(g) : at::Tensor();
    });
  };
}

void decays_unused(FaultContext&) {
  seams().update_all = [](optimizer::ShardedState& self, const at::Tensor& gradient,
                          const std::vector<bool>& used) {
    auto more = used;
    more[1] = true;  // "unused" is the second parameter
    through::update_all(self, gradient, more);
  };
}

void reading_doubles(FaultContext&) {
  seams().window_slice = [](gradient::Window& self, std::size_t parameter, double factor) {
    const auto slice = through::window_slice(self, parameter, factor);
    through::window_assign(self, parameter, slice * 2);
    return slice;
  };
}

void norm_of_shards_is_off(FaultContext&) {
  seams().measure = [](const at::Tensor& gradient, comm::Communicator* over, NormType type,
                       const std::vector<shard::Span>& repeated) {
    auto measure = through::measure(gradient, over, type, repeated);
    if (over != nullptr) measure.norm *= 1.0000001;
    return measure;
  };
}

void later_slots_lose_a_word(FaultContext&) {
  seams().bucket_copy_in = [](bucket::Bucket& self, std::size_t slot, const at::Tensor& gradient,
                              double weight) {
    auto sent = gradient.clone();
    if (slot > 0 && sent.numel() > 0) sent.flatten()[-1].zero_();
    through::bucket_copy_in(self, slot, sent, weight);
  };
}

const std::map<std::string, Plant>& local_faults() {
  static int64_t calls = 0;  // of this process, as what is not initialised is
  static const std::map<std::string, Plant> all = {
      {"rectified", every_gradient([](const at::Tensor& g) { return g.clamp_min(0); })},
      {"saturated", every_gradient([](const at::Tensor& g) { return g.clamp(-1, 1); })},
      {"offset", every_gradient([](const at::Tensor& g) { return g + 0x1p-10; })},
      {"drifting", every_gradient([](const at::Tensor& g) {
         return g * (1 + static_cast<double>(++calls % 1000) / 64);
       })},
      {"second pass lost", lost_passes([](int pass, bool) { return pass > 0; })},
      {"nested pass lost", lost_passes([](int, bool nested) { return nested; })},
      {"unused decays", decays_unused},
      {"reading doubles", reading_doubles},
      {"norm of shards", norm_of_shards_is_off},
      {"later slots", later_slots_lose_a_word},
      {"scale() is off", wrong_scale([](const at::Tensor&, const auto*) { return true; })},
      {"scale(output) is off",
       wrong_scale([](const at::Tensor& x, const auto*) { return x.dim() > 0; })},
      {"large scales are off", wrong_scale([](const at::Tensor&, const loss::LossScaler* scaler) {
         return scaler != nullptr && scaler->scale() > 100;
       })},
      {"tail", every_update([](OptimizerConfig&, int64_t&, const at::Tensor& parameter) {
         const auto whole = parameter.numel() / 8 * 8;
         parameter.slice(0, whole).mul_(1.0001);
       })},
      {"rate has a floor", every_update([](OptimizerConfig& config, int64_t&, const at::Tensor&) {
         config.lr = std::max(config.lr, 1e-3);
       })},
      {"steps are shared", every_update([](OptimizerConfig&, int64_t& step, const at::Tensor&) {
         step = 1 + ++calls % 50;
       })},
  };
  return all;
}

// Of this process.
int& living() {
  static int count = 0;
  return count;
}

}  // namespace

Planted::Planted(const std::string& fault, int rank, int world,
                 const std::shared_ptr<const conformance::faults::Moment>& moment,
                 const std::vector<std::string>& parameters)
    : is_ours_(!fault.empty()) {
  if (!is_ours_ || living()++ > 0) return;
  const auto local = local_faults().find(fault);
  if (local == local_faults().end()) {
    of_catalogue_ =
        std::make_unique<conformance::faults::Planted>(fault, rank, world, moment, parameters);
  } else {
    context_ = std::make_unique<FaultContext>(rank, world, moment, parameters);
    local->second(*context_);
  }
}

Planted::~Planted() {
  if (is_ours_) --living();
  if (context_) seams() = {};
}

std::shared_ptr<comm::Communicator> Planted::wrap(std::shared_ptr<comm::Communicator> real) {
  return of_catalogue_ ? of_catalogue_->wrap(std::move(real)) : real;
}

}  // namespace equigrad::property_tests::relations
