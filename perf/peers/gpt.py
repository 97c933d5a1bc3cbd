"""The reference's GPT (reference/models/zoo.cpp) in Python.

The same operators in the same order, but for one: a linear layer adds its bias within the product here, and after it in
LibTorch's C++. `unfuse` takes that away too. The mask is no buffer, because DDP would send buffers to all ranks in every step.
"""
import math

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.projection = nn.Linear(dim, dim)
        self.mlp_norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def attend(self, qkv, mask):
        batch, context, width = qkv.shape
        width //= 3 * self.heads
        split = qkv.view(batch, context, 3, self.heads, width).permute(2, 0, 3, 1, 4)
        scores = torch.matmul(split[0], split[1].transpose(-2, -1)) / math.sqrt(width)
        mixed = torch.matmul(torch.softmax(scores + mask, -1), split[2])
        return mixed.transpose(1, 2).reshape(batch, context, self.heads * width)

    def forward(self, x, mask):
        y = x + self.projection(self.attend(self.qkv(self.attention_norm(x)), mask))
        return y + self.down(F.gelu(self.up(self.mlp_norm(y))))


class Gpt(nn.Module):
    def __init__(self, layers, dim, heads, context, vocabulary):
        super().__init__()
        self.token = nn.Embedding(vocabulary, dim)
        self.position = nn.Parameter(torch.empty(context, dim))
        self.blocks = []
        for i in range(layers):
            block = Block(dim, heads)
            setattr(self, f"block{i}", block)
            self.blocks.append(block)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocabulary, bias=False)
        self.mask = torch.full((context, context), -math.inf).triu(1)

    def forward(self, tokens):  # [B, T + 1], the loss of predicting each next one
        x = self.token(tokens[:, :-1].contiguous()) + self.position
        mask = self.mask.to(x.dtype)
        for block in self.blocks:
            x = block(x, mask)
        output = self.head(self.norm(x)).float()
        return F.cross_entropy(output.flatten(0, 1), tokens[:, 1:].contiguous().flatten())


class Dots(nn.Module):
    """Many small parameters: perf/worker/work.cpp's `dots`."""

    def __init__(self, count, width):
        super().__init__()
        for i in range(count):
            setattr(self, f"p{i}", nn.Parameter(torch.empty(width)))

    def forward(self, x):
        total = x.new_zeros(())
        for parameter in self.parameters():
            total = total + (parameter * x).sum()
        return total * total


def unfuse(model):
    """Linear layers as LibTorch's C++ has them: a product, then the bias. Then every bit is the reference's."""
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            module.forward = lambda x, m=module: torch.matmul(x, m.weight.t()).add_(m.bias)


def make(settings):
    if settings["kind"] == "dots":
        return Dots(settings["count"], settings["width"])
    return Gpt(settings["layers"], settings["dim"], settings["heads"], settings["context"], settings["vocabulary"])
