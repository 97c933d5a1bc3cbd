// The engine's calls, and the values that go in and come out.
#include "engine/engine.hpp"

#include <pybind11/functional.h>

#include "engine/autograd/interpreter_lock.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/config/load_for_client.hpp"
#include "engine/memory/ledger.hpp"
#include "engine/zero_init.hpp"
#include "python/binding/binding.hpp"
#include "python/binding/client.hpp"

namespace equigrad::python {
namespace {

using NoGil = py::call_guard<py::gil_scoped_release>;
// Of an object that waits for other ranks when it ends.
using WithoutGil = py::release_gil_before_calling_cpp_dtor;

void* give_up_gil() { return PyGILState_Check() == 1 ? PyEval_SaveThread() : nullptr; }
void take_gil_back(void* state) { PyEval_RestoreThread(static_cast<PyThreadState*>(state)); }

// torch's name.
const char* torch_name(DataType type) {
  constexpr std::array names = {"float32", "bfloat16", "float16"};
  return names[static_cast<std::size_t>(type)];
}

// (name, tensor, type of the module that owns it), as initialize takes them.
using Named = std::tuple<std::string, at::Tensor, std::string>;

struct Group {
  std::vector<Named> parameters;
  std::optional<double> lr;
  std::optional<double> weight_decay;
  std::string settings;
};

// A module of the model: its name, its type, its own parameters.
using Module = std::tuple<std::string, std::string, std::vector<at::Tensor>>;

// What an engine hands out lives until it is closed, or collected.
class Guard {
 public:
  explicit Guard(std::shared_ptr<void> guard) : guard_(std::move(guard)) {}
  void close() {
    const py::gil_scoped_release no_gil;
    guard_.reset();
  }

 private:
  std::shared_ptr<void> guard_;
};

// An exception inside is an exception of the scope: where C++ counts those under way, Python tells.
class Gathered {
 public:
  explicit Gathered(GatheredParameters gathered) : gathered_(std::move(gathered)) {}
  void end() {
    gathered_->end();
    gathered_.reset();
  }
  void abandon() {
    struct Scope {
      std::optional<GatheredParameters>& gathered;
      ~Scope() { gathered.reset(); }
    };
    try {
      const Scope scope{gathered_};
      throw std::exception();
    } catch (const std::exception&) {
    }
  }

 private:
  std::optional<GatheredParameters> gathered_;
};

// zero::Init as a scope of Python's, which tells of an exception itself.
class Init {
 public:
  Init(const std::string& config, std::shared_ptr<comm::Communicator> communicator)
      : init_(std::in_place, config, std::move(communicator)) {}
  void finish() {
    init_->finish();
    init_.reset();
  }
  void abandon() {
    struct Scope {
      std::optional<zero::Init>& init;
      ~Scope() { init.reset(); }
    };
    try {
      const Scope scope{init_};
      throw std::exception();
    } catch (const std::exception&) {
    }
  }

 private:
  std::optional<zero::Init> init_;
};

// A call without arguments as the model of Engine::forward.
struct Callable {
  py::object call;

  py::object forward() const { return call(); }
};

std::unique_ptr<Engine> make_engine(const std::vector<Group>& groups,
                                    const std::vector<Module>& modules, const EngineConfig& config,
                                    const comm::Mesh& ranks, const py::object& optimizer) {
  auto client = client_of(optimizer);
  const py::gil_scoped_release no_gil;
  std::vector<ParameterGroup> all;
  for (const auto& group : groups) {
    all.push_back({{}, group.lr, group.weight_decay, group.settings});
    for (const auto& [name, tensor, type] : group.parameters)
      all.back().parameters.push_back({name, tensor, type});
  }
  std::vector<layout::ModuleEntry> tree;
  for (const auto& [name, type, parameters] : modules) {
    tree.push_back({name, type, {}});
    for (const auto& tensor : parameters)
      tree.back().parameters.push_back(tensor.unsafeGetTensorImpl());
  }
  if (client) return initialize(std::move(all), config, ranks, std::move(client), std::move(tree));
  return initialize(std::move(all), config, ranks, std::move(tree));
}

std::map<std::string, std::pair<int64_t, int64_t>> bytes_held(const Engine& engine) {
  std::map<std::string, std::pair<int64_t, int64_t>> all;
  const auto& ledger = engine.ledger();
  for (int i = 0; i < memory::kCategories; ++i) {
    const auto category = static_cast<memory::Category>(i);
    all[memory::kCategoryNames[static_cast<std::size_t>(i)]] = {ledger.bytes(category),
                                                                ledger.peak_bytes(category)};
  }
  all["total"] = {ledger.total_bytes(), ledger.total_peak_bytes()};
  return all;
}

void bind_config_of_precision(py::class_<EngineConfig>& config) {
  config
      .def_property_readonly(
          "autocast_dtype",
          [](const EngineConfig& c) { return torch_name(c.precision.autocast.dtype); },
          "The name of the torch.dtype of torch_autocast.")
      .def_property_readonly(
          "accumulate_dtype",
          [](const EngineConfig& c) { return torch_name(c.precision.accumulate); },
          "That of gradients that are added up.")
      .def_property_readonly(
          "communication_dtype",
          [](const EngineConfig& c) -> std::optional<std::string> {
            if (!c.precision.communication) return std::nullopt;
            return torch_name(*c.precision.communication);
          },
          "None: gradients are sent in the type they have.")
      .def_property_readonly(
          "lower_precision_safe_modules",
          [](const EngineConfig& c) { return c.precision.autocast.lower_precision_safe_modules; },
          "Full names of the types whose parameters are sent in autocast_dtype.")
      .def_property_readonly("dynamic_loss_scale",
                             [](const EngineConfig& c) {
                               using Policy = LossScaleConfig::Policy;
                               const auto policy = c.precision.loss_scale.policy;
                               return policy == Policy::DeepSpeed || policy == Policy::GradScaler;
                             })
      .def_property_readonly(
          "loss_scale_window",
          [](const EngineConfig& c) { return c.precision.loss_scale.loss_scale_window; })
      .def_property_readonly(
          "min_loss_scale",
          [](const EngineConfig& c) { return c.precision.loss_scale.min_loss_scale; })
      .def_property_readonly(
          "leaf_modules",
          [](const EngineConfig& c) {
            const auto& leaves = c.zero.leaf_module;
            return std::tuple(leaves.classes, leaves.names, leaves.name_suffixes);
          },
          "(classes, names, suffixes of names)");
}

void bind_values(py::module_& module) {
  py::class_<EngineConfig> config(module, "EngineConfig", "A configuration that was checked.");
  bind_config_of_precision(config);
  config.def_readonly("train_batch_size", &EngineConfig::train_batch_size)
      .def_readonly("train_micro_batch_size_per_gpu", &EngineConfig::train_micro_batch_size_per_gpu)
      .def_readonly("gradient_accumulation_steps", &EngineConfig::gradient_accumulation_steps)
      .def_readonly("gradient_clipping", &EngineConfig::gradient_clipping)
      .def_readonly("communication_timeout_s", &EngineConfig::communication_timeout_s)
      .def_readonly("dataloader_drop_last", &EngineConfig::dataloader_drop_last)
      .def_property_readonly("stage", [](const EngineConfig& c) { return c.zero.stage; })
      .def_property_readonly("tensor_parallel_size", &EngineConfig::tensor_parallel_size)
      .def_readonly("sequence_parallel_size", &EngineConfig::sequence_parallel_size)
      .def_property_readonly(
          "compute_dtype", [](const EngineConfig& c) { return torch_name(c.precision.param); },
          "The name of the torch.dtype that parameters are computed in.")
      .def_property_readonly(
          "persistent_numel",
          [](const EngineConfig& c) {
            return c.zero.stage == 3 ? c.zero.stage3_param_persistence_threshold
                                     : std::numeric_limits<int64_t>::max();
          },
          "Parameters up to this size stay whole.")
      .def_property_readonly("scales_loss",
                             [](const EngineConfig& c) {
                               return c.precision.loss_scale.policy !=
                                      LossScaleConfig::Policy::None;
                             })
      .def_property_readonly("autocast",
                             [](const EngineConfig& c) { return c.precision.autocast.enabled; })
      .def_property_readonly("progressive_layer_drop",
                             [](const EngineConfig& c) { return c.progressive_layer_drop.enabled; })
      .def_property_readonly("has_scheduler",
                             [](const EngineConfig& c) { return c.scheduler.has_value(); })
      .def(
          "add_leaf_module",
          [](EngineConfig& c, const std::string& name) {
            c.zero.leaf_module.names.push_back(name);
          },
          py::arg("name"));
  module.def("load_config", &load_config, py::arg("text_or_path"), py::arg("world_size"));
  module.def("load_config_for_client", &load_config_for_client, py::arg("text_or_path"),
             py::arg("world_size"), "Beside an optimizer of the caller's.");
  module.def(
      "describe_config",
      [](const std::string& text, int world_size) {
        return describe(explain_config(text, world_size));
      },
      py::arg("text_or_path"), py::arg("world_size"));
  module.def(
      "settings",
      [](const std::string& text, int world_size, bool has_client) {
        std::map<std::string, std::string> values;
        const auto effective = has_client ? explain_config_for_client(text, world_size)
                                          : explain_config(text, world_size);
        for (const auto& setting : effective.settings) values[setting.key] = setting.value;
        return values;
      },
      py::arg("text_or_path"), py::arg("world_size"), py::arg("has_client"),
      "By the path of a key, its value as JSON: of keys that are read, and of others given.");
  py::class_<OptimizerConfig>(module, "HyperParameters",
                              "What the configured optimizer takes, of one parameter group.")
      .def_property_readonly(
          "is_sgd", [](const OptimizerConfig& c) { return c.kind == OptimizerConfig::Kind::Sgd; })
      .def_readwrite("lr", &OptimizerConfig::lr)
      .def_readwrite("weight_decay", &OptimizerConfig::weight_decay)
      .def_property(
          "betas", [](const OptimizerConfig& c) { return std::make_pair(c.beta1, c.beta2); },
          [](OptimizerConfig& c, std::pair<double, double> betas) {
            std::tie(c.beta1, c.beta2) = betas;
          })
      .def_readwrite("eps", &OptimizerConfig::eps)
      .def_readwrite("momentum", &OptimizerConfig::momentum)
      .def_readwrite("dampening", &OptimizerConfig::dampening)
      .def_readwrite("nesterov", &OptimizerConfig::nesterov);
  py::class_<Group>(module, "ParameterGroup")
      .def(
          py::init<std::vector<Named>, std::optional<double>, std::optional<double>, std::string>(),
          py::arg("parameters"), py::arg("lr"), py::arg("weight_decay"), py::arg("settings") = "");
  py::class_<Counters>(module, "Counters")
      .def_readonly("micro_steps", &Counters::micro_steps)
      .def_readonly("global_steps", &Counters::global_steps)
      .def_readonly("skipped_steps", &Counters::skipped_steps);
  py::class_<LocalShard>(module, "LocalShard",
                         "What this rank owns of one parameter: [begin, end).")
      .def_readonly("name", &LocalShard::name)
      .def_readonly("begin", &LocalShard::begin)
      .def_readonly("end", &LocalShard::end)
      .def_readonly("gradient", &LocalShard::gradient)
      .def_readonly("master", &LocalShard::master)
      .def_readonly("state", &LocalShard::state);
  py::class_<Guard>(module, "Guard", WithoutGil())
      .def("close", &Guard::close)
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__", [](Guard& guard, const py::args&) { guard.close(); });
  py::class_<Init>(module, "Init", WithoutGil())
      .def(py::init<const std::string&, std::shared_ptr<comm::Communicator>>(), py::arg("config"),
           py::arg("communicator"), NoGil())
      .def("finish", &Init::finish, NoGil())
      .def("abandon", &Init::abandon, NoGil());
  py::class_<Gathered>(module, "Gathered", WithoutGil())
      .def("end", &Gathered::end, NoGil())
      .def("abandon", &Gathered::abandon, NoGil());
}

void bind_access(py::class_<Engine>& engine) {
  using Get = at::Tensor (Access::*)(const std::string&);
  using Set = void (Access::*)(const std::string&, const at::Tensor&);
  const auto get = [&engine](const char* name, Get call) {
    engine.def(
        name,
        [call](Engine& e, const std::string& parameter) { return (e.access().*call)(parameter); },
        py::arg("parameter"), NoGil());
  };
  const auto set = [&engine](const char* name, Set call) {
    engine.def(
        name,
        [call](Engine& e, const std::string& parameter, const at::Tensor& value) {
          (e.access().*call)(parameter, value);
        },
        py::arg("parameter"), py::arg("value"), NoGil());
  };
  get("full_gradient", &Access::full_gradient);
  get("full_master", &Access::full_master);
  get("local_gradient", &Access::local_gradient);
  get("local_master", &Access::local_master);
  set("set_full_gradient", &Access::set_full_gradient);
  set("set_full_master", &Access::set_full_master);
  set("set_local_gradient", &Access::set_local_gradient);
  set("set_local_master", &Access::set_local_master);
  using GetState = at::Tensor (Access::*)(const std::string&, const std::string&);
  using SetState = void (Access::*)(const std::string&, const std::string&, const at::Tensor&);
  const auto get_state = [&engine](const char* name, GetState call) {
    engine.def(
        name,
        [call](Engine& e, const std::string& parameter, const std::string& state) {
          return (e.access().*call)(parameter, state);
        },
        py::arg("parameter"), py::arg("state"), NoGil());
  };
  const auto set_state = [&engine](const char* name, SetState call) {
    engine.def(
        name,
        [call](Engine& e, const std::string& parameter, const std::string& state,
               const at::Tensor& value) { (e.access().*call)(parameter, state, value); },
        py::arg("parameter"), py::arg("state"), py::arg("value"), NoGil());
  };
  get_state("full_optimizer_state", &Access::full_optimizer_state);
  get_state("local_optimizer_state", &Access::local_optimizer_state);
  set_state("set_full_optimizer_state", &Access::set_full_optimizer_state);
  set_state("set_local_optimizer_state", &Access::set_local_optimizer_state);
}

void bind_training(py::class_<Engine>& engine) {
  engine
      .def(
          "forward",
          [](Engine& e, py::object call) {
            Callable model{std::move(call)};
            return e.forward(model);
          },
          py::arg("call"))
      .def("layer_drop",
           [](const Engine& e) {
             return py::dict(py::arg("progressive_layer_drop") = true,
                             py::arg("pld_theta") = e.layer_drop().pld_theta);
           })
      .def("backward", &Engine::backward, py::arg("loss"), py::arg("retain_graph") = false,
           py::arg("scale_wrt_gas") = true, NoGil())
      .def("scale", &Engine::scale, py::arg("tensor"), NoGil())
      .def("loss_scale", &Engine::loss_scale)
      .def("share_loss_scale", &Engine::share_loss_scale, py::arg("other"))
      .def("autocast", [](Engine& e) { return Guard(e.autocast()); })
      .def("no_sync", [](Engine& e) { return Guard(e.no_sync()); })
      .def("step", &Engine::step, py::arg("lr_kwargs") = schedule::LrKeywords(), NoGil())
      .def("zero_grad", &Engine::zero_grad, NoGil())
      .def("is_gradient_accumulation_boundary", &Engine::is_gradient_accumulation_boundary)
      .def("set_gradient_accumulation_boundary", &Engine::set_gradient_accumulation_boundary,
           py::arg("is_boundary"))
      .def("set_train_batch_size", &Engine::set_train_batch_size, py::arg("train_batch_size"))
      .def(
          "gather",
          [](Engine& e, const std::vector<at::Tensor>& parameters,
             std::optional<int> modifier_rank) {
            return std::make_unique<Gathered>(e.gather(parameters, modifier_rank));
          },
          py::arg("parameters"), py::arg("modifier_rank") = std::nullopt, NoGil())
      .def("on_step", &Engine::on_step, py::arg("observer"));
}

void bind_getters(py::class_<Engine>& engine) {
  engine.def_property_readonly("config", &Engine::config)
      .def("get_lr", &Engine::get_lr)
      .def("set_lr", py::overload_cast<const std::vector<double>&>(&Engine::set_lr),
           py::arg("lr_by_group"), NoGil())
      .def("hyper_parameters", &Engine::hyper_parameters, "By group; none with a client.")
      .def("set_hyper_parameters", &Engine::set_hyper_parameters, py::arg("by_group"), NoGil())
      .def("counters", &Engine::counters)
      .def("was_step_applied", &Engine::was_step_applied)
      .def("get_global_grad_norm", &Engine::get_global_grad_norm)
      .def("full_parameter", &Engine::full_parameter, py::arg("name"), NoGil())
      .def("local_shards", &Engine::local_shards)
      .def("bytes_held", &bytes_held, "By category: (now, at the peak).");
}

}  // namespace

void bind_engine(py::module_& module) {
  bind_values(module);
  autograd::set_interpreter_lock({give_up_gil, take_gil_back});
  py::class_<Engine> engine(module, "Engine", WithoutGil());
  bind_training(engine);
  bind_getters(engine);
  bind_access(engine);
  bind_checkpoint(module, engine);
  module.def("initialize", &make_engine, py::arg("groups"), py::arg("modules"), py::arg("config"),
             py::arg("communicator"), py::arg("optimizer") = py::none());
}

}  // namespace equigrad::python
