"""Compares fenxi with what one would use instead, in one run, the sides taking turns.

table: our flow table and hashbrown.  rte_hash: our flow table and DPDK's.  programs: `fenxi
replay`, with the model in fp32 and in int8, and ndpiReader, softflowd, nfstream, tcpdump on a load
capture.  servers: the series' walk and Triton, which batches as well, with the same models.
docs/peers.md says what is compared with what. Peers that are not installed are skipped by name.
Needs Linux, cargo, and `make build` for the programs and the servers.
"""

from pathlib import Path

from ..report import Parser, Report, Skip
from .programs import bench_programs
from .servers import bench_servers
from .tables import LOOK_UPS, SEED, bench_rte_hash, bench_table

SECTIONS = {
    "table": bench_table,
    "rte_hash": bench_rte_hash,
    "programs": bench_programs,
    "servers": bench_servers,
}


def parse(arguments):
    parser = Parser(prog="figures peers", description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=SECTIONS, help="one section")
    parser.add_argument("--capture", type=Path, metavar="FILE", help="Ethernet, for the programs")
    parser.add_argument("--rounds", type=int, metavar="N", help="5, or 3 with --quick")
    parser.add_argument(
        "--quick", action="store_true", help="fewer rounds, shorter runs of servers"
    )
    parser.add_argument(
        "--entries", type=int, default=1 << 22, metavar="N", help="of a table: 2^22"
    )
    parser.add_argument("--flows", type=int, metavar="N", help="in it: half of the entries")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    arguments = parser.parse_args(arguments)
    if arguments.rounds is None:
        arguments.rounds = 3 if arguments.quick else 5
    if arguments.flows is None:
        arguments.flows = arguments.entries // 2
    if arguments.rounds < 1 or not 0 < arguments.flows <= arguments.entries:
        parser.error("--rounds takes 1 or more, --flows 1 to the entries")
    if arguments.entries < 64 or arguments.entries & arguments.entries - 1:
        parser.error("--entries takes a power of two from 64")
    sizes = (arguments.entries, arguments.flows, LOOK_UPS, SEED)
    arguments.sizes = [str(number) for number in sizes]
    return arguments


def main(arguments):
    arguments = parse(arguments)
    report = Report("peers")
    for name, bench in SECTIONS.items():
        if arguments.only in (None, name):
            try:
                bench(report, arguments)
            except Skip as skip:
                report.skip(name, skip)
    print(report.as_json()) if arguments.json else report.print()
