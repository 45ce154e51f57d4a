"""Scores of bundles on labelled flows, beside the baselines."""

import dataclasses

import numpy as np

from . import (
    baselines, bundle, calibrate, data, groups, integers, metrics, ports, ranges, runtime, table,
)
from .card import pair
from .card import table as lines
from .errors import Refusal
from .fit import plain_score


def scored(made, flows, context):
    """Probabilities by depth; a column of zeros stands for labels that the bundle does not have."""
    session = made.session()
    found = {}
    for depth in made.input.depths:
        p = runtime.run_all(session, made.input.cut(flows.series, depth), context)
        found[depth] = np.pad(p, ((0, 0), (0, len(flows.names) - p.shape[1])))
    return found


SIZES = {"packets": ("packets", "n_packets"), "bytes": ("bytes", "bytes_fwd+bytes_rev")}


def sizes(read, i, columns):
    """Packets or bytes of a flow, from whichever column its table has."""
    for column in columns:
        parts = column.split("+")
        if all(read.rows[i].get(p) for p in parts):
            return sum(table.whole(read, i, p, 0, 2**62) for p in parts)
    return 0


def coverage(folder, paths, column, joined=(), by=None):
    """What share of all flows, labelled or not, gets a name by the walk through the depths and the ports; the text.  `by` is a
    column that parts the flows."""
    made = bundle.read(folder)
    read = table.read_all(paths, joined)
    table.check_columns(read, paths, made.input)
    if by:
        table.require(read, [by], paths[0], "give another --coverage-by")
    series, counts = table.series(read, made.input)
    midstream, names = table.midstream(read), made.labels
    port_guess = np.array([made.port_classes.get(p, (-1,))[0] for p in table.ports(read)])
    port_guess[midstream] = -1
    hidden = midstream | (port_guess >= 0) if made.contradiction else midstream
    context, session = table.context(read, made.input, hidden), made.session()
    probabilities = {d: runtime.run_all(session, made.input.cut(series, d), context) for d in made.input.depths}
    outlier = names.index(made.outlier) if made.outlier else None
    seen = Walked(np.zeros(len(series), int), np.where(midstream, -1, counts), outlier)
    answer, _ = calibrate.walk(seen, probabilities, made.input.depths, made.confidences, made.manifest["min_confidence"], port_guess, made.contradiction)
    labels = np.array([data.label_of(r, column) for r in read.rows])
    sure = np.array([bool(n) and r.get("confidence", "").strip().lower() in table.CERTAIN for n, r in zip(labels, read.rows)])
    right = np.array([a >= 0 and names[a] == n for a, n in zip(answer, labels)])
    known = sure & np.isin(labels, [n for n in names if n != made.outlier])
    refused = known & (answer < 0) & surely_unknown(seen, probabilities, made.input.depths)
    rows = []
    share = lambda size, part, whole: f"{size[part & whole].sum() / size[whole].sum():.3f}" if size[whole].sum() else ""
    parts = np.array([r[by] for r in read.rows]) if by else np.full(len(answer), "")
    for part in sorted(set(parts)):
        for what in ("flows", *SIZES):
            size = np.ones(len(answer)) if what == "flows" else np.array([sizes(read, i, SIZES[what]) for i in range(len(answer))], float)
            size, named = size * (parts == part), answer >= 0
            rows.append((f"{what} {part}".strip(), f"{size.sum():.0f}", share(size, named, named | True), share(size, right, named & sure),
                         share(size, named, sure), share(size, named, known), share(size, refused, known)))
    return lines(HEAD, rows) + "\n"


HEAD = ("of", "all", "named", "right, where a certain label is known", "named, of those", "named, of a class of the model", "unknown with p >= 0.8, of a class of the model")


def surely_unknown(flows, probabilities, depths):
    """Flows whose last answer is the outlier class with p >= 0.8."""
    found = np.zeros(len(flows.classes), bool)
    for depth in depths:
        p, asked = probabilities[depth], flows.counts >= depth
        if flows.outlier is not None:
            found[asked] = p[asked, flows.outlier] >= metrics.DECIDED
    return found


@dataclasses.dataclass
class Walked:
    """What the walk through the depths needs of flows."""

    classes: np.ndarray
    counts: np.ndarray
    outlier: int | None


def in_integers(made, flows, context, seen, probabilities):
    """Lines on what the engine's integers change; none if the graph has none."""
    model, measured = (made.folder / made.manifest[key] for key in ("file", "ranges"))
    own = integers.of_model(model.read_bytes(), ranges.read(measured))
    if own is None:
        return []
    found, more = {}, len(flows.names) - len(made.labels)
    for depth in made.input.depths:
        p = integers.probabilities(own, made.input.cut(flows.series, depth), context)
        found[depth] = np.pad(p, ((0, 0), (0, more)))
    guess, least = ports.guesses(flows, made.port_classes), made.manifest.get("min_confidence", 0.0)
    levels = made.confidences, least, guess, made.contradiction
    walk = lambda p: calibrate.walk(flows, p, made.input.depths, *levels)
    flows = dataclasses.replace(flows, midstream=~seen)
    rows, line = integers.report(flows, probabilities, found, made.confidences, walk, plain_score)
    return [f"{integers.TEXT}:", "", lines(integers.HEAD, rows), "", line, ""]


def report(folder, paths, column, joined=(), split="capture", all_ports=False, folds=5, show_classes=True):
    """The text for one bundle, and its numbers by depth."""
    made = bundle.read(folder)
    flows = data.of_bundle(made, paths, column, joined, split)
    if made.contradiction:
        flows = ports.hidden(flows, ports.guesses(flows, made.port_classes))
    context = flows.context if all_ports else flows.seen_context()
    seen = np.ones(len(flows.classes), bool) if all_ports else ~flows.midstream
    if made.input.depths[-1] and not (flows.counts >= made.input.depths[0]).any():
        raise Refusal(f"{', '.join(map(str, paths))}: no flow has {made.input.depths[0]} elements of unit {made.input.unit}")
    probabilities = scored(made, flows, context)
    places = groups.folds(flows.groups, flows.classes, folds)
    out, numbers = [f"# {made.manifest['name']} {made.manifest['version']}", ""], {}
    rows, beside = [], []
    for depth, level in zip(made.input.depths, made.confidences):
        long = seen & (flows.counts >= depth)
        if not long.any():
            continue
        p, truth = probabilities[depth][long], flows.classes[long]
        s = numbers[depth] = metrics.score(truth, p)
        sure = metrics.decided(p.argmax(axis=1) == truth, p.max(axis=1), level)
        rows.append((depth, s["flows"], f"{s['accuracy']:.3f}", f"{s['macro_f1']:.3f}", f"{s['ece']:.3f}",
                     f"{s['decided']:.1%}, {s['decided_right']:.3f}", level, f"{sure[0]:.1%}, {sure[1]:.3f}"))
        if places is not None:
            found = {n: plain_score(truth, baselines.folded(flows, places, m, depth)[long], len(flows.names))
                     for n, m in baselines.ALL.items()}
            beside.append((depth, *(pair(v) for v in found.values())))
    out += [lines(("depth", "flows", "accuracy", "macro-F1", "ECE", "decided at p >= 0.8, right", "confidence", "decided there, right"), rows), ""]
    if beside:
        out += [f"Baselines, trained and scored by folds of this table ({split}), accuracy / macro-F1:", "",
                lines(("depth", *baselines.ALL), beside), ""]
    if "ranges" in made.manifest:
        out += in_integers(made, flows, context, seen, probabilities)
    if show_classes:
        for depth in numbers:
            own = [(flows.names[c], n, f"{a:.2f}", f"{b:.2f}", f"{f:.2f}")
                   for c, (a, b, f, n) in enumerate(numbers[depth]["by_class"]) if n or a]
            out += [f"Depth {depth}:", "", lines(("label", "flows", "precision", "recall", "F1"), own), ""]
    return "\n".join(out), numbers
