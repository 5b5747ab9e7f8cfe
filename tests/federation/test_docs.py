"""docs/deployment.md and then docs/operating.md, as written, on loopback."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from federation.running import Running, free_port, until

PAGES = Path(__file__).parents[2] / "docs"
SITES = ("site-00", "site-01", "site-02")
HOSTS = ("fed.example.org:8000", "new.example.org:8000")


def blocks(page: str, kind: str) -> list[str]:
    text = (PAGES / page).read_text()
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


class Reader(Running):
    """Does what the pages say; what runs for ever runs beside, and `systemctl` is played."""

    def __init__(self, path: Path) -> None:
        self.path, self.processes = path, {}
        self.hosts = {host: f"127.0.0.1:{free_port()}" for host in HOSTS}
        self.env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        self.commands: dict[str, str] = {}  # of what runs for ever

    def read(self, page: str) -> int:
        """How many commands it has."""
        done = 0
        for block in blocks(page, "sh"):
            each = "# at each site" in block
            named = re.search(r"site-\d\d", block)
            for site in SITES if each else [named[0] if named else ""]:
                for line in block.splitlines():
                    if not line.startswith("#"):
                        self.do(line.replace(SITES[0], site) if each else line, site)
                        done += 1
        return done

    def do(self, line: str, site: str) -> None:
        for host, address in self.hosts.items():
            line = line.replace(host, address)
        if line.startswith("systemctl "):
            _, what, unit = line.split()
            self.systemctl(what, "hospitals" if unit == "pgfed-server" else site)
        elif found := re.search(r"federation (?:server|site) (\S+)", line):
            self.commands[found[1]] = line
            self.start_beside(found[1])
        else:
            subprocess.run(line, shell=True, cwd=self.path, env=self.env, check=True, timeout=1800)

    def systemctl(self, what: str, name: str) -> None:
        if what in ("stop", "restart"):
            self.processes[name].terminate()
            assert self.processes[name].wait(60) == 0, self.said(name)
        if what in ("start", "restart"):
            self.start_beside(name)

    def start_beside(self, name: str) -> None:
        with (self.path / f"{name}.out").open("wb") as out:
            self.processes[name] = subprocess.Popen(
                shlex.split(self.commands[name]),
                cwd=self.path,
                env=self.env,
                stdout=out,
                stderr=out,
            )
        wanted = "connected" if name in SITES else "ready at"
        until(lambda: wanted in self.said(name), f"{name} is there")


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_the_pages_as_written(tmp_path):
    for code in blocks("deployment.md", "python"):
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    with Reader(tmp_path) as reader:
        assert reader.read("deployment.md") >= 15
        for site in SITES:
            place = tmp_path / site
            kept = place / "models" / "hospitals" / "pgfed" / "seed-0" / "model.safetensors"
            assert kept.is_file()
            assert (place / "report.csv").is_file()
        assert (tmp_path / "hospitals" / "run" / "report.html").is_file()
        assert (tmp_path / "model.pt2").is_file()
        assert reader.read("operating.md") >= 20
        for site in SITES:
            assert (tmp_path / site / "models" / "hospitals-2").is_dir()  # of the second experiment
