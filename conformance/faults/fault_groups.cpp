#include "conformance/faults/fault_groups.hpp"

#include <ATen/ATen.h>

#include <cstring>

namespace equigrad::conformance::faults {

Fault at_seams(const std::string& name, const std::string& what, std::vector<std::string> bugs,
               const std::string& phase, std::function<void(FaultContext&)> plant) {
  return {.name = name,
          .what = what,
          .seam = name.substr(0, name.find('.')),
          .bugs = std::move(bugs),
          .phase = phase,
          .plant = std::move(plant),
          .wrap = nullptr};
}

std::shared_ptr<const Layout> watch_layout() {
  auto layout = std::make_shared<Layout>();
  seams().make_keeper = [layout](const parameter::Context& model, bool sharded) {
    *layout = {&model.plan, &model.table, model.masters};
    return through::make_keeper(model, sharded);
  };
  return layout;
}

void change_factor(FaultContext& context, std::function<double(double)> change) {
  seams().window_average = [&context, change](gradient::Window& self, double factor) {
    const double other = change(factor);
    if (other != factor) context.acted();
    return through::window_average(self, other);
  };
}

void change_gradient(FaultContext& context, Change change) {
  seams().window_ready = [&context, change](gradient::Window& self, std::size_t parameter,
                                            const at::Tensor& gradient) {
    const auto other = change(parameter, gradient);
    if (!other.defined()) return through::window_ready(self, parameter, gradient);
    if (!same_bits(other, gradient)) context.acted_on(parameter);
    through::window_ready(self, parameter, other);
  };
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.numel() != b.numel()) return false;
  const auto left = a.contiguous(), right = b.contiguous();
  return std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

}  // namespace equigrad::conformance::faults
