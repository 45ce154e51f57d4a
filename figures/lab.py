"""`fenxi-lab bench`: its figures as a table, as JSON and as a drawing."""

import json
import math
from pathlib import Path

from .report import TARGET, Failure, Parser, Skip, output_of, say


def parse(arguments):
    parser = Parser(prog="figures lab", description=__doc__)
    parser.add_argument("names", nargs="+", metavar="NAME", help="as of fenxi-lab bench")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write NAME.json and NAME.svg here")
    return parser.parse_known_args(arguments)


def main(arguments):
    args, options = parse(arguments)
    program = TARGET / "release" / "fenxi-lab"
    if not program.exists():
        raise Failure(f"{program} is not there: make build")
    for name in args.names:
        say(name)
        report = json.loads(output_of(program, "bench", name, "--json", *options))
        for result in report["results"]:
            if result["bar"] is not None:
                verdict = "holds" if result["holds"] else "MISSED"
                shown = f"{result['value']:.3f} {result['unit']}, bar {result['bar']}"
                print(f"{name}: {result['name']}: {shown}: {verdict}")
        if args.out:
            args.out.mkdir(parents=True, exist_ok=True)
            (args.out / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
            draw(report, args.out / f"{name}.svg")


def draw(report, path):
    """The figures that have the unit of the first: lines over a logarithmic axis, or bars."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise Skip("drawings need matplotlib: make figures") from None
    unit = report["results"][0]["unit"]
    alike = [result for result in report["results"] if result["unit"] == unit]
    placed = [result for result in alike if result["x"] is not None]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(report["title"])
    if placed:
        for line in dict.fromkeys(result["line"] for result in placed):
            own = sorted((it["x"], it["value"]) for it in placed if it["line"] == line)
            axes.plot(*zip(*own), marker="o", label=line)
        if all(result["x"] > 0 for result in placed):
            axes.set_xscale("log", base=2 if is_power(placed) else 10)
        axes.set(xlabel=report["x"], ylabel=unit, ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    else:
        bars = axes.barh([it["name"] for it in alike], [it["value"] for it in alike])
        axes.bar_label(bars, fmt="%.3g", padding=3)
        axes.invert_yaxis()
        axes.set_xlabel(unit)
    figure.savefig(path, metadata={"Date": None})


def is_power(results):
    return all(math.log2(result["x"]).is_integer() for result in results if result["x"] > 0)
