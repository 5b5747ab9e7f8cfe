"""What the tests alone need of Flower beyond its documented packages; no other test imports it.

They send messages through Flower's own protobuf without its processes, show where it fails, and do
what a hostile site would.
"""

from flwr.common.serde import (
    message_from_proto,
    message_to_proto,
    recorddict_from_proto,
    recorddict_to_proto,
)
from flwr.common.serde_utils import record_value_dict_from_proto
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.recorddict_pb2 import ConfigRecordValue
from flwr.proto.recorddict_pb2 import RecordDict as RecordDictProto
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import node_auth_http_interceptor as interceptor

__all__ = [
    "ConfigRecordValue",
    "Node",
    "ObjectTree",
    "PullMessagesResponse",
    "PullObjectResponse",
    "PushMessagesRequest",
    "RecordDictProto",
    "TaskIdentity",
    "interceptor",
    "message_from_proto",
    "message_to_proto",
    "record_value_dict_from_proto",
    "recorddict_from_proto",
    "recorddict_to_proto",
]
