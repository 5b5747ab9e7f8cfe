"""Make the tables of the documentation anew from the runs that are kept in results/.

    .venv/bin/python scripts/results.py [--check]

A table stands between `<!-- made by: COMMAND -->` and `<!-- end -->`, where COMMAND is a script of
this repository with its arguments. With --check nothing is written, and a table that is not what
its command prints is named.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(<!-- made by: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def printed(command: str) -> str:
    """What the command prints, run from the repository's root."""
    words = [sys.executable, *shlex.split(command)]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def renewed(text: str) -> str:
    """The page with its tables made anew."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{printed(found[2])}\n\n{found[3]}", text)


def main() -> None:
    stale = []
    for page in sorted((ROOT / "docs").glob("*.md")):
        old = page.read_text(encoding="utf-8")
        if (new := renewed(old)) == old:
            continue
        stale.append(page.name)
        if "--check" not in sys.argv:
            page.write_text(new, encoding="utf-8")
    if stale:
        print(f"{'Stale' if '--check' in sys.argv else 'Made anew'}: {', '.join(stale)}")
    if stale and "--check" in sys.argv:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
