"""What a hostile site answers, and what a hostile server asks, in some round."""

from __future__ import annotations

from flwr.app import Message, RecordDict

from federation.flower_private import Node, ObjectTree, PushMessagesRequest, message_to_proto
from federation.hostile import Hostile, Trick, growing_tree, half_sent, large, repeated_chunk
from pgfed.federation.flower import private
from pgfed.federation.flower.records import pack, unpack


def changed(**updates) -> Trick:
    """An answer with other values: a number, or what to do to one; `head` ones are of the head."""

    def trick(site: Hostile, message: Message, answer: RecordDict) -> None:
        head, parts = unpack(answer)
        for key, value in updates.items():
            place = head if key in head else parts["update"]
            place[key] = value(place[key]) if callable(value) else value
        site.fleet.answer(Message(pack(head, **parts), reply_to=message))

    return trick


def not_a_number(w):
    w = w.clone()
    w[0] = float("nan")
    return w


def twice(site: Hostile, message: Message, answer: RecordDict) -> None:
    """The second time, what it said before is worth nothing any more."""
    site.fleet.answer(Message(answer, reply_to=message))
    site.fleet.answer(Message(answer, reply_to=message))


def as_another_node(site: Hostile, message: Message, answer: RecordDict) -> None:
    """With its own key, in the name of another site's node."""
    reply = Message(answer, reply_to=message)
    reply.metadata.__dict__["_message_id"] = reply.object_id
    bare = private.remove_content_from_message(reply)
    site.fleet._client.PushMessages(
        PushMessagesRequest(
            node=Node(node_id=site.fleet.node + 1),
            messages_list=[message_to_proto(bare)],
            message_object_trees=[private.get_object_tree(reply)],
        )
    )


def invented_children(site: Hostile, message: Message, answer: RecordDict) -> None:
    """The array that all sites are sent, announced with children that it does not have."""
    sent = {
        tree.object_id for tree in private.iterate_object_tree(private.get_object_tree(message))
    }
    false = [
        ObjectTree(object_id=name, children=[ObjectTree(object_id="e" * 64)])
        for name in sorted(sent)
    ]
    tree = ObjectTree(object_id="f" * 64, children=false)
    site.announce(Message(answer, reply_to=message), tree)


def script(site: Hostile, message: Message, answer: RecordDict) -> None:
    """A reason for a page that people open."""
    head, _ = unpack(answer)
    site.fleet.answer(Message(pack({**head, "error": SCRIPT}), reply_to=message))


SCRIPT = "<script>alert(1)</script>"

# round -> what REVIEW calls it, what is done, what the history must say, and how
SITE: dict[int, tuple[str, str, str, Trick]] = {
    2: ("D4", "a reply half sent", "no reply within", half_sent),
    3: ("D10", "a reply of 100 MB", "larger than the", large(100_000_000)),
    4: ("N1", "a tree of objects that grows", "no reply within", growing_tree),
    5: ("N3", "one chunk named 20,000 times", "its arrays take more than", repeated_chunk),
    6: ("held", "NaN", "w: holds NaN", changed(w=not_a_number)),
    7: ("held", "keys that were not asked for", "not asked for, the first 'more'", changed(more=1)),
    8: ("held", "a wrong round", "round: found 3, asked for 8", changed(round=3)),
    9: ("held", "a ticket of before (replay)", "ticket: found", changed(ticket="0" * 32)),
    10: ("held", "in another node's name", "no reply within", as_another_node),
    11: ("D9", "a model scaled by 1000", "allowed at most 50", changed(w=lambda w: 1000 * w)),
    12: ("D9", "10^8 samples", "is not a count between 1 and", changed(n=10**8)),
    13: ("held", "HTML for the report (which shows it as text)", SCRIPT, script),
    14: ("N2", "others' arrays with made-up parts", "no reply within", invented_children),
}

# Run in the place of `pgfed`: a server that asks site 1 for what it should not.
SERVER = """
import torch
from pgfed.cli.app import main
from pgfed.federation.server import backend

honest = backend.pack

def pack(head, **parts):
    if head.get("client") == 1 and head["stage"] == "train":
        change, w = {change}.get(head["round"], {{}}), parts["message"].get("w")
        head = {{**head, **change}}
        if head["round"] == 7:
            parts["message"] = {{**parts["message"], "w": w * float("nan")}}
        if head["round"] == 8:
            parts["message"] = {{**parts["message"], "w": w[:-1]}}
        if head["round"] == 9:
            parts["message"] = {{**parts["message"], "w": 1e6 * w}}
    return honest(head, **parts)

backend.pack = pack
main()
"""
HEADS = {
    2: {"run": "f" * 32},
    3: {"run": "../../../run"},
    4: {"method": "os:system"},
    5: {"client": 0},
    6: {"stage": "shell"},
}
ASKED: dict[int, tuple[str, str, str]] = {
    2: ("D5", "an invented run", "no seat in run"),
    3: ("held", "a path in the place of a run", "run"),
    4: ("held", "a method of the server's", "'os:system', seed 0 is not in this site's experiment"),
    5: ("held", "a message for another site", "a message for client 0, this is client 1"),
    6: ("held", "an unknown kind of request", "stage: found 'shell'"),
    7: ("D6", "a model of NaN", "message.w: holds NaN or infinite values"),
    8: ("D6", "a model of another shape", "message.w: shape"),
    9: ("D6", "a model that makes steps long", "does not leave this site: w:"),
}
