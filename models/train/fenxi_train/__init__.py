"""Trains models for fenxi and writes them as bundles; see docs/train.md."""

__version__ = "2.0.0"
