"""The process at a site that does the work its SuperNode receives.

It stands in the place of Flower's SuperExec. That one starts a process per message, and runs the
code that came with the run; this one stays, keeps the data loaded, and runs the installed pgfed
only: no code from the server is executed at a site.
"""

from __future__ import annotations

import logging
import signal
import sys
import time
from pathlib import Path

import httpx
from flwr.app import Context, Message

from pgfed.engine.client import become_worker
from pgfed.errors import UserError
from pgfed.federation.flower.apps import ACTION
from pgfed.federation.flower.private import Queue, Task, refusal
from pgfed.federation.folders.folder import SiteFolder
from pgfed.federation.site.answers import Site
from pgfed.modules import search_handed_on

POLL = 0.25  # seconds between two looks at the SuperNode's queue

log = logging.getLogger(__name__)


def work(site: Site, supernode: str, secret: bytes) -> None:
    """Take messages from the SuperNode at this address and answer them, for ever."""
    queue = Queue(supernode, secret)
    while True:
        task = queue.take()
        if task is None:
            time.sleep(POLL)
        else:
            _do(site, task)


def _do(site: Site, task: Task) -> None:
    """Answer one message. What goes wrong on the way costs this site the round."""
    try:
        task.answer(lambda message, context: _reply(site, message, context))
    except (httpx.HTTPError, RuntimeError) as error:
        log.warning("a message could not be answered: %s", error)


def _reply(site: Site, message: Message, context: Context) -> Message:
    if message.metadata.message_type != f"query.{ACTION}" or not message.has_content():
        return refusal(message, "not a message of pgfed")
    return Message(site.answer(message.content, context.node_id), reply_to=message)


def main() -> int:
    folder, data, supernode, secret = sys.argv[1:]
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    # Ctrl+C is the parent's to handle; Flower's heartbeat raises it too, for a task given up on.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    become_worker()
    try:
        search_handed_on()
        site = Site(SiteFolder(Path(folder)), data)
    except UserError as error:
        print("pgfed:", error, file=sys.stderr)
        return 2
    log.info(
        "client %d: %d samples to train on, %d to test on",
        site.client,
        site.federation.n_train[site.client],
        site.federation.n_test[site.client],
    )
    work(site, supernode, Path(secret).read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
