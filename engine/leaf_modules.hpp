// Leaf modules: modules whose parameters are gathered together at ZeRO stage 3, when an operator
// needs the first of them, and released together: mixtures of experts, where ranks may use
// different ones. DeepSpeed: deepspeed.utils.set_z3_leaf_modules and its kin; the configuration's
// zero_optimization.leaf_module says the same.
//
//   equigrad::set_z3_leaf_modules<MoEImpl>(*model);  // a class and what derives from it
//   equigrad::set_z3_leaf_modules(*model, {"MoE"});  // its name, bare or in full
//   equigrad::set_z3_leaf_modules_by_name(*model, {"layers.0.experts"});
//   equigrad::set_z3_leaf_modules_by_suffix(*model, {"experts"});
//   auto engine = equigrad::initialize(*model, "ds_config.json");
//
// A class is told by torch::nn::Module::name(): "MoE", "MoEImpl", "models::MoE" and "models.MoE"
// all mean models::MoEImpl; an unnamed namespace is left out; a template's bare name has no
// arguments. Names are those of Module::named_modules(), the model itself is "". A leaf inside of
// another belongs to that; leaves that share a parameter are one.
//
// Invariants: a leaf changes when parameters are sent, never a bit of what is computed, and without
// any the engine is right too (agreement/coordinator.hpp): what leaves save is rounds of gathers
// whose number depends on each rank's data. initialize() reads the marks; later ones concern later
// engines. A mark goes with its module. Below stage 3 there is nothing to gather.
// Shapes: none.
// Errors: equigrad::Error for a name that matches no module, with the nearest that does; then
// nothing is marked.
// Depends on: torch::nn::Module, error.hpp.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <string>
#include <vector>

namespace equigrad {

// Those that were marked or unmarked, or are marked; parents first. They live as long as the model.
using LeafModules = std::vector<torch::nn::Module*>;
using Names = std::vector<std::string>;

LeafModules set_z3_leaf_modules(torch::nn::Module& model, const Names& classes);
LeafModules set_z3_leaf_modules_by_name(torch::nn::Module& model, const Names& names);
LeafModules set_z3_leaf_modules_by_suffix(torch::nn::Module& model, const Names& suffixes);
LeafModules unset_z3_leaf_modules(torch::nn::Module& model, const Names& classes);
LeafModules unset_z3_leaf_modules_by_name(torch::nn::Module& model, const Names& names);
LeafModules unset_z3_leaf_modules_by_suffix(torch::nn::Module& model, const Names& suffixes);
LeafModules get_z3_leaf_modules(torch::nn::Module& model);
bool z3_leaf_module(const torch::nn::Module& module);

// Of the modules for which `is_one` is true; an error, which says `what` was expected, if none is.
LeafModules mark_leaf_modules(torch::nn::Module& model, bool leaf, const std::string& what,
                              const std::function<bool(const torch::nn::Module&)>& is_one);

template <class... Classes>
requires(sizeof...(Classes) > 0) LeafModules set_z3_leaf_modules(torch::nn::Module& model) {
  return mark_leaf_modules(model, true, "a module of that class", [](const auto& module) {
    return (... || (dynamic_cast<const Classes*>(&module) != nullptr));
  });
}

template <class... Classes>
requires(sizeof...(Classes) > 0) LeafModules unset_z3_leaf_modules(torch::nn::Module& model) {
  return mark_leaf_modules(model, false, "a module of that class", [](const auto& module) {
    return (... || (dynamic_cast<const Classes*>(&module) != nullptr));
  });
}

}  // namespace equigrad
