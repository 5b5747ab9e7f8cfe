"""A model of your own: any function (input_shape, outputs) -> nn.Module.

pgfed run --module-path . --set model.name=own_model:make     (in this folder)

The last nn.Linear is taken as the head, which FedPer, FedRep and others treat apart; set
model.head to name another layer. Batch-norm statistics are averaged along with the weights.
"""

from __future__ import annotations

from torch import Tensor, nn


def make(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    channels = input_shape[0]
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(16 * 16, outputs),
    )


class NextWord(nn.Module):
    """Its output layer is its embedding: tied weights are one entry, and travel once."""

    def __init__(self, words: int, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.mix = nn.Linear(width, width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.mix(self.words(x)[:, -3:].mean(1)).tanh())
        return out


def next_word(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    return NextWord(outputs)
