// Trains an encoder of images on some ranks and a language model that captions them on the others:
//   torchrun --nproc-per-node=3 --no-python ./disaggregated <folder of Fashion-MNIST> 1 [steps]
// has one rank with the encoder and two with the language model. Features go over a bridge, their
// gradients come back; each side has its own engine, stage and optimizer, and its own number of
// ranks. At the end the language model writes captions of images that it has not seen.
#include <torch/torch.h>

#include <album.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <equigrad/comm/launch.hpp>
#include <equigrad/comm/mesh.hpp>
#include <equigrad/engine.hpp>
#include <equigrad/parallel/bridge.hpp>
#include <models.hpp>
#include <string>

namespace {

using namespace disaggregated;
using equigrad::parallel::Bridge;

constexpr int64_t kBatch = 12, kMicroBatches = 2, kShown = 500;
constexpr std::chrono::minutes kTimeout{5};

struct Run {
  equigrad::comm::LaunchEnvironment launch;
  equigrad::parallel::Side encoders, writers;
  std::shared_ptr<equigrad::comm::Communicator> all, mine;
  int64_t steps = 300;

  bool encodes() const { return encoders.has(launch.rank); }
  Bridge bridge(int64_t rows, bool gradients) const {
    return Bridge(all, encoders, writers,
                  {.rows = rows, .row_sizes = {kPlaces, kWidth}, .gradients = gradients});
  }
};

std::string config(int stage, double clipping, int64_t images) {
  return R"({"train_micro_batch_size_per_gpu": )" + std::to_string(images) +
         R"(, "gradient_accumulation_steps": )" + std::to_string(kMicroBatches) +
         R"(, "gradient_clipping": )" + std::to_string(clipping) +
         R"(, "zero_optimization": {"stage": )" + std::to_string(stage) +
         R"(}, "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "weight_decay": 0.01}}})";
}

// Of all parameters' bytes (FNV-1a): runs with equal bits say equal numbers. Collective.
void say_digest(const char* what, const Run& run, equigrad::Engine& engine, nn::Module& model) {
  uint64_t digest = 0xcbf29ce484222325u;
  for (const auto& parameter : model.named_parameters()) {
    const auto whole = engine.full_parameter(parameter.key()).contiguous();
    const auto* bytes = static_cast<const unsigned char*>(whole.const_data_ptr());
    for (std::size_t i = 0; i < whole.nbytes(); ++i) digest = (digest ^ bytes[i]) * 0x100000001b3u;
  }
  if (run.mine->rank() == 0)
    std::printf("%s %016llx\n", what, static_cast<unsigned long long>(digest));
}

// Ahead by a window: features of all its micro-batches are sent before the first gradient is back.
int encode(const Run& run, const Album& album) {
  torch::manual_seed(2);
  Encoder encoder;
  auto engine =
      equigrad::initialize(*encoder, config(2, 0.05, kBatch / run.encoders.data), run.mine);
  auto bridge = run.bridge(kBatch, true);
  const auto [begin, end] = bridge.rows();
  for (int64_t step = 0; step < run.steps; ++step) {
    std::deque<at::Tensor> sent;
    for (int64_t i = 0; i < kMicroBatches; ++i) {
      const auto batch = album.rows(step * kMicroBatches + i, kBatch, begin, end);
      sent.push_back(encoder(batch.images));
      bridge.send(sent.back());
    }
    for (; !sent.empty(); sent.pop_front()) {
      sent.front().backward(bridge.receive_gradient());
      engine->step();
    }
  }
  say_digest("encoder", run, *engine, *encoder);
  auto unseen = run.bridge(kShown, false);
  const at::NoGradGuard no_grad;
  unseen.send(encoder(album.held_out(unseen.rows().begin, unseen.rows().end).images));
  return 0;
}

int write(const Run& run, const Album& album) {
  torch::manual_seed(3);
  Captioner captioner(kCaptionBytes);
  auto engine =
      equigrad::initialize(*captioner, config(3, 0.5, kBatch / run.writers.data), run.mine);
  auto bridge = run.bridge(kBatch, true);
  const auto [begin, end] = bridge.rows();
  for (int64_t number = 0; number < run.steps * kMicroBatches; ++number) {
    const auto embeddings = bridge.receive();
    const auto text = album.rows(number, kBatch, begin, end).text;
    const auto loss = captioner->loss(embeddings, text);
    engine->backward(loss);
    bridge.send_gradient(embeddings.grad());
    engine->step();
    if (run.mine->rank() == 0 && number % 100 == 0) std::printf("loss %.4f\n", loss.item<double>());
  }
  say_digest("captioner", run, *engine, *captioner);
  auto unseen = run.bridge(kShown, false);
  const auto wanted = album.held_out(unseen.rows().begin, unseen.rows().end).text;
  const auto written = captioner->write(unseen.receive());
  // What is written behind the full stop does not count.
  auto right = ((written == wanted) | (wanted == 0)).all(1).sum().reshape({1});
  run.mine->all_reduce_sum(right)->wait();
  const auto count = right.item<int64_t>();
  if (run.mine->rank() == 0)
    std::printf("%lld of %lld captions of unseen images are right\n", static_cast<long long>(count),
                static_cast<long long>(kShown));
  return 10 * count >= 7 * kShown ? 0 : 1;
}

int train(const std::string& folder, int encoders, int64_t steps) {
  torch::set_num_threads(1);  // sums inside torch's operators may depend on their number
  const auto launch = equigrad::comm::read_launch_environment(
      [](const char* name) -> const char* { return std::getenv(name); });
  Run run{.launch = launch,
          .encoders = {.first = 0, .data = encoders},
          .writers = {.first = encoders, .data = launch.world_size - encoders},
          .all = equigrad::comm::connect(launch, c10::kCPU, kTimeout),
          .mine = {},
          .steps = steps};
  const auto& side = run.encodes() ? run.encoders : run.writers;
  run.mine =
      equigrad::comm::connect_part(launch, c10::kCPU, kTimeout, side.first, {.data = side.data})
          .world();
  const Album album(folder);
  return run.encodes() ? encode(run, album) : write(run, album);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || std::atoi(argv[2]) < 1) {
    std::fprintf(stderr, "expected: disaggregated FOLDER RANKS_THAT_ENCODE [STEPS]\n");
    return 2;
  }
  try {
    return train(argv[1], std::atoi(argv[2]), argc > 3 ? std::atoll(argv[3]) : 300);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
