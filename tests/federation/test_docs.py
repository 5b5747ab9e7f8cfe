"""docs/deployment.md, as written, on loopback."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from federation.running import Running, free_port, until

PAGE = Path(__file__).parents[2] / "docs" / "deployment.md"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_the_page_as_written(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for code in blocks("python"):
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    federation = Running.__new__(Running)
    federation.processes, federation.path = {}, tmp_path
    commands = [
        line.replace("fed.example.org:8000", address)
        for block in blocks("sh")
        for line in block.splitlines()
    ]
    assert len(commands) >= 10
    with federation:
        for number, command in enumerate(commands):
            if re.search("federation (server|site) ", command):
                with (tmp_path / f"{number}.out").open("wb") as out:
                    federation.processes[str(number)] = subprocess.Popen(
                        shlex.split(command), cwd=tmp_path, env=env, stdout=out, stderr=out
                    )
                if " server " in command:
                    until(
                        lambda n=number: "ready" in federation.said(str(n)), "the server is ready"
                    )
            else:
                subprocess.run(command, shell=True, cwd=tmp_path, env=env, check=True, timeout=1800)
    for site in range(3):
        place = tmp_path / f"site-0{site}"
        assert (place / "models" / "hospitals" / "pgfed" / "seed-0" / "model.safetensors").is_file()
        assert (place / "report.csv").is_file()
    assert (tmp_path / "hospitals" / "run" / "report.html").is_file()
    assert (tmp_path / "model.pt2").is_file()
