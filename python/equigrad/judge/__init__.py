"""Whether an engine trains right: its gradients, norms, clips, updates, loss scales, step by step, without any tolerance.

    equigrad judge ddp fsdp2 deepspeed accelerate fsdp1 plain equigrad "python my_adapter.py"

The engine under test runs in processes of its own (on_rank/, or any program that speaks docs/judge-protocol.md) and says what it
computed. The judge knows what plain autograd gives for every rank and micro-batch, and so which numbers a right engine can give at
all: exactly one where nothing was rounded, else those within the bound of its roundings. docs/judge.md says how to read a board.
"""
