#include "conformance/generator/simpler.hpp"

#include <algorithm>
#include <functional>
#include <utility>

namespace equigrad::conformance {
namespace {

using nlohmann::json;

class Steps {
 public:
  explicit Steps(const GeneratedCase& one) : one_(one) {}

  // Of a copy; nothing where it comes out as it was.
  template <class Change>
  void add(Change change) {
    auto copy = one_;
    change(copy);
    copy.id = {};
    if (to_json(copy) != to_json(one_)) all_.push_back(std::move(copy));
  }
  std::vector<GeneratedCase> take() { return std::move(all_); }

 private:
  const GeneratedCase& one_;
  std::vector<GeneratedCase> all_;
};

// How many ranks there are along each axis.
struct Axes {
  int data, tensor, sequence;
};

Axes ranks_of(const Workload& workload) {
  return {workload.data_ranks(), workload.tensor_ranks(), workload.sequence_ranks()};
}

void write_mesh(const Axes& ranks, json& config) {
  config.erase("tensor_parallel");
  config.erase("sequence_parallel_size");
  if (ranks.tensor > 1) config["tensor_parallel"]["autotp_size"] = ranks.tensor;
  if (ranks.sequence > 1) config["sequence_parallel_size"] = ranks.sequence;
}

// The sizes of a batch follow the ranks and the micro-batches.
void resize(GeneratedCase& one, const Axes& ranks, int accumulation) {
  auto& workload = one.workload;
  workload.world = ranks.data * ranks.tensor * ranks.sequence;
  workload.accumulation = accumulation;
  if (workload.core) {
    workload.core->tensor = ranks.tensor;
    workload.core->sequence = ranks.sequence;
    write_mesh(ranks, workload.config);
  }
  workload.config.erase("train_batch_size");
  workload.config["train_micro_batch_size_per_gpu"] = 1;
  workload.config["gradient_accumulation_steps"] = accumulation;
  if (accumulation > 1) one.execution.knobs.erase("managed_gradient_accumulation");
  std::erase_if(workload.passes, [&](const PassEvent& event) {
    return event.rank >= workload.zero_ranks() || event.micro_batch >= accumulation;
  });
  std::erase_if(one.execution.events,
                [&](const HarmlessEvent& event) { return event.micro_batch >= accumulation; });
}

void remove_tensors(Workload& workload, std::size_t begin, std::size_t end) {
  const auto first = static_cast<int>(begin), last = static_cast<int>(end);
  std::erase_if(workload.passes, [&](const PassEvent& event) {
    return event.what == "overflow" && event.tensor >= first && event.tensor < last;
  });
  for (auto& event : workload.passes)
    if (event.what == "overflow" && event.tensor >= last) event.tensor -= last - first;
  workload.tensors.erase(workload.tensors.begin() + first, workload.tensors.begin() + last);
}

void of_ranks(const GeneratedCase& one, Steps& steps) {
  const auto& workload = one.workload;
  const auto now = ranks_of(workload);
  const auto add = [&](const Axes& ranks) {
    steps.add([&](GeneratedCase& copy) { resize(copy, ranks, workload.accumulation); });
  };
  for (const int data : {1, 2, now.data - 1})
    if (data >= 1 && data < now.data) add({data, now.tensor, now.sequence});
  for (const int tensor : {1, now.tensor / 2})
    if (tensor >= 1 && tensor < now.tensor) add({now.data, tensor, now.sequence});
  for (const int sequence : {1, now.sequence / 2})
    if (sequence >= 1 && sequence < now.sequence) add({now.data, now.tensor, sequence});
}

// Sizes that its ranks still divide, and what it need not have.
void of_core(const GeneratedCase& one, Steps& steps) {
  if (!one.workload.core) return;
  const auto& core = *one.workload.core;
  const auto add = [&](auto change) {
    steps.add([&](GeneratedCase& copy) { change(*copy.workload.core); });
  };
  if (!one.workload.tensors.empty())
    steps.add([&](GeneratedCase& copy) {
      resize(copy, {one.workload.data_ranks(), 1, 1}, copy.workload.accumulation);
      copy.workload.core.reset();
      std::erase_if(copy.workload.passes, [](const PassEvent& event) { return event.tensor < 0; });
    });
  for (const auto size : {&WorkloadCore::layers, &WorkloadCore::batch, &WorkloadCore::width})
    add([&](WorkloadCore& of) { of.*size = 1; });
  add([](WorkloadCore& of) { of.features = 2; });
  add([](WorkloadCore& of) { of.vocabulary = 2 * of.tensor; });
  add([](WorkloadCore& of) { of.hidden = of.tensor; });
  add([](WorkloadCore& of) { of.context = std::max(2, of.sequence); });
  const bool is_plain = core.key_heads % (core.tensor * core.sequence) == 0;
  add([&](WorkloadCore& of) { of.heads = is_plain ? of.key_heads : of.heads; });
  add([](WorkloadCore& of) { of.is_tied = of.has_qkv_bias = true; });
  add([](WorkloadCore& of) { of.has_padding = of.has_spare = false; });
  add([](WorkloadCore& of) { of.loss = "split"; });
  add([](WorkloadCore& of) { of.labels = "all"; });
  add([](WorkloadCore& of) { of.frozen = "none"; });
}

void of_passes_and_steps(const GeneratedCase& one, Steps& steps) {
  const auto& workload = one.workload;
  for (const int accumulation : {1, workload.accumulation - 1})
    if (accumulation >= 1 && accumulation < workload.accumulation)
      steps.add([&](GeneratedCase& copy) { resize(copy, ranks_of(copy.workload), accumulation); });
  for (const int count : {1, workload.steps / 2, workload.steps - 1})
    if (count >= 1 && count < workload.steps)
      steps.add([&](GeneratedCase& copy) {
        copy.workload.steps = count;
        const auto is_late = [&](const auto& event) { return event.step >= count; };
        std::erase_if(copy.workload.passes, is_late);
        std::erase_if(copy.workload.rates, is_late);
        std::erase_if(copy.execution.events, is_late);
        if (copy.execution.resumed_before >= count) copy.execution.resumed_before = -1;
      });
}

void of_tensors(const GeneratedCase& one, Steps& steps) {
  const auto count = one.workload.tensors.size();
  if (one.workload.core && count > 0)
    steps.add([&](GeneratedCase& copy) { remove_tensors(copy.workload, 0, count); });
  for (std::size_t size = count / 2; size >= 1; size /= 2)
    for (std::size_t begin = 0; begin + size <= count && count > 1; begin += size)
      steps.add([&](GeneratedCase& copy) { remove_tensors(copy.workload, begin, begin + size); });
  for (std::size_t i = 0; i < std::min<std::size_t>(count, 24); ++i) {
    steps.add([&](GeneratedCase& copy) { copy.workload.tensors[i].hook = "none"; });
    steps.add([&](GeneratedCase& copy) { copy.workload.tensors[i].values = "usual"; });
    steps.add([&](GeneratedCase& copy) { copy.workload.tensors[i].layout = "contiguous"; });
    steps.add([&](GeneratedCase& copy) { copy.workload.tensors[i].second_name = {}; });
    for (std::size_t d = 0; d < one.workload.tensors[i].sizes.size(); ++d)
      steps.add([&](GeneratedCase& copy) {
        auto& size = copy.workload.tensors[i].sizes[d];
        size = size > 1 ? size / 2 : size;
        for (auto& event : copy.workload.passes) event.element = 0;
      });
  }
}

// Every key of an object, and every key within.
void of_keys(const json& object, const std::vector<std::string>& path, Steps& steps,
             const std::function<json&(GeneratedCase&)>& root) {
  for (const auto& item : object.items()) {
    const std::string key = item.key();
    const auto& value = item.value();
    const bool is_needed = path.empty() && (key == "optimizer" || key.starts_with("train_") ||
                                            key == "gradient_accumulation_steps");
    auto inner = path;
    inner.push_back(key);
    if (!is_needed && key != "type")
      steps.add([&](GeneratedCase& copy) {
        json* place = &root(copy);
        for (const auto& part : path) place = &(*place)[part];
        place->erase(key);
      });
    if (value.is_object()) of_keys(value, inner, steps, root);
  }
}

}  // namespace

std::vector<GeneratedCase> simpler_than(const GeneratedCase& one) {
  Steps steps(one);
  steps.add([](GeneratedCase& copy) {
    copy.execution.events.clear();
    copy.execution.knobs = json::object();
    copy.execution.adversary = 0;
    copy.execution.resumed_before = -1;
  });
  of_ranks(one, steps);
  of_passes_and_steps(one, steps);
  of_core(one, steps);
  steps.add([](GeneratedCase& copy) { copy.execution.events.clear(); });
  steps.add([](GeneratedCase& copy) { copy.execution.knobs = json::object(); });
  steps.add([](GeneratedCase& copy) { copy.execution.adversary = 0; });
  steps.add([](GeneratedCase& copy) { copy.execution.resumed_before = -1; });
  steps.add([](GeneratedCase& copy) { copy.workload.passes.clear(); });
  steps.add([](GeneratedCase& copy) { copy.workload.rates.clear(); });
  of_tensors(one, steps);
  of_keys(one.workload.config, {}, steps,
          [](GeneratedCase& copy) -> json& { return copy.workload.config; });
  of_keys(one.execution.knobs, {}, steps,
          [](GeneratedCase& copy) -> json& { return copy.execution.knobs; });
  for (std::size_t i = 0; i < one.execution.events.size(); ++i)
    steps.add([&](GeneratedCase& copy) {
      copy.execution.events.erase(copy.execution.events.begin() + static_cast<std::ptrdiff_t>(i));
    });
  for (std::size_t i = 0; i < one.workload.groups.size(); ++i)
    steps.add([&](GeneratedCase& copy) { copy.workload.groups[i] = {}; });
  return steps.take();
}

}  // namespace equigrad::conformance
