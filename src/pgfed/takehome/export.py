"""`pgfed export`: a model for programs that know nothing of pgfed.

``onnx`` is for ONNX runtimes; ``torch`` is torch.export's .pt2 archive: the graph and the raw
weights, which `torch.export.load` opens without this package and without the model's source.
"""

from __future__ import annotations

import importlib
import io
import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from pgfed.engine.storage.durable import write_atomic
from pgfed.errors import UserError
from pgfed.model.objectives import Objective
from pgfed.modules import NONE, Allowed
from pgfed.results.kept.models import Model
from pgfed.takehome.metrics import objective_of

SUFFIX = {"onnx": ".onnx", "torch": ".pt2"}
CHECKED = (1, 2, 5)  # sizes of the batches that are compared: the first dimension is free
TOLERANCE = 1e-4  # of a logit, absolute and relative: other kernels round otherwise
ABOUT = "pgfed.json"  # inside the exported file: classes, normalisation and where it is from

Logits = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Exported:
    path: Path
    difference: float  # the largest of any logit in the check


def export(
    model: Model,
    kind: str,
    out: Path | None,
    *,
    whole: bool = False,
    replace: bool = False,
    allowed: Allowed = NONE,
) -> Exported:
    """Write the model in another format, once it has given the same outputs as the original.

    ``whole``: with what is done to inputs before it and to outputs after it in the graph.
    ``replace``: a file that is there.
    """
    path = out or Path(model.path.stem + SUFFIX[kind])
    if path.exists() and not replace:
        raise UserError(f"{path}: exists; give another name with --out, or --overwrite it")
    module = model.module()
    if whole:
        module = _Whole(module, model, objective_of(model, allowed)).eval()
    about = json.dumps(_about(model))
    with _quiet():
        try:
            program = _program(module, _random(2, model, whole))
            data = {"onnx": _onnx, "torch": _torch}[kind](program, about)
            logits = {"onnx": _run_onnx, "torch": _run_torch}[kind](data)
            difference = _compare(module, logits, model, whole)
        except UserError:
            raise
        except Exception as error:  # whatever an exporter says to a model it cannot express
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise UserError(f"{model.path}: cannot be exported as {kind}: {lines[0]}") from error
    try:
        write_atomic(path, data)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None
    return Exported(path, difference)


class _Whole(nn.Module):
    """The model from what a site has to what it wants to know."""

    def __init__(self, module: nn.Module, model: Model, objective: Objective) -> None:
        super().__init__()
        self.module = module
        self.rule, self.objective = model.manifest.normalisation, objective

    def forward(self, x: Tensor) -> Tensor:
        x = x.float() / self.rule.divide - self.rule.subtract if self._scales else x
        return self.objective.predictions(self.module(x))

    @property
    def _scales(self) -> bool:
        return (self.rule.divide, self.rule.subtract) != (1.0, 0.0)


def _about(model: Model) -> dict[str, Any]:
    wanted = (
        *("method", "round", "seed", "input_shape", "classes", "targets", "normalisation"),
        *("table", "image_size", "sha256"),
    )
    told = {"privacy": model.entry["privacy"]} if model.entry.get("privacy") else {}
    return {key: model.entry[key] for key in wanted} | told


def _random(n: int, model: Model, whole: bool) -> Tensor:
    """Inputs such as the exported graph takes."""
    about, random = model.manifest, torch.Generator().manual_seed(n)
    if about.normalisation.input == "int64":
        known = int(about.model_options.get("vocabulary") or 2)
        return torch.randint(known, (n, *about.shape), generator=random)
    if whole and about.normalisation.input == "uint8":
        pixels = torch.randint(256, (n, *about.shape), generator=random)
        return pixels.to(torch.uint8)
    return torch.rand(n, *about.shape, generator=random) * 2 - 1


def _program(module: nn.Module, example: Tensor) -> ExportedProgram:
    program = torch.export.export(module, (example,), dynamic_shapes=({0: Dim.DYNAMIC},))
    # They would be stored as a pickle.
    program.example_inputs = None
    return program


def _torch(program: ExportedProgram, about: str) -> bytes:
    data = io.BytesIO()
    torch.export.save(program, data, extra_files={ABOUT: about})
    return data.getvalue()


def _run_torch(data: bytes) -> Logits:
    module = torch.export.load(io.BytesIO(data)).module()
    return lambda x: module(x)


def _onnx(program: ExportedProgram, about: str) -> bytes:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        try:
            importlib.import_module(package)
        except ModuleNotFoundError:
            raise UserError(
                f"--format onnx: needs {package}; install it with `pip install pgfed[onnx]`"
            ) from None
    made = torch.onnx.export(
        program, input_names=["x"], output_names=["logits"], dynamo=True, verbose=False
    )
    if made is None:
        raise UserError("--format onnx: this version of torch exports to files only")
    made.model.metadata_props[ABOUT] = about
    with tempfile.TemporaryDirectory() as folder:
        made.save(Path(folder) / "model.onnx", external_data=False)
        return (Path(folder) / "model.onnx").read_bytes()


def _run_onnx(data: bytes) -> Logits:
    runtime = importlib.import_module("onnxruntime")
    session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(["logits"], {"x": x.numpy()})[0])


@torch.no_grad()
def _compare(module: nn.Module, exported: Logits, model: Model, whole: bool) -> float:
    """The largest difference of any logit on random inputs, which must be rounding."""
    largest = 0.0
    for n in CHECKED:
        x = _random(n, model, whole)
        ours, theirs = module(x), exported(x)
        if not torch.allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE):
            gap = float((ours - theirs).abs().max())
            raise UserError(f"the exported model gives other logits (by {gap:g}); nothing written")
        largest = max(largest, float((ours - theirs).abs().max()))
    return largest


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep back what torch's exporters say about themselves; what goes wrong is raised."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.filterwarnings("ignore", message=r".*LeafSpec", category=FutureWarning)
            yield
    finally:
        logging.disable(before)
