"""The Ray cluster that actors run on: joined, or an instance of our own on this machine."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from pgfed.errors import UserError

CONNECT_SECONDS = 10.0


class Cluster:
    """A connection to Ray.

    ``address``: "auto" (the cluster this machine is a node of) or "host:port"; empty: an instance
    of our own with this many ``cores``, reachable from this machine only.
    """

    def __init__(self, address: str, cores: int) -> None:
        self.address = address
        self.cores = cores
        self.ray: Any = None  # the package, once connected
        self.folder: str | None = None  # of an instance of our own
        self._connected = False  # by us: then it is ours to disconnect

    def connect(self) -> None:
        # Only at first import and start does Ray read these. Nothing is reported to anyone; an
        # instance of our own listens on the loopback address alone, which Ray offers by this name.
        settings = {"RAY_USAGE_STATS_ENABLED": "0"}
        if not self.address:
            settings["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        with _environment(settings), _quiet():
            try:
                import ray
            except ImportError as error:
                raise UserError(
                    f"engine.backend: 'ray' needs the package ray ({error}); "
                    "pip install 'pgfed[ray]'"
                ) from None
            self.ray = ray
            if ray.is_initialized():
                self._check_connection()
            elif self.address:
                self._join()
            else:
                self._launch()

    def _check_connection(self) -> None:
        """The calling program is connected already: stay with its cluster, if it is the one."""
        here = self.ray.get_runtime_context().gcs_address
        if self.address not in ("", "auto", here):
            raise UserError(
                f"engine.address: found {self.address!r}, but this program is already connected "
                f"to the Ray cluster at {here!r}"
            )

    def _join(self) -> None:
        if self.address != "auto":
            # Ray itself would wait for a wrong address without end.
            host, _, port = self.address.rpartition(":")
            try:
                socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
            except (OSError, ValueError, OverflowError) as error:
                raise UserError(
                    f"engine.address: no Ray cluster at {self.address!r} ({error}); "
                    "allowed: auto, host:port as `ray start --head` prints it, or nothing"
                ) from None
        try:
            self._initialize(address=self.address)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UserError(
                f"engine.address: cannot join the Ray cluster at {self.address!r} from this "
                f"machine: {str(error).splitlines()[0]}"
            ) from None

    def _launch(self) -> None:
        # Of sockets' paths the system takes about a hundred characters: a short folder.
        short = "/tmp" if os.path.isdir("/tmp") else None
        self.folder = tempfile.mkdtemp(prefix="pgfed-ray-", dir=short)
        self._initialize(
            address="local",
            num_cpus=self.cores,
            include_dashboard=False,
            _temp_dir=self.folder,
        )

    def _initialize(self, **options: Any) -> None:
        handler = signal.getsignal(signal.SIGTERM)
        self._connected = True  # ours to end, even if interrupted half-way
        try:
            self.ray.init(
                **options,
                # Else Ray's workers would import from the driver's current folder, and from there
                # first: torch.py, say. They get the driver's path from us (`_Actor`).
                job_config=self.ray.job_config.JobConfig(_client_job=True),
                log_to_driver=False,
                logging_level="ERROR",
            )
        except SystemExit:  # so do Ray's handlers answer SIGTERM meanwhile
            raise KeyboardInterrupt from None
        finally:
            # Ray sets handlers of its own: being told to end stays the caller's to handle.
            if handler is not None and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)

    def close(self) -> None:
        """Disconnect what we connected, and leave nothing of an instance of our own behind."""
        if self._connected:
            with _quiet():
                self.ray.shutdown()
            self._connected = False
        if self.folder is not None:
            for _ in range(50):  # while Ray's last processes end, they may still write
                shutil.rmtree(self.folder, ignore_errors=True)
                if not os.path.exists(self.folder):
                    break
                time.sleep(0.1)
            self.folder = None
        self.ray = None


@contextlib.contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Ray announces changes of its own, and leaves files and processes to the garbage collector."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()
