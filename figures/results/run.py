"""What a figure is, and the programs that it runs."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date

from ..report import ROOT, Failure, Skip, output_of


@dataclass
class Outcome:
    """What came out: a table, and whether the claim holds (None: it cannot be judged here)."""

    columns: list
    rows: list
    holds: bool | None
    why: str
    # What is drawn: points by line, or else bars.
    lines: dict = field(default_factory=dict)
    x: str = ""
    y: str = ""
    bars: dict = field(default_factory=dict)
    is_log: bool = True
    # Day of a table that was written earlier.
    day: date | None = None


@dataclass
class Figure:
    name: str
    title: str
    claim: str
    # counts, virtual time, real time or earlier run.
    time: str
    make: Callable


class Run:
    """Runs programs once per command, and notes the commands of a figure."""

    def __init__(self, args):
        self.args, self.commands, self.done = args, [], {}

    @property
    def is_quick(self):
        return self.args.quick

    def lab(self, bench, quick_s, *options, capture=None):
        """Results of a bench: by line, by x."""
        length = ["--seconds", str(quick_s)] if self.is_quick else []
        command = ["fenxi-lab", "bench", bench, "--json", *length, *options]
        shown = " ".join([*command, *(["--capture MIX"] if capture else [])])
        command += ["--capture", capture] if capture else []
        text = self.output(*command, shown=shown)
        lines = {}
        for result in json.loads(text)["results"]:
            lines.setdefault(result["line"], {})[result["x"]] = result
        return lines

    def captures(self):
        folder = self.args.captures
        if not folder.is_dir():
            raise Skip(f"{folder} is not there: --captures DIR")
        return sorted(it for it in folder.iterdir() if it.suffix in (".pcap", ".pcapng"))

    def replay(self, *options, flows=None):
        """Summary of a replay of the captures; label and flow records go to the file `flows`."""
        records = ["--flows", flows] if flows else []
        model = ["--model", ROOT / "models" / "app-id-k10"]
        shown = ["--flows", "FLOWS"] if flows else []
        shown = ["fenxi replay --json", "--model models/app-id-k10", *options, *shown, "CAPTURES"]
        command = ["fenxi", "replay", "--json", *model, *options, *records, *self.captures()]
        return json.loads(self.output(*command, shown=" ".join(map(str, shown))))

    def output(self, program, *arguments, shown=None):
        command = (str(self.args.programs / program), *map(str, arguments))
        shown = shown or " ".join([program, *map(str, arguments)])
        if shown not in self.commands:
            self.commands.append(shown)
        if command not in self.done:
            self.done[command] = output_of(*command, cwd=ROOT)
        return self.done[command]


def values(results, line):
    """Points of a line of a bench."""
    if line not in results:
        raise Failure(f"the bench has no results for {line}")
    return sorted((x, result["value"]) for x, result in results[line].items())
