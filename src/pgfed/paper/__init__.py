"""The paper: its printed tables, and the studies that are not a plain run."""
