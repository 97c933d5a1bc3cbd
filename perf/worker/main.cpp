// One rank of the engine, or of plain LibTorch: does what the controller (perf/race/) says over a
// socket. perf/peers/worker.py is a peer's; both speak the same:
//
//   start      model, weights, batches, configuration; of a mesh its sizes; "empty": groups that
//              carry nothing                                     -> parameters, base_bytes
//   gradients  the first step's averaged gradients into a file   (next after start, or never)
//   block      a barrier, `warm` steps, `steps` timed   -> seconds, cpu_seconds, growth_bytes
//   counts     `steps`: collectives, bytes sent, allocations, what has grown; calls, if recorded
//   memory     a step, moment by moment: begins, parameters, start_bytes, live_bytes, held
//   bandwidth  `bytes` to every other rank at once               -> bytes_per_s
//
// It links no seams: what is timed is the engine as users link it.
#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <sys/prctl.h>
#include <torch/version.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <ctime>
#include <thread>

#include "conformance/oracle/tensor_file.hpp"
#include "perf/worker/allocations.hpp"
#include "perf/worker/channel.hpp"
#include "perf/worker/empty_wire.hpp"
#include "perf/worker/operators.hpp"
#include "perf/worker/process_bytes.hpp"
#include "perf/worker/raced_wire.hpp"
#include "perf/worker/recorded_wire.hpp"
#include "perf/worker/work.hpp"

namespace equigrad::perf {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

// Of all threads of this process.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class Worker {
 public:
  Worker(int rank, int world, const std::string& rendezvous)
      : rank_(rank),
        rendezvous_(rendezvous),
        communicator_(comm::connect_gloo(rank, world, rendezvous, std::chrono::minutes(10))) {}

  json serve(const json& request) {
    const std::string verb = request.at("do");
    if (verb == "start") return start(request);
    if (verb == "bandwidth") return bandwidth(request);
    if (!work_) throw std::runtime_error("[perf] expected start first, got " + verb + ".");
    if (verb == "gradients") return gradients(request);
    if (verb == "block") return block(request);
    if (verb == "counts") return counts(request);
    if (verb == "memory") return memory();
    throw std::runtime_error("[perf] expected start, gradients, block, counts or memory, got " +
                             verb);
  }

 private:
  json start(const json& request) {
    const json faults = request.value("faults", json::object());
    step_sleep_us_ = faults.value("step_sleep_us", int64_t{0});
    leak_bytes_ = faults.value("leak_bytes", int64_t{0});
    counting_ = request.value("counted", false);
    if (counting_) {
      install_allocation_counter();
      install_operator_counter();
    }
    // Only a counted run goes through the wrapper: a timed one is as users have it.
    const CommunicationFault fault{.sleep_us = faults.value("sleep_us", int64_t{0}),
                                   .waits = faults.value("waits", false),
                                   .copies = faults.value("copies", false),
                                   .one_more = faults.value("one_more", false)};
    std::shared_ptr<comm::Communicator> communicator = communicator_;
    if (counting_ || fault != CommunicationFault{})
      communicator = raced_wire_ = std::make_shared<RacedWire>(communicator_, fault);
    if (request.contains("played_world"))  // rank 0 of so many
      communicator = std::make_shared<EmptyWire>(request.at("played_world"));
    recorded_wire_.reset();
    if (request.value("recorded", false))
      communicator = recorded_wire_ =
          std::make_shared<RecordedWire>(communicator, request.value("local_ranks", 0));
    work_.reset();
    barrier();
    forget_peak();
    base_bytes_ = status_bytes("VmRSS");
    work_ = make_work(request, mesh_of(request, communicator));
    forget_peak();  // what the weights' file took is not training's
    return {{"base_bytes", base_bytes_}, {"versions", {{"torch", TORCH_VERSION}}}};
  }

  comm::Mesh mesh_of(const json& request, const std::shared_ptr<comm::Communicator>& all) const {
    const int sequence = request.value("sequence", 1), tensor = request.value("tensor", 1);
    if (request.value("empty", false))  // the first rank of them
      return comm::make_mesh(
          0, {.sequence = sequence, .tensor = tensor},
          [](const std::string&, int, int size) { return std::make_shared<EmptyWire>(size); });
    if (sequence * tensor == 1) return all;
    const auto sizes = comm::mesh_sizes(all->world_size(), sequence, tensor);
    return comm::connect_gloo_mesh(rank_, sizes, rendezvous_ + ".mesh", std::chrono::minutes(10));
  }

  // Both ranks send at once, and each takes what the other sends.
  json bandwidth(const json& request) {
    const auto block =
        at::zeros({communicator_->world_size() * request.at("bytes").get<int64_t>()}, at::kByte);
    const auto into = at::empty_like(block);
    communicator_->all_to_all(into, block)->wait();  // the memory is there
    barrier();
    const auto begin = Clock::now();
    communicator_->all_to_all(into, block)->wait();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    return {{"bytes_per_s", request.at("bytes").get<double>() / seconds}};
  }

  json gradients(const json& request) {
    const auto found = work_->step_with_gradients();
    if (rank_ == 0 || request.value("every_rank", false))
      conformance::oracle::write_tensors(
          request.at("path").get<std::string>() + (rank_ == 0 ? "" : "." + std::to_string(rank_)),
          found);
    return json::object();
  }

  json block(const json& request) {
    barrier();
    for (int64_t i = request.at("warm"); i > 0; --i) step();
    json seconds = json::array();
    const double cpu_before = cpu_seconds();
    for (int64_t i = request.at("steps"); i > 0; --i) {
      const auto begin = Clock::now();
      step();
      seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }
    return {{"seconds", seconds},
            {"cpu_seconds", cpu_seconds() - cpu_before},
            {"growth_bytes", status_bytes("VmHWM") - base_bytes_},
            {"ledger", work_->ledger()}};
  }

  json counts(const json& request) {
    settle();
    const auto before = allocations();
    const int64_t sent_before = sent_bytes();
    if (raced_wire_) raced_wire_->reset();
    if (recorded_wire_) recorded_wire_->forget();
    const int64_t steps = request.value("steps", int64_t{1});
    for (int64_t i = 0; i < steps; ++i) step();
    const int64_t sent = sent_bytes() - sent_before;
    const auto counted = allocations();
    settle();
    const auto after = allocations();
    json answer = {{"steps", steps}, {"wire_bytes", sent}, {"ledger", work_->ledger()}};
    if (recorded_wire_) {
      answer["calls"] = recorded_wire_->calls();
      answer["under_way_bytes"] = recorded_wire_->most_under_way_bytes();
    }
    if (!raced_wire_) return answer;
    answer["collectives"] = raced_wire_->counts().collectives;
    answer["overlapped"] = raced_wire_->overlapped();
    answer["payload_bytes"] = raced_wire_->counts().bytes;
    answer["allocations"] = counted.count - before.count;
    answer["allocated_bytes"] = counted.bytes - before.bytes;
    answer["grown_count"] = after.live_count - before.live_count;
    answer["grown_bytes"] = after.live_bytes - before.live_bytes;
    return answer;
  }

  // A counted run's.
  json memory() {
    settle();
    json moments = json::array();
    const auto most = [this, &moments](int64_t live_bytes) {
      moments.back()["live_bytes"] = live_bytes;
      moments.back()["held"] = work_->held();
    };
    const auto enter = [&](const std::string& what, const std::vector<std::size_t>& parameters) {
      unwatch();
      if (what == "backward") let_go();
      moments.push_back({{"begins", what},
                         {"parameters", parameters},
                         {"start_bytes", allocations().live_bytes}});
      watch_most(most);
    };
    try {
      enter("between", {});
      work_->step(enter);
    } catch (...) {
      unwatch();  // it writes to `moments`
      throw;
    }
    unwatch();
    return moments;
  }

  void step() {
    work_->step();
    if (step_sleep_us_ > 0) std::this_thread::sleep_for(std::chrono::microseconds(step_sleep_us_));
    if (leak_bytes_ > 0) leaked_.push_back(at::zeros({leak_bytes_}, at::kByte));
  }

  void settle() {
    barrier();
    let_go();
  }

  // Threads of the backend let go of a collective's tensors a little after it is over.
  void let_go() const {
    for (int i = 0, still = 0; counting_ && i < 200 && still < 5; ++i) {
      const int64_t live_bytes = allocations().live_bytes;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      still = allocations().live_bytes == live_bytes ? still + 1 : 0;
    }
  }

  void barrier() { comm::exchange(*communicator_, at::zeros({1}, at::kLong)); }

  int rank_;
  std::string rendezvous_;
  std::shared_ptr<comm::Communicator> communicator_;
  std::shared_ptr<RacedWire> raced_wire_;
  std::shared_ptr<RecordedWire> recorded_wire_;
  std::unique_ptr<Work> work_;
  bool counting_ = false;
  int64_t base_bytes_ = 0, step_sleep_us_ = 0, leak_bytes_ = 0;
  std::vector<at::Tensor> leaked_;
};

void serve(Channel channel, int rank, int world, const std::string& rendezvous) {
  std::unique_ptr<Worker> worker;
  for (;;) {
    json answer;
    const json request = channel.receive();
    try {
      if (!worker) worker = std::make_unique<Worker>(rank, world, rendezvous);
      answer["ok"] = worker->serve(request);
    } catch (const std::exception& error) {
      const std::string text = error.what();  // LibTorch appends a backtrace
      answer = {{"error", text.substr(0, text.find("\nException raised from "))}};
    }
    channel.send(answer);
  }
}

}  // namespace
}  // namespace equigrad::perf

int main(int argc, char** argv) {
  if (argc != 9) return 2;  // --channel C --rank R --world W --rendezvous FILE, from the controller
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  at::set_num_threads(1);
  at::set_num_interop_threads(1);
  try {
    equigrad::perf::serve(equigrad::perf::Channel(std::stoi(argv[2])), std::stoi(argv[4]),
                          std::stoi(argv[6]), argv[8]);
  } catch (const std::exception&) {
    _exit(0);  // the controller is gone, or has enough
  }
}
