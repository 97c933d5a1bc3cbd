#include "conformance/check/check.hpp"

#include <pthread.h>

#include "conformance/check/planted_ground.hpp"
#include "conformance/check/subject.hpp"
#include "conformance/cli/cli.hpp"
#include "conformance/faults/fault.hpp"
#include "conformance/ranks/interrupt.hpp"
#include "engine/comm/communicator.hpp"
#include "python/harness/check.hpp"
#include "reports/json.hpp"

namespace equigrad::python {
namespace {

using conformance::Forward;
namespace faults = conformance::faults;

// (name, tensor, type of the module that owns it), as _core.initialize takes them.
using Named = std::tuple<std::string, at::Tensor, std::string>;
using Module = std::tuple<std::string, std::string, std::vector<at::Tensor>>;

// A Python object that may be let go of on any thread.
using Kept = std::shared_ptr<py::object>;

Kept keep(py::object object) {
  return {new py::object(std::move(object)), [](py::object* kept) {
            const py::gil_scoped_acquire gil;
            delete kept;
          }};
}

// As words: the exception's own types end with the rank that they were raised in.
template <class Call>
auto in_python(Call call) {
  const py::gil_scoped_acquire gil;
  try {
    return call();
  } catch (const py::error_already_set& error) {
    const auto lines = py::module_::import("traceback")
                           .attr("format_exception")(error.type(), error.value(), error.trace());
    throw std::runtime_error(py::str("").attr("join")(lines).cast<std::string>());
  }
}

class PythonSubject : public conformance::Subject {
 public:
  explicit PythonSubject(Kept subject) : subject_(std::move(subject)) {}

  void move_to(at::Device device) override {
    in_python([&] { subject_->attr("move_to")(device.str()); });
  }

  std::vector<NamedParameter> parameters() override {
    return in_python([&] {
      std::vector<NamedParameter> all;
      for (auto& [name, tensor, type] : subject_->attr("parameters")().cast<std::vector<Named>>())
        all.push_back({name, tensor, type});
      return all;
    });
  }

  std::vector<layout::ModuleEntry> modules() override {
    return in_python([&] {
      std::vector<layout::ModuleEntry> all;
      for (const auto& [name, type, parameters] :
           subject_->attr("modules")().cast<std::vector<Module>>()) {
        all.push_back({name, type, {}});
        for (const auto& tensor : parameters)
          all.back().parameters.push_back(tensor.unsafeGetTensorImpl());
      }
      return all;
    });
  }

  std::vector<std::pair<std::string, at::Tensor>> buffers() override {
    return in_python([&] {
      return subject_->attr("buffers")().cast<std::vector<std::pair<std::string, at::Tensor>>>();
    });
  }

  Forward forward(const Which& which) override {
    return in_python([&] {
      const auto [output, gradient] =
          subject_
              ->attr("forward")(which.step, which.rank, which.micro_batch, which.world, which.dtype,
                                which.seed)
              .cast<std::pair<at::Tensor, std::optional<at::Tensor>>>();
      return Forward{output, gradient.value_or(at::Tensor())};
    });
  }

  std::unique_ptr<Engine> make_engine(const std::string& config,
                                      std::shared_ptr<comm::Communicator> group) override {
    auto parsed = load_config(config, group->world_size());
    const auto leaves = in_python(
        [&] { return subject_->attr("leaf_modules")().cast<std::vector<std::string>>(); });
    for (const auto& name : leaves) parsed.zero.leaf_module.names.push_back(name);
    return initialize({{.parameters = parameters()}}, parsed, std::move(group), modules());
  }

 private:
  Kept subject_;
};

// ---- Forks, as os.fork() does them. The process has one thread, which holds no GIL while it forks.

bool tells_python = false;
PyGILState_STATE state;

void before_fork() {
  if (!tells_python) return;
  state = PyGILState_Ensure();
  PyOS_BeforeFork();
}
void after_fork_in_parent() {
  if (!tells_python) return;
  PyOS_AfterFork_Parent();
  PyGILState_Release(state);
}
void after_fork_in_child() {
  if (!tells_python) return;
  PyOS_AfterFork_Child();
  PyGILState_Release(state);
}

struct TellingPython {
  TellingPython() {
    static const int registered =
        pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    tells_python = registered == 0;
  }
  ~TellingPython() { tells_python = false; }
};

// A key that is no option is an error of the caller's, python/equigrad/_check.py.
CheckOptions options_of(const py::dict& given) {
  CheckOptions options;
  const auto take = [&](const char* key, auto& value) {
    value = given[key].cast<std::decay_t<decltype(value)>>();
  };
  take("ranks", options.ranks);
  take("stages", options.stages);
  take("precisions", options.precisions);
  take("styles", options.styles);
  take("accumulation", options.accumulation);
  take("clips", options.clips);
  take("optimizers", options.optimizers);
  take("config", options.config);
  take("steps", options.steps);
  take("seed", options.seed);
  take("report", options.report);
  take("name", options.name);
  take("timeout_scale", options.timeout_scale);
  take("slots", options.slots);
  take("device", options.device);
  take("fault", options.fault);
  take("command", options.command);
  take("filters", options.filters);
  take("progress", options.progress);
  return options;
}

conformance::MakeSubject subjects_of(py::object make) {
  return [kept = keep(std::move(make))] {
    return in_python([&] { return std::make_unique<PythonSubject>(keep((*kept)())); });
  };
}

py::dict check_subject(py::object make, const py::dict& given) {
  const auto options = options_of(given);
  const auto make_subject = subjects_of(std::move(make));
  CheckReport report;
  {
    const py::gil_scoped_release no_gil;
    const TellingPython telling;
    report = check(make_subject, options);
  }
  return py::dict(py::arg("held") = report.held, py::arg("compared") = report.compared,
                  py::arg("notes") = report.notes, py::arg("text") = report.text(),
                  py::arg("run") = reports::to_json(report.run));
}

// Of stages 0 to 3 in these precisions: fault -> (acted, caught, ended, message).
using Plants = std::map<std::string, std::tuple<bool, bool, bool, std::string>>;

Plants plant_faults(py::object make, const std::vector<std::string>& precisions,
                    const std::vector<std::string>& names) {
  std::vector<conformance::Precision> all;
  for (const auto& name : precisions)
    for (const auto precision : conformance::precisions())
      if (conformance::word(precision) == name) all.push_back(precision);
  const auto make_subject = subjects_of(std::move(make));
  const py::gil_scoped_release no_gil;
  const TellingPython telling;
  conformance::PlantedGround ground(make_subject, conformance::every_stage(all));
  Plants plants;
  for (const auto& name : names) {
    const auto seen = ground.plant(name);
    plants[name] = {seen.acted, seen.caught, seen.ended, seen.message};
  }
  return plants;
}

// What Python refuses is a wrong command.
conformance::MakeSubject load_model(const Kept& load, const std::string& name) {
  const py::gil_scoped_acquire gil;
  try {
    return subjects_of((*load)(name));
  } catch (const py::error_already_set& error) {
    const std::string mark = "[model] ";
    const std::string text = py::str(error.value());
    if (!text.starts_with(mark)) throw std::runtime_error(error.what());
    throw CheckRefused("model", text.substr(mark.size()));
  }
}

int run_cli(const std::vector<std::string>& words, py::object load) {
  std::vector<const char*> argv;
  for (const auto& word : words) argv.push_back(word.c_str());
  const auto kept = keep(std::move(load));
  const py::gil_scoped_release no_gil;
  const TellingPython telling;
  return conformance::cli::run_cli(static_cast<int>(argv.size()), argv.data(),
                                   [&](const std::string& name) { return load_model(kept, name); });
}

}  // namespace

void bind_check(py::module_& module) {
  module.def("watch_interrupts", &conformance::ranks::watch_interrupts);
  module.def("interrupted", &conformance::ranks::interrupted);
  module.def(
      "historical_faults",
      [] {
        std::vector<std::string> names;
        for (const auto& fault : faults::catalogue())
          if (!fault.bugs.empty()) names.push_back(fault.name);
        return names;
      },
      "Bugs that engines have had, each to be planted by its name.");
  module.def("plant_faults", &plant_faults, py::arg("make_subject"), py::arg("precisions"),
             py::arg("names"));
  module.def("run_cli", &run_cli, py::arg("words"), py::arg("load_model"),
             "The command `equigrad`; its exit code.");
  module.def("check", &check_subject, py::arg("make_subject"), py::arg("options"));
}

}  // namespace equigrad::python
