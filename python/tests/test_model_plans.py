"""A model's own plan of its parts, transformers' base_model_tp_plan: it is followed where names split nothing, and what it says is
what transformers means by it; where heuristics split, where they agree with the plan."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

import equigrad
import ranks
import tensor_models as models
import twin
from equigrad import _core, _tensor_parallel
from equigrad._tensor_parallel import _candidate, _facts_of, _weight_of
from tensor_runs import LR, PASSES, configuration, disturbed, errors_of, trained

PLAN = {
    "stack.*.mix.first": "colwise",
    "stack.*.mix.second": "rowwise",
    "stack.*.wide": "colwise_rep",
    "stack.*.narrow": "rowwise_split_input",
    "words": "embedding_rowwise",
}


class Custom(torch.nn.Module):
    """Names that no heuristic knows; whole numbers, so that every sum is exact."""

    def __init__(self, plan: dict[str, str] | None = None) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.config = SimpleNamespace(base_model_tp_plan=PLAN if plan is None else plan)
        self.words = torch.nn.Embedding(models.VOCABULARY, 8)
        self.stack = torch.nn.ModuleList(
            torch.nn.ModuleDict(
                {
                    "mix": torch.nn.ModuleDict({"first": torch.nn.Linear(8, 16), "second": torch.nn.Linear(16, 8)}),
                    "wide": torch.nn.Linear(8, 8),
                    "narrow": torch.nn.Linear(8, 8, bias=False),
                }
            )
            for _ in range(1)
        )
        for parameter in self.parameters():
            torch.nn.init.uniform_(parameter, -2, 2)
            parameter.data.round_()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.words(tokens)
        for layer in self.stack:
            mix = layer["mix"]
            hidden = mix["second"](torch.relu(mix["first"](hidden)))
            hidden = layer["narrow"](torch.relu(layer["wide"](hidden)))
        return hidden


def loss_of(model: torch.nn.Module, step: int, rank: int, micro_batch: int) -> torch.Tensor:
    return model(models.tokens(step, rank, micro_batch)).sum()


def play(tensor: int) -> dict[str, Any]:
    engine = equigrad.initialize(model=disturbed(Custom()), config=configuration(tensor, 1))[0]
    shapes = {name: list(one.shape) for name, one in engine.module.named_parameters()}
    assert shapes["stack.0.mix.first.weight"] == [16 // tensor, 8] and shapes["stack.0.mix.first.bias"] == [16 // tensor]
    assert shapes["stack.0.mix.second.weight"] == [8, 16 // tensor] and shapes["stack.0.mix.second.bias"] == [8]
    assert shapes["stack.0.wide.weight"] == [8 // tensor, 8] and shapes["stack.0.narrow.weight"] == [8, 8 // tensor]
    assert shapes["words.weight"] == [models.VOCABULARY // tensor, 8]
    assert "(the model's plan: colwise_rep)" in engine.tensor_parallel_plan
    return trained(engine, loss_of, 1)


def unsplit(data: int) -> Any:
    return twin.train(Custom, loss_of, data, 1, 1, PASSES, LR)


@pytest.mark.parametrize(("data", "tensor"), [(1, 2), (1, 4), (2, 2)])
def test_a_model_with_a_plan_of_its_own_has_the_bits_of_the_unsplit_one(data: int, tensor: int) -> None:
    played, want = ranks.run(data * tensor, play, tensor), ranks.alone(unsplit, data)
    assert len({one["digest"] for one in played}) == 1, "ranks differ"
    for name, value in want[0][0].items():
        assert value.abs().max() > 0, name
        twin.assert_same_bits(played[0]["history"][0][name], value, f"gradient of {name}")
    for name, value in want[1].items():
        twin.assert_same_bits(played[0]["parameters"][name], value, name)


class WithClassPlan(Custom):
    _tp_plan: ClassVar = {"words": "nonsense"}


def refused() -> list[str]:
    def make(model: torch.nn.Module) -> Any:
        return lambda: equigrad.initialize(model=model, config=configuration(2))

    own = Custom()
    own._tp_plan = {"stack.*.mix.first": "rowwise"}
    return errors_of(
        make(Custom({**PLAN, "stack.*.experts": "moe_tp_experts"})), make(WithClassPlan()), make(own), make(Custom({}))
    )


def test_what_a_plan_says_that_is_not_known_is_refused_by_name() -> None:
    for unknown, of_class, of_own, nothing in ranks.run(2, refused):
        assert 'got "moe_tp_experts" for "stack.*.experts"' in unknown and "colwise, colwise_rep" in unknown
        assert 'got "nonsense" for "words"' in of_class
        assert "stack.0.mix.first: expected a column-parallel module" in of_own, of_own
        assert "expected modules to split, got none in a Custom" in nothing


def play_turned() -> dict[str, Any]:
    """Planted: a column is taken as a row, and a row as a column."""
    other = {"colwise": "rowwise", "rowwise": "colwise"}
    own = _tensor_parallel._plan_of
    _tensor_parallel._plan_of = lambda model: [(one, other.get(style, style)) for one, style in own(model)]
    return play(2)


def test_a_column_that_is_taken_as_a_row_is_seen() -> None:
    with pytest.raises(ranks.RankFailed, match=r"AssertionError"):
        ranks.run(2, play_turned)


# ---- Plans of transformers -------------------------------------------------------------------------------------------

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "pad_token_id": 0,
}


def plans_of(kind: str, **more: Any) -> tuple[dict[str, str], dict[str, Any], Any]:
    """What transformers says of each module; what the heuristics do; and the engine's reading of the plan alone, or its error."""
    transformers = pytest.importorskip("transformers")
    model = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**SIZES, **more))
    config = _core.load_config(json.dumps(configuration(2)), 2)
    facts = _facts_of(model)
    candidates = [_candidate(name, one) for name, one in model.named_modules() if name and _weight_of(one) is not None]
    heuristics = _core.plan_tensor_parallel(config, *facts, candidates)[0]
    # Without numbers there are no repeated blocks, and so no heuristics; a * of the plan is anything.
    lettered = [(re.sub(r"\.\d+\.", ".a.", one[0]), *one[1:]) for one in candidates if ".1." not in one[0]]
    try:
        alone: Any = _core.plan_tensor_parallel(config, *facts, lettered)[0]
    except _core.Error as error:
        alone = str(error)
    said = {}
    for name in heuristics:
        general = re.sub(r"\.\d+(?=\.)", ".*", name)
        if general in model.tp_plan:
            said[name] = model.tp_plan[general]
    return said, heuristics, alone


MEANS = {
    "colwise": (_core.Placement.Column, False, False),
    "colwise_gather_output": (_core.Placement.Column, True, False),
    "colwise_rep": (_core.Placement.Column, True, False),
    "rowwise": (_core.Placement.Row, False, False),
    "rowwise_split_input": (_core.Placement.Row, False, True),
    "embedding_rowwise": (_core.Placement.Vocabulary, False, False),
}


def meaning_of(plan: _core.ModulePlan) -> tuple[Any, bool, bool]:
    return plan.placement, plan.gathers_output, plan.takes_whole_input


@pytest.mark.parametrize("kind", ["Llama", "Qwen2"])
def test_heuristics_and_plan_agree_on_blocks_and_the_plan_splits_the_vocabulary_too(kind: str) -> None:
    said, heuristics, alone = plans_of(kind)
    assert len(said) >= 15 and said["lm_head"] in ("colwise_rep", "colwise_gather_output")
    for name, style in said.items():
        assert meaning_of(alone[re.sub(r"\.[01]\.", ".a.", name)]) == MEANS[style], name
        is_of_block = ".layers." in name
        assert heuristics[name].weight is not None if is_of_block else heuristics[name].weight is None, name
        if is_of_block:
            assert meaning_of(heuristics[name]) == MEANS[style], name
    assert {name for name, one in heuristics.items() if one.weight is not None} <= set(said)


def test_heuristics_split_what_a_plan_of_phi3_gathers() -> None:
    """Its plan gives every rank the whole of a packed output; here each rank computes with its own heads and gates."""
    said, heuristics, alone = plans_of("Phi3")
    packed = [name for name in said if name.endswith(("qkv_proj", "gate_up_proj"))]
    assert len(packed) == 4
    for name in packed:
        assert said[name] in ("colwise_rep", "colwise_gather_output")
        assert heuristics[name].placement == _core.Placement.Column and not heuristics[name].gathers_output
        assert len(heuristics[name].weight.segments) == (3 if name.endswith("qkv_proj") else 2)
    for name in said:
        if ".layers." in name:
            assert meaning_of(alone[re.sub(r"\.[01]\.", ".a.", name)]) == MEANS[said[name]], name
            assert heuristics[name].placement == MEANS[said[name]][0]


def test_heuristics_agree_with_a_plan_of_mixtral_on_attention_and_its_experts_are_refused() -> None:
    said, heuristics, alone = plans_of("Mixtral", num_local_experts=4)
    attention = [name for name in said if "self_attn" in name]
    assert len(attention) == 8
    for name in attention:
        assert meaning_of(heuristics[name]) == MEANS[said[name]], name
    assert "expected styles that are known in the model's own plan" in alone and "experts" in alone
