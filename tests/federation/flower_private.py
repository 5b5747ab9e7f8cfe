"""What the tests alone need of Flower beyond its documented packages; no other test imports it.

They send messages through Flower's own protobuf without its processes, and show where it fails.
"""

from flwr.common.serde import (
    message_from_proto,
    message_to_proto,
    recorddict_from_proto,
    recorddict_to_proto,
)
from flwr.common.serde_utils import record_value_dict_from_proto
from flwr.proto.recorddict_pb2 import ConfigRecordValue
from flwr.proto.recorddict_pb2 import RecordDict as RecordDictProto
from flwr.supercore.task_identity import TaskIdentity

__all__ = [
    "ConfigRecordValue",
    "RecordDictProto",
    "TaskIdentity",
    "message_from_proto",
    "message_to_proto",
    "record_value_dict_from_proto",
    "recorddict_from_proto",
    "recorddict_to_proto",
]
