"""What must hold for the PGFed family whatever the data: one test per invariant.

"Identical" below is meant bit by bit (torch.equal); "equal" is up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from numerics.reference import TorchNet, problem
from numerics.setup import Risk, cohorts, make_run
from pgfed.data.federation import Shard
from pgfed.engine.rounds import Run
from pgfed.methods import alphas as pairs
from pgfed.methods.averaging import Mean
from pgfed.methods.contract import Algorithm, ClientInfo, FederationInfo
from pgfed.methods.fedavg import FedAvg
from pgfed.methods.fedavg_local import FedAvgLocal
from pgfed.methods.pgfed import PGFed
from pgfed.methods.pgfed_ce import PGFedCE
from pgfed.methods.pgfed_mo import PGFedMo
from pgfed.methods.randomness import Rng, ServerRng
from pgfed.methods.settings import TrainConfig
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import Task

N, M, T = 8, 3, 6
TRAIN = TrainConfig(epochs=2, batch_size=4, lr=0.05)
FULL = TrainConfig(epochs=3, batch_size=0, lr=0.05)
PROBLEM = problem(N)
FAMILY = [
    pytest.param(PGFed, {}, id="pgfed"),
    pytest.param(PGFedMo, {"beta": 0.5}, id="pgfed-mo"),
    pytest.param(PGFedCE, {}, id="pgfed-ce"),
    pytest.param(PGFedCE, {"ce_g2": "mean"}, id="pgfed-ce-mean"),
]


def run_of(algorithm: Algorithm, rounds: int = T, **options: Any) -> Run:
    """A run that has been through its rounds."""
    run = make_run(algorithm, PROBLEM, cohort=M, rounds=rounds, **options)
    for _ in range(rounds):
        run.step()
    return run


def identical(one: State, two: State, ignore: Sequence[str] = ()) -> None:
    assert one.keys() - set(ignore) == two.keys() - set(ignore)
    for key in one.keys() - set(ignore):
        assert torch.equal(torch.as_tensor(one[key]), torch.as_tensor(two[key])), key


def close(one: Tensor, two: Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(one, two, rtol=1e-4, atol=atol)


# -- the three calls of a round, without an engine ---------------------------------------------


def shards() -> list[Shard]:
    return [Shard(torch.from_numpy(x).float(), torch.from_numpy(y)) for x, y in PROBLEM]


def small_task(**options: Any) -> Task:
    torch.manual_seed(0)
    return Task(TorchNet(4, 5, 3), (4,), **options)


class Bench:
    """A server and its clients, for rounds with cohorts of one's own choice."""

    def __init__(
        self,
        algorithm: Algorithm,
        task: Task,
        data: Sequence[Shard],
        cohort: int = M,
    ) -> None:
        self.algorithm, self.task, self.data = algorithm, task, data
        self.info = FederationInfo(len(data), cohort, task.layout)
        w0 = task.initial()
        self.server = algorithm.init_server(w0, self.info)
        self.states = [
            algorithm.init_client(w0, ClientInfo(i, len(shard), self.info))
            for i, shard in enumerate(data)
        ]
        self.updates: dict[int, Update] = {}
        self.t = 0

    def work(self, i: int, message: Message, algorithm: Algorithm | None = None) -> Any:
        rng = Rng(0, i, self.t + 1)
        return (algorithm or self.algorithm).local_update(
            self.task, self.states[i], message, self.data[i], rng
        )

    def round(self, cohort: Sequence[int]) -> None:
        messages = self.algorithm.messages(self.server, cohort, ServerRng(0, 1))
        self.updates = {}
        for i in cohort:
            self.states[i], self.updates[i] = self.work(i, messages[i])
        self.server = self.algorithm.aggregate(self.server, self.updates, Mean(), ServerRng(0, 1))
        self.t += 1

    def row(self, i: int, ids: Sequence[int]) -> Tensor:
        return pairs.row(self.states[i], torch.tensor(ids))


def steps(train: TrainConfig, n: int) -> int:
    """T_i"""
    return train.epochs * (n // min(train.batch_size or n, n))


# -- P1 to P5: what mu, beta, eta_2 and the cohorts can and cannot do --------------------------


@pytest.mark.parametrize(("method", "options"), FAMILY)
def test_p1_mu_zero_is_fedavg(method: type[Algorithm], options: dict[str, Any]) -> None:
    run = run_of(method(train=TRAIN, **{"mu": 0.0, "alpha_lr": 0.5, **options}))
    fedavg = run_of(FedAvg(train=TRAIN))
    control = run_of(FedAvgLocal(train=TRAIN))
    assert torch.equal(run.server["w"], fedavg.server["w"])
    assert torch.equal(run.server["w"], control.server["w"])
    assert not torch.equal(run.server["w"], run.task.initial())
    for i in range(N):
        assert torch.equal(run.personal_model(i), control.personal_model(i))
        assert run.touched(i) == fedavg.touched(i)
        if run.touched(i):
            assert torch.equal(run.state(i)["v"], fedavg.state(i)["v"])
    assert np.array_equal(run.score, control.score)
    assert np.array_equal(run.loss, control.loss)
    assert [r["mean_score"] for r in run.history] == [r["mean_score"] for r in control.history]
    alpha = run.alpha()
    assert alpha is not None
    assert (alpha["alpha"] == np.float32(1 / M)).all()


def test_p2_beta_zero_is_pgfed() -> None:
    options: dict[str, Any] = {"train": TRAIN, "mu": 0.5, "alpha_lr": 0.1}
    plain = run_of(PGFed(**options))
    momentum = run_of(PGFedMo(beta=0.0, **options))
    identical(plain.server, momentum.server)
    for i in range(N):
        identical(plain.state(i), momentum.state(i), ignore=["aux"])
    assert not torch.equal(plain.server["w"], run_of(PGFedMo(**options)).server["w"])


def test_p2_beta_one_keeps_the_first_auxiliary_gradient() -> None:
    run = make_run(
        PGFedMo(train=TRAIN, mu=0.5, alpha_lr=0.1, beta=1.0), PROBLEM, cohort=M, rounds=T
    )
    first: dict[int, Tensor] = {}
    again = 0
    for cohort in cohorts(0, T, N, M):
        messages = run.algorithm.messages(run.server, cohort, ServerRng(0, 1))
        run.step()
        for i in cohort:
            if i in first:
                again += 1
                assert torch.equal(run.state(i)["aux"], first[i])
                assert not torch.equal(messages[i]["aux"], first[i])
            elif "aux" in run.state(i):
                first[i] = run.state(i)["aux"]
                assert torch.equal(first[i], messages[i]["aux"])  # whole, not times 1 - beta
    assert again > 2


@pytest.mark.parametrize(("method", "options"), FAMILY)
@pytest.mark.parametrize(("mu", "alpha_lr"), [(0.1, 0.01), (3.0, 2.0)])
def test_p3_round_one_is_fedavg_and_round_two_starts_uniform(
    method: type[Algorithm], options: dict[str, Any], mu: float, alpha_lr: float
) -> None:
    run = run_of(method(train=TRAIN, **{"mu": mu, "alpha_lr": alpha_lr, **options}), rounds=1)
    fedavg = run_of(FedAvg(train=TRAIN), rounds=1)
    assert torch.equal(run.server["w"], fedavg.server["w"])
    g_bar = mu * run.server["gradients"].mean(0)
    for message in run.algorithm.messages(run.server, range(N), ServerRng(0, 1)).values():
        close(message["aux"], g_bar, atol=1e-6)
        if "mean_gradient" in message:
            close(message["mean_gradient"], g_bar, atol=1e-7)


@pytest.mark.parametrize(("method", "options"), FAMILY)
def test_p4_alpha_lr_zero_keeps_alpha_uniform(
    method: type[Algorithm], options: dict[str, Any]
) -> None:
    algorithm = method(train=TRAIN, **{"mu": 0.5, "alpha_lr": 0.0, **options})
    run = make_run(algorithm, PROBLEM, cohort=M, rounds=T)
    for _ in range(T):
        run.step()
        alpha = run.alpha()
        assert alpha is not None
        assert (alpha["alpha"] == np.float32(1 / M)).all()
        g_bar = 0.5 * run.server["gradients"].mean(0)
        for message in algorithm.messages(run.server, range(N), ServerRng(0, 1)).values():
            close(message["aux"], g_bar, atol=1e-6)


@pytest.mark.parametrize(("method", "options"), FAMILY)
def test_p5_alpha_changes_only_where_clients_met(
    method: type[Algorithm], options: dict[str, Any]
) -> None:
    algorithm = method(train=TRAIN, **{"mu": 0.5, "alpha_lr": 0.1, **options})
    run = make_run(algorithm, PROBLEM, cohort=M, rounds=T)
    before = np.full((N, N), np.float32(1 / M))
    met = np.zeros((N, N), dtype=np.int64)
    last: list[int] = []
    for cohort in cohorts(0, T, N, M):
        assert run.step()["cohort"] == cohort
        exported = run.alpha()
        assert exported is not None
        after = exported["alpha"]
        may_change = np.zeros((N, N), dtype=bool)
        may_change[np.ix_(cohort, last)] = True
        assert np.array_equal(after[~may_change], before[~may_change])
        # An entry that has reached 0 may stay there; every other one moves.
        assert ((after != before) | (before == 0))[may_change].all()
        assert (after >= 0).all()
        met += may_change
        assert np.array_equal(exported["meetings"], met)
        before, last = after, cohort
    assert met.sum() == (T - 1) * M * M  # (T - 1) (M/N)^2 per entry, on average
    assert (before == 0).any()  # the clamp was reached


# -- P6 to P9: the estimates of the other risks, and the steps of alpha ------------------------


def squares(logits: Tensor, y: Tensor) -> Tensor:
    """A risk that is quadratic in the parameters of a linear model."""
    return 0.5 * (logits - F.one_hot(y, logits.shape[1])).square().sum(1).mean()


def true_class(logits: Tensor, y: Tensor) -> Tensor:
    """A risk that is linear in the parameters of a linear model."""
    return -logits.gather(1, y[:, None]).mean()


def linear_task(criterion: Any) -> Task:
    torch.manual_seed(0)
    return Task(nn.Sequential(nn.Linear(4, 3)), (4,), objective=Risk(criterion))


def risk(task: Task, theta: Tensor, data: Shard) -> float:
    return float(task.objective.loss(task.logits(theta, data.x), data.y))


@pytest.mark.parametrize("criterion", [squares, true_class])
def test_p6_estimate_is_the_tangent(criterion: Any) -> None:
    task = linear_task(criterion)
    mu = 0.3
    bench = Bench(PGFedCE(train=FULL, mu=mu), task, shards())
    bench.round([0, 1, 2])
    x = task.initial() + torch.linspace(-1, 1, task.d)
    for i, update in bench.updates.items():
        theta, gradient = update["w"], update["gradient"]
        estimate = update["r"] + float(gradient @ x)
        # H of least squares is (mean of z z^T) for each class, z the inputs with a 1 for the bias.
        gap = 0.0
        if criterion is squares:
            z = torch.cat([bench.data[i].x, torch.ones(len(bench.data[i]), 1)], 1)
            away = x - theta
            away = torch.cat([away[:12].view(3, 4), away[12:, None]], 1)
            gap = 0.5 * float(((z @ away.T) ** 2).sum(1).mean())
            assert gap > 0.1
        assert risk(task, x, bench.data[i]) - estimate == pytest.approx(gap, rel=1e-4, abs=1e-5)
    # What the server of PGFed-CE sends is mu times this estimate at the model it sends.
    for k, i in enumerate([0, 1, 2]):
        u = bench.updates[i]
        theta = bench.server["w"]
        tangent = risk(task, u["w"], bench.data[i]) + float(u["gradient"] @ (theta - u["w"]))
        cost = float(bench.algorithm.messages(bench.server, [5], ServerRng(0, 1))[5]["costs"][k])
        assert cost == pytest.approx(mu * tangent, rel=1e-4, abs=1e-6)


def test_p7_the_mean_gradient_leaves_the_total_exact() -> None:
    mu = 0.3
    bench = Bench(PGFed(train=FULL, mu=mu), small_task(), shards())
    bench.round([0, 2, 5])
    message = bench.algorithm.messages(bench.server, [1], ServerRng(0, 1))[1]
    x = bench.task.initial() + 0.1
    approximate = message["risks"] + message["mean_gradient"] @ x
    inner = bench.server["gradients"] @ x
    exact = mu * (bench.server["r"] + inner)
    close(approximate.sum(), exact.sum())
    close(approximate - exact, mu * (inner.mean() - inner))
    assert (approximate - exact).abs().max() > 1e-3

    alone = Bench(PGFed(train=FULL, mu=mu), small_task(), shards(), cohort=1)
    alone.round([4])
    message = alone.algorithm.messages(alone.server, [1], ServerRng(0, 1))[1]
    assert torch.equal(message["mean_gradient"], mu * alone.server["gradients"][0])


def trained(algorithm: Algorithm, rounds: int = 2) -> Bench:
    """A bench that is past round one, so that others' risks are known."""
    bench = Bench(algorithm, small_task(), shards())
    for cohort in cohorts(0, rounds, N, M):
        bench.round(cohort)
    return bench


def test_p8_alphas_of_a_row_part_by_their_r_alone() -> None:
    mu, alpha_lr = 0.5, 0.03
    bench = trained(PGFed(train=TRAIN, mu=mu, alpha_lr=alpha_lr, alpha_clamp=False))
    ids, r = bench.server["ids"].tolist(), bench.server["r"]
    messages = bench.algorithm.messages(bench.server, range(N), ServerRng(0, 1))
    for i in range(N):
        _, update = bench.work(i, messages[i])
        change = update["alpha"] - bench.row(i, ids)
        k = steps(TRAIN, len(bench.data[i]))
        close(change - change[0], -alpha_lr * k * mu * (r - r[0]))
        assert change.abs().max() > 1e-3


def test_p9_alpha_after_theta_differs_by_the_way_theta_went() -> None:
    alpha_lr = 0.03
    options: dict[str, Any] = {"mu": 0.5, "alpha_lr": alpha_lr, "alpha_clamp": False}
    pre = PGFed(train=TRAIN, alpha_order="pre", **options)
    post = PGFed(train=TRAIN, alpha_order="post", **options)
    bench = trained(pre)
    messages = bench.algorithm.messages(bench.server, range(N), ServerRng(0, 1))
    for i in range(N):
        _, before = bench.work(i, messages[i], pre)
        _, after = bench.work(i, messages[i], post)
        assert torch.equal(before["w"], after["w"])
        way = messages[i]["mean_gradient"] @ (after["w"] - messages[i]["w"])
        close(after["alpha"] - before["alpha"], -alpha_lr * way.expand(M), atol=1e-6)
        assert way.abs() > 1e-4


# -- P10 to P14 --------------------------------------------------------------------------------


@pytest.mark.parametrize("ce_g2", ["per_client", "mean"])
def test_p10_within_a_round_pgfed_ce_differs_in_alpha_only(ce_g2: Any) -> None:
    mu, alpha_lr = 0.5, 0.03
    options: dict[str, Any] = {"mu": mu, "alpha_lr": alpha_lr, "alpha_clamp": False}
    pgfed, ce = PGFed(train=TRAIN, **options), PGFedCE(train=TRAIN, ce_g2=ce_g2, **options)
    bench = trained(pgfed)
    ids = bench.server["ids"].tolist()
    ours = pgfed.messages(bench.server, range(N), ServerRng(0, 1))
    theirs = ce.messages(bench.server, range(N), ServerRng(0, 1))
    for i in range(N):
        one, update = bench.work(i, ours[i], pgfed)
        two, cheaper = bench.work(i, theirs[i], ce)
        identical(update, cheaper, ignore=["alpha"])
        identical(one, two, ignore=["alpha"])
        assert (update["alpha"] - cheaper["alpha"]).abs().max() > 1e-6
        change = cheaper["alpha"] - bench.row(i, ids)
        k = steps(TRAIN, len(bench.data[i]))
        close(change, -alpha_lr * k * theirs[i]["costs"])

    single = TrainConfig(epochs=1, batch_size=0, lr=0.05)
    pgfed, ce = PGFed(train=single, **options), PGFedCE(train=single, ce_g2=ce_g2, **options)
    _, update = bench.work(0, ours[0], pgfed)
    _, cheaper = bench.work(0, theirs[0], ce)
    same = torch.allclose(update["alpha"], cheaper["alpha"], rtol=1e-5, atol=1e-6)
    assert same == (ce_g2 == "mean")


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_p11_a_constant_risk_leaves_the_auxiliary_gradient_alone(rho: float) -> None:
    task = small_task(objective=Risk(lambda logits, y: 0 * logits.sum() + 2.0))
    train = TrainConfig(epochs=3, batch_size=4, lr=0.05, momentum=rho)
    bench = Bench(PGFed(train=train), task, shards())
    aux = torch.linspace(-1, 1, task.d)
    message = {
        "w": task.initial(),
        "aux": aux,
        "mean_gradient": torch.zeros(task.d),
        "risks": torch.tensor([0.0]),
        "ids": torch.tensor([3]),
    }
    _, update = bench.work(0, message)
    k = steps(train, len(bench.data[0]))
    assert k > 6
    way = k / (1 - rho) - rho * (1 - rho**k) / (1 - rho) ** 2
    close(update["w"] - task.initial(), -0.05 * way * aux)
    assert not update["gradient"].any()
    assert update["r"] == 2.0


def test_clamp_acts_at_every_step() -> None:
    # theta moves along -aux by eta a step, so gbar . theta = 2, 1, 0, -1: alpha starts at 1, is
    # driven to -1 and held at 0, and what comes after counts from there: 0, 0, 0, 1.
    task = small_task(objective=Risk(lambda logits, y: 0 * logits.sum()))
    bench = Bench(
        PGFed(train=TrainConfig(epochs=4, batch_size=0, lr=1.0, momentum=0.0), alpha_lr=1.0),
        task,
        shards(),
        cohort=1,
    )
    direction = torch.zeros(task.d)
    direction[0] = 1.0
    message = {
        "w": 2 * direction,
        "aux": direction,
        "mean_gradient": direction,
        "risks": torch.tensor([0.0, 0.5]),
        "ids": torch.tensor([3, 4]),
    }
    _, update = bench.work(0, message)
    assert update["w"][0] == -2.0
    assert update["alpha"].tolist() == [1.0, 0.5]
    free = PGFed(train=bench.algorithm.train, alpha_lr=1.0, alpha_clamp=False)
    assert bench.work(0, message, free)[1]["alpha"].tolist() == [-1.0, -3.0]


@pytest.mark.parametrize(("method", "options"), FAMILY)
@pytest.mark.parametrize("at_once", [3, 256])
def test_p12_what_leaves_is_risk_and_gradient_at_the_end(
    method: type[Algorithm],
    options: dict[str, Any],
    at_once: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pgfed.model.task.GRADIENT_BATCH", at_once)  # no part of the result
    task = small_task()
    x, y = PROBLEM[0]
    data = [Shard(torch.from_numpy(x[:n]).float(), torch.from_numpy(y[:n])) for n in (8, 7)]
    for full_grad in (False, True):
        algorithm = method(train=TRAIN, **{"full_grad": full_grad, **options})
        bench = Bench(algorithm, task, data)
        bench.round([0, 1])
        for i, update in bench.updates.items():
            part = data[i]
            if i == 1 and not full_grad:  # 7 samples are one batch of 4, in the pass's own order
                order = Rng(0, i, 1).permutation(7, "gradient")[:4]
                part = Shard(data[i].x[order], data[i].y[order])
            gradient = task.gradient(update["w"], part.x, part.y)
            close(update["gradient"], gradient, atol=1e-6)
            mean_loss = task.loss(update["w"], part)
            assert update["r"] + float(gradient @ update["w"]) == pytest.approx(mean_loss, rel=1e-5)


@pytest.mark.parametrize(("method", "options"), FAMILY)
def test_p13_permuting_the_clients_permutes_everything(
    method: type[Algorithm], options: dict[str, Any]
) -> None:
    algorithm = method(train=FULL, **{"mu": 0.5, "alpha_lr": 0.05, **options})
    data = shards()
    to = np.random.default_rng(0).permutation(N).tolist()  # client i is called to[i]
    moved = [data[to.index(i)] for i in range(N)]
    one = Bench(algorithm, small_task(), data)
    two = Bench(algorithm, small_task(), moved)
    for cohort in cohorts(0, 5, N, M):
        one.round(cohort)
        two.round(sorted(to[i] for i in cohort))
        close(one.server["w"], two.server["w"])
        everyone = torch.arange(N)
        a = pairs.matrix(one.server, range(N), everyone)
        b = pairs.matrix(two.server, range(N), everyone)
        close(a, b[to][:, to])
        for i in range(N):
            close(one.states[i]["w"], two.states[to[i]]["w"])
    assert a.std() > 1e-3


class BiasFree(nn.Module):
    """Three bias-free layers with ReLU between them, convolution included."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, bias=False)
        self.fc = nn.Linear(3 * 4 * 4, 6, bias=False)
        self.head = nn.Linear(6, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        z = F.relu(self.conv(x)).flatten(1)
        out: Tensor = self.head(F.relu(self.fc(z)))
        return out


def test_p14_euler_on_a_bias_free_network() -> None:
    torch.manual_seed(0)
    task = Task(BiasFree(), (2, 6, 6))
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(12, 6, 6, 2, generator=draw)  # shards hold images with channels last
    data = Shard(x, torch.randint(3, (12,), generator=draw))
    bench = Bench(PGFed(train=TRAIN), task, [data])
    bench.round([0])
    update = bench.updates[0]
    logits = task.logits(update["w"], x.permute(0, 3, 1, 2))
    p_minus_y = torch.softmax(logits, 1) - F.one_hot(data.y, 3)
    expected = 3 * float((p_minus_y * logits).sum(1).mean())
    inner = float(update["gradient"] @ update["w"])
    assert inner == pytest.approx(expected, rel=1e-4)
    assert update["r"] == pytest.approx(task.loss(update["w"], data) - inner, rel=1e-4)
    assert abs(inner) > 0.01


# -- Q11, Q12 ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "options"), FAMILY)
def test_q11_bytes_follow_the_formula(method: type[Algorithm], options: dict[str, Any]) -> None:
    run = run_of(method(train=TRAIN, **options))
    d = run.task.d
    vectors = 2 if method is PGFedCE else 3  # theta, g~ and, except in PGFed-CE, gbar
    down = M * d + (T - 1) * M * (vectors * d + M)
    up = T * M * (2 * d + 1) + (T - 1) * M * M
    assert sum(r["bytes_down"] for r in run.history) == 4 * down
    assert sum(r["bytes_up"] for r in run.history) == 4 * up
    whole = {3: M * d * (5 * T - 2), 2: M * d * (4 * T - 1)}[vectors]
    assert down + up - whole == T * M + 2 * (T - 1) * M * M  # the scalars
    keys = run.history[-1]["bytes_by_key"]
    assert keys["down"]["w"] == keys["down"]["aux"] == keys["up"]["gradient"] == 4 * M * d
    assert run.history[-1]["bytes_eval"] == 0


@pytest.mark.parametrize(("method", "options"), FAMILY)
def test_q12_scoring_has_no_side_effect(method: type[Algorithm], options: dict[str, Any]) -> None:
    algorithm = method(train=TRAIN, **options)
    runs = [
        make_run(algorithm, PROBLEM, cohort=M, rounds=100, evaluate_every=every)
        for every in (1, 100)
    ]
    for _ in range(T):
        for run in runs:
            record = run.step()
        runs[0].personal_model(0)
        runs[0].global_model()
    assert record["mean_score"] is None
    assert runs[0].history[0]["mean_score"] is not None
    identical(runs[0].server, runs[1].server)
    for i in range(N):
        identical(runs[0].state(i), runs[1].state(i))


@pytest.mark.parametrize(("method", "options"), FAMILY)
def test_inputs_are_never_changed(method: type[Algorithm], options: dict[str, Any]) -> None:
    bench = trained(method(train=TRAIN, **options))

    def copy(values: Mapping[str, Any]) -> State:
        return {k: v.clone() if isinstance(v, Tensor) else v for k, v in values.items()}

    server, state = copy(bench.server), copy(bench.states[1])
    message = bench.algorithm.messages(bench.server, [1], ServerRng(0, 1))[1]
    sent = copy(message)
    _, update = bench.work(1, message)
    received = copy(update)
    bench.algorithm.aggregate(bench.server, {1: update}, Mean(), ServerRng(0, 1))
    for found, expected in (
        (bench.server, server),
        (bench.states[1], state),
        (message, sent),
        (update, received),
    ):
        identical(found, expected)
