#include "conformance/campaigns/kept_failures.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <utility>

namespace equigrad::conformance {

KeptFailures::KeptFailures(std::string folder, bool tensors, std::string scratch)
    : folder_(std::move(folder)), tensors_(tensors), scratch_(std::move(scratch)) {}

void KeptFailures::ask(nlohmann::json& request, const std::string& id) const {
  if (folder_.empty()) return;
  request["config"] = scratch_of(id);
  if (tensors_ && tensor_bytes_ <= kMostTensorBytes) request["keep"] = folder_ + "/" + id;
}

void KeptFailures::ended(const reports::Case& record) {
  if (folder_.empty()) return;
  for (const auto& file : record.files) {
    struct stat status {};
    const std::string path = folder_ + "/" + record.id + file.substr(file.rfind('/'));
    if (stat(path.c_str(), &status) == 0) tensor_bytes_ += status.st_size;
  }
  std::ifstream file(scratch_of(record.id));
  if (file) configs_[record.id].assign(std::istreambuf_iterator<char>(file), {});
  unlink(scratch_of(record.id).c_str());
}

void KeptFailures::give(std::vector<reports::Case>& cases) const {
  for (auto& record : cases) {
    const auto config = configs_.find(record.id);
    if (!reports::went_wrong(record.verdict) || config == configs_.end()) continue;
    mkdir(folder_.c_str(), 0777);
    mkdir((folder_ + "/" + record.id).c_str(), 0777);
    std::ofstream file(folder_ + "/" + record.id + "/config.json");
    file << config->second;
    file.close();
    if (file) record.files.push_back("fail/" + record.id + "/config.json");
  }
}

}  // namespace equigrad::conformance
