// The JSON examples of DeepSpeed's documentation (deepspeedai/DeepSpeed, docs/: _pages, _tutorials,
// code-docs), by their keys that matter: each is read, and says of every key what it does here, or
// is refused because of something that is not here, by its name and with what to do instead.
//
// Left out: what is no configuration of training (inference, sizes of a model, data sets of a
// script). A part of a file is made whole with a batch and an optimizer; for four ranks. Where a
// page writes [true|false], both are here; prose and "..." are not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "engine/config/config.hpp"
#include "engine/config/json.hpp"

namespace equigrad {
namespace {

constexpr int kRanks = 4;
constexpr const char* kDrop = "Drop the key.";
constexpr const char* kChoose = "Choose one of the three.";

struct Refused {
  const char* key;
  const char* remedy;
};

struct Example {
  const char* page;
  const char* keys;
  std::vector<Refused> refused{};
};

const std::vector<Example> kPages = {
    {"config-json: Adam", R"("optimizer": {"type": "Adam",
          "params": {"lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7}})"},
    {"config-json: Muon",
     R"("optimizer": {"type": "Muon", "params": {"lr": 0.001,
          "momentum": 0.9, "weight_decay": 0.0, "muon_lr": 0.001, "ns_method": "gram"}},
          "zero_optimization": {"stage": 3, "save_muon_momentum_buffer_in_memory": true})",
     {{"optimizer.type", kChoose},
      {"zero_optimization.save_muon_momentum_buffer_in_memory", kDrop}}},
    {"config-json: OneBitAdam",
     R"("optimizer": {"type": "OneBitAdam", "params": {"lr": 0.001,
          "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7, "freeze_step": 400,
          "cuda_aware": false, "comm_backend_name": "nccl"}})",
     {{"optimizer.type", kChoose}}},
    {"config-json: ZeroOneAdam",
     R"("optimizer": {"type": "ZeroOneAdam", "params": {"lr": 1e-3,
          "weight_decay": 0.01, "bias_correction": false, "var_freeze_step": 1000,
          "var_update_scaler": 16, "local_step_scaler": 1000, "local_step_clipper": 16,
          "cuda_aware": false, "comm_backend_name": "nccl"}})",
     {{"optimizer.type", kChoose}}},
    {"config-json: OneBitLamb",
     R"("optimizer": {"type": "OneBitLamb", "params": {"lr": 11e-3,
          "weight_decay": 0.01, "bias_correction": false, "max_coeff": 0.3, "min_coeff": 0.01,
          "freeze_step": 1000, "cuda_aware": false, "comm_backend_name": "nccl",
          "coeff_beta": 0.9, "factor_max": 4.0, "factor_min": 0.5, "factor_threshold": 0.1}})",
     {{"optimizer.type", kChoose}}},
    {"config-json: WarmupLR", R"("scheduler": {"type": "WarmupLR", "params":
          {"warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 1000}})"},
    {"config-json: fp16", R"("fp16": {"enabled": true, "auto_cast": false, "loss_scale": 0,
          "initial_scale_power": 16, "loss_scale_window": 1000, "hysteresis": 2,
          "consecutive_hysteresis": false, "min_loss_scale": 1,
          "fp16_master_weights_and_grads": false})"},
    {"config-json: bf16", R"("bf16": {"enabled": true, "bf16_master_weights_and_grads": true,
          "bf16_optimizer_states": true}, "zero_optimization": {"stage": 1})"},
    {"config-json: amp", R"("amp": {"enabled": true, "opt_level": "O1"})"},
    {"config-json: torch_autocast", R"("torch_autocast": {"enabled": true, "dtype": "bfloat16",
          "lower_precision_safe_modules": ["torch.nn.Linear", "torch.nn.Conv2d"]})"},
    {"config-json: ZeRO, one choice", R"("zero_optimization": {"stage": 3,
          "allgather_partitions": true, "allgather_bucket_size": 5e8, "overlap_comm": false,
          "reduce_scatter": true, "reduce_bucket_size": 5e8, "contiguous_gradients": true,
          "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9,
          "stage3_prefetch_bucket_size": 5e8, "stage3_param_persistence_threshold": 1e6,
          "sub_group_size": 1e12, "elastic_checkpoint": true,
          "stage3_gather_16bit_weights_on_model_save": true, "ignore_unused_parameters": true,
          "round_robin_gradients": true, "zero_hpz_partition_size": 1,
          "zero_quantized_weights": false, "zero_quantized_gradients": false,
          "log_trace_cache_warnings": true})"},
    {"config-json: ZeRO, the other",
     R"("zero_optimization": {"stage": 0,
          "allgather_partitions": false, "reduce_scatter": false, "contiguous_gradients": false,
          "elastic_checkpoint": false, "stage3_gather_16bit_weights_on_model_save": false,
          "ignore_unused_parameters": false, "round_robin_gradients": false,
          "zero_quantized_weights": true, "zero_quantized_gradients": true,
          "log_trace_cache_warnings": false})",
     {{"zero_optimization.ignore_unused_parameters", "Unused parameters are left untouched."},
      {"zero_optimization.zero_quantized_gradients", kDrop},
      {"zero_optimization.zero_quantized_weights", kDrop}}},
    {"config-json: offload_param, cpu", R"("zero_optimization": {"stage": 3, "offload_param":
          {"device": "cpu", "nvme_path": "/local_nvme", "pin_memory": true, "buffer_count": 5,
           "buffer_size": 1e8, "max_in_cpu": 1e9}})"},
    {"config-json: offload_param, nvme",
     R"("zero_optimization": {"stage": 3, "offload_param":
          {"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": false}})",
     {{"zero_optimization.offload_param.device", "Use \"cpu\"."}}},
    {"config-json: offload_optimizer, cpu",
     R"("zero_optimization": {"stage": 3,
          "offload_optimizer": {"device": "cpu", "nvme_path": "/local_nvme", "pin_memory": true,
          "ratio": 0.3, "buffer_count": 4, "fast_init": false}})",
     {{"zero_optimization.offload_optimizer.ratio", "drop the key."}}},
    {"config-json: offload_optimizer, nvme",
     R"("zero_optimization": {"stage": 3,
          "offload_optimizer": {"device": "nvme", "nvme_path": "/local_nvme",
          "pin_memory": false, "buffer_count": 4, "fast_init": false}})",
     {{"zero_optimization.offload_optimizer.device", "Use \"cpu\"."}}},
    {"config-json: aio", R"("aio": {"block_size": 1048576, "queue_depth": 8,
          "thread_count": 1, "single_submit": false, "overlap_events": true})"},
    {"config-json: tensor_parallel", R"("tensor_parallel": {"autotp_size": 4,
          "preset_model": "llama", "tp_overlap_comm": false, "partition_config":
          {"use_default_specs": false, "layer_specs": [{"patterns":
          [".*\\.o_proj\\.weight$", ".*\\.down_proj\\.weight$"], "partition_type": "row"}]}})"},
    {"config-json: hybrid_engine",
     R"("hybrid_engine": {"enabled": true, "max_out_tokens": 512,
          "inference_tp_size": 1, "release_inference_cache": false, "pin_parameters": true})",
     {{"hybrid_engine", kDrop}}},
    {"config-json: expert_parallel",
     R"("expert_parallel": {"enabled": true, "autoep_size": 4,
          "preset_model": "mixtral", "router_pattern": "router", "expert_w1": "w1"})",
     {{"expert_parallel", kDrop}}},
    {"config-json: autotuning", R"("autotuning": {"enabled": false,
          "results_dir": "autotuning_results", "metric": "throughput", "mp_size": 1,
          "tuner_type": "model_based", "tuner_num_trials": 50, "arg_mappings": null})"},
    {"config-json: flops_profiler", R"("flops_profiler": {"enabled": false, "profile_step": 1,
          "module_depth": -1, "top_modules": 1, "detailed": true, "output_file": null})"},
    {"config-json: activation_checkpointing", R"("activation_checkpointing":
          {"partition_activations": false, "cpu_checkpointing": false,
           "contiguous_memory_optimization": false, "number_checkpoints": null,
           "synchronize_checkpoint_boundary": false, "profile": false})"},
    {"config-json: sparse_attention",
     R"("sparse_attention": {"mode": "fixed", "block": 16,
          "different_layout_per_head": true, "num_local_blocks": 4, "num_global_blocks": 1,
          "attention": "bidirectional", "local_window_blocks": [4],
          "global_block_end_indices": null})",
     {{"sparse_attention", kDrop}}},
    {"config-json: data_efficiency",
     R"("data_efficiency": {"enabled": true, "seed": 1234,
          "data_routing": {"enabled": true, "random_ltd": {"enabled": true}},
          "data_sampling": {"enabled": true, "num_epochs": 1}})",
     {{"data_efficiency", kDrop}}},
    {"config-json: curriculum_learning",
     R"("curriculum_learning": {"enabled": true,
          "curriculum_type": "seqlen", "min_difficulty": 8, "max_difficulty": 1024,
          "schedule_type": "fixed_linear", "schedule_config": {"total_curriculum_step": 40000}})",
     {{"curriculum_learning", kDrop}}},
    {"config-json: tensorboard",
     R"("tensorboard": {"enabled": true,
          "output_path": "output/ds_logs/", "job_name": "train_bert"})",
     {{"tensorboard", kDrop}}},
    {"config-json: wandb",
     R"("wandb": {"enabled": true, "group": "my_group", "team": "my_team",
          "project": "my_project"})",
     {{"wandb", kDrop}}},
    {"config-json: comet",
     R"("comet": {"enabled": true, "workspace": "my_workspace",
          "samples_log_interval": 50, "online": false, "mode": "get"})",
     {{"comet", kDrop}}},
    {"config-json: csv_monitor",
     R"("csv_monitor": {"enabled": true,
          "output_path": "output/ds_logs/", "job_name": "train_bert"})",
     {{"csv_monitor", kDrop}}},
    {"config-json: elasticity",
     R"("elasticity": {"enabled": true, "micro_batch_sizes": 8,
          "max_train_batch_size": "seqlen", "min_gpus": 1024, "version": 8})",
     {{"elasticity", kDrop}}},
    {"config-json: comms_logger",
     R"("comms_logger": {"enabled": true, "verbose": false,
          "prof_all": false, "debug": false, "prof_ops": ["all_reduce", "all_gather"]})",
     {{"comms_logger", kDrop}}},
    {"config-json: layer_reduction",
     R"("compression_training": {"layer_reduction":
          {"enabled": true, "keep_number_layer": 5, "teacher_layer": [2, 4, 6, 8, 10]}})",
     {{"compression_training", kDrop}}},
    {"config-json: quantization and pruning",
     R"("compression_training": {
          "weight_quantization": {"shared_parameters": {"enabled": true, "quantize_groups": 1}},
          "activation_quantization": {"shared_parameters": {"enabled": true}},
          "sparse_pruning": {"shared_parameters": {"enabled": true, "method": "l1"}},
          "row_pruning": {"shared_parameters": {"enabled": true, "method": "topk"}},
          "head_pruning": {"shared_parameters": {"enabled": true, "num_heads": 12}},
          "channel_pruning": {"shared_parameters": {"enabled": true}}})",
     {{"compression_training", kDrop}}},
    {"config-json: checkpoint", R"("checkpoint": {"tag_validation": "Warn",
          "load_universal": false, "use_node_local_storage": false,
          "parallel_write": {"pipeline_stage": false}})"},
    {"config-json: deepcompile",
     R"("zero_optimization": {"stage": 0},
          "tensor_parallel": {"autotp_size": 4},
          "compile": {"deepcompile": true, "passes": ["autotp"]})",
     {{"compile", kDrop}}},
    {"config-json: data_types", R"("data_types": {"grad_accum_dtype": "fp32"})"},
    {"training: clipping and times", R"("gradient_clipping": 1.0, "wall_clock_breakdown": true)"},
    {"training: activation_checkpointing",
     R"("activation_checkpointing": {"profile": true})",
     {{"activation_checkpointing", "Checkpoint activations in the model."}}},
    {"training: flops_profiler", R"("flops_profiler": {"enabled": true, "profile_step": 1,
          "module_depth": -1, "top_modules": 3, "detailed": true})"},
    {"training: autotuning",
     R"("autotuning": {"enabled": true, "results_dir": null,
          "metric": "throughput", "fast": true, "tuner_early_stopping": 5})",
     {{"autotuning", kDrop}}},
    {"training: monitors",
     R"("tensorboard": {"enabled": true}, "wandb": {"enabled": true},
          "csv_monitor": {"enabled": true})",
     {{"csv_monitor", kDrop}, {"tensorboard", kDrop}, {"wandb", kDrop}}}};

const std::vector<Example> kTutorials = {
    {"MoQ-tutorial",
     R"("optimizer": {"type": "AdamW",
          "params": {"lr": 2e-5, "weight_decay": 0.0, "bias_correction": true}},
          "gradient_clipping": 1.0, "fp16": {"initial_scale_power": 16, "enabled": true},
          "quantize_training": {"enabled": true, "quantize_groups": 8,
          "quantize_bits": {"start_bits": 16, "target_bits": 8}, "eigenvalue": {"enabled": true}})",
     {{"quantize_training", kDrop}}},
    {"autotp-training: in Python", R"("train_micro_batch_size_per_gpu": 1,
          "zero_optimization": {"stage": 2}, "bf16": {"enabled": true},
          "tensor_parallel": {"autotp_size": 4})"},
    {"autotp-training: preset", R"("train_batch_size": 8, "train_micro_batch_size_per_gpu": 1,
          "bf16": {"enabled": true}, "zero_optimization": {"stage": 2},
          "tensor_parallel": {"autotp_size": 4, "preset_model": "llama"})"},
    {"autotp-training: specs", R"("tensor_parallel": {"autotp_size": 4, "partition_config":
          {"use_default_specs": false, "layer_specs": [
          {"patterns": [".*\\.o_proj\\.weight$", ".*\\.down_proj\\.weight$"],
           "partition_type": "row"},
          {"patterns": [".*\\.[qkv]_proj\\.weight$"], "partition_type": "column"},
          {"patterns": [".*\\.gate_up_proj\\.weight$"], "partition_type": "column",
           "shape": [2, -1], "partition_dim": 0}]}})"},
    {"autotp-training: grouped queries", R"("tensor_parallel": {"partition_config":
          {"layer_specs": [{"patterns": [".*\\.qkv_proj\\.weight$"], "partition_type": "column",
           "shape": [[4096, 1024, 1024], -1], "partition_dim": 0}]}})"},
    {"autotuning",
     R"("train_micro_batch_size_per_gpu": "auto", "train_batch_size": 8,
          "fp16": {"enabled": true}, "autotuning": {"enabled": true, "arg_mappings":
          {"train_micro_batch_size_per_gpu": "--per_device_train_batch_size"}})",
     {{"autotuning", kDrop}, {"train_micro_batch_size_per_gpu", "give a number"}}},
    {"bert-pretraining",
     R"("train_batch_size": 4096, "train_micro_batch_size_per_gpu": 64,
          "steps_per_print": 1000, "optimizer": {"type": "Adam", "params": {"lr": 2e-4,
          "max_grad_norm": 1.0, "weight_decay": 0.01, "bias_correction": false}},
          "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 16})",
     {{"optimizer.params.bias_correction", "Means are always corrected here"},
      {"optimizer.params.max_grad_norm", "Use the top-level \"gradient_clipping\""}}},
    {"cifar-10", R"("train_batch_size": 4, "steps_per_print": 2000, "optimizer": {"type": "Adam",
          "params": {"lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7}},
          "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0,
          "warmup_max_lr": 0.001, "warmup_num_steps": 1000}}, "wall_clock_breakdown": false)"},
    {"comms-logging",
     R"("comms_logger": {"enabled": true, "verbose": false, "prof_all": true})",
     {{"comms_logger", kDrop}}},
    {"curriculum-learning",
     R"("train_batch_size": 4096, "gradient_accumulation_steps": 1,
          "steps_per_print": 1, "optimizer": {"type": "Adam", "params": {"lr": 0.00015,
          "max_grad_norm": 1.0, "betas": [0.9, 0.95]}}, "gradient_clipping": 1.0,
          "fp16": {"enabled": true, "loss_scale": 0, "loss_scale_window": 1000, "hysteresis": 2,
          "consecutive_hysteresis": false, "min_loss_scale": 1},
          "curriculum_learning": {"enabled": true, "curriculum_type": "seqlen",
          "schedule_type": "fixed_root", "schedule_config": {"root_degree": 2}})",
     {{"curriculum_learning", kDrop},
      {"optimizer.params.max_grad_norm", "Use the top-level \"gradient_clipping\""}}},
    {"datastates-async-checkpointing",
     R"("datastates_ckpt": {"host_cache_size": 16})",
     {{"datastates_ckpt", "Ask save_checkpoint() for an asynchronous save."}}},
    {"gan", R"("train_batch_size": 64, "optimizer": {"type": "Adam", "params": {"lr": 0.0002,
          "betas": [0.5, 0.999], "eps": 1e-8}}, "steps_per_print": 10)"},
    {"getting-started", R"("train_batch_size": 8, "gradient_accumulation_steps": 1,
          "optimizer": {"type": "Adam", "params": {"lr": 0.00015}}, "fp16": {"enabled": true},
          "zero_optimization": true)"},
    {"lrrt", R"("scheduler": {"type": "LRRangeTest", "params": {"lr_range_test_min_lr": 0.0001,
          "lr_range_test_step_size": 200, "lr_range_test_step_rate": 5,
          "lr_range_test_staircase": false}})"},
    {"lrrt: OneCycle", R"("scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.002,
          "cycle_max_lr": 0.005, "cycle_first_step_size": 2000,
          "cycle_second_step_size": 2000}})"},
    {"mixed_precision_zeropp",
     R"("zero_optimization": {"stage": 3,
          "zero_quantized_nontrainable_weights": true, "zero_hpz_partition_size": 16})",
     {{"zero_optimization.zero_hpz_partition_size", kDrop},
      {"zero_optimization.zero_quantized_nontrainable_weights", kDrop}}},
    {"monitor",
     R"("tensorboard": {"enabled": true}, "wandb": {"enabled": true},
          "comet": {"enabled": true, "project": "my_project"}, "csv_monitor": {"enabled": true})",
     {{"comet", kDrop}, {"csv_monitor", kDrop}, {"tensorboard", kDrop}, {"wandb", kDrop}}},
    {"one-cycle", R"("scheduler": {"type": "OneCycle", "params": {
          "cycle_first_step_size": 1000, "cycle_first_stair_count": 500,
          "cycle_second_step_size": 1000, "cycle_second_stair_count": 500,
          "decay_step_size": 1000, "cycle_min_lr": 0.0001, "cycle_max_lr": 0.0010,
          "decay_lr_rate": 0.001, "cycle_min_mom": 0.85, "cycle_max_mom": 0.99,
          "decay_mom_rate": 0.0}})"},
    {"onebit-adam",
     R"("train_batch_size": 4096, "train_micro_batch_size_per_gpu": 16,
          "steps_per_print": 100, "prescale_gradients": false, "optimizer":
          {"type": "OneBitAdam", "params": {"lr": 4e-4, "weight_decay": 0.01,
          "bias_correction": false, "freeze_step": 23000, "comm_backend_name": "nccl"}},
          "gradient_clipping": 1.0, "fp16": {"enabled": true, "initial_scale_power": 16})",
     {{"optimizer.type", kChoose}}},
    {"onebit-lamb",
     R"("train_batch_size": 65536, "train_micro_batch_size_per_gpu": 64,
          "optimizer": {"type": "OneBitLamb", "params": {"lr": 11e-3, "max_coeff": 0.3,
          "freeze_step": 1000, "factor_threshold": 0.1}}, "gradient_clipping": 1.0)",
     {{"optimizer.type", kChoose}}},
    {"progressive_layer_dropping",
     R"("train_batch_size": 4096,
          "train_micro_batch_size_per_gpu": 16, "steps_per_print": 1000,
          "prescale_gradients": true, "gradient_predivide_factor": 8, "optimizer":
          {"type": "Adam", "params": {"lr": 1e-3, "weight_decay": 0.01,
          "bias_correction": false}}, "gradient_clipping": 1.0, "wall_clock_breakdown": false,
          "fp16": {"enabled": true, "loss_scale": 0},
          "progressive_layer_drop": {"enabled": true, "theta": 0.5, "gamma": 0.001})",
     {{"optimizer.params.bias_correction", "Means are always corrected here"}}},
    {"sparse-attention",
     R"("sparse_attention": {"mode": "fixed", "block": 16})",
     {{"sparse_attention", kDrop}}},
    {"ulysses-alst-sequence-parallelism", R"("train_micro_batch_size_per_gpu": 1,
          "zero_optimization": {"stage": 3}, "optimizer": {"type": "Adam", "params":
          {"lr": 1e-3}}, "sequence_parallel_size": 2)"},
    {"universal-checkpointing", R"("checkpoint": {"load_universal": true})"},
    {"zenflow",
     R"("zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu",
          "pin_memory": true}, "zenflow": {"topk_ratio": 0.05, "select_strategy": "auto",
          "select_interval": "auto", "update_interval": 4, "overlap_step": true}})",
     {{"zero_optimization.zenflow", kDrop}}},
    {"zero-offload", R"("zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"},
          "contiguous_gradients": true, "overlap_comm": true})"},
    {"zero-one-adam",
     R"("train_batch_size": 4096, "train_micro_batch_size_per_gpu": 16,
          "optimizer": {"type": "ZeroOneAdam", "params": {"lr": 1e-3, "bias_correction": false,
          "var_freeze_step": 1000, "local_step_clipper": 16}}, "gradient_clipping": 1.0)",
     {{"optimizer.type", kChoose}}},
    {"zero: stage 1", R"("zero_optimization": {"stage": 1, "reduce_bucket_size": 5e8})"},
    {"zero: stage 2", R"("zero_optimization": {"stage": 2, "contiguous_gradients": true,
          "overlap_comm": true, "reduce_scatter": true, "reduce_bucket_size": 5e8,
          "allgather_bucket_size": 5e8})"},
    {"zero: stage 3", R"("zero_optimization": {"stage": 3, "contiguous_gradients": true,
          "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9,
          "stage3_prefetch_bucket_size": 1e7, "stage3_param_persistence_threshold": 1e5,
          "reduce_bucket_size": 1e7, "sub_group_size": 1e9,
          "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}})"},
    {"zero: saving", R"("zero_optimization": {"stage3_gather_16bit_weights_on_model_save": true})"},
    {"zeropp",
     R"("zero_optimization": {"stage": 3, "reduce_bucket_size": 10000000,
          "reduce_scatter": true, "zero_quantized_weights": true, "zero_hpz_partition_size": 16,
          "zero_quantized_gradients": true, "contiguous_gradients": true, "overlap_comm": true})",
     {{"zero_optimization.zero_hpz_partition_size", kDrop},
      {"zero_optimization.zero_quantized_gradients", kDrop},
      {"zero_optimization.zero_quantized_weights", kDrop}}},
    {"code-docs, training: leaf modules", R"("train_micro_batch_size_per_gpu": 1,
          "zero_optimization": {"stage": 3, "leaf_module": {"classes":
          ["my_package.layers.CustomMoEBlock"], "names": ["transformer.layers.0.experts"],
          "name_suffixes": ["experts"]}})"},
    {"code-docs, training: accumulation", R"("managed_gradient_accumulation": false)"},
    {"code-docs, training: specs by model", R"("tensor_parallel": {"autotp_size": 4,
          "partition_config": {"layer_specs": [{"patterns": [".*\\.qkv_proj\\.weight$"],
          "partition_type": "column", "shape": [[4096, 1024, 1024], -1], "partition_dim": 0,
          "model_types": ["llama"]}, {"patterns": [".*\\.qkv_proj\\.weight$"],
          "partition_type": "column", "shape": [3, -1], "partition_dim": 0,
          "model_types": ["qwen2"]}]}})"},
    {"code-docs, zero3: a disk",
     R"("zero_optimization": {"stage": 3,
          "offload_optimizer": {"device": "nvme", "nvme_path": "/nvme_data"},
          "offload_param": {"device": "nvme", "nvme_path": "/nvme_data"}})",
     {{"zero_optimization.offload_optimizer.device", "Use \"cpu\"."},
      {"zero_optimization.offload_param.device", "Use \"cpu\"."}}}};

// With a batch and an optimizer.
Json whole(const Example& example) {
  Json file = Json::parse("{" + std::string(example.keys) + "}");
  if (!file.contains("train_batch_size") && !file.contains("train_micro_batch_size_per_gpu"))
    file["train_micro_batch_size_per_gpu"] = 2;
  if (!file.contains("optimizer")) file["optimizer"] = {{"type", "AdamW"}};
  return file;
}

void list_keys(const Json& section, const std::string& prefix, std::set<std::string>& keys) {
  for (const auto& [key, value] : section.items())
    if (value.is_object() && !value.empty())
      list_keys(value, prefix + key + ".", keys);
    else if (!value.is_null())
      keys.insert(prefix + key);
}

// Every key of the file is told of: by itself, by its section, or by what it stands for.
void expect_told(const Example& example, const Json& file) {
  std::set<std::string> told, given;
  for (const Setting& one : explain_config(file.dump(), kRanks).settings)
    if (one.origin != Setting::Origin::Default) told.insert(one.key);
  list_keys(file, "", given);
  for (const std::string& key : given) {
    bool is_told = told.contains(key);
    for (const std::string& one : told)
      is_told = is_told || key.starts_with(one + ".") || one.starts_with(key + ".");
    EXPECT_TRUE(is_told) << example.page << ": " << key;
  }
}

void expect_as_written(const Example& example) {
  const Json file = whole(example);
  std::vector<std::string> problems;
  try {
    expect_told(example, file);
  } catch (const ConfigError& error) {
    problems = error.problems();
  }
  std::set<std::string> refused, expected;
  for (const auto& problem : problems) refused.insert(problem.substr(0, problem.find(": ")));
  for (const auto& [key, remedy] : example.refused) {
    expected.insert(key);
    for (const auto& problem : problems)
      if (problem.starts_with(std::string(key) + ": "))
        EXPECT_THAT(problem, testing::HasSubstr(remedy)) << example.page;
  }
  EXPECT_EQ(refused, expected) << example.page << "\n" << testing::PrintToString(problems);
}

// As docs/moving-from-deepspeed.md says.
TEST(DeepSpeedExamples, AreReadUnlessTheyNeedWhatIsNotHere) {
  std::size_t read = 0;
  for (const auto* examples : {&kPages, &kTutorials})
    for (const Example& example : *examples) read += example.refused.empty() ? 1 : 0;
  EXPECT_EQ(read, 37U);
}

TEST(DeepSpeedExamples, OfThePagesAreReadOrRefusedByName) {
  EXPECT_EQ(kPages.size(), 42U);
  for (const Example& example : kPages) expect_as_written(example);
}

TEST(DeepSpeedExamples, OfTheTutorialsAreReadOrRefusedByName) {
  EXPECT_EQ(kTutorials.size(), 36U);
  for (const Example& example : kTutorials) expect_as_written(example);
}

}  // namespace
}  // namespace equigrad
