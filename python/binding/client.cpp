#include "python/binding/client.hpp"

#include <tuple>
#include <utility>

namespace equigrad::python {
namespace {

class Client final : public SliceOptimizer {
 public:
  explicit Client(py::object optimizer) : optimizer_(std::move(optimizer)) {}
  ~Client() override {
    const py::gil_scoped_acquire gil;
    optimizer_ = {};
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void own(const std::vector<OwnedSlice>& slices) override {
    std::vector<std::tuple<std::string, at::Tensor, int64_t, int64_t, at::Tensor>> all;
    for (const auto& slice : slices)
      all.emplace_back(slice.name, slice.parameter, slice.begin, slice.end, slice.master);
    call<void>("own", all);
  }
  void step(const std::vector<at::Tensor>& gradients) override { call<void>("step", gradients); }
  std::vector<double> lr() const override { return call<std::vector<double>>("lr"); }
  void set_rates(const std::vector<double>& lr, const std::vector<double>& beta1) override {
    call<void>("set_rates", lr, beta1);
  }
  std::vector<std::string> state_names(std::size_t slice) const override {
    return call<std::vector<std::string>>("state_names", slice);
  }
  at::Tensor state(std::size_t slice, const std::string& name) override {
    return call<at::Tensor>("state", slice, name);
  }
  int64_t state_bytes() const override { return call<int64_t>("state_bytes"); }
  std::string kind() const override { return call<std::string>("kind"); }
  std::string numbers(std::size_t slice) const override {
    return call<std::string>("numbers", slice);
  }
  void restore(std::size_t slice, const SliceStates& states, const std::string& numbers) override {
    call<void>("restore", slice, states, numbers);
  }

 private:
  template <class Result, class... Arguments>
  Result call(const char* method, const Arguments&... arguments) const {
    const py::gil_scoped_acquire gil;
    return optimizer_.attr(method)(arguments...).template cast<Result>();
  }

  py::object optimizer_;
};

}  // namespace

std::shared_ptr<SliceOptimizer> client_of(const py::object& optimizer) {
  if (optimizer.is_none()) return nullptr;
  return std::make_shared<Client>(optimizer);
}

}  // namespace equigrad::python
