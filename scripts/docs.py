"""Build the documentation site, with a sample report made on the spot, and the report of the
paper's runs that are kept in results/: `make docs`.

docs.py [FOLDER] [options of `pgfed run`, for the sample]
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]


def main() -> None:
    folder, *options = sys.argv[1:] or [ROOT / "site"]
    folder = Path(folder)
    with TemporaryDirectory() as work:
        run = Path(work) / "digits"
        sample = [sys.executable, "-m", "pgfed", "run", *options, "--out", run, "--quiet"]
        subprocess.run(sample, check=True)
        sphinx = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-E"]
        trees = ["-d", Path(work) / "trees"]
        subprocess.run([*sphinx, *trees, ROOT / "docs", folder], check=True)
        shutil.copy(run / "report.html", folder / "sample-report.html")
    kept = sorted(path.relative_to(ROOT) for path in ROOT.glob("results/paper/cifar10-25*"))
    page = folder.resolve() / "paper-report.html"
    report = [sys.executable, "-m", "pgfed", "report", *kept, "--out", page]
    subprocess.run(report, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    print(f"The site: {folder / 'index.html'}")


if __name__ == "__main__":
    main()
