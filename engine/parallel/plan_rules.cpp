#include "engine/parallel/plan_rules.hpp"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <string_view>

namespace equigrad::parallel {
namespace {

constexpr Placement kWhole = Placement::Replicated, kColumn = Placement::Column,
                    kRow = Placement::Row;

// ---- presets -----------------------------------------------------------------------------------

constexpr Rule kLlama[] = {{"self_attn.o_proj", kRow},    {"self_attn.q_proj", kColumn},
                           {"self_attn.k_proj", kColumn}, {"self_attn.v_proj", kColumn},
                           {"mlp.down_proj", kRow},       {"mlp.up_proj", kColumn},
                           {"mlp.gate_proj", kColumn}};

constexpr Rule kBloom[] = {{"self_attention.dense", kRow},
                           {"self_attention.query_key_value", kColumn, Packing::Interleaved},
                           {"mlp.dense_4h_to_h", kRow},
                           {"mlp.dense_h_to_4h", kColumn}};

constexpr Rule kChatGlm[] = {{"self_attention.dense", kRow},
                             {"self_attention.query_key_value", kColumn, Packing::QueryKeyValue},
                             {"mlp.dense_4h_to_h", kRow},
                             {"mlp.dense_h_to_4h", kColumn, Packing::GateUp}};

constexpr Rule kMixtral[] = {{"self_attn.o_proj", kRow},
                             {"self_attn.q_proj", kColumn},
                             {"self_attn.k_proj", kColumn},
                             {"self_attn.v_proj", kColumn},
                             {"block_sparse_moe.experts.#.w2", kRow},
                             {"block_sparse_moe.experts.#.w1", kColumn},
                             {"block_sparse_moe.experts.#.w3", kColumn},
                             {"block_sparse_moe.gate", kWhole}};

// Latent projections are whole; q_proj is there where queries have none.
constexpr Rule kDeepSeekV2[] = {{"self_attn.o_proj", kRow},
                                {"self_attn.q_a_proj", kWhole},
                                {"self_attn.kv_a_proj_with_mqa", kWhole},
                                {"self_attn.q_proj", kColumn},
                                {"self_attn.q_b_proj", kColumn},
                                {"self_attn.kv_b_proj", kColumn},
                                {"mlp.experts.#.down_proj", kRow},
                                {"mlp.experts.#.up_proj", kColumn},
                                {"mlp.experts.#.gate_proj", kColumn},
                                {"mlp.gate", kWhole},
                                {"mlp.shared_experts.down_proj", kRow},
                                {"mlp.shared_experts.up_proj", kColumn},
                                {"mlp.shared_experts.gate_proj", kColumn}};

constexpr Rule kPhi3[] = {{"self_attn.o_proj", kRow},
                          {"self_attn.qkv_proj", kColumn, Packing::QueryKeyValue},
                          {"mlp.down_proj", kRow},
                          {"mlp.gate_up_proj", kColumn, Packing::GateUp}};

struct Preset {
  const char* model;
  std::span<const Rule> rules;
};
constexpr Preset kPresets[] = {{"llama", kLlama},
                               {"bloom", kBloom},
                               {"chatglm", kChatGlm},
                               {"mixtral", kMixtral},
                               {"deepseek_v2", kDeepSeekV2},
                               {"qwen2", kLlama},
                               {"phi3", kPhi3}};

// ---- heuristics --------------------------------------------------------------------------------

struct TypeRule {
  const char* model_type;
  Rule rule;
};
constexpr TypeRule kByType[] = {
    {"qwen", {"mlp.w2", kColumn}},  // its gate; c_proj is the row
    {"chatglm", {"dense_h_to_4h", kColumn, Packing::GateUp}},
    {"codegen", {"qkv_proj", kColumn, Packing::CodeGenInput}},
    {"codegen", {"out_proj", kRow, Packing::CodeGenOutput}},
};

// What chooses experts, and projections to latent spaces.
constexpr Rule kStaysWhole[] = {{"mlp.gate", kWhole},
                                {"block_sparse_moe.gate", kWhole},
                                {"feed_forward.gate", kWhole},
                                {"shared_expert_gate", kWhole},
                                {"router", kWhole},
                                {"router.classifier", kWhole},
                                {"q_a_proj", kWhole},
                                {"kv_a_proj_with_mqa", kWhole}};

// The linears whose output is a sum over what the columns before them split.
constexpr Rule kSummed[] = {{"o_proj", kRow},
                            {"out_proj", kRow},
                            {"down_proj", kRow},
                            {"attention.dense", kRow},
                            {"self_attention.dense", kRow},
                            {"self_attn.dense", kRow},
                            {"output.dense", kRow},
                            {"dense_4h_to_h", kRow},
                            {"c_proj", kRow},
                            {"fc_out", kRow},
                            {"fc2", kRow},
                            {"linear2", kRow},
                            {"lin2", kRow},
                            {"out_lin", kRow},
                            {"ffn_output", kRow},
                            {"output_dense", kRow},
                            {"wo", kRow},
                            {"Wo", kRow},
                            {"w2", kRow},
                            {"SelfAttention.o", kRow},
                            {"EncDecAttention.o", kRow}};

constexpr Rule kPacked[] = {{"gate_up_proj", kColumn, Packing::GateUp}};
constexpr Rule kOther{"any other linear of a block", kColumn};

constexpr const char* kQueriesKeysValues[] = {
    "qkv_proj", "query_key_value", "Wqkv", "W_pack", "c_attn", "wqkv", "qkv"};

struct TypePacking {
  const char* model_type;
  Packing packing;
};
constexpr TypePacking kPackings[] = {
    {"bloom", Packing::Interleaved},     {"falcon", Packing::Interleaved},
    {"gpt_neox", Packing::Interleaved},  {"gpt_neox_japanese", Packing::Interleaved},
    {"persimmon", Packing::Interleaved}, {"internlm2", Packing::Interleaved},
    {"chatglm", Packing::QueryKeyValue}, {"mpt", Packing::QueryKeyValue},
    {"qwen", Packing::QueryKeyValue},    {"baichuan", Packing::QueryKeyValue},
    {"phi3", Packing::QueryKeyValue},    {"gpt2", Packing::QueryKeyValue},
};

constexpr const char* kHeads[] = {"q_proj",
                                  "k_proj",
                                  "v_proj",
                                  "query",
                                  "key",
                                  "value",
                                  "q_lin",
                                  "k_lin",
                                  "v_lin",
                                  "wq",
                                  "wk",
                                  "wv",
                                  "q_b_proj",
                                  "kv_b_proj",
                                  "SelfAttention.q",
                                  "SelfAttention.k",
                                  "SelfAttention.v",
                                  "EncDecAttention.q",
                                  "EncDecAttention.k",
                                  "EncDecAttention.v",
                                  "relative_attention_bias"};

constexpr NormRule kNorms[] = {{"q_norm", "q_proj"},
                               {"k_norm", "k_proj"},
                               {"q_layernorm", "q_proj"},
                               {"k_layernorm", "k_proj"},
                               {"query_layernorm", "query"},
                               {"key_layernorm", "key"},
                               {"q_layernorm.norms.#", "q_proj", true},
                               {"k_layernorm.norms.#", "k_proj", true}};

struct NotByNames {
  const char* model_type;
  const char* why;
};
constexpr const char* kMixed = "its attention mixes split and whole projections";
constexpr const char* kRecurrent = "its blocks are recurrent";
constexpr NotByNames kNotByNames[] = {
    {"deberta", kMixed},
    {"deberta-v2", kMixed},
    {"flaubert", kMixed},
    {"fsmt", kMixed},
    {"led", kMixed},
    {"longformer", kMixed},
    {"xlm", kMixed},
    {"xlnet", kMixed},
    {"mamba", kRecurrent},
    {"mamba2", kRecurrent},
    {"falcon_mamba", kRecurrent},
    {"rwkv", kRecurrent},
    {"yuan", "its query and key heads are shared"},
    {"gpt_bigcode", "all its heads share one key and one value"},
    {"gpt_oss", "it has a parameter for each head that is no module's weight"}};

constexpr Style kStyles[] = {
    {.name = "colwise", .placement = kColumn},
    {.name = "colwise_rep", .placement = kColumn, .gathers_output = true},
    {.name = "colwise_gather_output", .placement = kColumn, .gathers_output = true},
    {.name = "rowwise", .placement = kRow},
    {.name = "rowwise_split_input", .placement = kRow, .takes_whole_input = true},
    {.name = "embedding_rowwise", .placement = Placement::Vocabulary},
    {.name = "replicated_with_grad_allreduce", .placement = kWhole, .sums_gradient = true}};

// Whether all of `text` is as `pattern` says.
bool is_wholly(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  if (pattern.front() != '*')
    return !text.empty() && pattern.front() == text.front() &&
           is_wholly(pattern.substr(1), text.substr(1));
  for (std::size_t taken = 0; taken <= text.size(); ++taken)
    if (is_wholly(pattern.substr(1), text.substr(taken))) return true;
  return false;
}

template <std::size_t kSize>
const Rule* first_named(const std::string& name, const Rule (&rules)[kSize]) {
  const auto found = std::find_if(std::begin(rules), std::end(rules),
                                  [&](const Rule& rule) { return has_ending(name, rule.ending); });
  return found == std::end(rules) ? nullptr : &*found;
}

// The last part of a name or of an ending, which is cut off.
std::string_view cut_last(std::string_view& text) {
  const std::size_t dot = text.rfind('.');
  const std::string_view last = dot == text.npos ? text : text.substr(dot + 1);
  text = dot == text.npos ? std::string_view() : text.substr(0, dot);
  return last;
}

bool is_number(std::string_view part) {
  return !part.empty() && std::all_of(part.begin(), part.end(), [](char c) {
    return std::isdigit(static_cast<unsigned char>(c)) != 0;
  });
}

}  // namespace

bool has_ending(const std::string& name, const std::string& ending) {
  std::string_view of_name = name, of_ending = ending;
  while (!of_ending.empty()) {
    if (of_name.empty()) return false;
    const std::string_view part = cut_last(of_name), wanted = cut_last(of_ending);
    if (wanted == "#" ? !is_number(part) : part != wanted) return false;
  }
  return true;
}

std::span<const Rule> preset_rules(const std::string& preset) {
  for (const Preset& one : kPresets)
    if (preset == one.model) return one.rules;
  return {};
}

const Rule* heuristic_rule(const std::string& name, const std::string& model_type) {
  for (const TypeRule& one : kByType)
    if (model_type == one.model_type && has_ending(name, one.rule.ending)) return &one.rule;
  if (const Rule* rule = first_named(name, kStaysWhole)) return rule;
  if (const Rule* rule = first_named(name, kSummed)) return rule;
  if (const Rule* rule = first_named(name, kPacked)) return rule;
  return &kOther;
}

Packing packing_of_heads(const std::string& model_type) {
  for (const TypePacking& one : kPackings)
    if (model_type == one.model_type) return one.packing;
  return Packing::Unknown;
}

bool holds_queries_keys_values(const std::string& name) {
  return std::any_of(std::begin(kQueriesKeysValues), std::end(kQueriesKeysValues),
                     [&](const char* ending) { return has_ending(name, ending); });
}

bool has_heads(const std::string& name) {
  return holds_queries_keys_values(name) ||
         std::any_of(std::begin(kHeads), std::end(kHeads),
                     [&](const char* ending) { return has_ending(name, ending); });
}

const NormRule* norm_rule(const std::string& name) {
  for (const NormRule& one : kNorms)
    if (has_ending(name, one.ending)) return &one;
  return nullptr;
}

std::string before_ending(const std::string& name, const std::string& ending) {
  std::string_view of_name = name, of_ending = ending;
  for (; !of_ending.empty(); cut_last(of_ending)) cut_last(of_name);
  return of_name.empty() ? "" : std::string(of_name) + ".";
}

const Style* style_of(const std::string& name) {
  std::string lower = name;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const Style& one : kStyles)
    if (lower == one.name) return &one;
  return nullptr;
}

std::string known_styles() {
  std::string text;
  for (const Style& one : kStyles) text += (text.empty() ? "" : ", ") + std::string(one.name);
  return text;
}

bool is_named_by(const std::string& pattern, const std::string& name) {
  return is_wholly("*." + pattern, "." + name);
}

const char* why_not_by_names(const std::string& model_type) {
  for (const NotByNames& one : kNotByNames)
    if (model_type == one.model_type) return one.why;
  return nullptr;
}

}  // namespace equigrad::parallel
