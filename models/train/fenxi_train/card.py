"""The text of CARD.md: what the model reads, how good it is on held-out flows, and what it gets wrong."""

import collections

import numpy as np

from . import calibrate, leftout, metrics
from .graph import OPSET
from .inputs import ELEMENTS


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(c) for c in row) + " |" for row in rows])


def pair(values):
    return f"{values[0]:.3f} / {values[1]:.3f}"


def depth_rows(flows, scored):
    rows = []
    for i, depth in enumerate(flows.input.depths):
        s = scored.depths[depth]
        sure = metrics.decided(*sureness(flows, scored, depth), scored.confidences[i])
        rows.append((
            depth, s["flows"], f"{s['accuracy']:.3f}", f"{s['macro_f1']:.3f}", f"{s['ece']:.3f}",
            f"{s['decided']:.0%}, {s['decided_right']:.3f}", scored.confidences[i], f"{sure[0]:.0%}, {sure[1]:.3f}",
        ))
    return rows


def sureness(flows, scored, depth):
    long = (flows.counts >= depth) & ~flows.midstream
    found = scored.probabilities[depth][long]
    return found.argmax(axis=1) == flows.classes[long], found.max(axis=1)


def class_rows(flows, scored, depth):
    rows = []
    for c, (precision, recall, f1, count) in enumerate(scored.depths[depth]["by_class"]):
        own = flows.classes == c
        rows.append((flows.names[c], flows.taxonomy[flows.names[c]], int(own.sum()), len(set(flows.groups[own])), count,
                     f"{precision:.2f}", f"{recall:.2f}", f"{f1:.2f}"))
    return rows


def mistakes(flows, scored, depth, count=12):
    """The commonest errors of sure answers: true label, given class, flows."""
    long = (flows.counts >= depth) & ~flows.midstream
    found = scored.probabilities[depth]
    guess, top = found.argmax(axis=1), found.max(axis=1)
    wrong = long & (guess != flows.classes) & (top >= metrics.DECIDED)
    pairs = collections.Counter((flows.labels[i], flows.names[guess[i]]) for i in np.where(wrong)[0])
    return [(n, *p) for p, n in sorted(pairs.items(), key=lambda item: (-item[1], item[0]))[:count]]


def name_rows(flows, scored):
    """What flows end with: label, flows named, precision, recall."""
    seen, rows = ~flows.midstream, []
    for c, name in enumerate(flows.names):
        own, called = seen & (flows.classes == c), seen & (scored.answer == c)
        if c != flows.outlier:
            precision = f"{(flows.classes[called] == c).mean():.3f}" if called.any() else ""
            rows.append((name, int(called.sum()), precision, f"{called[own].mean():.3f}" if own.any() else ""))
    return rows


def known_share(flows, scored):
    """Share of the flows of a class, whose beginning was seen, that get a name."""
    known = ~flows.midstream & (flows.classes != flows.outlier)
    return (scored.answer[known] >= 0).mean()


def contradiction_line(flows, scored):
    """How often an answer contradicts a port that is right, or wrong."""
    right, against = scored.port_guess == flows.classes, scored.kind == "contradiction"
    named = scored.port_guess >= 0
    levels = ", ".join(map(str, scored.contradiction))
    return (f"An answer of another class contradicts the port from these levels on, by depth: {levels} (1: never). They contradict"
            f" {(against & right).sum()} of {(named & right).sum()} port labels that are right and {(against & ~right).sum()} of"
            f" {(named & ~right).sum()} that are wrong.")


def group_rows(flows, scored):
    """By group: flows of a class, share named by the port alone and in the end, each with the share right."""
    rows = []
    for group in sorted(set(flows.groups)):
        own = ~flows.midstream & (flows.groups == group)
        known = own & (flows.classes != flows.outlier)
        cells = []
        for answer in (scored.port_guess, scored.answer):
            named = own & (answer >= 0)
            cells.append(f"{(named & known).sum() / max(known.sum(), 1):.3f}, {(answer == flows.classes)[named].mean() if named.any() else 0:.3f}")
        rows.append((group, int(known.sum()), *cells))
    return rows


def known_named(flows, scored, depth):
    """Share of held-out flows that get a name with p >= 0.8."""
    long = (flows.counts >= depth) & ~flows.midstream
    return leftout.named(scored.probabilities[depth][long], flows.outlier, 1.0)[0]


def source_rows(flows, scored, depth):
    """Scores of the flows of each source, at one depth."""
    rows = []
    for source in sorted(set(flows.sources)):
        own = (flows.counts >= depth) & ~flows.midstream & (flows.sources == source)
        if own.any():
            s = metrics.score(flows.classes[own], scored.probabilities[depth][own])
            rows.append((source, s["flows"], f"{s['accuracy']:.3f}", f"{s['macro_f1']:.3f}", f"{s['ece']:.3f}", f"{s['decided']:.0%}, {s['decided_right']:.3f}"))
    return rows


def group_line(flows, scored, depth):
    """How scores spread over what was held out together."""
    long = (flows.counts >= depth) & ~flows.midstream
    right = scored.probabilities[depth].argmax(axis=1) == flows.classes
    shares = np.array([right[long & (flows.groups == g)].mean() for g in sorted(set(flows.groups[long]))])
    low, middle = np.quantile(shares, [0.1, 0.5])
    return (f"Accuracy by group at depth {depth}, each group counted once: mean {shares.mean():.3f}, median {middle:.3f}, tenth part below"
            f" {low:.3f}; {len(shares)} groups.")


def reduced(flows, scored, classes):
    """Scores when all classes but these are one: rows by depth."""
    kept, rows = [flows.names.index(c) for c in classes], []
    truth = np.array([kept.index(c) if c in kept else len(kept) for c in flows.classes])
    for depth in flows.input.depths:
        long, p = (flows.counts >= depth) & ~flows.midstream, scored.probabilities[depth]
        if long.any():
            p = np.concatenate([p[:, kept], 1 - p[:, kept].sum(axis=1, keepdims=True)], axis=1)
            s = metrics.score(truth[long], p[long])
            rows.append((depth, s["flows"], f"{s['accuracy']:.3f}", f"{s['macro_f1']:.3f}", f"{s['ece']:.3f}", f"{s['decided']:.0%}, {s['decided_right']:.3f}"))
    return rows


def second_split(other, options, name):
    """The section on a second split."""
    flows, scored = other
    names = [n for n in ("port table", "forest") if n in next(iter(scored.baselines.values()))]
    rows = [(d, *(pair(scored.baselines[d][n]) for n in names), pair((s["accuracy"], s["macro_f1"])),
             f"{s['ece']:.3f}", f"{s['decided']:.0%}, {s['decided_right']:.3f}") for d, s in scored.depths.items()]
    return [f"## Held out by {options.second_split}", "", "The same model, accuracy / macro-F1:", "",
            table(("depth", *names, name, *SCORES[3:]), rows), "",
            group_line(flows, scored, min(scored.depths, key=lambda d: abs(d - 3))), ""]


SCORES = ("flows", "accuracy", "macro-F1", "ECE", "decided at p >= 0.8, right")


def text(flows, scored, options, split, name, version, description, command, about, remark, other=None):
    input = flows.input
    middle = input.depths[min(1, len(input.depths) - 1)] if 3 not in input.depths else 3
    parts = [f"# {name} {version}", ""]
    if about:
        parts += [about.strip(), ""]
    depths = ", ".join(map(str, input.depths))
    parts += [
        f"* Reads the first {ELEMENTS[input.unit]} of a flow (`unit = \"{input.unit}\"`) at depth {depths}:"
        f" {', '.join(f'`{f}`' for f in input.features)}.",
        f"* Context: {', '.join(f'`{c}`' for c in input.context) or 'none'}.",
        f"* {description}, fp32, ONNX opset {OPSET}."
        + (f" Trained on the flows and on the mean of {options.nets} such networks." if options.model == "net" and options.nets > 1 else ""),
        f"* {len(flows.classes):,} labelled flows in {len(set(flows.groups)):,} groups; held out by {split},"
        f" {len(set(scored.folds))} folds. All scores below are of flows that the scored networks have not seen. The"
        " weights in the bundle were then trained on all flows.",
        *(["* Flows were held out at random, because labels were recorded once only: flows of one capture resemble each other, so the"
           " scores say little of another capture. Temperatures were not measured."] if split == "flow" else []),
        "* TCP flows that begin mid-stream are trained on but not scored, because fenxi does not label them.",
        "",
    ]
    if remark:
        parts += [f"**Note:** {remark}.", ""]
    parts += ["## Scores", "", table(
        ("depth", "flows", "accuracy", "macro-F1", "ECE", "decided at p >= 0.8, right", "confidence", "decided there, right"),
        depth_rows(flows, scored)), "",
        "ECE is the expected calibration error in 15 bins; `reliability-*.svg` plot it. Temperatures per depth: "
        + ", ".join(f"{t:.2f}" for t in scored.temperatures)
        + (". Confidences were given." if options.confidence else f". Confidences are the least from {options.min_confidence} up at which {options.precision:.0%}"
           f" of the flows named at that depth were right, {calibrate.CONFIDENCE_MAX} if none was."), ""]
    names = list(next(iter(scored.baselines.values())))
    if names:
        rows = [(d, *(pair(scored.baselines[d][n]) for n in names), pair((scored.depths[d]["accuracy"], scored.depths[d]["macro_f1"])))
                for d in input.depths]
        parts += ["Baselines on the same flows and folds, accuracy / macro-F1:", "", table(("depth", *names, name), rows), ""]
    for what, found in scored.ablation.items():
        rows = [(d, pair(found[d]), pair((scored.depths[d]["accuracy"], scored.depths[d]["macro_f1"]))) for d in input.depths]
        parts += [f"Ablation, accuracy / macro-F1:", "", table(("depth", what, name), rows), ""]
    rows, named, right = scored.coverage
    order = ("The table of ports names a flow at once, and an answer of another class may contradict it; other flows ask at each depth until an"
             " answer is sure." if scored.contradiction else
             "A flow asks at each depth until an answer is sure; then the table of ports and the last answer decide.")
    parts += ["## Coverage", "", f"{named:.1%} of the flows whose beginning was seen get a name, and {known_share(flows, scored):.1%}"
              f" without class `{flows.names[-1]}`; {right:.3f} of the names are right. {order}", "",
              table(("decided by", "flows", "named", "right of those named"),
                    [(k, f"{a:.1%}", f"{b:.1%}", f"{c:.3f}") for k, a, b, c in rows]), ""]
    if scored.contradiction:
        parts += [contradiction_line(flows, scored), "", "By what was held out together:", "",
                  table(("group", "flows of a class", "named by the port, right", "named, right"), group_rows(flows, scored)), ""]
    parts += [f"## Classes at depth {middle}", "", table(
        ("label", "taxonomy", "flows", "groups", "scored", "precision", "recall", "F1"), class_rows(flows, scored, middle)), ""]
    if len(set(flows.sources)) > 1:
        parts += [f"By source at depth {middle}:", "", table(("source", *SCORES), source_rows(flows, scored, middle)), ""]
    parts += [group_line(flows, scored, middle), ""]
    rows = mistakes(flows, scored, middle)
    if rows:
        parts += [f"## What it gets wrong at depth {middle} with p >= 0.8", "", table(("flows", "label", "named"), rows), ""]
    if scored.hosts:
        parts += ["## Hosts", "", "A host's label by the sum of log p over its first flows, each at the greatest depth it reached:", "",
                  table(("first flows", "hosts", "right"), [(n, count, f"{right:.3f}") for n, right, count in scored.hosts]), ""]
    if scored.host_labels:
        made, rows = scored.host_labels
        parts += [f"fenxi adds up labels with their p, of a host's first {made['flows']} flows that get a label, and names a host from"
                  f" {made['min_flows']} flow and p >= {made['confidence']} on. Confusions come from the other folds:", "",
                  table(("p of the other classes", "hosts", "named", "right of those named"),
                        [(what, count, f"{named / count:.1%}", f"{right / max(named, 1):.3f}") for what, count, named, right in rows]), ""]
    if scored.left_out:
        parts += ["## Labels never seen", "", "Each label in turn was left out of training, and its flows were shown to the"
                  " model. Named are those that get some other label with p >= 0.8, or at the bundle's confidence.", ""]
    for together, found in scored.left_out.items():
        if together:
            parts += [f"The same with platforms left out as a whole: {'; '.join(', '.join(p) for p in together)}.", ""]
        parts += [table(leftout.HEAD, [leftout.row(d, rows, found[1][d], known_named(flows, scored, d)) for d, rows in found[0].items() if rows]), ""]
    if scored.left_out:
        parts += ["The last two columns: flows whose lengths and context a flow of another label has as well, so that no model can"
                  " know them to be new; and the share of held-out flows of known labels that get a name.", ""]
    if scored.ports:
        parts += ["## Ports that name a flow", "", table(
            ("protocol", "port", "label", "precision", "flows"),
            [(p["protocol"], p["port"], p["label"], f"{p['precision']:.3f}", p["flows"]) for p in scored.ports]), ""]
    parts += ["## The name a flow ends with", "", "By the walk through the depths and the table of ports, on held-out flows:", "",
              table(("label", "flows named", "precision", "recall"), name_rows(flows, scored)), ""]
    if options.score_as:
        parts += ["## Fewer classes", "", f"Held out by {split}, with all classes but these taken as one: {', '.join(options.score_as)}.", "",
                  table(("depth", *SCORES), reduced(flows, scored, options.score_as)), ""]
    if other:
        parts += second_split(other, options, name)
    if scored.integers:
        from . import integers

        rows, line = scored.integers
        parts += ["## In integers", "", f"{integers.TEXT}, on held-out flows:", "",
                  table(integers.HEAD, rows), "", line, ""]
    if scored.int8:
        from . import int8

        parts += ["## In 8 bits", "", int8.LOSS, "", table(int8.HEAD, scored.int8), ""]
    if options.limits:
        parts += [options.limits.strip(), ""]
    parts += ["## Reproduction", "", f"    {command}", ""]
    return "\n".join(parts)
