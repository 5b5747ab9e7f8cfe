"""The version, for those who may not open the package's front door, which leads everywhere."""

__version__ = "0.2.0"
