"""Runs the benches that docs/bench.md describes, judges their figures by the bars and draws them.

usage: python3 -m figures lab NAME... [--out DIR] [OPTIONS of fenxi-lab bench]
       python3 -m figures headline|live|peers|dpdk|tasks|results [--help]

lab runs `fenxi-lab bench NAME` and, with --out, writes NAME.json and draws NAME.svg (needs
matplotlib: make figures). The others measure whole programs. Exit status: 0, also where a bar is
missed; 1 when a side fails; 64 usage; 69 without what a bench needs.
"""

import importlib
import signal
import sys

from .report import EX_UNAVAILABLE, EX_USAGE, Failure, Skip

BENCHES = ("lab", "headline", "live", "peers", "dpdk", "tasks", "results")


def main(arguments):
    if not arguments or arguments[0] not in BENCHES:
        print(__doc__.strip(), file=sys.stderr)
        return 0 if arguments in (["-h"], ["--help"]) else EX_USAGE
    # So that what a bench has set up is taken down.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    bench = importlib.import_module(f".{arguments[0]}", __package__)
    try:
        bench.main(arguments[1:])
    except Skip as skip:
        print(f"figures: {skip}", file=sys.stderr)
        return EX_UNAVAILABLE
    except (Failure, OSError) as problem:
        print(f"figures: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("figures: interrupted", file=sys.stderr)
        return 1
    return 0


sys.exit(main(sys.argv[1:]))
