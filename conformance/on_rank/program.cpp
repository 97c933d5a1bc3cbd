#include "conformance/on_rank/program.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/version.h>
#include <unistd.h>

#include <map>

#include "conformance/cases/device.hpp"
#include "conformance/cases/twin.hpp"
#include "conformance/on_rank/answer.hpp"
#include "conformance/on_rank/compare.hpp"
#include "conformance/on_rank/contract.hpp"
#include "conformance/on_rank/run.hpp"
#include "conformance/on_rank/train.hpp"
#include "engine/comm/communicator.hpp"
#include "equigrad_build_info.hpp"

namespace equigrad::conformance {
namespace {

bool readable(const std::string& path) { return access(path.c_str(), R_OK) == 0; }

std::string first_readable(const std::vector<std::string>& paths) {
  for (const auto& path : paths)
    if (readable(path)) return path;
  return {};
}

const reference::Data& data_of(const nlohmann::json& files) {
  static std::map<std::string, reference::Data> loaded;
  const std::string key = files.dump();
  const auto found = loaded.find(key);
  if (found != loaded.end()) return found->second;
  const std::string images = files.value("images", "");
  return loaded
      .emplace(key,
               reference::Data(reference::read_text({files.at("text").get<std::string>()}),
                               images.empty() ? reference::Images{}
                                              : reference::read_images(images, files.at("labels"))))
      .first->second;
}

nlohmann::json hello(ranks::RankContext& context) {
  auto sum = at::full({1}, context.rank() + 1, at::device(conformance::device()).dtype(at::kFloat));
  context.group()->all_reduce_sum(sum)->wait();
  return {{"torch", TORCH_VERSION},
          {"device", conformance::device().str()},
          {"threads", at::get_num_threads()},
          {"process", getpid()},
          {"sum", sum.item<float>()}};
}

}  // namespace

nlohmann::json to_json(const DataFiles& files) {
  return {{"text", files.text}, {"images", files.images}, {"labels", files.labels}};
}

DataFiles find_data(const std::string& directory, bool all_text) {
  const std::string slice =
      build_info::source_directory() + std::string("/reference/data/plays_slice.txt");
  const std::string plays = build_info::data_directory() + std::string("/plays.txt");
  std::vector<std::string> texts = {slice, plays};
  std::string images = build_info::image_directory();
  if (all_text) texts = {plays, slice};
  if (!directory.empty()) {
    texts = {directory + "/plays.txt", directory + "/plays_slice.txt"};
    if (readable(directory + "/t10k-images-idx3-ubyte.gz")) images = directory;
  }
  DataFiles files{first_readable(texts), images + "/t10k-images-idx3-ubyte.gz",
                  images + "/t10k-labels-idx1-ubyte.gz"};
  if (!readable(files.images) || !readable(files.labels)) files.images = files.labels = "";
  return files;
}

nlohmann::json serve(const nlohmann::json& request, ranks::RankContext& context) {
  device() = c10::Device(context.device().name);
  const std::string what = request.value("do", "");
  if (what == "hello") return hello(context);
  if (what == "train") return serve_train(request, context, data_of(request.at("data")));
  if (what == "compare") return serve_compare(request, context, data_of(request.at("data")));
  if (what == "twin") {
    context.note("twin of " + request.at("id").get<std::string>());
    const auto losses = make_twin(parse_id(request.at("id")), request.at("seed"),
                                  data_of(request.at("data")), request.at("path"));
    return losses ? underflow_row(*losses) : nlohmann::json();
  }
  if (what == "case" && parse_id(request.at("id")).is_refused())
    return run_refused(request, context);
  if (what == "case") return run_case(request, context, data_of(request.at("data")));
  if (what == "contract")
    return contract::serve_contract(request, context, data_of(request.at("data")));
  throw Error("program", "expected hello, twin, case, contract, train or compare, got \"" + what +
                             "\". The controller and its ranks differ.");
}

}  // namespace equigrad::conformance
