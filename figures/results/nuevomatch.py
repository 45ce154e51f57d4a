"""Figures of NuevoMatch-OVS (Rashelbach, Rottenstreich, Silberstein, NSDI 2022)."""

from ..report import Skip
from .batching import mix
from .run import Figure, Outcome, values

TRACES = ["uniform", "Zipf(1.1)"]
LARGE = 500_000
SMALL = 500  # rules that the paper begins with here
FLOWS_PER_S = 2000  # of the capture that flows are drawn from
DROP, BELOW_MS = 0.13, 150
COVERED, PACE = 0.9, 58  # share of rules, thousand changes per second


def lookup(run):
    # Three sets of each size for --quick: an access list, a firewall, an IP chain.
    options = ["--seeds", "acl1,fw1,ipc1", "--sizes", f"1000,{LARGE}"] if run.is_quick else []
    told = run.lab("policy", 20, *options)
    lines = {
        f"{name}, {trace}": values(told, f"{name}, {trace}")
        for name in ("learned", "TupleMerge")
        for trace in TRACES
    }
    ratios = {trace: dict(values(told, f"speed-up over TupleMerge, {trace}")) for trace in TRACES}
    large = min(of[LARGE] for of in ratios.values())
    small = min(min(of.items())[1] for of in ratios.values())
    why = (
        f"Against TupleMerge, the learned classifier is {large:.1f} times as fast with "
        f"{LARGE:,} rules (bar 2) and {small:.2f} times with the fewest (0.95). TupleMerge is "
        "itself faster than the tuple space search that the paper compares with."
    )
    rows = [[line, x, ns] for line, points in lines.items() for x, ns in points]
    holds = large >= 2 and small >= 0.95
    columns = ["classifier", "rules", "ns_per_lookup"]
    return Outcome(columns, rows, holds, why, lines, "rules", "ns per look-up")


def updates(run):
    told = run.lab("policy-updates", 20)
    by_name = lambda ending: {line: it for line, it in told.items() if line.endswith(ending)}
    covered, changes = by_name("60 k/s: least coverage"), by_name("60 k/s: changes")
    if not covered:
        raise Skip("the bench has no results at 60 k/s")
    slower = by_name("60 k/s: look-up, against without changes")
    rows = [
        [line, x, result["value"]]
        for lines in (covered, changes, slower)
        for line, of in lines.items()
        for x, result in of.items()
    ]
    batches = lambda lines: [it["value"] for of in lines.values() for x, it in of.items() if x > 1]
    single = [of[1]["value"] for of in changes.values()]
    least, pace = min(batches(covered)), min(batches(changes))
    why = (
        f"At 60 thousand changes per second asked for, in batches of 100 and more, at least "
        f"{pace:.0f} thousand were made (bar {PACE}), and models found at least {least:.0%} of the "
        f"rules (bar {COVERED:.0%}). One by one, {min(single):.0f} thousand were made."
    )
    lines = {line: values(covered, line) for line in covered}
    columns = ["result", "rules_per_batch", "value"]
    axes = ("rules in a batch", "least share of rules that models find")
    holds = least >= COVERED and pace >= PACE
    return Outcome(columns, rows, holds, why, lines, *axes)


def adding(run):
    sizes = [SMALL] if run.is_quick else [SMALL, LARGE]
    options = ["--sizes", ",".join(map(str, sizes))]
    with mix(run, FLOWS_PER_S) as capture:
        told = run.lab("policy-adding", 20, *options, capture=capture)
    lines = {
        f"{rules:,} rules, {what}": values(told, f"{rules} rules, {what}: rate")
        for rules in sizes
        for what in ("10,000 added", "no changes")
    }
    of = lambda rules, what: told[f"{rules} rules, {what}"][None]["value"]
    drops = {it: of(it, "10,000 added: greatest drop") for it in sizes}
    below = {it: of(it, "10,000 added: below 95 %") for it in sizes}
    shown = "; ".join(
        f"{it:,} rules: a drop of {drops[it]:.0%} (without changes "
        f"{of(it, 'no changes: greatest drop'):.0%}), {below[it]:.0f} ms below 95 % "
        f"({of(it, 'no changes: below 95 %'):.0f}), in use after "
        f"{of(it, '10,000 added: until in use'):.0f} ms"
        for it in sizes
    )
    why = (
        f"10,000 rules added to {shown}; medians of turns (bars {DROP:.0%} and {BELOW_MS} ms). The "
        "greatest drop is of one window of 10 ms."
    )
    rows = [[line, ms, share] for line, points in lines.items() for ms, share in points]
    holds = max(drops.values()) <= DROP and max(below.values()) <= BELOW_MS
    axes = ("ms since rules are added", "packet rate, against the median before")
    columns = ["line", "ms", "rate"]
    return Outcome(columns, rows, holds, why, lines, *axes, is_log=False)


FIGURES = [
    Figure(
        "nuevomatch-lookup",
        "NuevoMatch-OVS, Fig. 8: look-ups by number of rules",
        "A classifier that learns the rules falls behind little as rules grow to 500,000, and is "
        "then several times as fast as search by tuples.",
        "real time",
        lookup,
    ),
    Figure(
        "nuevomatch-updates",
        "NuevoMatch-OVS, Fig. 15: changes of rules",
        "More than 60 thousand rules per second change while models find most of them; about 19 "
        "thousand with 90 % found, as the paper estimates.",
        "real time",
        updates,
    ),
    Figure(
        "nuevomatch-fig17",
        "NuevoMatch-OVS, Fig. 17: packet rate while rules are added",
        "When 10,000 rules are added at once, the packet rate falls by 13 % at most, for 150 ms.",
        "real time",
        adding,
    ),
]
