"""Trains models for fenxi and writes them as bundles; see docs/train.md."""

import os

# ONNX Runtime contains a telemetry client, which this turns off; it is read when the library is imported.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

__version__ = "2.1.0"
