// Setting: a run of the vision encoder and the language model that it writes captions with.
//
//   images -> encoder (engine A) -> features ==> language model (engine B) -> caption
//                      ^------- gradient <======-----+
//
//   Handed     a rank has both engines; B reads a leaf, and its gradient goes to A by
//              features.backward(gradient)
//   OneGraph   a rank has both engines; one backward pass of B's loss runs through both
//   TwoGroups  ranks 0 .. k-1 have A, and those behind them B, which may be another number;
//              features and gradients go over a parallel::Bridge
//
// Invariants: equal settings give equal bits. The three ways differ in nothing that is compared.
// Units: `ranks` are those of an engine, of two groups those of A; `images` are those of a micro-
//   batch on a rank of A. All ranks of A have the same images as all ranks of B.
// Errors: nlohmann::json's for a text that is no setting.
// Depends on: nlohmann-json. No torch.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace equigrad::conformance::vision {

enum class Way { Handed, OneGraph, TwoGroups };
// How B's backward pass begins.
enum class Style { EngineBackward, ScaleBackward, LossBackward, LogitsBackward };
enum class Fault {
  None,
  DividedTwice,     // the gradient is divided by the accumulation steps on its way to A
  NotDetached,      // B's pass runs on into A, which then gets the gradient once more
  OtherMicroBatch,  // A gets the gradient of the micro-batch before
  OtherFeatures     // B reads the features of another rank
};

struct Setting {
  Way way = Way::Handed;
  int ranks = 2;
  int other_ranks = 0;  // of B; 0: as many as of A. Another number is for two groups.
  int encoder_stage = 0;
  int language_stage = 0;
  bool bf16 = false;
  int64_t accumulation = 2;
  int64_t images = 4;  // a multiple of four
  Style style = Style::EngineBackward;
  Fault fault = Fault::None;
  uint64_t seed = 1;

  int language_ranks() const { return other_ranks == 0 ? ranks : other_ranks; }
  int processes() const { return way == Way::TwoGroups ? ranks + language_ranks() : ranks; }
  int64_t whole_batch() const { return ranks * images; }  // of a micro-batch, over all ranks
  std::string name() const {
    static const char* const kWays[] = {"handed", "one_graph", "two_groups"};
    static const char* const kStyles[] = {"engine_backward", "scale_backward", "loss_backward",
                                          "logits_backward"};
    return std::string(kWays[static_cast<int>(way)]) + ".zero" + std::to_string(encoder_stage) +
           "_zero" + std::to_string(language_stage) + (bf16 ? ".bf16.w" : ".fp32.w") +
           std::to_string(ranks) +
           (language_ranks() == ranks ? "" : "to" + std::to_string(language_ranks())) +
           ".accumulation" + std::to_string(accumulation) + "." + kStyles[static_cast<int>(style)];
  }
};

// Norms to clip at, below those of the first steps.
constexpr double kEncoderClipping = 0.05, kLanguageClipping = 0.5;

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Setting, way, ranks, encoder_stage, language_stage, other_ranks,
                                   bf16, accumulation, images, style, fault, seed)

}  // namespace equigrad::conformance::vision
