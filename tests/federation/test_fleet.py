"""A site at a server that means it harm: nobody else is called, and little of it is read."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import httpx
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Array, Message

from federation.flower_private import PullMessagesResponse, PullObjectResponse, message_to_proto
from federation.test_grid import Office, name_of
from pgfed.federation.flower import private
from pgfed.federation.flower.private import LONGEST, Fleet, Unreadable
from pgfed.federation.flower.records import MESSAGE, pack, unpack
from pgfed.federation.site.arriving import longest
from pgfed.model.networks import make_task

PART = bytes(1 << 16)


class Server(ThreadingHTTPServer):
    """Answers everything with this status and these headers; then with zeros, as long as it can."""

    def __init__(self, status: int, headers: dict[str, str]) -> None:
        self.asked: list[str] = []
        self.sent = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.do_POST()

            def do_POST(self) -> None:
                server.asked.append(self.path)
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key, value)
                self.end_headers()
                try:
                    while server.sent < 64 << 20 and headers.get("Content-Length") != "0":
                        self.wfile.write(PART)
                        server.sent += len(PART)
                except OSError:  # the site has gone
                    pass

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)

    def __enter__(self) -> Server:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


def fleet_at(server: Server) -> Fleet:
    key = ec.generate_private_key(ec.SECP384R1())
    return Fleet(f"127.0.0.1:{server.server_port}", key, insecure=True, authority=None)


@pytest.mark.parametrize("status", [301, 303, 307, 308])
def test_a_site_is_not_sent_on_to_others(status):
    """To a machine of the hospital, say, that the server itself cannot reach."""
    with Server(200, {"Content-Length": "0"}) as other:
        inside = f"http://127.0.0.1:{other.server_port}/restart"
        with Server(status, {"Location": inside, "Content-Length": "0"}) as server:
            fleet = fleet_at(server)
            with pytest.raises(httpx.HTTPStatusError) as error:
                fleet.come()
            fleet.close()
        assert error.value.response.status_code == status
        assert len(server.asked) == 1
        assert not other.asked


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Length": str(1 << 40)},
        {"Content-Length": str(LONGEST + 1)},
        {"Transfer-Encoding": "chunked"},
        {"Content-Length": "1000", "Content-Encoding": "gzip"},
        {},
    ],
)
@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_without_end_is_not_read(status, headers):
    with Server(status, headers) as server:
        fleet = fleet_at(server)
        with pytest.raises(httpx.RemoteProtocolError, match="has no length, or one above"):
            fleet.come()
        fleet.close()
    assert server.sent < 16 << 20  # what lay in buffers when it hung up


@pytest.fixture
def posted(monkeypatch) -> Iterator[Fleet]:
    """A site to which a message lies ready: 20 kB, in the test's own hands."""
    office = Office()

    def objects(message: Message) -> dict[str, bytes]:
        return {name: o.deflate() for name, o in private.get_all_nested_objects(message).items()}

    def post(repeated: int = 1) -> Fleet:
        content = pack({}, message={"w": torch.arange(5000.0)})
        array: Array = content["message.arrays"]["w"]
        array.__dict__["_chunks"] = array.slice_array() * repeated
        node = office.sites[0].node
        message = Message(content, dst_node_id=node, message_type=MESSAGE, ttl=60)
        message.metadata.__dict__["_message_id"] = message.object_id
        contents, tree = objects(message), private.get_object_tree(message)
        bare = message_to_proto(private.remove_content_from_message(message))
        fleet = Fleet(
            "127.0.0.1:1", ec.generate_private_key(ec.SECP384R1()), insecure=True, authority=None
        )
        fleet._client = SimpleNamespace(
            PullMessages=lambda request: PullMessagesResponse(
                messages_list=[bare], message_object_trees=[tree]
            ),
            PullObject=lambda request: PullObjectResponse(
                object_found=True,
                object_available=True,
                object_content=contents[request.object_id],
            ),
        )
        return fleet

    return post


def test_a_message_of_the_size_that_is_expected_is_received(posted):
    message = posted().receive(10, 30_000)
    assert name_of(message)
    assert torch.equal(unpack(message.content)[1]["message"]["w"], torch.arange(5000.0))


def test_a_message_that_is_larger_than_any_method_sends_is_not_received(posted):
    with pytest.raises(Unreadable, match="the message is larger than 10000 bytes"):
        posted().receive(10, 10_000)


def test_few_bytes_do_not_become_many_at_a_site(posted):
    with pytest.raises(Unreadable, match="its arrays take more than the 3000000 bytes"):
        posted(repeated=20_000).receive(10, 3_000_000)


def test_a_server_that_dies_while_a_site_receives_is_noticed_at_once(posted):
    """One object has come, the next has not: nothing is waited for that will not come."""
    fleet = posted()
    honest = fleet._client.PullObject
    for ending in ("killed", "started anew"):
        left = iter([honest])

        def pull(request, ending=ending, left=left):
            if (answer := next(left, None)) is not None:
                return answer(request)
            if ending == "killed":
                raise httpx.ConnectError("refused")
            return PullObjectResponse(object_found=False, object_available=False)

        fleet._client.PullObject = pull
        began = time.monotonic()
        with pytest.raises((httpx.ConnectError, Unreadable)):
            fleet.receive(600, 30_000)
        assert time.monotonic() - began < 60


def test_how_large_a_message_may_be_follows_from_the_model():
    task = make_task("mlp", (64,), 10, seed=0)
    n = task.layout.n
    assert 4 * n * 16 < longest(task, 3) < 4 * n * 16 * 3 + (2 << 20)
    assert longest(task, 100) > 4 * n * 100
