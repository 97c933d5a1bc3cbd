#include "conformance/check/registered_model.hpp"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "conformance/check/check.hpp"

namespace equigrad::conformance {
namespace {

std::string stamp_of(void* library, const std::string& path) {
  void* symbol = dlsym(library, kRegisteredModel);
  if (symbol == nullptr)
    throw CheckRefused("model", "expected a library with EQUIGRAD_MODEL, got " + path +
                                    " without. Write EQUIGRAD_MODEL(factory, loss) once into it.");
  return reinterpret_cast<const RegisteredModel* (*)()>(symbol)()->stamp;
}

}  // namespace

UserModel load_model(const std::string& path) {
  char resolved[PATH_MAX];  // dlopen looks for a name without a slash elsewhere
  struct stat found {};
  if (realpath(path.c_str(), resolved) == nullptr || stat(resolved, &found) != 0 ||
      !S_ISREG(found.st_mode)) {
    const bool is_python =
        path.find(':') != std::string::npos && path.find('/') == std::string::npos;
    throw CheckRefused("model",
                       "expected the file of a shared library, got \"" + path + "\". " +
                           (is_python ? "MODULE:FACTORY is taken by the equigrad of the Python "
                                        "package: pip install . in a checkout."
                                      : "Correct the path."));
  }
  // At once, so that a symbol that is missing is named here and not in a rank. Of a library that
  // does not load so the stamp says more, if it is of another torch.
  void* library = dlopen(resolved, RTLD_NOW | RTLD_LOCAL);
  const std::string complaint = library == nullptr ? dlerror() : "";
  if (library == nullptr) library = dlopen(resolved, RTLD_LAZY | RTLD_LOCAL);
  const std::string stamp = library == nullptr ? EQUIGRAD_MODEL_STAMP : stamp_of(library, path);
  if (stamp != EQUIGRAD_MODEL_STAMP)
    throw CheckRefused("model", "expected a library built with " EQUIGRAD_MODEL_STAMP ", got " +
                                    path + " built with " + stamp + ". Build it anew with these.");
  if (!complaint.empty())
    throw CheckRefused("model", "expected a shared library that loads, got: " + complaint +
                                    ". Link it to all that it uses, with the torch of this build.");
  const auto* registered =
      reinterpret_cast<const RegisteredModel* (*)()>(dlsym(library, kRegisteredModel))();
  UserModel model;
  registered->get(model);
  return model;
}

std::string model_name(const std::string& path) {
  auto name = path.substr(path.rfind('/') + 1);
  name = name.substr(0, name.find(".so"));
  if (name.starts_with("lib")) name = name.substr(3);
  for (char& c : name) {
    const bool is_plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    if (!is_plain) c = '-';
  }
  return name.empty() ? "model" : name;
}

}  // namespace equigrad::conformance
