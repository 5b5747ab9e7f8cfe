"""The gradient that is written out has the bits of autograd's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from pgfed.data.federation import Shard
from pgfed.methods.randomness import Rng
from pgfed.methods.settings import TrainConfig
from pgfed.methods.steps import Terms, pull, sgd
from pgfed.model.explicit import chain_of
from pgfed.model.flat import Stepped
from pgfed.model.kinds import Classes
from pgfed.model.networks import MLP, make_task
from pgfed.model.task import Task


def by_autograd(task: Task) -> Task:
    plain = copy.copy(task)
    plain._chain = None
    return plain


def batch(n: int, shape: tuple[int, ...], classes: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(n)
    return torch.randn(n, *shape, generator=draw), torch.randint(classes, (n,), generator=draw)


@pytest.mark.parametrize("model", ["mlp", "linear"])
@pytest.mark.parametrize("part", ["all", "base", "head"])
@pytest.mark.parametrize("n", [1, 2, 10, 37, 256])
def test_the_bits_are_those_of_autograd(model: str, part: Stepped, n: int) -> None:
    if (model, part) == ("linear", "base"):
        pytest.skip("nothing but a head")
    task = make_task(model, (1, 8, 8), 10, seed=3)
    assert task._chain is not None
    plain = by_autograd(task)
    theta, before = task.initial(), torch.randn(task.d, generator=torch.Generator().manual_seed(1))
    x, y = batch(n, (1, 8, 8), 10)
    found, expected = before.clone(), before.clone()
    loss = task.add_gradient(theta, x, y, found, part=part)
    assert torch.equal(loss, plain.add_gradient(theta, x, y, expected, part=part))
    assert torch.equal(found, expected)
    assert not torch.equal(found, before)


@pytest.mark.parametrize("part", ["all", "base", "head"])
@pytest.mark.parametrize("framed", [False, True])
def test_several_models_at_once_have_the_bits_of_each_by_itself(
    part: Stepped, framed: bool
) -> None:
    objective = Classes([*"abcdefghij"], weights=[1.0 + i / 3 for i in range(10)])
    task = make_task("mlp", (1, 8, 8), 10, seed=3, objective=objective)
    task.offset = torch.linspace(-1, 1, 10) if framed else None
    draw = torch.Generator().manual_seed(1)
    thetas = task.initial() + 0.1 * torch.randn(3, task.d, generator=draw)
    x, y = batch(30, (1, 8, 8), 10)
    found = torch.randn(3, task.d, generator=draw)
    expected = found.clone()
    losses = [
        task.add_gradient(*each, part=part)
        for each in zip(thetas, x.split(10), y.split(10), expected, strict=True)
    ]
    together = x.view(3, 10, 1, 8, 8), y.view(3, 10)
    loss = task.add_gradient(thetas, *together, found, part=part)
    assert torch.equal(found, expected)
    torch.testing.assert_close(loss, torch.stack(losses).mean())


def test_it_follows_a_vector_that_changes_in_place_and_another_one() -> None:
    task = make_task("mlp", (6,), 3, seed=0)
    plain, (x, y) = by_autograd(task), batch(10, (6,), 3)
    for theta in (task.initial(), task.initial() * 2):
        for _ in range(3):
            assert torch.equal(task.gradient(theta, x, y), plain.gradient(theta, x, y))
            theta.add_(0.1)


def test_the_derivative_by_finite_differences() -> None:
    task = make_task("mlp", (6,), 3, seed=0)
    (x, y), theta = batch(10, (6,), 3), task.initial().double()
    weights = [theta[e.start : e.stop].view(e.shape) for e in task._trained]

    def loss() -> float:
        hidden = (x.double() @ weights[0].T + weights[1]).clamp(min=0)
        outputs = hidden @ weights[2].T + weights[3]
        return float((outputs.logsumexp(1) - outputs[range(10), y]).mean())

    found = task.gradient(task.initial(), x, y)
    for i in range(0, task.d, 37):
        theta[i] += 1e-6
        up = loss()
        theta[i] -= 2e-6
        assert float(found[i]) == pytest.approx((up - loss()) / 2e-6, abs=1e-5)
        theta[i] += 1e-6


def test_only_what_is_exactly_this_chain_takes_the_short_way() -> None:
    class Own(MLP):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x * 2)

    assert make_task(Own, (6,), 3, seed=0)._chain is None

    def frozen(shape: tuple[int, ...], outputs: int) -> nn.Module:
        model = MLP(shape, outputs)
        model.fc1.requires_grad_(False)
        return model

    assert make_task(frozen, (6,), 3, seed=0)._chain is None
    hooked = MLP((6,), 3)
    task = make_task(lambda shape, outputs: hooked, (6,), 3, seed=0)
    assert task._chain is not None
    hooked.fc1.register_forward_hook(lambda *_: None)
    assert chain_of(hooked, task._trained) is None


@pytest.mark.parametrize("model", ["mlp", "linear"])
@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("framed", [False, True])
def test_so_are_they_with_weights_a_frame_and_from_features(
    model: str, weighed: bool, framed: bool
) -> None:
    names = ["a", "b", "c"]
    objective = Classes(names, weights=[1.0, 2.0, 3.7] if weighed else "none")
    task = make_task(model, (6,), 3, seed=0, objective=objective)
    task.offset = torch.tensor([0.3, -2.0, 0.1]) if framed else None
    plain, theta = by_autograd(task), task.initial()
    for n in (10, 37, 10):
        x, y = batch(n, (6,), 3)
        found, expected = torch.zeros(task.d), torch.zeros(task.d)
        assert torch.equal(
            task.add_gradient(theta, x, y, found), plain.add_gradient(theta, x, y, expected)
        )
        assert torch.equal(found, expected)
        z = task.features(theta, x)
        assert torch.equal(z, plain.features(theta, x))
        assert torch.equal(task.head(theta, z), plain.head(theta, z))
        assert torch.equal(task.logits(theta, x), plain.logits(theta, x))
        assert torch.equal(
            task.add_head_gradient(theta, z, y, found),
            plain.add_head_gradient(theta, z, y, expected),
        )
        assert torch.equal(found, expected)


def test_each_clients_weights_are_its_own() -> None:
    """Views share the model, and what it remembers of the last batch."""
    task = make_task("mlp", (6,), 3, seed=0, objective=Classes(["a", "b", "c"], weights="balanced"))
    x, y = batch(10, (6,), 3)
    theta = task.initial()
    for client in (torch.tensor([0, 0, 1, 2]), torch.tensor([0, 1, 1, 1, 2])):
        view = task.view(Shard(torch.zeros(len(client), 6), client))
        assert torch.equal(view.gradient(theta, x, y), by_autograd(view).gradient(theta, x, y))


def test_weights_of_classes_by_single_samples() -> None:
    weighed = Classes(["a", "b", "c"], weights=[1.0, 2.0, 3.0])
    task = make_task("mlp", (6,), 3, seed=0, objective=weighed)
    x, y = batch(10, (6,), 3)
    by_hand = make_task("mlp", (6,), 3, seed=0)
    theta = task.initial()
    weights = torch.tensor([1.0, 2.0, 3.0])[y]
    parts = [by_hand.gradient(theta, x[i : i + 1], y[i : i + 1]) * weights[i] for i in range(10)]
    assert torch.allclose(task.gradient(theta, x, y), torch.stack(parts).mean(0), atol=1e-6)


def some(n: int = 64) -> Shard:
    draw = torch.Generator().manual_seed(7)
    pixels = torch.randint(256, (n, 8, 8, 1), generator=draw, dtype=torch.uint8)
    return Shard(pixels, torch.randint(10, (n,), generator=draw))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_training_has_the_bits_of_autograd_and_leaves_ordinary_tensors(optimizer: str) -> None:
    task = make_task("mlp", (1, 8, 8), 10, seed=0)
    train = TrainConfig(epochs=3, batch_size=10, optimizer=optimizer)  # type: ignore[arg-type]
    found, kept = sgd(task, task.initial(), some(), Rng(0, 0, 1), train)
    expected, buffers = sgd(by_autograd(task), task.initial(), some(), Rng(0, 0, 1), train)
    assert torch.equal(found, expected)
    assert all(torch.equal(kept[key], buffers[key]) for key in buffers)
    assert not any(tensor.is_inference() for tensor in (found, *kept.values()))
    found.requires_grad_().square().sum().backward()  # type: ignore[no-untyped-call]


def test_a_term_of_a_method_may_ask_for_autograd() -> None:
    task = make_task("mlp", (1, 8, 8), 10, seed=0)
    start = task.initial()

    def leash(theta: Tensor, gradient: Tensor) -> None:
        own = theta.detach().requires_grad_()
        (own - start).square().sum().backward()  # type: ignore[no-untyped-call]
        assert own.grad is not None
        gradient += own.grad

    train, rng = TrainConfig(epochs=2, batch_size=10), Rng(0, 0, 1)
    found, _ = sgd(task, start, some(), rng, train, terms=Terms(extra=leash))
    expected, _ = sgd(task, start, some(), rng, train, terms=pull(2.0, start))
    assert torch.allclose(found, expected, atol=1e-6)
    assert not torch.allclose(found, sgd(task, start, some(), rng, train)[0], atol=1e-4)


def test_where_nothing_but_gradients_is_asked_there_is_no_loss() -> None:
    task = make_task("mlp", (6,), 3, seed=0)
    theta, (x, y) = task.initial(), batch(10, (6,), 3)
    found, expected = torch.zeros(task.d), torch.zeros(task.d)
    with task.unnoted():
        assert task.add_gradient(theta, x, y, found).isnan()
    assert task.add_gradient(theta, x, y, expected).isfinite()
    assert torch.equal(found, expected)
    with pytest.raises(ZeroDivisionError), task.unnoted():
        raise ZeroDivisionError
    assert task.add_gradient(theta, x, y, expected).isfinite()
