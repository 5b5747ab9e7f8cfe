"""What pgfed needs of Flower beyond its documented packages, and what breaks where it is gone.

A new release of Flower: raise the bound in pyproject.toml, run this, and mend
`pgfed.federation.flower.private` until it passes; then the rest of this folder.
"""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from pathlib import Path

import pytest

import pgfed
from federation import flower_private as of_tests
from pgfed.federation.flower import private
from pgfed.federation.flower.processes import QUIET

# what is needed -> what does not work without it
NEEDS = {
    "flwr.cli.build:build_fab_from_disk": "`federation run` cannot bundle the app it starts",
    "flwr.common.constant:ErrorCode": "a site cannot refuse a message that is not pgfed's",
    "flwr.common.constant:SubStatus": "a site cannot say that a message is answered",
    "flwr.common.serde:fab_to_proto": "`federation run` cannot send the app",
    "flwr.common.serde:user_config_to_proto": "`federation run` cannot send its options",
    "flwr.proto.control_pb2:ListNodesRequest": "the server cannot ask which sites are admitted",
    "flwr.proto.control_pb2:ListRunsRequest": "`federation run` does not learn that a run is over",
    "flwr.proto.control_pb2:RegisterNodeRequest": "no site is admitted",
    "flwr.proto.control_pb2:StartRunRequest": "`federation run` starts nothing",
    "flwr.proto.control_pb2:UnregisterNodeRequest": "a site whose key was removed stays admitted",
    "flwr.proto.runtime_pb2:AcquireTaskRequest": "a worker gets no messages",
    "flwr.supercore.constant:TaskType": "a worker cannot say which messages it takes",
    "flwr.supercore.control:ControlHttpClient": "the server's machine cannot ask the SuperLink",
    "flwr.supercore.fab:Fab": "`federation run` cannot bundle the app it starts",
    "flwr.supercore.heartbeat:HeartbeatSender": "long training is given up on as dead",
    "flwr.supercore.heartbeat:make_task_heartbeat_fn_http": "long training is given up on as dead",
    "flwr.supercore.interceptors:RuntimeTokenHttpInterceptor": "a message cannot be answered",
    "flwr.supercore.interceptors:RuntimeVersionHttpInterceptor": "every request is refused",
    "flwr.supercore.interceptors:SuperExecAuthHttpInterceptor": "a SuperNode refuses its worker",
    "flwr.supercore.protobuf.client:ProtobufClientInterceptor": "the types of the three above",
    "flwr.supercore.runtime:RuntimeHttpClient": "a worker cannot ask its SuperNode",
    "flwr.superlink.cli:flower_superlink": "the server does not start",
    "flwr.supernode.runtime.run_clientapp:pull_task_input": "a worker gets no messages",
    "flwr.supernode.runtime.run_clientapp:push_message": "a message cannot be answered",
    "flwr.supernode.runtime.run_clientapp:push_task_output": "a message is asked for for ever",
}
NEEDS_OF_TESTS = {
    "flwr.common.serde:message_from_proto": "messages of tests do not travel as real ones do",
    "flwr.common.serde:message_to_proto": "messages of tests do not travel as real ones do",
    "flwr.common.serde:recorddict_from_proto": "made-up messages cannot be read as Flower does",
    "flwr.common.serde:recorddict_to_proto": "made-up messages cannot be written as Flower does",
    "flwr.common.serde_utils:record_value_dict_from_proto": "nothing shows how Flower fails",
    "flwr.proto.recorddict_pb2:ConfigRecordValue": "nothing shows how Flower fails",
    "flwr.proto.recorddict_pb2:RecordDict": "made-up messages cannot be read as Flower does",
    "flwr.supercore.run:Run": "the type of what a grid has",
    "flwr.supercore.task_identity:TaskIdentity": "messages cannot be made outside of a run",
}
DOCUMENTED = {"flwr.app", "flwr.serverapp", "flwr.clientapp"}


@pytest.mark.parametrize(("need", "broken"), (NEEDS | NEEDS_OF_TESTS).items())
def test_flower_has(need: str, broken: str):
    module, name = need.split(":")
    try:
        found = hasattr(import_module(module), name)
    except ImportError:
        found = False
    assert found, f"Flower has no {need} any more: {broken}"


def imports(file: Path) -> set[str]:
    """The names that a file imports of Flower, but for the documented ones, as module:name."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}:{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {f"{alias.name}:" for alias in node.names}
    private = {name for name in found if name.split(".")[0].split(":")[0] == "flwr"}
    return {name for name in private if name.split(":")[0] not in DOCUMENTED}


@pytest.mark.parametrize(
    ("root", "place", "needs"),
    [
        (Path(pgfed.__file__).parent, Path(private.__file__), NEEDS),
        (Path(__file__).parents[1], Path(of_tests.__file__), NEEDS_OF_TESTS),
    ],
    ids=["pgfed", "tests"],
)
def test_one_file_touches_it_and_the_list_above_is_complete(root, place, needs):
    touched = {file: found for file in sorted(root.rglob("*.py")) if (found := imports(file))}
    touched.pop(Path(__file__), None)
    assert list(touched) == [place]
    assert touched[place] == set(needs)


def test_requests_and_clients_have_what_is_called():
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.runtime import RuntimeHttpClient

    for name in ("ListNodes", "RegisterNode", "UnregisterNode", "StartRun", "ListRuns", "close"):
        assert callable(getattr(ControlHttpClient, name)), name
    for name in ("AcquireTask", "close"):
        assert callable(getattr(RuntimeHttpClient, name)), name
    wanted = {"server_address", "insecure", "root_certificates", "interceptors"}
    for client in (ControlHttpClient, RuntimeHttpClient):
        assert wanted <= set(inspect.signature(client.from_server_address).parameters)


def test_the_doors_of_the_superlink_are_where_the_guard_looks():
    """A SuperLink that serves sites elsewhere would be closed to them, or open to strangers."""
    from flwr.supercore.routers.health.router import router as health
    from flwr.superlink.cli import flower_superlink
    from flwr.superlink.routers.fleet.router import router as fleet

    assert fleet.prefix + "/" == private.FLEET
    assert private.HEALTH in {route.path for route in health.routes}
    serving = import_module(flower_superlink.__module__)
    assert "uvicorn.run(" in inspect.getsource(serving), "the guard stands around uvicorn.run"


def test_flower_reads_the_environment_that_keeps_it_quiet():
    """Else it reports to its makers, looks for updates, installs packages, or waits long."""
    source = Path(import_module("flwr").__file__).parent
    text = "".join(file.read_text() for file in source.rglob("*.py"))
    assert not [name for name in QUIET if f'"{name}"' not in text]
