// Faults of parameters: what is gathered, kept, published, or cast.
#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include "conformance/faults/fault_groups.hpp"
#include "conformance/faults/forwarding_communicator.hpp"

namespace equigrad::conformance::faults {
namespace {

using parameter::Parameters;

// A keeper in which a fault publishes.
class Keeper : public Parameters {
 public:
  using Publish = std::function<void(Parameters& real, const at::Tensor& masters)>;
  Keeper(std::unique_ptr<Parameters> real, at::Tensor masters, Publish publish)
      : real_(std::move(real)), masters_(std::move(masters)), publish_(std::move(publish)) {}
  void publish() override { publish_(*real_, masters_); }
  void publish(std::size_t parameter, const at::Tensor& slice) override {
    real_->publish(parameter, slice);
  }
  at::Tensor whole(std::size_t parameter) override { return real_->whole(parameter); }
  void pin(std::size_t parameter) override { real_->pin(parameter); }
  void unpin(std::size_t parameter, bool keep) override { real_->unpin(parameter, keep); }
  at::Tensor as_seen(const at::Tensor& masters, bool lower_precision) const override {
    return real_->as_seen(masters, lower_precision);
  }
  bool is_pinned(std::size_t parameter) const override { return real_->is_pinned(parameter); }
  void settle() override { real_->settle(); }
  parameter::Traffic end_of_pass() noexcept override { return real_->end_of_pass(); }
  void rethrow_failure() override { real_->rethrow_failure(); }

 private:
  std::unique_ptr<Parameters> real_;
  at::Tensor masters_;
  Publish publish_;
};

void publish_by(Keeper::Publish publish) {
  seams().make_keeper = [publish](const parameter::Context& model, bool sharded) {
    return std::make_unique<Keeper>(through::make_keeper(model, sharded), model.masters, publish);
  };
}

// What was cached in the first step is taken for what is there now: pages when they arrive, whole
// parameters when they are published.
void keep_cached_weights(FaultContext& context) {
  auto pages = std::make_shared<std::map<const void*, at::Tensor>>();
  seams().page_arrive = [&context, pages](parameter::Page& self, memory::Ledger& ledger) {
    through::page_arrive(self, ledger);
    const auto tensor = self.tensor.variable_data();
    if (self.state != parameter::Page::State::Live || !context.has_begun()) return;
    auto& cached = (*pages)[self.tensor.unsafeGetTensorImpl()];
    if (!cached.defined()) cached = tensor.clone();
    if (context.step() == 0 || same_bits(cached, tensor)) return;
    context.acted();
    tensor.copy_(cached);
  };
  publish_by([&context](Parameters& real, const at::Tensor&) {
    if (context.step() == 1) return context.acted();
    real.publish();
  });
}

// The second half of the masters is read before the update has reached it.
void publish_half(FaultContext& context) {
  auto before = std::make_shared<at::Tensor>();
  seams().update_all = [before](optimizer::ShardedState& self, const at::Tensor& gradient,
                                const std::vector<bool>& used) {
    *before = self.masters().clone();
    through::update_all(self, gradient, used);
  };
  publish_by([&context, before](Parameters& real, const at::Tensor& masters) {
    if (!context.has_begun() || !before->defined()) return real.publish();
    const int64_t half = masters.numel() / 2;
    const auto part = masters.narrow(0, half, masters.numel() - half);
    const auto updated = part.clone();
    part.copy_(before->narrow(0, half, part.numel()));
    if (!same_bits(part, updated)) context.acted();
    real.publish();
    part.copy_(updated);
  });
}

// A page that is wanted again in the same pass is taken for one that is still there.
void release_after_first_use(FaultContext& context) {
  auto seen = std::make_shared<std::set<const void*>>();
  seams().window_end = [seen](gradient::Window& self) {
    seen->clear();
    through::window_end(self);
  };
  seams().page_arrive = [&context, seen](parameter::Page& self, memory::Ledger& ledger) {
    const bool arrives = self.state == parameter::Page::State::Arriving;
    through::page_arrive(self, ledger);
    if (!arrives || !context.has_begun()) return;
    if (seen->insert(self.tensor.unsafeGetTensorImpl()).second) return;
    if (self.tensor.variable_data().any().item<bool>()) context.acted();
    self.tensor.variable_data().zero_();
  };
}

// Parameters of one size are taken for each other where they are whole again.
void map_to_another(FaultContext& context) {
  auto copied = std::make_shared<std::map<int64_t, at::Tensor>>();
  const auto swapped = [&context, copied](const at::Tensor& flat) {
    auto& last = (*copied)[flat.numel()];
    const auto other = last;
    last = flat.clone();
    if (!other.defined() || !context.has_begun() || other.scalar_type() != flat.scalar_type())
      return;
    if (!same_bits(other, flat)) context.acted();
    flat.copy_(other);
  };
  seams().copy_out = [swapped](const at::Tensor& columns, const at::Tensor& flat) {
    through::copy_out(columns, flat);
    swapped(flat);
  };
  seams().page_arrive = [swapped](parameter::Page& self, memory::Ledger& ledger) {
    const bool arrives = self.state == parameter::Page::State::Arriving;
    through::page_arrive(self, ledger);
    if (arrives) swapped(self.tensor.variable_data().view(-1));
  };
}

class NoBroadcast : public ForwardingCommunicator {
 public:
  NoBroadcast(std::shared_ptr<comm::Communicator> communicator, FaultContext& context)
      : ForwardingCommunicator(std::move(communicator)), context_(context) {}
  PendingPtr broadcast(const at::Tensor& tensor, int root) override {
    const auto own = tensor.clone();
    return std::make_unique<Altered>(real_->broadcast(tensor, root), own, [this, own, tensor] {
      if (!same_bits(own, tensor)) context_.acted();
      tensor.copy_(own);
    });
  }

 private:
  FaultContext& context_;
};

Fault initial_broadcast_skipped() {
  Fault fault =
      at_seams("parameter.initial_broadcast_skipped", "every rank begins with its own parameters",
               {"DS-51"}, "forward", nullptr);
  fault.wrap = [](std::shared_ptr<comm::Communicator> communicator, FaultContext& context) {
    return std::make_shared<NoBroadcast>(std::move(communicator), context);
  };
  return fault;
}

// module.bfloat16(): buffers lose what the model computes in fp32.
void cast_buffers(FaultContext& context) {
  seams().initialize_module = [&context](torch::nn::Module& model, const std::string& config,
                                         comm::Mesh communicator) {
    for (auto& buffer : model.buffers()) {
      if (!buffer.is_floating_point()) continue;
      const auto cast = buffer.to(at::kBFloat16).to(buffer.scalar_type());
      if (!same_bits(cast, buffer)) context.acted();
      buffer.copy_(cast);
    }
    return through::initialize_module(model, config, std::move(communicator));
  };
}

}  // namespace

std::vector<Fault> parameter_faults() {
  return {
      at_seams("parameter.cached_weights", "the second step's weights are those of the first",
               {"TE-04"}, "parameter", keep_cached_weights),
      at_seams("parameter.published_half_updated",
               "what is published was read when half of the update was done", {"MG-10"},
               "parameter", publish_half),
      at_seams("parameter.released_after_first_use",
               "a parameter that is read twice in a pass has lost its data", {"DS-48"}, "forward",
               release_after_first_use),
      at_seams("parameter.mapped_to_another", "parameters of one size are taken for each other",
               {"DS-49"}, "parameter", map_to_another),
      initial_broadcast_skipped(),
      at_seams("parameter.buffers_cast", "buffers are rounded to bf16 with the model", {"DS-55"},
               "forward", cast_buffers),
      at_seams("parameter.never_published", "the parameters of the first step stay", {},
               "parameter",
               [](FaultContext& s) {
                 publish_by([&s](Parameters& real, const at::Tensor&) {
                   if (s.has_begun()) return s.acted();
                   real.publish();
                 });
               }),
  };
}

}  // namespace equigrad::conformance::faults
