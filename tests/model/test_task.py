"""A module as one flat vector: its layout, its derivatives, and what is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from pgfed.data.federation import Shard
from pgfed.errors import UserError
from pgfed.model.kinds import Segmentation
from pgfed.model.layout import Layout
from pgfed.model.networks import CNN, MLP, make_task
from pgfed.model.objectives import Objective
from pgfed.model.task import Task


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(y)))


class ResNet(nn.Module):
    """A small residual network with batch norm."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(input_shape[0], 6, 3, padding=1)
        self.blocks = nn.Sequential(Residual(6), Residual(6))
        self.classifier = nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Tensor:
        z = self.blocks(self.stem(x)).mean((2, 3))
        return self.classifier(z)


Make = Callable[[], tuple[nn.Module, tuple[int, ...]]]
MODELS: dict[str, Make] = {
    "cnn": lambda: (CNN((3, 16, 16), 5), (3, 16, 16)),
    "mlp": lambda: (MLP((7,), 5, hidden=6), (7,)),
    "resnet": lambda: (ResNet((2, 8, 8), 5), (2, 8, 8)),
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> tuple[nn.Module, tuple[int, ...]]:
    torch.manual_seed(0)
    return MODELS[request.param]()


def sample(shape: tuple[int, ...], n: int = 6, classes: int = 5) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    return torch.randn(n, *shape, generator=draw), torch.randint(classes, (n,), generator=draw)


def somewhere(task: Task) -> Tensor:
    """A point that is not the start."""
    noise = torch.randn(task.layout.n, generator=torch.Generator().manual_seed(2))
    return task.initial() + 0.1 * noise.abs()  # a variance must stay positive


def plain_gradient(module: nn.Module, task: Task, x: Tensor, y: Tensor) -> Tensor:
    """autograd's gradient of an ordinary module, in the task's order."""
    module.zero_grad()
    F.cross_entropy(module(x), y).backward()
    values = {name: torch.zeros_like(v) for name, v in task.named(task.initial()).items()}
    values |= {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    return task.flat(values)[: task.d]


# -- layout ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "classes", "d", "h"),
    [
        ((3, 32, 32), 10, 878_538, 5_130),
        ((3, 32, 32), 100, 924_708, 51_300),
        ((1, 28, 28), 11, 582_539, 5_643),
        ((3, 32, 32), 65, 906_753, 33_345),
    ],
    ids=["cifar10", "cifar100", "organamnist", "office-home"],
)
def test_parameter_counts_of_the_paper(
    shape: tuple[int, ...], classes: int, d: int, h: int
) -> None:
    layout = make_task("cnn", shape, classes, seed=0).layout
    assert (layout.d, layout.h, layout.b, layout.extra, layout.n) == (d, h, d - h, 0, d)


def test_base_then_head_then_buffers() -> None:
    module = ResNet((2, 8, 8), 5)
    task = Task(module, (2, 8, 8))
    expected = [p for n, p in module.named_parameters() if not n.startswith("classifier")]
    assert task.head_name == "classifier"
    assert task.outputs == 5
    assert task.layout.b == sum(p.numel() for p in expected)
    assert task.layout.h == 6 * 5 + 5
    assert task.layout.extra == 4 * 2 * 6  # running mean and variance; the counter is an integer
    theta = task.initial()
    head = torch.cat([module.classifier.weight.flatten(), module.classifier.bias])
    assert torch.equal(theta[task.layout.head], head)
    assert torch.equal(theta[task.d :], torch.tensor([0.0] * 6 + [1.0] * 6).repeat(4))


def test_the_head_is_last_in_the_vector_even_if_declared_first() -> None:
    class HeadFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 2)
            self.base = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.tanh(self.base(x)))

    module = HeadFirst()
    task = Task(module, (4,), head="head")
    assert task.layout == Layout(b=15, h=8)
    assert torch.equal(task.initial()[:12], module.base.weight.flatten())
    assert torch.equal(task.initial()[-2:], module.head.bias)


def test_kernels_lie_channels_last() -> None:
    module = CNN((3, 16, 16), 5)
    kernel = module.conv1.weight.detach().clone()
    task = Task(module, (3, 16, 16))
    theta = task.initial()
    assert torch.equal(theta[: kernel.numel()], kernel.permute(0, 2, 3, 1).flatten())
    task.logits(theta, torch.zeros(1, 3, 16, 16))
    assert module.conv1.weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(module.conv1.weight, kernel)


def test_parameters_buffers_and_gradients_are_views() -> None:
    module = ResNet((2, 8, 8), 5)
    task = Task(module, (2, 8, 8))
    theta, out = task.initial(), torch.zeros(task.d)
    x, y = sample((2, 8, 8))
    task.add_gradient(theta, x, y, out)
    storage = theta.untyped_storage().data_ptr()
    for tensor in [*module.parameters(), *module.buffers()]:
        if tensor.is_floating_point():
            assert tensor.untyped_storage().data_ptr() == storage
    for p in module.parameters():
        assert p.grad is not None
        assert p.grad.untyped_storage().data_ptr() == out.untyped_storage().data_ptr()
    theta[task.d - 1] = 7.0
    assert module.classifier.bias[-1] == 7.0


def test_read_named_and_flat_are_inverse(model: tuple[nn.Module, tuple[int, ...]]) -> None:
    module, shape = model
    before = {k: v.clone() for k, v in module.state_dict().items()}
    task = Task(module, shape)
    assert torch.equal(task.read(), task.initial())
    named = task.named(task.initial())
    assert named.keys() == before.keys()
    assert all(torch.equal(named[k], before[k]) and named[k].is_contiguous() for k in before)
    theta = somewhere(task)
    values = task.named(theta)
    assert torch.equal(task.flat(values), theta)
    fresh = copy.deepcopy(module)
    fresh.load_state_dict(values)
    x, _ = sample(shape)
    torch.testing.assert_close(fresh.eval()(x), task.logits(theta, x))
    theta.zero_()
    assert not torch.equal(values[next(iter(values))], torch.zeros(1))  # they are copies


def test_initial_is_a_copy() -> None:
    task = Task(MLP((7,), 5), (7,))
    task.initial().zero_()
    assert task.initial().abs().sum() > 0


@pytest.mark.parametrize("extra", [0, 4])
def test_split_and_join_are_inverse(extra: int) -> None:
    layout = Layout(b=6, h=3, extra=extra)
    theta = torch.arange(float(layout.n))
    body, head = layout.split("body", theta)
    assert head.tolist() == [6, 7, 8]
    assert body.tolist() == [0, 1, 2, 3, 4, 5, *range(9, 9 + extra)]
    joined = layout.join("body", body, head)
    assert torch.equal(joined, theta)
    joined.zero_()
    assert theta.sum() > 0
    assert (layout.base, layout.head) == (slice(0, 6), slice(6, 9))


# -- derivatives -------------------------------------------------------------------------------


def test_gradient_equals_autograd(model: tuple[nn.Module, tuple[int, ...]]) -> None:
    module, shape = model
    x, y = sample(shape)
    task = Task(copy.deepcopy(module), shape)
    theta = somewhere(task)
    module.load_state_dict(task.named(theta))
    expected = plain_gradient(module.train(), task, x, y)
    torch.testing.assert_close(task.gradient(theta.clone(), x, y), expected)
    module.load_state_dict(task.named(theta))
    expected = plain_gradient(module.eval(), task, x, y)
    torch.testing.assert_close(task.gradient(theta, x, y, training=False), expected)


def test_gradient_is_added_and_the_loss_returned(
    model: tuple[nn.Module, tuple[int, ...]],
) -> None:
    module, shape = model
    task = Task(module, shape)
    theta = somewhere(task)
    before = theta.clone()
    x, y = sample(shape)
    alone = task.gradient(theta, x, y, training=False)
    out = torch.ones(task.d)
    loss = task.add_gradient(theta, x, y, out, training=False)
    torch.testing.assert_close(out, alone + 1)
    torch.testing.assert_close(loss, F.cross_entropy(task.logits(theta, x), y))
    assert torch.equal(theta, before)
    # The same call at another vector and into another buffer is bound anew.
    other = torch.zeros(task.d)
    task.add_gradient(before * 0.5, x, y, other, training=False)
    assert not torch.allclose(other, alone)
    torch.testing.assert_close(task.gradient(theta, x, y, training=False), alone, rtol=0, atol=0)


@pytest.mark.parametrize("part", ["base", "head"])
def test_gradient_of_one_part_leaves_the_other(
    model: tuple[nn.Module, tuple[int, ...]], part: str
) -> None:
    module, shape = model
    task = Task(module, shape)
    theta = somewhere(task)
    x, y = sample(shape)
    whole = task.gradient(theta, x, y, training=False)
    out = torch.full((task.d,), 3.0)
    task.add_gradient(theta, x, y, out, part=part, training=False)  # type: ignore[arg-type]
    inside, outside = task.layout.base, task.layout.head
    if part == "head":
        inside, outside = outside, inside
    torch.testing.assert_close(out[inside], whole[inside] + 3)
    assert torch.equal(out[outside], torch.full_like(out[outside], 3.0))
    torch.testing.assert_close(task.gradient(theta, x, y, training=False), whole)  # all again


def test_features_and_head_split_the_forward_pass(
    model: tuple[nn.Module, tuple[int, ...]],
) -> None:
    module, shape = model
    task = Task(module, shape)
    theta = somewhere(task)
    x, y = sample(shape)
    z = task.features(theta, x)
    assert torch.equal(task.head(theta, z), task.logits(theta, x))
    assert task.linear_head
    out = torch.zeros(task.d)
    loss = task.add_head_gradient(theta, z, y, out)
    whole = task.gradient(theta, x, y, training=False)
    torch.testing.assert_close(out[task.layout.head], whole[task.layout.head])
    assert not out[task.layout.base].any()
    torch.testing.assert_close(loss, F.cross_entropy(task.logits(theta, x), y))


@pytest.mark.parametrize("name", ["mlp", "resnet"])
def test_hessian_product_equals_autograd_in_double(name: str) -> None:
    torch.manual_seed(0)
    module, shape = MODELS[name]()
    double = copy.deepcopy(module).double()
    task = Task(module, shape)
    theta = somewhere(task)
    x, y = sample(shape)
    vector = torch.randn(task.d, generator=torch.Generator().manual_seed(3))
    product = task.hessian_product(theta.clone(), x, y, vector)

    names = [n for n, _ in double.named_parameters()]
    buffers = {k: v.double() for k, v in task.named(theta).items() if k not in names}
    padding = torch.zeros(task.layout.extra)
    point = {k: v.double() for k, v in task.named(theta).items()}
    towards = task.named(torch.cat([vector, padding]))

    def risk(*values: Tensor) -> Tensor:
        state = dict(zip(names, values, strict=True)) | {k: v.clone() for k, v in buffers.items()}
        return F.cross_entropy(functional_call(double.train(), state, x.double()), y)

    _, expected = torch.autograd.functional.hvp(
        risk,
        tuple(point[n] for n in names),
        tuple(towards[n].double() for n in names),
    )
    expected_flat = task.flat(point | dict(zip(names, expected, strict=True)))[: task.d]
    torch.testing.assert_close(product, expected_flat, rtol=1e-4, atol=1e-5)


def test_hessian_product_equals_finite_differences() -> None:
    # tanh keeps the risk smooth, so that a difference of gradients has no kinks in it.
    torch.manual_seed(0)
    task = Task(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5)), (4,))
    theta, (x, y) = somewhere(task), sample((4,), n=12)
    vector = torch.randn(task.d, generator=torch.Generator().manual_seed(3))
    product = task.hessian_product(theta, x, y, vector)
    step = 3e-3
    ahead = task.gradient(theta + step * vector, x, y)
    behind = task.gradient(theta - step * vector, x, y)
    torch.testing.assert_close(product, (ahead - behind) / (2 * step), rtol=1e-3, atol=2e-4)


def test_the_objective_can_be_replaced() -> None:
    class Square(Objective):
        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return outputs.square().mean()

    x, y = sample((7,))
    task = Task(MLP((7,), 5), (7,), objective=Square())
    theta = task.initial()
    assert torch.equal(
        task.add_gradient(theta, x, y, torch.zeros(task.d)), task.logits(theta, x).square().mean()
    )
    ordinary = Task(MLP((7,), 5), (7,))
    found = ordinary.add_gradient(theta, x, y, torch.zeros(task.d))
    assert torch.equal(found, F.cross_entropy(ordinary.logits(theta, x), y))


def test_score_counts_and_sums_over_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgfed.model.task.EVALUATION_BATCH", 4)
    task = Task(MLP((7,), 5), (7,))
    x, y = sample((7,), n=11)
    logits = task.logits(task.initial(), x)
    found = task.score(task.initial(), Shard(x, y))
    assert (found.n, found.score) == (11, int((logits.argmax(1) == y).sum()) / 11)
    assert found.loss == pytest.approx(float(F.cross_entropy(logits, y, reduction="sum")), rel=1e-6)
    mean = float(F.cross_entropy(logits, y))
    assert task.loss(task.initial(), Shard(x, y)) == pytest.approx(mean, rel=1e-6)


# -- buffers and modes -------------------------------------------------------------------------


def test_batch_norm_buffers_move_only_in_training_mode() -> None:
    task = Task(ResNet((2, 8, 8), 5), (2, 8, 8))
    x, y = sample((2, 8, 8))
    buffers = slice(task.d, task.layout.n)
    theta = task.initial()
    start = theta.clone()
    task.gradient(theta, x, y, training=False)
    task.logits(theta, x)
    task.features(theta, x)
    task.score(theta, Shard(x.permute(0, 2, 3, 1), y))
    assert torch.equal(theta, start)
    task.gradient(theta, x, y)
    assert torch.equal(theta[: task.d], start[: task.d])
    moved = theta[buffers] != start[buffers]
    assert moved.all()
    after = theta.clone()
    task.logits(theta, x)
    assert torch.equal(theta, after)


def test_buffers_are_those_of_the_vector_at_hand() -> None:
    module = ResNet((2, 8, 8), 5)
    plain = copy.deepcopy(module).train()
    task = Task(module, (2, 8, 8))
    x, y = sample((2, 8, 8))
    one, two = task.initial(), task.initial()
    task.gradient(one, x, y)
    task.gradient(two, 2 * x, y)
    plain(2 * x)
    torch.testing.assert_close(
        task.named(two)["blocks.0.norm1.running_var"],
        plain.state_dict()["blocks.0.norm1.running_var"],
    )
    assert not torch.equal(one[task.d :], two[task.d :])


def test_integer_buffers_are_rebuilt() -> None:
    task = Task(ResNet((2, 8, 8), 5), (2, 8, 8))
    x, y = sample((2, 8, 8))
    theta = task.initial()
    task.gradient(theta, x, y)
    counter = "blocks.0.norm1.num_batches_tracked"
    assert task.named(theta)[counter] == 0
    assert task.module.state_dict()[counter] == 1
    task.gradient(theta.clone(), x, y)
    assert task.module.state_dict()[counter] == 1


def test_one_sample_runs_in_evaluation_mode() -> None:
    # Batch norm over 1x1 maps would refuse a single sample in training mode.
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4, 3)
    )
    task = Task(module, (1, 3, 3))
    x, y = sample((1, 3, 3), n=1, classes=3)
    theta = task.initial()
    one = task.gradient(theta, x, y)
    assert torch.equal(theta, task.initial())
    assert torch.equal(one, task.gradient(theta, x, y, training=False))


def test_dropout_acts_in_training_only() -> None:
    class Functional(nn.Module):
        """Dropout as a function: nothing but `training` tells that it is there."""

        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(50, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(F.dropout(x, 0.5, training=self.training))

    x, y = sample((50,), classes=3)
    for module in (nn.Sequential(nn.Dropout(0.5), nn.Linear(50, 3)), Functional()):
        task = Task(module, (50,))
        theta = task.initial()
        evaluated = task.gradient(theta, x, y, training=False)
        assert not torch.equal(task.gradient(theta, x, y), evaluated)
        assert torch.equal(task.gradient(theta, x, y, training=False), evaluated)


# -- frozen and tied ---------------------------------------------------------------------------


def test_frozen_parameters_are_no_part_of_the_vector() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    module[0].bias.requires_grad_(False)
    bias = module[0].bias.detach().clone()
    task = Task(module, (4,))
    assert task.layout == Layout(b=12, h=8, frozen=3, frozen_bytes=12)
    theta = somewhere(task)
    assert "0.bias" not in task.named(theta)
    assert task.named(theta).keys() | task.frozen().keys() == module.state_dict().keys()
    x, y = sample((4,), classes=2)
    torch.testing.assert_close(
        task.features(theta, x), torch.tanh(x @ theta[:12].view(3, 4).T + bias)
    )
    assert task.gradient(theta, x, y).shape == (20,)
    assert torch.equal(task.frozen()["0.bias"], bias)
    assert not module[0].bias.requires_grad


def test_the_frozen_values_are_known_by_their_checksum() -> None:
    def frozen(seed: int) -> Task:
        torch.manual_seed(seed)
        module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
        module[0].requires_grad_(False)
        return Task(module, (4,))

    assert frozen(1).frozen_digest == frozen(1).frozen_digest
    assert frozen(1).frozen_digest != frozen(2).frozen_digest
    assert Task(MLP((4,), 2), (4,)).frozen_digest is None


def test_a_module_with_nothing_to_train_rests() -> None:
    backbone = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5))
    backbone.requires_grad_(False)
    module = nn.Sequential(backbone, nn.BatchNorm1d(6), nn.Linear(6, 3))
    task = Task(module, (4,))
    # The trained norm's statistics are in the vector, those of the frozen one are not.
    assert (task.layout.b, task.layout.h, task.layout.extra) == (12, 21, 12)
    before = {name: value.clone() for name, value in task.frozen().items()}
    assert "0.1.num_batches_tracked" in before
    x, y = sample((4,), classes=3)
    theta = task.initial()
    task.gradient(theta, x, y)
    assert not torch.equal(theta[task.d :], task.initial()[task.d :])
    assert all(torch.equal(before[name], value) for name, value in task.frozen().items())
    z = module[0](x)
    assert torch.equal(z, backbone[1].eval()(backbone[0](x))), "nothing may drop out"
    task.gradient(theta, x, y, training=False)
    task.gradient(theta, x, y)
    assert not any(part.training for part in backbone.modules())
    assert module[1].training


def test_frozen_values_may_have_any_type() -> None:
    task = Task(with_integer_parameter(), (4,))
    assert task.frozen()["count"].tolist() == [0, 1, 2]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4)
        self.two = nn.Linear(4, 4)
        self.two.weight = self.one.weight
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.two(torch.tanh(self.one(x))))


def same_layer_twice() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(4, 3))


def same_norm_twice() -> nn.Module:
    norm = nn.BatchNorm1d(4, affine=False)
    return nn.Sequential(norm, nn.Tanh(), norm, nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("make", "layout"),
    [
        (Tied, Layout(b=24, h=15)),
        (same_layer_twice, Layout(b=20, h=15)),
        (same_norm_twice, Layout(b=0, h=15, extra=8)),
    ],
)
def test_what_is_tied_is_one_entry_with_all_its_names(
    make: Callable[[], nn.Module], layout: Layout
) -> None:
    torch.manual_seed(0)
    module = make()
    plain = copy.deepcopy(module)
    task = Task(module, (4,))
    assert task.layout == layout
    theta = somewhere(task)
    values = task.named(theta)
    assert values.keys() == plain.state_dict().keys()
    assert torch.equal(task.flat(values), theta)
    plain.load_state_dict(values)
    x, y = sample((4,), classes=3)
    assert torch.equal(task.logits(theta, x), plain.eval()(x))
    plain.train()
    plain.zero_grad()
    F.cross_entropy(plain(x), y).backward()
    expected = {name: p.grad for name, p in plain.named_parameters(remove_duplicate=False)}
    found = task.gradient(theta, x, y)
    at = [place for place in task.layout.places if place.stop <= task.d]
    for place in at:
        wanted = expected[place.name]
        assert wanted is not None
        torch.testing.assert_close(found[place.start : place.stop], wanted.flatten())
    # Batch norm saw the batch twice, in either place.
    torch.testing.assert_close(theta, task.flat(plain.state_dict()))


def test_a_head_that_is_tied_to_the_base_serves_but_is_no_head_of_its_own() -> None:
    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(5, 4)
            self.fc = nn.Linear(4, 5)
            self.fc.weight = self.words.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.words(x).mean(1))

    task = Task(Language(), (3,), example=torch.tensor([[0, 1, 2], [3, 4, 0]]))
    assert task.layout == Layout(b=0, h=25)
    assert not task.linear_head


def test_a_pattern_finds_what_is_tied_under_each_of_its_names() -> None:
    layout = Task(Tied(), (4,)).layout
    assert layout.shared("two*").slices == (slice(0, 16), slice(20, 24))


# -- refusals ----------------------------------------------------------------------------------


def sequence(*, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)).to(dtype)


def overlapping() -> nn.Module:
    module = sequence()
    values = torch.zeros(20)
    module[0].weight = nn.Parameter(values[:16].view(4, 4))
    module[0].bias = nn.Parameter(values[16:])
    return module


def with_integer_parameter() -> nn.Module:
    module = sequence()
    module.register_parameter("count", nn.Parameter(torch.arange(3), requires_grad=False))
    return module


def with_double(kind: str) -> nn.Module:
    module = sequence()
    value = torch.zeros(2, dtype=torch.float64)
    if kind == "parameter":
        module.register_parameter("extra", nn.Parameter(value))
    else:
        module.register_buffer("extra", value)
    return module


def frozen_head() -> nn.Module:
    module = sequence()
    module[1].requires_grad_(False)
    return module


@pytest.mark.parametrize(
    ("make", "head", "message"),
    [
        (overlapping, None, "'0.bias' shares its storage with '0.weight'"),
        (lambda: with_double("parameter"), None, "parameter 'extra' is torch.float64"),
        (lambda: with_double("buffer"), None, "buffer 'extra' is torch.float64"),
        (lambda: nn.Sequential(nn.Flatten()), None, "no nn.Linear"),
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)), None, "not the last layer"),
        (lambda: nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)), "0", "not the last layer"),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), "0", "not the last layer"),
        (sequence, "classifier", "no part named 'classifier'"),
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh()), "1", "'1' has no trained parameters"),
        (frozen_head, None, "has no trained parameters"),
        (lambda: sequence(dtype=torch.float64), None, "does not accept inputs of shape (4,)"),
        (lambda: nn.Sequential(nn.Linear(5, 3)), None, "does not accept inputs of shape (4,)"),
        (
            lambda: nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (2, 3))),
            None,
            "shape (2, 2, 3)",
        ),
    ],
)
def test_refusals(make: Callable[[], nn.Module], head: str | None, message: str) -> None:
    with pytest.raises(UserError) as caught:
        Task(make(), (4,), head=head)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_head_may_be_several_layers() -> None:
    module = nn.Sequential(
        nn.Sequential(nn.Linear(4, 6), nn.Tanh()),
        nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)),
    )
    task = Task(module, (4,), head="1")
    assert task.layout == Layout(b=30, h=6 * 5 + 5 + 5 * 3 + 3)
    assert not task.linear_head
    x, _ = sample((4,))
    theta = somewhere(task)
    assert torch.equal(task.head(theta, task.features(theta, x)), task.logits(theta, x))


def test_a_single_layer_is_nothing_but_a_head() -> None:
    task = Task(nn.Linear(4, 3), (4,))
    assert task.layout == Layout(b=0, h=15)
    x, _ = sample((4,))
    theta = somewhere(task)
    assert task.features(theta, x) is x
    assert torch.equal(task.head(theta, x), task.logits(theta, x))
    assert task.linear_head
    assert task.width == 4


def test_without_a_linear_layer_the_last_convolution_is_the_head() -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1))
    task = Task(module, (1, 6, 5), objective=Segmentation(["a", "b", "c"]))
    assert (task.head_name, task.outputs, task.layout.h) == ("2", 3, 15)
    x, _ = sample((1, 6, 5))
    assert task.logits(task.initial(), x).shape == (6, 3, 6, 5)


class Words(nn.Module):
    """Looks tokens up: it accepts neither floats nor tokens it does not know."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, 4)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.words(x).mean(1))


def test_a_model_is_tried_on_real_samples() -> None:
    tokens = torch.tensor([[3, 1, 0], [2, 2, 4]])
    task = Task(Words(5), (3,), example=tokens)
    assert task.logits(task.initial(), tokens).shape == (2, 3)
    with pytest.raises(UserError, match=r"^model: does not accept inputs of .* \(int64\)"):
        Task(Words(4), (3,), example=tokens)


def test_a_failing_factory_is_named_in_one_line() -> None:
    def broken(shape: tuple[int, ...], outputs: int) -> nn.Module:
        raise KeyError("weights\nand more")

    with pytest.raises(UserError, match=r"^model: the factory .*broken.* failed: [^\n]*$"):
        make_task(broken, (3,), 2, seed=0)


def test_same_parameterless_module_twice_is_fine() -> None:
    act = nn.Tanh()
    task = Task(nn.Sequential(nn.Linear(4, 4), act, nn.Linear(4, 4), act, nn.Linear(4, 3)), (4,))
    assert task.layout.extra == 0


def test_buffers_outside_the_state_dict_stay_with_the_module() -> None:
    module = sequence()
    module.register_buffer("table", torch.arange(3.0), persistent=False)
    task = Task(module, (4,))
    assert task.layout.extra == 0
    assert "table" not in task.named(task.initial())
