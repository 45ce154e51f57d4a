"""Figures of Batchy (Lévai, Németh, Raghavan, Rétvári, NSDI 2020): models in place of modules."""

from .run import Figure, Outcome

SLO = "slo 0.05"
PLANS = ["none", "max", "on-off", SLO]
GAIN, VIOLATED = 1.5, 0.09


def results(run):
    return run.lab("tasks", 1)


def table2(run):
    told = results(run)
    ending = f", {SLO}: load of none by this"
    graphs = [line.removesuffix(ending) for line in told if line.endswith(ending)]
    rows = []
    for graph in graphs:
        for x in told[graph + ending]:
            name = f"{graph}, {x:g} tasks" if x else graph
            for plan in PLANS:
                of = lambda what: told[f"{graph}, {plan}: {what}"][x]["value"]
                rows.append(
                    [
                        name,
                        plan,
                        of("load of none by this"),
                        of("series in a batch"),
                        of("control periods in violation, worst seed"),
                    ]
                )
    full = [row for row in rows if row[1] == SLO]
    missed = [row[0] for row in full if row[2] < GAIN or row[4] > VIOLATED]
    late = [row[4] for row in rows if row[1] == "max"]
    why = (
        f"Against no batching, the device is busy {min(row[2] for row in full):.2f} to "
        f"{max(row[2] for row in full):.2f} times less (bar {GAIN}); at most "
        f"{max(row[4] for row in full):.1%} of the control periods violate a goal (bar "
        f"{VIOLATED:.0%}), with full batches {min(late):.0%} to {max(late):.0%}."
    )
    why += f" Missed: {'; '.join(missed)}." if missed else ""
    columns = ["graph", "policy", "load_of_none_by_this", "series_in_a_batch", "violated"]
    places = range(1, len(full) + 1)
    lines = {
        plan: list(zip(places, (row[2] for row in rows if row[1] == plan))) for plan in PLANS
    }
    axes = ("graphs in the order of the table", "load without batching, by this load")
    return Outcome(columns, rows, not missed, why, lines, *axes, is_log=False)


def fig9(run):
    told = results(run)
    ending = ": periods until kept"
    changes = {line.removesuffix(ending): it for line, it in told.items() if line.endswith(ending)}
    rows = [[name, max(it["value"] for it in of.values())] for name, of in changes.items()]
    own = [row for row in rows if SLO in row[0]]
    worst = max(own, key=lambda row: row[1])
    why = f"At most {worst[1]:g} control periods of 100 ms until all goals are kept ({worst[0]})."
    columns = ["change", "periods_until_kept"]
    bars = {}
    for name, periods in own:
        change = name.split(f"{SLO}, ")[1]
        bars[change] = max(bars.get(change, 0), periods)
    y = "control periods until goals are kept, worst graph"
    return Outcome(columns, rows, worst[1] <= 1, why, bars=bars, y=y)


FIGURES = [
    Figure(
        "batchy-table2",
        "Batchy, Table 2: policies on graphs of tasks",
        "Batches planned by the goals save most of the time that full batches save, a half and "
        "more against no batching, and keep the goals, which full batches do not.",
        "virtual time",
        table2,
    ),
    Figure(
        "batchy-fig9",
        "Batchy, Fig. 9: changes of goals and of rate",
        "A goal that becomes shorter, and a rate that changes, are followed at once.",
        "virtual time",
        fig9,
    ),
]
