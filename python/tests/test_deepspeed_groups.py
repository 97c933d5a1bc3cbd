"""equigrad.deepspeed.utils.groups, and what says how ranks are grouped: DeepSpeed's names, the engine's mesh."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

import equigrad
import ranks
import tensor_models as models
from equigrad import deepspeed
from equigrad.deepspeed.utils import groups
from tensor_runs import configuration, errors_of, trained, without_optimizer

SKIPPED = {
    "partition_config": {"use_default_specs": False, "layer_specs": [{"patterns": [".*weight$"], "partition_type": "skip"}]}
}


def sequences(size: int) -> dict[str, Any]:
    config = configuration(1, 2, sequence_parallel_size=size)
    del config["tensor_parallel"]
    return config


def seen() -> dict[str, Any]:
    return {
        "data": (groups.get_data_parallel_world_size(), groups.get_data_parallel_rank()),
        "tensor": (groups.get_tensor_model_parallel_world_size(), groups.get_model_parallel_rank()),
        "source": groups.get_tensor_model_parallel_src_rank(),
        "sequence": (groups._get_sequence_parallel_world_size(), groups._get_sequence_parallel_rank()),
    }


def of_tensors(connects: bool) -> Any:
    before = errors_of(groups.get_data_parallel_rank)
    if connects:
        equigrad.init_distributed("gloo")
    engine = deepspeed.initialize(model=models.Decoder(), config=configuration(2))[0]
    if not connects:
        return before + errors_of(groups.get_tensor_model_parallel_group), seen()
    assert (engine.mp_world_size, engine.checkpoint_mp_rank) == (2, engine.global_rank % 2)
    assert engine.data_parallel_group is groups.get_data_parallel_group() and engine.seq_parallel_group is None
    assert groups.get_model_parallel_group() is groups.get_tensor_model_parallel_group()
    told = torch.tensor([float(engine.global_rank)])
    dist.broadcast(told, groups.get_tensor_model_parallel_src_rank(), groups.get_tensor_model_parallel_group())
    of = [groups.get_tensor_model_parallel_group(), groups.get_data_parallel_group()]
    again = deepspeed.initialize(model=models.Decoder(), config=configuration(2))[0]
    assert again.data_parallel_group is of[1]
    return told.item(), [dist.get_process_group_ranks(one) for one in of], seen()


def test_tensor_groups_are_those_of_the_mesh() -> None:
    for rank, (told, of, values) in enumerate(ranks.run(4, of_tensors, True)):
        first = rank // 2 * 2
        assert told == first
        assert of == [[first, first + 1], [rank % 2, rank % 2 + 2]]
        assert values == {"data": (2, rank // 2), "tensor": (2, rank % 2), "source": first, "sequence": (1, 0)}


def test_without_torch_distributed_there_are_sizes_and_no_groups() -> None:
    for rank, (said, values) in enumerate(ranks.run(2, of_tensors, False)):
        assert "expected an engine, got none yet" in said[0]
        assert "expected a tensor group of torch.distributed, got none" in said[1]
        assert values == {"data": (1, 0), "tensor": (2, rank), "source": 0, "sequence": (1, 0)}


def asked_in_deepspeeds_module() -> tuple[int, int, list[str]]:
    rank = groups.or_theirs(groups.get_data_parallel_rank, lambda: 7)
    alone = groups.or_theirs(groups.get_data_parallel_rank, None)
    before, said = rank(), errors_of(alone)
    deepspeed.initialize(model=models.Decoder(), config=configuration(2))
    return before, rank(), said


def test_before_an_engine_deepspeeds_own_module_answers() -> None:
    for before, after, (said,) in ranks.run(2, asked_in_deepspeeds_module):
        assert (before, after) == (7, 0)
        assert "expected an engine" in said


def of_sequences() -> Any:
    equigrad.init_distributed("gloo")
    engine = deepspeed.initialize(model=models.Decoder(), config=sequences(2))[0]
    found = dist.get_process_group_ranks(engine.seq_parallel_group)
    assert groups._get_sequence_parallel_group() is engine.seq_parallel_group is engine.get_sequence_parallel_group()
    values = seen()
    plain = sequences(1)
    del plain["sequence_parallel_size"]
    by_mesh = deepspeed.initialize(model=models.Decoder(), config=plain, mesh_param=(2, 2))[0]
    assert by_mesh.seq_parallel_group is engine.seq_parallel_group
    other = errors_of(lambda: deepspeed.initialize(model=models.Decoder(), config=sequences(4), mesh_param=(2, 2)))
    whole = deepspeed.initialize(model=models.Decoder(), config=plain)[0]
    assert whole.get_sequence_parallel_group() is None
    assert whole.data_parallel_group is dist.distributed_c10d._get_default_group()
    return found, values, seen(), other


def test_groups_of_a_sequence_also_by_mesh_param() -> None:
    for rank, (found, values, whole, other) in enumerate(ranks.run(4, of_sequences)):
        first = rank // 2 * 2
        assert found == [first, first + 1]
        assert values == {"data": (2, rank // 2), "tensor": (1, 0), "source": rank, "sequence": (2, rank % 2)}
        assert whole == {"data": (4, rank), "tensor": (1, 0), "source": rank, "sequence": (1, 0)}
        assert "got 2 by mesh_param and 4 by" in other[0]


def disagreeing() -> list[str]:
    model = deepspeed.tp_model_init(models.Decoder(), 1, torch.float32)
    said = []
    for more in ({}, {"mpu": object()}):
        given = deepspeed.tp_model_init(models.Decoder(), 1, torch.float32, tp_group=object()) if more else model
        with pytest.raises(ValueError) as refused:
            deepspeed.initialize(model=given, config=without_optimizer(configuration(2)), **more)
        said.append(str(refused.value))
    deepspeed.set_autotp_mode(training=False)
    return said


def test_who_disagrees_is_a_value_error_too() -> None:
    for said in ranks.run(2, disagreeing):
        assert said[0].startswith("[tensor_parallel.autotp_size] expected one value, got 1 by tp_model_init and 2")
        assert "tp_model_init provided tp_group" in said[1]


def by_the_older_way() -> tuple[int, int]:
    config = configuration(1, train_batch_size=4, gradient_accumulation_steps=1)
    del config["tensor_parallel"]
    model = deepspeed.tp_model_init(models.Decoder(), 2, torch.float32)
    engine = deepspeed.initialize(model=model, config=config)[0]
    return engine.train_batch_size(), engine.dp_world_size


def test_a_size_that_only_tp_model_init_says_counts_in_the_batch_size() -> None:
    assert ranks.run(4, by_the_older_way) == [(4, 2)] * 4


def marked(mark: str, is_part: bool, tensor: int) -> list[str]:
    equigrad.init_distributed("gloo")
    model = models.Decoder()
    setattr(model.layers[1].mlp.down_proj.weight, mark, is_part)
    said = errors_of(lambda: deepspeed.initialize(model=model, config=configuration(tensor)))
    dist.barrier()  # until every rank has its error, none leaves
    return said


def test_a_model_that_another_library_has_cut_is_refused() -> None:
    for mark in ("tensor_model_parallel", "model_parallel"):
        assert all('"layers.1.mlp.down_proj.weight" is marked as a part' in said for (said,) in ranks.run(2, marked, mark, True, 2))
    assert ranks.run(2, marked, "tensor_model_parallel", False, 2) == [[""], [""]]
    assert ranks.run(2, marked, "tensor_model_parallel", True, 1) == [[""], [""]]  # a group of one rank


# ---- A model that stays whole --------------------------------------------------------------------------------------


def whole(tensor: int) -> str:
    engine = deepspeed.initialize(model=models.Decoder(), config=configuration(tensor, 1, SKIPPED if tensor > 1 else None))[0]
    return trained(engine, models.decoder_loss)["digest"]


def test_specs_that_skip_everything_train_the_whole_model_on_every_rank_of_a_group() -> None:
    assert set(ranks.run(4, whole, 2)) == set(ranks.run(2, whole, 1))


def other_data() -> list[str]:
    engine = deepspeed.initialize(model=models.Decoder(), config=configuration(2, 0, SKIPPED))[0]
    return errors_of(lambda: models.decoder_loss(engine, 0, engine.global_rank, 0))


def test_a_group_of_a_whole_model_needs_the_same_data_too() -> None:
    for (said,) in ranks.run(2, other_data):
        assert "on ranks 0 and 1" in said


def test_an_engine_of_inference_is_refused_by_name() -> None:
    with pytest.raises(deepspeed.NotSupportedError, match=r'\[init_inference\] .*Train with initialize\(\) and "tensor_parallel"'):
        deepspeed.init_inference(torch.nn.Linear(2, 2), tensor_parallel={"tp_size": 2})
