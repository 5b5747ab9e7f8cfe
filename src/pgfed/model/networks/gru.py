"""A gated recurrent unit for texts and time series.

Cho, van Merriënboer, Gulcehre, Bahdanau, Bougares, Schwenk, Bengio. Learning phrase representations
using RNN encoder-decoder for statistical machine translation. EMNLP 2014.
"""

from __future__ import annotations

from torch import Tensor, nn

from pgfed.errors import UserError


class GRU(nn.Module):
    """Tokens (``vocabulary`` says how many there are) or series of C channels, C x L or 1 x C x L.

    Predicts from the mean over time of what the unit gives.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        outputs: int,
        vocabulary: int | None = None,
        *,
        width: int = 64,
        hidden: int = 128,
    ) -> None:
        super().__init__()
        self.words: nn.Embedding | None = None
        if vocabulary is not None:
            if len(input_shape) != 1:
                raise UserError(
                    f"model.vocabulary: texts are N x length, the data is {input_shape} a sample"
                )
            self.words = nn.Embedding(vocabulary, width)
        else:
            shape = input_shape[1:] if input_shape[0] == 1 else input_shape
            if len(shape) != 2:
                raise UserError(
                    "model.name: 'gru' needs series (channels x length), or tokens (integers, "
                    "N x length) with model.vocabulary, how many different ones there are; the "
                    f"data is {input_shape} a sample"
                )
            width = shape[0]
        self.unit = nn.GRU(width, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        if self.words is not None:
            steps = self.words(x)
        else:
            series = x.flatten(1, 2) if x.ndim == 4 else x
            steps = series.transpose(1, 2).contiguous()
        along, _ = self.unit(steps)
        out: Tensor = self.fc(along.mean(1))
        return out
