// What the ranks of a sequence group compute together: attention by heads, parts of a batch, losses.
#include "engine/parallel/sequence.hpp"

#include "engine/parallel/distributed_attention.hpp"
#include "python/binding/binding.hpp"

namespace equigrad::python {
namespace {

using parallel::Attended;
using parallel::Group;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using NoGil = py::call_guard<py::gil_scoped_release>;

Three scatter_heads(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                    const Group& group, int64_t heads, int64_t sequence) {
  const auto got = parallel::scatter_heads({query, key, value}, group, {heads, sequence});
  return {got.query, got.key, got.value};
}

at::Tensor gather_heads(const at::Tensor& output, const at::Tensor& query, const Group& group,
                        int64_t heads, int64_t sequence) {
  return parallel::gather_heads(output, {query, {}, {}}, group, {heads, sequence});
}

}  // namespace

void bind_sequence(py::module_& module) {
  using py::arg;
  const auto group = arg("group").none(true);
  module.def("scatter_heads", &scatter_heads, arg("query"), arg("key"), arg("value"), group,
             arg("heads"), arg("sequence"), NoGil(),
             "From a part of the sequence and all heads to the whole sequence and some heads.");
  module.def("gather_heads", &gather_heads, arg("output"), arg("query"), group, arg("heads"),
             arg("sequence"), NoGil(), "The way back, of the attention of these queries.");
  module.def("sequence_part", &parallel::sequence_part, arg("whole"), arg("dimension"), group,
             NoGil(), "This rank's part, a copy, not differentiated.");
  module.def("next_tokens", &parallel::next_tokens, arg("labels"),
             arg("ignored") = parallel::kIgnoredTarget, "Each label at the place before it.");
  module.def("check_same", &parallel::check_same, arg("tensor"), group, arg("name"), NoGil(),
             "That all ranks have the same.");
  module.def("sequence_mean", &parallel::sequence_mean, arg("sum_of_losses"), arg("valid_tokens"),
             group, NoGil(), "The mean over the group's tokens; ranks' gradients add up.");
  module.def("sequence_cross_entropy", &parallel::sequence_cross_entropy, arg("logits"),
             arg("targets"), group, arg("ignored") = parallel::kIgnoredTarget, NoGil(),
             "The mean over the group's targets that are not ignored.");
}

}  // namespace equigrad::python
