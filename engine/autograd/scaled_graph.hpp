// Scaled graph: the loss scale as a node of the autograd graph, and the check that every gradient
// of a pass went through it exactly once.
//
// scale(t) is t * S in fp32, so a 16-bit output does not overflow and scale(out).backward(gradient)
// takes an fp32 gradient; its backward gives gradient * S in fp32, rounded once to the type of t.
// S is a power of two: scaled = unscaled, bit for bit, where nothing is subnormal or overflows.
//
// What is checked is the pass at hand, not what was called before it. While a scaler lives, a
// RecordFunction callback keeps the root of every graph task; from it the graph is walked once for
// each scaler, and tells for every leaf how the gradients that arrive there were scaled. A graph
// task that runs inside a node of another (reentrant checkpointing) begins with what arrives at
// that node.
//
// Invariants: a pass that the check refuses has not reached the window; torch::autograd::grad
// reaches no leaf's hook and is not refused. A leaf that `inputs` leaves out is not looked at. The
// node keeps its scaler alive. With create_graph the scaling is differentiated too. Recording costs
// nothing while no scaler that is needed lives.
// Shapes: any.  Dtypes: scale() gives fp32 (fp64 for fp64).
// Errors: Error from check_pass; it names the first parameter found, and the remedy.
// Limits: a backward that is called in a tensor hook, or by a node on another thread than the
// node's (beyond 60 levels of nesting), is a pass of its own.
// Depends on: ATen tensors, loss_scaler.hpp; autograd's nodes and ATen's RecordFunction in the
// source.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>

#include "engine/loss/loss_scaler.hpp"

namespace equigrad::autograd {

// A scaler that check_pass can check: while it lives, passes are recorded (if it is needed).
std::shared_ptr<loss::LossScaler> make_scaler(const LossScaleConfig& config);

// The tensor to call .backward() on; the tensor itself if the scaler is null or not needed.
at::Tensor scale(const at::Tensor& tensor, const std::shared_ptr<loss::LossScaler>& scaler);

// The name of a leaf that is this engine's parameter; null for any other.
using NameOf = std::function<const std::string*(const at::Tensor& leaf)>;

// Inside of a graph task, at its first gradient: throws unless all gradients that it brings to this
// engine's parameters are scaled exactly once, by this scaler, with its current scale. With no
// scaler, or one that is not needed: unless none is scaled.
void check_pass(const loss::LossScaler* scaler, const NameOf& name_of);

}  // namespace equigrad::autograd
