"""The parts of scripts/bench-live."""
