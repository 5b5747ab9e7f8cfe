"""Messages in Flower's link state: given when whole, sent again when lost, spoiled by nobody."""

from __future__ import annotations

import json
import threading
from datetime import timedelta

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Array, Message

from federation.flower_private import ObjectTree
from federation.running import until
from pgfed.federation.flower import private
from pgfed.federation.flower.grid import LinkGrid, Stopped
from pgfed.federation.flower.guard import LIMITS, Refusal, Visitor
from pgfed.federation.flower.link import SUPERLINK_NODE_ID, Link
from pgfed.federation.flower.link import get_object_head_values_from_object_content as head_of
from pgfed.federation.flower.link import get_object_id as object_id
from pgfed.federation.flower.records import MESSAGE, BadRecord, pack, pull, unpack
from pgfed.federation.folders.keys import public_pem

W = torch.arange(5000.0)


class Now:
    """An event loop that does at once what it is told to do soon."""

    def call_soon_threadsafe(self, do, *words):
        do(*words)


class Office:
    """A link with two sites, and what they do over it, without a network."""

    def __init__(self) -> None:
        keys = [ec.generate_private_key(ec.SECP384R1()).public_key() for _ in range(2)]
        pems = [public_pem(key) for key in keys]
        self.link = Link()
        nodes = [self.link.node(pem) for pem in pems]
        self.sites = [Visitor(i, f"site-{i}", nodes[i], keys[i]) for i in range(2)]
        for node in nodes:
            self.link.alive(node)
        self.grid = LinkGrid(self.link, dict(enumerate(self.sites)), Now())
        self.state, self.store = self.link._state, self.link._store
        self.link.begin()
        self.server = SUPERLINK_NODE_ID

    def ask(self, site: int, number: int = 0, most: int = 30_000) -> str:
        content = pack({"number": number}, message={"w": W})
        node = self.sites[site].node
        message = Message(content, dst_node_id=node, message_type=MESSAGE, ttl=60)
        return self.grid.push_message(message, most)

    def take(self, site: int) -> Message | None:
        """As Flower's interface gives a message to a site."""
        found = self.state.get_message_ins(self.sites[site].node, 1)
        return found[0] if found else None

    def reply(self, ask: Message, w: torch.Tensor = W) -> Message:
        head = private.inflate_object_from_contents(
            ask.metadata.message_id,
            {n: self.store.get(n) for n in names(self.store.get_object_tree(name_of(ask)))},
        )
        head.metadata.__dict__["_message_id"] = name_of(ask)
        return Message(pack({"yes": 1}, update={"w": w}), reply_to=head)

    def announce(self, reply: Message, tree: ObjectTree) -> tuple[bool, list[str], str]:
        reply.metadata.__dict__["_message_id"] = tree.object_id
        session = self.state.start_session(reply.metadata.run_id)
        bare = private.remove_content_from_message(reply)
        return *self.state.store_message_and_object_tree(bare, tree, session), session

    def send(self, reply: Message, leave_out: int = 0) -> None:
        """All objects of a reply but some."""
        stored, missing, session = self.announce(reply, private.get_object_tree(reply))
        assert stored
        objects = private.get_all_nested_objects(reply)
        run = reply.metadata.run_id
        for name in sorted(missing)[leave_out:]:
            assert self.state.store_object(run, session, name, objects[name].deflate())


def name_of(message: Message) -> str:
    return str(message.metadata.message_id)


def names(tree: ObjectTree) -> set[str]:
    return {t.object_id for t in private.iterate_object_tree(tree)}


@pytest.fixture
def office():
    return Office()


def test_a_reply_is_given_when_it_is_whole_and_once(office):
    name = office.ask(0)
    assert office.grid.pull_message(name) is None
    office.send(office.reply(office.take(0)), leave_out=1)
    assert office.grid.pull_message(name) is None
    office.grid.send_again(office.sites[0])
    office.send(office.reply(office.take(0)))
    _, parts = unpack(office.grid.pull_message(name).content)
    assert torch.equal(parts["update"]["w"], W)
    assert office.grid.pull_message(name) is None
    assert len(office.store) == 0


def test_what_was_delivered_and_not_answered_is_sent_again(office):
    office.ask(0)
    first = office.take(0)
    assert office.take(0) is None
    office.sites[0].bell.clear()
    office.grid.send_again(office.sites[0])
    assert office.sites[0].bell.is_set()
    assert name_of(office.take(0)) == name_of(first)
    office.grid.send_again(office.sites[1])
    assert not office.sites[1].bell.is_set()


def test_a_whole_reply_is_not_asked_for_again(office):
    """The site asks for more before the run has looked."""
    name = office.ask(0)
    office.send(office.reply(office.take(0)))
    office.sites[0].bell.clear()
    office.grid.send_again(office.sites[0])
    assert not office.sites[0].bell.is_set()
    assert office.grid.pull_message(name) is not None


def test_what_nobody_waits_for_is_gone(office):
    name = office.ask(0)
    reply = office.reply(office.take(0))
    office.grid.forget([name])
    stored, _, _ = office.announce(reply, private.get_object_tree(reply))
    assert not stored
    assert len(office.store) == 0
    with pytest.raises(Refusal):
        office.sites[0].spend(1)


def test_one_array_to_two_sites_is_kept_once_and_spoiled_by_neither(office):
    """One announces the other's array with children of its own."""
    mine, other = office.ask(0, 1), office.ask(1, 2)
    trees = [office.store.get_object_tree(name) for name in (mine, other)]
    shared = names(trees[0]) & names(trees[1])
    assert shared
    before = {name: office.store.get(name) for name in names(trees[1])}
    false = ObjectTree(
        object_id="f" * 64,
        children=[
            ObjectTree(object_id=name, children=[ObjectTree(object_id="e" * 64)])
            for name in sorted(shared)
        ],
    )
    office.announce(office.reply(office.take(0)), false)
    office.grid.forget([mine])
    assert {name: office.store.get(name) for name in names(trees[1])} == before
    assert office.store.get_object_tree(other) == trees[1]
    office.send(office.reply(office.take(1)))
    assert office.grid.pull_message(other) is not None


def test_two_replies_with_the_same_array(office):
    asked = [office.ask(site, site) for site in (0, 1)]
    replies = [office.reply(office.take(site)) for site in (0, 1)]
    office.send(replies[0])
    stored, missing, session = office.announce(replies[1], private.get_object_tree(replies[1]))
    assert stored
    objects = private.get_all_nested_objects(replies[1])
    assert len(missing) < len(objects)
    assert office.grid.pull_message(asked[0]) is not None
    for name in missing:
        office.state.store_object(
            replies[1].metadata.run_id, session, name, objects[name].deflate()
        )
    assert office.grid.pull_message(asked[1]) is not None


def test_a_tree_that_grows_costs_what_it_weighs(office):
    tree = ObjectTree(object_id=f"{0:064x}")
    for n in range(1, 60):
        child = ObjectTree(object_id=tree.object_id)
        tree = ObjectTree(object_id=f"{n:064x}", children=[tree, child, child])
    name = office.ask(0)
    stored, missing, _ = office.announce(office.reply(office.take(0)), tree)
    assert (stored, len(missing)) == (True, 60)
    assert office.grid.pull_message(name) is None


def test_of_replies_that_hang_on_another_name_nothing_is_kept(office):
    """Each time it asks for messages its budget is fresh: what it sent before must be gone."""
    office.ask(0)
    for n in range(5):
        reply = office.reply(office.take(0))
        tree = ObjectTree(object_id=f"{n:064x}", children=[private.get_object_tree(reply)])
        reply.metadata.__dict__["_message_id"] = reply.object_id
        session = office.state.start_session(reply.metadata.run_id)
        bare = private.remove_content_from_message(reply)
        kept, _ = office.state.store_message_and_object_tree(bare, tree, session)
        assert not kept
        office.grid.send_again(office.sites[0])
    assert len(office.store.replies) == 0
    assert not office.state._object_push_sessions


def test_half_a_reply_leaves_nothing_behind(office):
    """Not where the site is sent the message again, nor where its time is over meanwhile."""
    for number in range(3):
        name = office.ask(0, number)
        office.send(office.reply(office.take(0)), leave_out=1)
        office.grid.send_again(office.sites[0])
        assert len(office.store.replies) == 0
        office.send(office.reply(office.take(0)), leave_out=1)
        office.grid.forget([name])  # nobody has looked at what came since
    assert len(office.store) == 0
    assert not office.state._object_push_sessions


def test_a_site_cannot_write_in_the_servers_name(office):
    """Flower lets it lay a message ready for anybody, the server included."""
    office.ask(0)
    before = private.remove_content_from_message(office.reply(office.take(0)))
    for node in (office.sites[1].node, office.server):
        forged = {"_reply_to_message_id": "", "_src_node_id": office.server, "_dst_node_id": node}
        before.metadata.__dict__.update(forged)
        stored, _, _ = office.announce(before, ObjectTree(object_id="d" * 64))
        assert not stored
    assert office.take(1) is None
    assert len(office.store.replies) == 0


def test_objects_within_objects_without_end(office):
    """One in another a thousand times over: no reply, and the run goes on."""
    name = office.ask(0)
    reply = office.reply(office.take(0))
    content = reply.deflate()
    _, (inner,), size = head_of(content)
    chain, child = [], ""
    for _ in range(930):  # as many as can be announced
        body = json.dumps({"record": child}).encode()
        chain.append(f"RecordDict {child} {len(body)}".encode() + b"\0" + body)
        child = object_id(chain[-1])
    body = content[len(content) - size :].replace(inner.encode(), child.encode())
    chain.append(f"Message {child} {len(body)}".encode() + b"\0" + body)
    tree = ObjectTree(object_id=object_id(chain[-1]))
    tree.children.extend(ObjectTree(object_id=object_id(part)) for part in chain[:-1])
    assert tree.ByteSize() < LIMITS["push-messages"]
    stored, _, session = office.announce(reply, tree)
    assert stored
    for part in chain:
        run = reply.metadata.run_id
        assert office.state.store_object(run, session, object_id(part), part)

    def deep(frames: int) -> list[tuple[str, Message | BadRecord]]:
        return deep(frames - 1) if frames else list(pull(office.grid, [name]))

    ((_, answer),) = deep(100)
    assert isinstance(answer, BadRecord)


def test_an_array_longer_than_expected_is_not_made(office):
    name = office.ask(0)
    reply = office.reply(office.take(0))
    array: Array = reply.content["update.arrays"]["w"]
    array.__dict__["_chunks"] = array.slice_array() * 1000
    office.send(reply)
    with pytest.raises(BadRecord, match="its arrays take more than"):
        office.grid.pull_message(name)
    assert len(office.store) == 0


def test_other_bytes_than_announced_are_not_kept(office):
    office.ask(0)
    reply = office.reply(office.take(0))
    _, missing, session = office.announce(reply, private.get_object_tree(reply))
    run = reply.metadata.run_id
    assert not office.state.store_object(run, session, missing[0], b"rubbish")


def test_bytes_are_counted_for_each_exchange(office):
    site = office.sites[0]
    with pytest.raises(Refusal, match="nothing was asked"):
        site.spend(1)
    name = office.ask(0, most=1000)
    site.spend(60_000)
    with pytest.raises(Refusal, match="larger than"):
        site.spend(60_000)
    with pytest.raises(BadRecord, match="larger than the 1000 bytes expected"):
        office.grid.pull_message(name)
    office.ask(0, number=1)
    site.spend(1000)


def test_a_site_that_is_gone_is_told_of(office):
    name = office.ask(0)
    office.take(0)
    office.link.gone(office.sites[0].node)
    reply = office.grid.pull_message(name)
    assert (reply.has_error(), reply.error.code) == (True, 5)


def test_a_run_hears_that_the_server_stops(office):
    office.grid.stop()
    with pytest.raises(Stopped):
        office.grid.get_node_ids()


def test_one_run_after_another(office):
    office.ask(0)
    office.take(0)
    office.grid.end()
    office.link.end()
    assert len(office.store) == 0
    with pytest.raises(Refusal, match="nothing was asked"):
        office.sites[0].spend(1)
    office.link.begin()
    assert office.ask(0, number=2)


class Watched:
    """A lock that tells whether somebody has it."""

    def __init__(self, lock) -> None:
        self._lock, self.depth = lock, 0

    def __enter__(self):
        self._lock.acquire()
        self.depth += 1

    def __exit__(self, *_):
        self.depth -= 1
        self._lock.release()


def test_a_late_object_and_a_run_that_forgets_do_not_wait_for_each_other(office, monkeypatch):
    """Flower takes its locks in one order where an object is too late, and in the other where a
    message is forgotten: at the same moment, neither would ever end."""
    name = office.ask(0)
    reply = office.reply(office.take(0))
    _, missing, session = office.announce(reply, private.get_object_tree(reply))
    office.state._object_push_sessions[session].expires_at -= timedelta(hours=1)
    lock = office.state.lock = Watched(office.state.lock)
    forgets = threading.Thread(target=office.state.delete_messages, args=({name},), daemon=True)

    def delete(_):
        """Where Flower has one of them, and goes on to take the other."""
        forgets.start()
        until(lambda: lock.depth, "one of the two has the other")

    monkeypatch.setattr(office.store, "delete", delete)
    late = threading.Thread(
        target=office.state.store_object,
        args=(reply.metadata.run_id, session, missing[0], b""),
        daemon=True,
    )
    late.start()
    for thread in (late, forgets):
        until(lambda thread=thread: thread.ident and not thread.is_alive(), "it ends", 20)
