"""equigrad.check from Python: it holds on models that are right, sees planted faults, and refuses what can't be compared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from types import SimpleNamespace

import pytest
import torch

import equigrad

ONE = {"stages": [2], "styles": ["engine_backward"]}


class Net(torch.nn.Module):
    """With dropout and a tied weight."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(5, 5)
        self.norm = torch.nn.LayerNorm(5)
        self.dropout = torch.nn.Dropout(0.2)
        self.second = torch.nn.Linear(5, 5)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.dropout(torch.relu(self.norm(self.first(x)))))


class WithBuffers(Net):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(5)


def loss(model, batch):
    return model(batch).square().mean()


def batches(step, rank, micro_batch):
    generator = torch.Generator().manual_seed(100 * step + 10 * rank + micro_batch)
    return torch.randn(6, 5, generator=generator)


def refusal(*functions, **options):
    with pytest.raises(equigrad.Error) as raised:
        equigrad.check(*functions, **{**ONE, **options})
    return str(raised.value)


def test_a_model_holds_at_every_stage_on_one_and_three_ranks():
    report = equigrad.check(Net, loss, batches, ranks=[1, 3], precisions=["fp32", "bf16"])
    assert report.held and report, report.text
    assert len(report.run["cases"]) == 2 * 2 * 4 * 3
    assert report.compared > 10_000
    assert report.notes == []
    assert "HELD" in report.text and all(planted["caught"] for planted in report.run["self_checks"])


def test_buffers_are_compared():
    report = equigrad.check(WithBuffers, loss, batches, precisions=["fp32", "autocast-bf16"], styles=["loss_backward"])
    assert report, report.text
    assert "with parameters of BFloat16" in refusal(WithBuffers, loss, batches, precisions=["bf16"])


def test_what_this_process_has_run_does_not_matter():
    threads = [threading.Thread(target=lambda: torch.randn(300, 300).mm(torch.randn(300, 300))) for _ in range(2)]
    for thread in threads:
        thread.start()
    Net()(torch.randn(4, 5)).sum().backward()
    width = 5  # functions of this function go to the other process by value

    class Local(torch.nn.Linear):
        def __init__(self):
            super().__init__(width, 3)

    assert equigrad.check(Local, lambda model, batch: model(batch).mean(), batches, **ONE)
    for thread in threads:
        thread.join()


def test_a_fault_is_seen_named_and_can_be_run_again(tmp_path):
    folder = tmp_path / "report"
    report = equigrad.check(
        Net, loss, batches, stages=[1, 2], styles=["loss_backward"], report=folder, name="net", fault="averaged_twice"
    )
    assert not report.held and not report
    assert "averaged twice over 2 ranks" in report.text
    case = report.run["cases"][0]
    assert case["id"].endswith("net.loss_backward")
    assert f"EQUIGRAD_CHECK_ONLY={case['id']} " in case["replay"] and sys.orig_argv[0] in case["replay"]
    assert json.loads((folder / "run.json").read_text()) == report.run
    assert "averaged twice" in (folder / "junit.xml").read_text()
    assert "<html" in (folder / "index.html").read_text()
    assert (folder / "fail" / case["id"] / "rank0.safetensors").exists()
    again = equigrad.check(Net, loss, batches, stages=[1, 2], styles=["loss_backward"], name="net", only=case["id"])
    assert again.held and [one["id"] for one in again.run["cases"]] == [case["id"]]


def test_every_option_chooses_cases():
    def ids(**options) -> list[str]:
        report = equigrad.check(Net, loss, batches, stages=[1], styles=["loss_backward"], steps=1, **options)
        assert report, report.text
        return [case["id"].partition(".zero1.")[2] for case in report.run["cases"]]

    assert ids() == ["fp32.w2.accumulation2.clip-above.adamw.model.loss_backward"]
    found = ids(clips=["clip-off", "clip-below"], optimizers=["sgd"], accumulation=[3], ranks=[3])
    assert [one.split(".")[1:5] for one in found] == [
        ["w3", "accumulation3", clip, "sgd"] for clip in ("clip-off", "clip-below")
    ]
    for option in ("clips", "optimizers", "styles", "precisions"):
        assert "nonsense" in refusal(Net, loss, batches, **{option: ["nonsense"]})


def test_a_configuration_says_stage_precision_and_accumulation(tmp_path):
    config = {
        "train_micro_batch_size_per_gpu": 6,
        "gradient_accumulation_steps": 3,
        "gradient_clipping": 0.1,
        "bf16": {"enabled": True},
        "optimizer": {"type": "Adam", "params": {"lr": 0.01}},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 4},
    }
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(config))
    few = [batches(0, 0, index) for index in range(6)]
    for given in (config, path):
        report = equigrad.check(Net, loss, few, config=given, styles=["scale_backward"])
        assert report, report.text
        assert "zero3.bf16.w2.accumulation3" in report.run["cases"][0]["id"]
    assert "expected at least 6 batches for 2 ranks with 3 micro-batches, got 5" in refusal(
        Net, loss, few[:5], config=config
    )


def test_a_model_that_gives_its_own_loss_needs_no_function():
    class Head(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(5, 2)

        def forward(self, inputs, labels):
            assert labels.dtype == torch.long
            return SimpleNamespace(loss=torch.nn.functional.cross_entropy(self.linear(inputs), labels))

    def of(step, rank, micro_batch):
        inputs = batches(step, rank, micro_batch)
        return {"inputs": inputs, "labels": (inputs.sum(1) > 0).long()}

    assert equigrad.check(Head, None, of, precisions=["bf16"], **ONE)


def test_an_output_comes_with_its_gradient():
    def output(model, batch):
        value = model(batch)
        return value, torch.ones_like(value) / 7

    report = equigrad.check(Net, output, batches, stages=[1], precisions=["fp32", "fp16"])
    assert report, report.text
    assert all(case["id"].endswith("tensor_backward") for case in report.run["cases"])


def test_leaf_modules_and_checkpointing_hold():
    class Deep(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.block = torch.nn.Sequential(torch.nn.Linear(5, 9), torch.nn.Dropout(0.3), torch.nn.Linear(9, 5))
            equigrad.utils.set_z3_leaf_modules(self, [torch.nn.Sequential])

        def forward(self, x):
            for reentrant in (False, True):
                x = torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=reentrant)
            return x

    def of(step, rank, micro_batch):
        return batches(step, rank, micro_batch).requires_grad_()

    assert equigrad.check(Deep, loss, of, stages=[3], styles=["engine_backward"])


def test_other_generators_than_torchs_are_seeded():
    import random

    class Layers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(5, 5) for _ in range(3))

        def forward(self, x):
            for layer in self.layers:
                if random.random() > 0.3:
                    x = layer(x)
            return x + self.layers[0](x)

    assert equigrad.check(Layers, loss, batches, **ONE)


# ---- What is refused -----------------------------------------------------------------------------------------------


def test_a_model_that_is_not_deterministic_is_refused_with_its_operator():
    def noisy(model, batch):
        noise = torch.frombuffer(bytearray(os.urandom(30)), dtype=torch.uint8).float().view(6, 5)
        return torch.mul(model(batch), noise).mean()

    said = refusal(Net, noisy, batches)
    assert "expected the same numbers of the same pass, run twice under one seed" in said and "aten::mul" in said


@pytest.mark.parametrize(
    ("loss_fn", "of", "expected"),
    [
        (lambda model, batch: model(batch), batches, "a loss of one element, got a tensor of [6, 5] Float"),
        (lambda model, batch: model(batch).mean().detach(), batches, "a loss with a graph to the parameters"),
        (
            lambda model, batch: 1.0,
            batches,
            "expected a loss, an output that has `.loss`, or (output, gradient), got a float",
        ),
        (loss, lambda *which: torch.ones(6, 5), "batches that differ from rank to rank"),
        (loss, lambda step, rank, micro: batches(step, rank, 0), "batches that differ from micro-batch to micro-batch"),
        (
            lambda model, batch: torch.nextafter(model(batch), batch).mean(),
            batches,
            "the derivative for 'nextafter' is not implemented",
        ),
    ],
    ids=["not scalar", "no graph", "no tensor", "equal ranks", "equal micro-batches", "no gradient"],
)
def test_what_cannot_be_compared_is_refused(loss_fn, of, expected):
    assert expected in refusal(Net, loss_fn, of)


def test_one_model_for_all_calls_is_refused():
    model = Net()
    assert "expected a new model of every call of make_model, got one object twice" in refusal(lambda: model, loss, batches)


def test_a_text_is_no_list():
    with pytest.raises(equigrad.Error, match=r"expected a list for precisions, got 'bf16'. Write precisions=\['bf16'\]"):
        equigrad.check(Net, loss, batches, precisions="bf16")
    with pytest.raises(equigrad.Error, match="expected a list for ranks, got 2"):
        equigrad.check(Net, loss, batches, ranks=2)


def test_what_a_function_raises_comes_with_its_traceback():
    def wrong(model, batch):
        return model(batch[:, :3]).mean()

    said = refusal(Net, wrong, batches)
    assert "expected the model to run by plain autograd" in said
    assert "in wrong" in said and "mat1 and mat2 shapes cannot be multiplied" in said
    assert "expected a torch.nn.Module of make_model, got a dict" in refusal(dict, loss, batches)


def test_wrong_options_are_refused():
    assert "expected batches, got None" in refusal(Net, loss)
    assert "expected precisions to be of fp32, bf16" in refusal(Net, loss, batches, precisions=["fp8"])
    assert "stages from 0 to 3, got 4" in refusal(Net, loss, batches, stages=[4])
    assert "nowhere.json" in refusal(Net, loss, batches, config="nowhere.json")
    with pytest.raises(TypeError, match="rank"):
        equigrad.check(Net, loss, batches, rank=[2])


def test_what_cannot_go_to_another_process_is_refused():
    lock = threading.Lock()

    def locked(step, rank, micro_batch):
        with lock:
            return batches(step, rank, micro_batch)

    assert "expected functions that cloudpickle takes to another process" in refusal(Net, loss, locked)


def test_a_process_that_dies_is_told():
    def dying(model, batch):
        os.kill(os.getpid(), signal.SIGSEGV)

    assert "signal 11" in refusal(Net, dying, batches)


# ---- Beside it: pytest's fixture, Ctrl-C -----------------------------------------------------------------------------

MODULE = """
    import torch

    def batches(step, rank, micro_batch):
        return torch.randn(4, 3, generator=torch.Generator().manual_seed(100 * step + 10 * rank + micro_batch))

    def make():
        return torch.nn.Linear(3, 2)

    def loss(model, batch):
        return model(batch).square().mean()
"""


@pytest.mark.parametrize("mode", ["prepend", "importlib"])
def test_the_fixture_fails_a_test_with_the_report(tmp_path, mode):
    (tmp_path / "test_mine.py").write_text(
        textwrap.dedent(MODULE)
        + textwrap.dedent("""
    def test_right(equigrad_check):
        assert equigrad_check(make, loss, batches, stages=[1], styles=["loss_backward"]).compared > 0

    def test_wrong(equigrad_check):
        equigrad_check(make, loss, batches, stages=[1], styles=["loss_backward"], fault="averaged_twice")
    """)
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "equigrad.pytest_plugin", f"--import-mode={mode}", "test_mine.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "averaged twice over 2 ranks" in done.stdout
    assert "# the report: " in done.stdout and "index.html" in done.stdout


def test_an_interrupt_ends_it_soon(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(MODULE)
        + textwrap.dedent("""
    import equigrad
    equigrad.check(make, loss, batches, steps=300, accumulation=[3], ranks=[2, 3, 4])
    """)
    )
    process = subprocess.Popen([sys.executable, program], stderr=subprocess.PIPE, text=True, start_new_session=True)
    time.sleep(8)
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode != 0 and "KeyboardInterrupt" in error


# In a process of its own: the device stays.
ON_ANOTHER_DEVICE = """
import os, torch, types
torch.ops.load_library(os.environ["EQUIGRAD_HOST_DEVICE"])
host = types.ModuleType("torch.host")  # what torch asks of a device in Python
host._lazy_init = lambda: None
torch._register_device_module("host", host)
from equigrad._subject import Subject
def batches(step, rank, micro_batch):
    return {"x": torch.ones(2, 3), "index": torch.tensor([step, rank])}
def loss(model, batch):
    assert {part.device.type for part in batch.values()} == {"host"} and batch["index"].dtype == torch.int64
    assert batch["x"].dtype == torch.bfloat16
    return model(batch["x"].float()).square().mean()
def make():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
there, here = Subject(make, loss, batches, 1), Subject(make, lambda model, batch: model(batch["x"].float()).square().mean(), batches, 1)
before = [tensor for _, tensor, _ in there.parameters()]
there.move_to("host:0")
assert [one is other for one, (_, other, _) in zip(before, there.parameters(), strict=True)] == [True] * 4
assert {tensor.device.type for _, tensor in there.buffers()} == {"host"}
losses = [subject.forward(0, 1, 0, 2, torch.bfloat16, 1)[0] for subject in (there, here)]
for one in losses:
    one.backward()
assert losses[0].device.type == "host"
for (_, one, _), (_, other, _) in zip(there.parameters(), here.parameters(), strict=True):
    assert torch.equal(one.grad.cpu(), other.grad)
"""


def test_a_model_and_its_batches_are_where_they_are_moved_to():
    done = subprocess.run([sys.executable, "-c", ON_ANOTHER_DEVICE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_cuda_is_an_error():
    assert "[check] expected a CUDA device, got none that torch sees" in refusal(Net, loss, batches, device="cuda")


def test_a_device_that_is_none_is_refused():
    assert 'expected the device cpu or cuda, got "gpu"' in refusal(Net, loss, batches, device="gpu")
