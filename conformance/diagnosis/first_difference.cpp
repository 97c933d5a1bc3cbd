#include "conformance/diagnosis/first_difference.hpp"

#include <sys/stat.h>

#include "conformance/oracle/tensor_file.hpp"

namespace equigrad::conformance {

void FirstDifference::note(const std::string& at, int64_t first, const at::Tensor& of_engine,
                           const at::Tensor& of_twin) {
  const auto norm = where.find(" norm ");
  const bool is_sharper =
      norm != std::string::npos && at.starts_with(where.substr(0, norm + 1) + "gradient ");
  if (!where.empty() && !is_sharper) return;
  where = at;
  begin = first;
  got = of_engine.detach().clone();
  want = of_twin.detach().clone();
}

std::string FirstDifference::write(const std::string& folder, int rank) const {
  mkdir(folder.substr(0, folder.rfind('/')).c_str(), 0777);  // several ranks may: who is first does
  mkdir(folder.c_str(), 0777);
  const std::string name = "rank" + std::to_string(rank) + ".first.safetensors";
  oracle::write_tensors(folder + "/" + name, {{"got", got}, {"want", want}},
                        {{"where", where}, {"begin", std::to_string(begin)}});
  return name;
}

}  // namespace equigrad::conformance
