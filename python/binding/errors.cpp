// Exceptions on their way from the engine to Python.
#include <torch/csrc/Exceptions.h>

#include <exception>

#include "engine/comm/communication_error.hpp"
#include "engine/config/config.hpp"
#include "python/binding/binding.hpp"

namespace equigrad::python {
namespace {

struct ErrorClasses {
  py::object error;
  py::object config;
  py::object communication;
};

// Never destroyed: when the process ends, Python is gone before the statics.
ErrorClasses& classes() {
  static auto* kept = new ErrorClasses;
  return *kept;
}

void raise(const py::object& type, const Error& error, const char* name, const py::object& value) {
  auto exception = type(error.what());
  exception.attr(name) = value;
  PyErr_SetObject(type.ptr(), exception.ptr());
}

void translate(std::exception_ptr failure) {
  if (!failure) return;
  try {
    std::rethrow_exception(failure);
  } catch (const ConfigError& error) {
    raise(classes().config, error, "problems", py::cast(error.problems()));
  } catch (const comm::CommunicationError& error) {
    raise(classes().communication, error, "lost_rank", py::cast(error.lost_rank()));
  } catch (const Error& error) {
    PyErr_SetString(classes().error.ptr(), error.what());
  } catch (python_error& error) {  // a Python hook's, through autograd: as it was raised
    error.restore();
  } catch (const c10::Error&) {
    torch::translate_exception_to_python(failure);
  }  // all others are pybind11's
}

py::object make_class(py::module_& module, const char* name, const py::object& base,
                      const char* doc) {
  auto made = py::reinterpret_steal<py::object>(PyErr_NewExceptionWithDoc(
      (std::string("equigrad.") + name).c_str(), doc, base.ptr(), nullptr));
  module.attr(name) = made;
  return made;
}

}  // namespace

void bind_errors(py::module_& module) {
  auto& all = classes();
  all.error = make_class(module, "Error", py::reinterpret_borrow<py::object>(PyExc_RuntimeError),
                         "Bad input or a failed run: \"[where] expected X, got Y. Remedy.\"");
  all.config = make_class(module, "ConfigError", all.error,
                          "A configuration that is refused. `problems` lists every reason.");
  all.communication =
      make_class(module, "CommunicationError", all.error,
                 "A rank is lost, or did not come in time. `lost_rank` is None if unknown.");
  py::register_local_exception_translator(translate);
}

}  // namespace equigrad::python
