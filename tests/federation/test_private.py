"""What pgfed needs of Flower beyond its documented packages, and what breaks where it is gone.

A new release of Flower: raise the bound in pyproject.toml, run this, and mend
`private` and `link` in `pgfed.federation.flower` until it passes; then the rest of this folder.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import pgfed
from federation import flower_private as of_tests
from pgfed.federation.flower import QUIET, link, private
from pgfed.federation.flower.guard import LIMITS

# what is needed -> what does not work without it
NEEDS = {
    "flwr.app.message.message:remove_content_from_message": "messages are announced with all",
    "flwr.common.constant:ErrorCode": "a site cannot refuse a message that is not pgfed's",
    "flwr.common.constant:HEARTBEAT_DEFAULT_INTERVAL": "a site is not believed to be there",
    "flwr.common.constant:NOOP_ACCOUNT_NAME": "no site is admitted",
    "flwr.common.constant:NOOP_FLWR_AID": "no site is admitted",
    "flwr.common.constant:SUPERLINK_NODE_ID": "no message is sent",
    "flwr.common.constant:SYSTEM_TIME_TOLERANCE": "the guard allows other clocks than Flower",
    "flwr.common.constant:SubStatus": "a run does not end",
    "flwr.common.constant:TIMESTAMP_HEADER": "the guard finds no signature",
    "flwr.common.constant:TIMESTAMP_TOLERANCE": "the guard allows other clocks than Flower",
    "flwr.common.serde:message_from_proto": "a site cannot read a message",
    "flwr.common.serde:message_to_proto": "a site cannot answer",
    "flwr.proto.fleet_pb2:ActivateNodeRequest": "a site cannot come",
    "flwr.proto.fleet_pb2:DeactivateNodeRequest": "a site that ends is believed to be there",
    "flwr.proto.fleet_pb2:PullMessagesRequest": "a site gets no messages",
    "flwr.proto.fleet_pb2:PushMessagesRequest": "a site cannot answer",
    "flwr.proto.heartbeat_pb2:SendNodeHeartbeatRequest": "a site that trains for long is given up",
    "flwr.proto.message_pb2:ObjectTree": "the type of what Flower's store is given",
    "flwr.proto.node_pb2:Node": "a site cannot say who it is",
    "flwr.server.superlink.linkstate:InMemoryLinkState": "the server has no state",
    "flwr.supercore.constant:FLEET_HTTP_PUBLIC_KEY_HEADER": "the guard finds no signature",
    "flwr.supercore.constant:FLEET_HTTP_SIGNATURE_HEADER": "the guard finds no signature",
    "flwr.supercore.constant:NOOP_FEDERATION_ID": "no run begins",
    "flwr.supercore.constant:NodeStatus": "the server does not know who is there",
    "flwr.supercore.constant:TaskType": "no run begins",
    "flwr.supercore.error:http_error_translator": "an error of Flower's is a stack trace",
    "flwr.supercore.inflatable.inflatable_object:get_all_nested_objects": "nothing is sent",
    "flwr.supercore.inflatable.inflatable_object:get_object_head_values_from_object_content": (
        "the server does not know when a reply is whole"
    ),
    "flwr.supercore.inflatable.inflatable_object:get_object_id": "a site may send any bytes as any",
    "flwr.supercore.inflatable.inflatable_object:get_object_tree": "nothing is sent",
    "flwr.supercore.inflatable.inflatable_object:iterate_object_tree": "nothing is received",
    "flwr.supercore.inflatable.inflatable_object:no_object_id_recompute": "sending takes long",
    "flwr.supercore.inflatable.inflatable_protobuf_utils:make_pull_object_fn_protobuf": (
        "a site cannot fetch the arrays of a message"
    ),
    "flwr.supercore.inflatable.inflatable_protobuf_utils:make_push_object_fn_protobuf": (
        "a site cannot send the arrays of a reply"
    ),
    "flwr.supercore.inflatable.inflatable_utils:ObjectPullError": "a site ends instead of going on",
    "flwr.supercore.inflatable.inflatable_utils:ObjectPushError": "a site ends instead of going on",
    "flwr.supercore.inflatable.inflatable_utils:inflate_object_from_contents": "nothing is read",
    "flwr.supercore.inflatable.inflatable_utils:pull_objects": "a site cannot fetch a message",
    "flwr.supercore.inflatable.inflatable_utils:push_objects": "a site cannot send a reply",
    "flwr.supercore.inflatable.inflatable_utils:validate_object_content": "rubbish is kept",
    "flwr.supercore.object_store:NoObjectInStoreError": "a message that is gone is a stack trace",
    "flwr.supercore.object_store:ObjectStore": "the server cannot keep objects apart",
    "flwr.supercore.primitives.asymmetric:public_key_to_bytes": "a site cannot say who it is",
    "flwr.supercore.protobuf.translation:ProtobufTranslationMiddleware": "no request is understood",
    "flwr.supercore.task_identity:TaskIdentity": "messages cannot be made in the server",
    "flwr.superlink.federation:NoOpFederationManager": "the server has no state",
    "flwr.superlink.routers.fleet.node_auth:NodeAuthMiddleware": "a site may speak for another",
    "flwr.superlink.routers.fleet.router:router": "the server does not answer sites",
    "flwr.supernode.fleet_http_client:FleetHttpClient": "a site cannot ask the server",
    "flwr.supernode.node_auth_http_interceptor:NodeAuthHttpInterceptor": "a site is not admitted",
}
NEEDS_OF_TESTS = {
    "flwr.common.serde:message_from_proto": "messages of tests do not travel as real ones do",
    "flwr.common.serde:message_to_proto": "messages of tests do not travel as real ones do",
    "flwr.common.serde:recorddict_from_proto": "made-up messages cannot be read as Flower does",
    "flwr.common.serde:recorddict_to_proto": "made-up messages cannot be written as Flower does",
    "flwr.common.serde_utils:record_value_dict_from_proto": "nothing shows how Flower fails",
    "flwr.proto.fleet_pb2:PullMessagesResponse": "a hostile server cannot send what it likes",
    "flwr.proto.fleet_pb2:PushMessagesRequest": "a hostile site cannot announce what it likes",
    "flwr.proto.message_pb2:ObjectTree": "a hostile site cannot announce what it likes",
    "flwr.proto.message_pb2:PullObjectResponse": "a hostile server cannot send what it likes",
    "flwr.proto.node_pb2:Node": "a hostile site cannot announce what it likes",
    "flwr.proto.recorddict_pb2:ConfigRecordValue": "nothing shows how Flower fails",
    "flwr.proto.recorddict_pb2:RecordDict": "made-up messages cannot be read as Flower does",
    "flwr.supercore.task_identity:TaskIdentity": "messages cannot be made outside of a run",
    "flwr.supernode:node_auth_http_interceptor": "no site's clock can be wrong",
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
    ("root", "places", "needs"),
    [
        (Path(pgfed.__file__).parent, [link, private], NEEDS),
        (Path(__file__).parents[1], [of_tests], NEEDS_OF_TESTS),
    ],
    ids=["pgfed", "tests"],
)
def test_no_other_file_touches_it_and_the_list_above_is_complete(root, places, needs):
    touched = {file: found for file in sorted(root.rglob("*.py")) if (found := imports(file))}
    touched.pop(Path(__file__), None)
    assert list(touched) == [Path(place.__file__) for place in places]
    assert set().union(*touched.values()) == set(needs)


def test_a_site_does_without_what_the_server_needs():
    """A database's library alone would take a second to start, and 40 MB."""
    heavy = "sqlalchemy", "alembic", "uvicorn", "pgfed.federation.server", link.__name__
    start = "import sys, pgfed.federation.site.process"
    code = f"{start}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n", done.stderr


def test_clients_and_state_have_what_is_called():
    calls = {
        "flwr.supernode.fleet_http_client:FleetHttpClient": (
            *("ActivateNode", "DeactivateNode", "SendNodeHeartbeat", "PullMessages"),
            *("PushMessages", "PullObject", "PushObject", "close"),
        ),
        "flwr.server.superlink.linkstate:InMemoryLinkState": (
            *("create_node", "create_run", "get_run_info", "claim_task", "activate_task"),
            *("acknowledge_task_heartbeat", "finish_task", "cleanup_run", "get_node_info"),
            *("acknowledge_node_heartbeat", "deactivate_node", "store_message_ins"),
            *("delete_messages", "get_message_res"),
        ),
    }
    for need, names in calls.items():
        module, kind = need.split(":")
        for name in names:
            assert callable(getattr(getattr(import_module(module), kind), name)), name


def test_flower_serves_sites_where_the_guard_looks():
    """Else the server would be closed to them, or the guard's limits would bound nothing."""
    from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE

    paths = {route.path for route in link.fleet.routes}
    assert {private.FLEET + kind for kind in LIMITS} <= paths
    assert private.CHUNK == FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE


def test_only_the_interface_for_sites_is_served():
    app = link.Link().app()
    assert not [name for name in ("/v1/control", "/v1/runtime", "/docs") if name in str(app.routes)]
    assert app.openapi_url is None


def test_flower_reads_the_environment_that_keeps_it_quiet():
    """Else it reports to its makers, looks for updates, or installs packages."""
    source = Path(import_module("flwr").__file__).parent
    text = "".join(file.read_text() for file in source.rglob("*.py"))
    assert not [name for name in QUIET if f'"{name}"' not in text]
    assert all(os.environ[name] == value for name, value in QUIET.items())
