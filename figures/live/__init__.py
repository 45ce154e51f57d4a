"""Measures `fenxi run` on interfaces, in network namespaces of its own; docs/bench.md says how.

Needs root, Linux, ip, taskset, `make build` and `cargo build --release -p packetio --examples`.
"""

from ..report import Failure, Parser, Report, Skip
from . import delay, first, flood, lab, sinks, soak, speed, xdp

BENCHES = {
    "forward": speed.forward,
    "xdp": xdp.xdp,
    "tap": speed.tap,
    "marks": delay.marks,
    "scrape": speed.scrape,
    "idle": speed.idle,
    "soak": soak.soak,
    "reloads": soak.reloads,
    "swaps": soak.swaps,
    "flood": flood.flood,
    "flood-ports": flood.flood_ports,
    "sinks": sinks.sinks,
    "first": first.first,
}


def rates(text):
    return [int(rate) for rate in text.split(",")]


def parse(arguments):
    parser = Parser(prog="figures live", description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="+", choices=BENCHES, metavar="WHAT", help=", ".join(BENCHES))
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="of each side, 5")
    parser.add_argument("--seconds", type=float, default=3, metavar="S", help="of a round, 3")
    parser.add_argument("--pps", type=rates, metavar="N,...", help="rates of tap")
    parser.add_argument("--idle-seconds", type=float, default=60, metavar="S", help="60")
    parser.add_argument("--minutes", type=float, default=10, metavar="M", help="of the soak, 10")
    parser.add_argument(
        "--times", type=int, default=1000, metavar="N", help="reloads or swaps, 1000"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    arguments = parser.parse_args(arguments)
    if arguments.rounds < 1 or arguments.seconds <= 0:
        parser.error("--rounds takes 1 or more, --seconds more than 0")
    return arguments


def main(arguments):
    arguments = parse(arguments)
    for program in (lab.FENXI, lab.FENXI_LAB, lab.FORWARD, speed.BLAST):
        if not program.exists():
            hint = "make build; cargo build --release -p packetio --examples"
            raise Failure(f"{program} is not there: {hint}")
    report = Report("live")
    for name in arguments.what:
        try:
            BENCHES[name](report, arguments)
        except Skip as skip:
            report.skip(name, skip)
    print(report.as_json()) if arguments.json else report.print()
