"""The page of results: each figure's data, drawing and verdict, as of its latest run."""

import csv
import json
import re
from datetime import date

INTRO = """# The papers' figures, repeated

Written by `python3 -m figures results` and `headline` ([experiments](../bench.md)); nothing here is
edited by hand. A claim is told in our words and judged by ratios within one run. Values that stand only in a
paper's plot are not repeated. *Counts* and *virtual time* are the same on any machine and under any
load; a *real time* is of the machine that is named; an *earlier run* left its table.
"""
VERDICTS = {True: "holds", False: "**does not hold**", None: "not judged"}
BUSY = 1.0
RATES = ("Mpps", "M/s")
LEFT_OUT = {
    "FENXI, Fig. 1b": "how batches become complete within one second needs the arrivals of a full "
    "link; the captures have too few series, and made traffic arrives as it is told to.",
    "FENXI, Fig. 1c": "it compares accelerators by power, and there is no power meter.",
}


def store(out, figure, outcome, run, machine):
    with open(out / f"{figure.name}.csv", "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(outcome.columns)
        table.writerows([shortened(cell) for cell in row] for row in outcome.rows)
    draw(outcome, figure, out / f"{figure.name}.svg")
    told = {
        "holds": outcome.holds,
        "why": percent(outcome.why),
        "commands": run.commands,
        "date": (outcome.day or date.today()).isoformat(),
        "quick": run.is_quick,
        "machine": machine,
    }
    (out / f"{figure.name}.json").write_text(json.dumps(told, indent=1) + "\n")


def skip(out, figure, why):
    """An earlier result stays."""
    path = out / f"{figure.name}.json"
    if not path.exists():
        path.write_text(json.dumps({"skipped": str(why)}, indent=1) + "\n")


def shortened(cell):
    return float(f"{cell:.5g}") if isinstance(cell, float) else cell


def draw(outcome, figure, path):
    import matplotlib
    from matplotlib.figure import Figure

    # Text as text keeps files small; a fixed salt keeps them the same for the same data.
    settings = {"svg.fonttype": "none", "svg.hashsalt": figure.name}
    with matplotlib.rc_context(settings):
        drawing = Figure(figsize=(7, 3.6), layout="constrained")
        axes = drawing.add_subplot()
        if outcome.lines:
            for line, points in outcome.lines.items():
                axes.plot(*zip(*points), marker="o", markersize=3, label=line)
            axes.set(xlabel=outcome.x, ylabel=outcome.y, ylim=(0, None))
            if outcome.is_log:
                axes.set_xscale("log")
            axes.grid(alpha=0.3)
            axes.legend(fontsize="small")
        else:
            bars = axes.barh(list(outcome.bars), list(outcome.bars.values()))
            axes.bar_label(bars, fmt="%.4g", padding=3)
            axes.invert_yaxis()
            axes.set_xlabel(outcome.y)
        drawing.savefig(path, metadata={"Date": None})


def write(out, figures):
    told = {}
    for figure in figures:
        path = out / f"{figure.name}.json"
        told[figure.name] = json.loads(path.read_text()) if path.exists() else {}
    lines = [INTRO, *headline(out), "| figure | time | verdict |", "|---|---|---|"]
    for figure in figures:
        verdict = verdict_of(told[figure.name], figure)
        lines.append(f"| [{figure.title}](#{anchor(figure.title)}) | {figure.time} | {verdict} |")
    for figure in figures:
        lines += ["", *section(figure, told[figure.name])]
    lines += ["", "## Left out", ""]
    lines += [f"- *{name}*: {why}" for name, why in LEFT_OUT.items()]
    (out / "README.md").write_text("\n".join(lines) + "\n")


def headline(out):
    """What `python3 -m figures headline` found, a column for each machine whose file is there."""
    runs = [json.loads(path.read_text()) for path in sorted(out.glob("headline*.json"))]
    if not runs:
        return []
    machines = [f"{run['machine']['cpu']}, {run['machine']['cores']} cores" for run in runs]
    lines = ["## Headline", "", f"| what | bar | {' | '.join(machines)} |"]
    lines.append("|---" * (2 + len(runs)) + "|")
    rows = {}
    for number, run in enumerate(runs):
        for row in run["rows"]:
            if row["unit"] not in RATES:
                rows.setdefault(row["name"], {})[number] = row
    for name, of_runs in rows.items():
        row = next(iter(of_runs.values()))
        unit = f", {row['unit']}" if row["unit"] in ("links", "ms") else ""
        bar = "" if row["bar"] is None else f"{row['bar']:g}"
        cells = (cell(of_runs.get(number)) for number in range(len(runs)))
        lines.append(f"| {name}{unit} | {bar} | {' | '.join(cells)} |")
    for run, here in zip(runs, machines):
        load = run["machine"]["load_average"][0]
        busy = f", load {load} at start" + (": **a busy machine**" if load > BUSY else "")
        quick = ", `--quick`" if run["quick"] else ""
        skipped = "".join(f" {name}: skipped, {why}." for name, why in run["skipped"].items())
        when = f"{run['date']}, Linux {run['machine']['kernel']}{busy}{quick}"
        lines += ["", f"*{here}*: {when}. {percent(run['reason'])}{skipped}".rstrip()]
        lines += ["", *(f"    {command}" for command in run["commands"])]
    return [*lines, "", "## Figures", ""]


def cell(row):
    if row is None:
        return ""
    missed = ", **missed**" if row["holds"] is False else ""
    return f"{row['value']:.3g} ({row['least']:.3g} to {row['greatest']:.3g}){missed}"


def percent(text):
    return re.sub(r"(\d)%", r"\1 %", text)


def anchor(title):
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def verdict_of(told, figure):
    if "holds" in told:
        return VERDICTS[told["holds"]] + (", on a busy machine" if is_busy(told, figure) else "")
    waits = "waits for an idle machine" if figure.time == "real time" else "not run yet"
    return "skipped" if "skipped" in told else waits


def is_busy(told, figure):
    return figure.time == "real time" and told["machine"]["load_average"][0] > BUSY


def section(figure, told):
    lines = [f"## {figure.title}", "", f"*Claim*: {figure.claim}", ""]
    if "holds" not in told:
        why = told.get("skipped", "")
        return [*lines, f"*Verdict*: {verdict_of(told, figure)}. {why}".rstrip()]
    here = told["machine"]
    load = f", load {here['load_average'][0]} at start" if figure.time == "real time" else ""
    load += ": **measured on a busy machine**" if is_busy(told, figure) else ""
    quick = ", `--quick`" if told["quick"] and figure.time in ("real time", "virtual time") else ""
    return [
        *lines,
        f"*Verdict*: {verdict_of(told, figure)}. {told['why']}",
        "",
        f"![{figure.title}]({figure.name}.svg)",
        "",
        f"[Data]({figure.name}.csv). {told['date']}, {here['cpu']}, {here['cores']} cores, "
        f"Linux {here['kernel']}{load}{quick}; {figure.time}.",
        "",
        *(f"    {command}" for command in told["commands"]),
    ]
