import os
import sys

# `python -m` looks for modules in the current folder first, where anything may lie.
if not sys.flags.safe_path and sys.path[:1] in ([""], [os.getcwd()]):
    del sys.path[0]

from pgfed.cli.app import main

main()
