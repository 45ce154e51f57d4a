"""Repeats figures of five papers and says whether their claims hold here; docs/bench.md says how.

Each figure is judged by ratios within one run. What is not run keeps its earlier result.
"""

import importlib.util
from pathlib import Path

from ..report import ROOT, TARGET, Failure, Parser, Skip, machine, say
from . import aquarius, batching, batchy, fenxi, liteflow, nuevomatch, page
from .run import Run

FIGURES = [*fenxi.FIGURES, *batching.FIGURES, *batchy.FIGURES, *nuevomatch.FIGURES]
FIGURES += [*liteflow.FIGURES, *aquarius.FIGURES]
NAMES = [figure.name for figure in FIGURES]


def parse(arguments):
    parser = Parser(prog="figures results", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shorter, in less than 15 minutes")
    parser.add_argument(
        "--steady", action="store_true", help="only what the machine's load does not change"
    )
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results", metavar="DIR")
    parser.add_argument(
        "--programs", type=Path, default=TARGET / "release", metavar="DIR", help="target/release"
    )
    parser.add_argument(
        "--captures", type=Path, metavar="DIR", default=ROOT / "../shared/data/captures/train"
    )
    parser.add_argument(
        "--balance", type=Path, metavar="FILE", help="balance.csv of examples/services/run balance"
    )
    parser.add_argument(
        "--volume", type=Path, metavar="FILE", help="table of flows of scripts/measure/volume"
    )
    parser.add_argument(
        "--library", type=Path, metavar="FILE", help="ONNX Runtime with CUDA: a card in Fig. 1a"
    )
    return parser.parse_args(arguments)


def main(arguments):
    args = parse(arguments)
    if not importlib.util.find_spec("matplotlib"):
        raise Skip("drawings need matplotlib: make figures")
    for program in ("fenxi", "fenxi-lab"):
        if not (args.programs / program).exists():
            raise Failure(f"{args.programs / program} is not there: make build")
    run = Run(args)
    args.out.mkdir(parents=True, exist_ok=True)
    # The load before the first figure, which loads the machine itself.
    failed, here = [], machine()
    for figure in FIGURES:
        if args.only and figure.name not in args.only:
            continue
        if args.steady and figure.time == "real time":
            continue
        say(figure.name)
        run.commands = []
        try:
            outcome = figure.make(run)
        except Skip as skip:
            say(f"SKIPPED {figure.name}: {skip}")
            page.skip(args.out, figure, skip)
            continue
        except Failure as failure:
            say(f"{figure.name}: {failure}")
            failed.append(figure.name)
            continue
        page.store(args.out, figure, outcome, run, here)
        verdict = {True: "holds", False: "DOES NOT HOLD", None: "not judged"}[outcome.holds]
        print(f"{figure.name}: {verdict}: {outcome.why}", flush=True)
    page.write(args.out, FIGURES)
    if failed:
        raise Failure(f"failed: {', '.join(failed)}")
