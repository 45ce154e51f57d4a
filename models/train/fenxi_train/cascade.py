"""A cheap model first and a large one where that is unsure, against the large one alone: accuracy and device time."""

import dataclasses
import html
import pathlib
import time

import numpy as np

from . import bundle, data, heldout, metrics, runtime
from .card import table as lines
from .errors import CANNOT_CREATE, USAGE, Refusal

# Below which confidence the second model runs: 0 never, 1 always.
LEVELS = (0.0, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.995, 0.999, 1.0)
ROUNDS = 7


@dataclasses.dataclass
class Answers:
    """The predictions of both models for the same flows, and the fold of each flow if these are held-out flows."""

    truth: np.ndarray
    first: np.ndarray  # probabilities [flows, classes]
    second: np.ndarray
    folds: np.ndarray | None = None
    rows: tuple = ()  # series and context of the flows, as the first reads them and as the second does

    def asked(self, level):
        """The flows on which the second runs: as `when = "first.confidence < level"`, but all of them at 1."""
        return self.first.max(axis=1) < level if level < 1 else np.ones(len(self.truth), bool)

    def mixed(self, level):
        return np.where(self.asked(level)[:, None], self.second, self.first)

    def take(self, rows):
        return Answers(self.truth[rows], self.first[rows], self.second[rows])


@dataclasses.dataclass
class Costs:
    """Device time of a row, beside the mean row of the second model."""

    first: float
    asked: dict[float, float] = dataclasses.field(default_factory=dict)  # of a row on which the second runs, by confidence
    us: tuple[float, float] = (0.0, 0.0)  # microseconds of a mean row of each

    def of(self, level, share):
        return self.first + share * self.asked.get(level, 1.0)


@dataclasses.dataclass
class Step:
    """The cascade at one confidence; `time` is relative to the second model alone."""

    level: float
    share: float
    accuracy: float
    macro_f1: float
    time: float


def of_held_out(first, second, depths, paths):
    """Predictions of two fits on the same tables, each for flows that its models have not seen."""
    a, b = (heldout.read(path, made, depth) for path, made, depth in zip(paths, (first, second), depths))
    if any(a[n].shape != b[n].shape or (a[n] != b[n]).any() for n in heldout.SAME_FLOW):
        raise Refusal(f"{paths[1]}: other flows than in {paths[0]}; fit both models on the same tables with the same --split-by and --classes")
    long = (a["counts"] >= depths[0]) & (b["counts"] >= depths[1]) & ~a["midstream"]
    refuse_none(long, paths, depths)
    rows = tuple((made.input.cut(f["series"][long], d), f["context"][long]) for made, f, d in zip((first, second), (a, b), depths))
    order = in_order(first, second)
    return Answers(a["classes"][long], a[f"depth_{depths[0]}"][long], b[f"depth_{depths[1]}"][long][:, order], a["folds"][long], rows)


def of_table(first, second, depths, paths, column, joined, split):
    """Predictions for the flows of tables, which neither model should have seen."""
    both = [data.of_bundle(made, paths, column, joined, split) for made in (first, second)]
    long = np.logical_and(*((flows.counts >= depth) & ~flows.midstream for flows, depth in zip(both, depths)))
    refuse_none(long, paths, depths)
    rows = tuple((flows.input.cut(flows.series[long], depth), flows.seen_context()[long]) for flows, depth in zip(both, depths))
    p, q = (runtime.run_all(made.session(), *own) for made, own in zip((first, second), rows))
    names = both[0].names
    p = np.pad(p, ((0, 0), (0, len(names) - p.shape[1])))  # a table has other labels, but a bundle may have no class for them
    q = np.pad(q[:, in_order(first, second)], ((0, 0), (0, len(names) - q.shape[1])))
    return Answers(both[0].classes[long], p, q, rows=rows)


def refuse_none(long, paths, depths):
    if not long.any():
        raise Refusal(f"{', '.join(map(str, paths))}: no flow has {depths[0]} elements for the first and {depths[1]} for the second; give smaller depths")


def in_order(first, second):
    """The columns of the second bundle in the order of the first one's labels."""
    if set(first.labels) != set(second.labels):
        odd = sorted(set(first.labels) ^ set(second.labels))
        raise Refusal(f"{second.folder}/model.toml: other labels than those of {first.folder} ({', '.join(odd[:5])} in one only);"
                      " fit both with the same --classes and --outlier")
    return [second.labels.index(n) for n in first.labels]


def depth_of(made, wanted, option):
    if wanted and wanted not in made.input.depths:
        raise Refusal(f"{option} {wanted}: {made.folder} has depths {', '.join(map(str, made.input.depths))}", USAGE)
    return wanted or made.input.depths[-1]


def seconds(session, rows, batch):
    begin = time.perf_counter()
    runtime.run_all(session, *rows, batch)
    return time.perf_counter() - begin


def measured(answers, sessions, levels, batch):
    """Costs on the flows themselves, because rows of which the first is unsure may cost the second more than others; medians of interleaved rounds."""
    rounds = []
    order = np.random.default_rng(1).permutation(len(answers.truth))  # flows of one capture follow each other in a table only
    every = [tuple(a[order] for a in rows) for rows in answers.rows]
    own = [tuple(a[answers.asked(level)[order]] for a in every[1]) for level in levels]
    for _ in range(ROUNDS):
        rounds.append([seconds(s, r, batch) for s, r in zip(sessions, every)] + [seconds(sessions[1], r, batch) for r in own])
    found, count = np.array(rounds), len(answers.truth)
    beside = np.median(found / found[:, 1:2], axis=0)
    shares = [len(r[0]) / count for r in own]
    asked = {level: float(b / share) for level, b, share in zip(levels, beside[2:], shares) if share}
    return Costs(float(beside[0]), asked, tuple(np.median(found[:, :2], axis=0) / count * 1e6))


def step(answers, level, costs):
    share = float(answers.asked(level).mean())
    s = metrics.score(answers.truth, answers.mixed(level))
    return Step(level, share, s["accuracy"], s["macro_f1"], costs.of(level, share))


def least(answers, levels, costs):
    """The step of the least time that is no less accurate than the second alone, or None."""
    wanted = metrics.score(answers.truth, answers.second)["accuracy"]
    good = [s for s in (step(answers, level, costs) for level in levels) if s.accuracy >= wanted]
    return min(good, key=lambda s: (s.time, s.level), default=None)


def chosen_elsewhere(answers, levels, costs):
    """Accuracy and time if the level for each fold is chosen on the other folds: an estimate for flows that it was not chosen on."""
    mixed, times, used = answers.second.copy(), np.ones(len(answers.truth)), []
    for fold in sorted(set(answers.folds)):
        own = answers.folds == fold
        found = least(answers.take(~own), levels, costs)
        if found is not None:
            mixed[own] = answers.take(own).mixed(found.level)
            times[own] = costs.of(found.level, answers.take(own).asked(found.level))
            used.append(found.level)
    return float((mixed.argmax(axis=1) == answers.truth).mean()), float(times.mean()), used


def report(answers, names, levels, costs):
    """The text, the steps, and the one of least time (or None)."""
    first, second = (metrics.score(answers.truth, p) for p in (answers.first, answers.second))
    steps = [step(answers, level, costs) for level in levels]
    best = least(answers, levels, costs)
    best = best if best and best.time < 1 else None
    rows = [(f"{names[0]} alone", "", f"{first['accuracy']:.4f}", f"{first['macro_f1']:.4f}", f"{costs.first:.3f}", ""),
            (f"{names[1]} alone", "", f"{second['accuracy']:.4f}", f"{second['macro_f1']:.4f}", "1.000", "")]
    rows += [(f"< {s.level:g}" if s.level < 1 else "always", f"{s.share:.1%}", f"{s.accuracy:.4f}", f"{s.macro_f1:.4f}", f"{s.time:.3f}",
              "least time" if best and s.level == best.level else "") for s in steps]
    out = [f"{len(answers.truth)} flows; device time per flow as a share of {names[1]} alone", "",
           lines(("confidence", f"flows for {names[1]}", "accuracy", "macro-F1", "device time", ""), rows), ""]
    if best is None:
        out += [f"No confidence is as accurate as {names[1]} alone in less device time: run {names[1]} alone."]
        return "\n".join(out), steps, best
    ours, theirs = (p.argmax(axis=1) == answers.truth for p in (answers.mixed(best.level), answers.second))
    out += [f"As accurate as {names[1]} alone in {1 / best.time:.1f} times less device time: it runs on {best.share:.1%} of flows."
            f" Of {len(ours)} flows, {(ours & ~theirs).sum()} are correct only with the cascade, and {(theirs & ~ours).sum()} only with {names[1]} alone."]
    if first["accuracy"] >= second["accuracy"]:
        out += [f"{names[0]} alone is as accurate as {names[1]}: {names[1]} is not worth its time on these flows."]
    if answers.folds is not None:
        accuracy, relative, used = chosen_elsewhere(answers, levels, costs)
        out += [f"With the confidence for each fold chosen on the other folds ({', '.join(f'{u:g}' for u in used)}): accuracy {accuracy:.4f},"
                f" device time {relative:.3f}, {1 / relative:.1f} times less."]
    out += ["", "In the [[task]] of the large model:", "", f'    when = "{names[0]}.confidence < {best.level:g}"' if best.level else "    # leave it out"]
    return "\n".join(out), steps, best


def plot(steps, first, second, best, names):
    """An SVG: accuracy over device time.  `first` and `second` are (time, accuracy) of each model alone."""
    width, height, left, margin = 460, 330, 56, 44
    points = sorted((s.time, s.accuracy) for s in steps)
    every = [*points, first, second]
    right = max(t for t, _ in every) * 1.05
    low, high = (f(a for _, a in every) for f in (min, max))
    low, high = low - 0.1 * (high - low or 0.01), high + 0.1 * (high - low or 0.01)
    x = lambda v: left + v / right * (width - left - 20)
    y = lambda v: height - margin - (v - low) / (high - low) * (height - 2 * margin)
    text = lambda a, b, t, anchor="middle": (
        f'<text x="{a:.0f}" y="{b:.0f}" font-family="sans-serif" font-size="11" text-anchor="{anchor}">{html.escape(t)}</text>')
    dot = lambda p, r, fill: f'<circle cx="{x(p[0]):.1f}" cy="{y(p[1]):.1f}" r="{r}" fill="{fill}"/>'
    marks = [text(x(v), height - margin + 15, f"{v:g}") for v in (0, 0.25, 0.5, 0.75, 1)]
    gap = next((g for g in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1) if (high - low) / g <= 6), 0.2)
    ticks = np.arange(np.ceil(low / gap), np.floor(high / gap) + 1) * gap
    marks += [text(left - 6, y(v) + 4, f"{v:.3f}", "end") for v in ticks]
    grid = "".join(f'<line x1="{left}" y1="{y(v):.1f}" x2="{width - 20}" y2="{y(v):.1f}" stroke="#ddd"/>' for v in ticks)
    line = f'<line x1="{left}" y1="{y(second[1]):.1f}" x2="{width - 20}" y2="{y(second[1]):.1f}" stroke="#d62728" stroke-dasharray="4 3"/>'
    curve = f'<polyline points="{" ".join(f"{x(t):.1f},{y(a):.1f}" for t, a in points)}" fill="none" stroke="#1f77b4"/>'
    dots = "".join(dot(p, 2.5, "#1f77b4") for p in points) + dot(first, 5, "#2ca02c") + dot(second, 5, "#d62728")
    named = [text(x(first[0]) + 9, y(first[1]) + 14, f"{names[0]} alone", "start"), text(x(second[0]) - 9, y(second[1]) + 16, f"{names[1]} alone", "end")]
    if best is not None:
        dots += f'<circle cx="{x(best.time):.1f}" cy="{y(best.accuracy):.1f}" r="6" fill="none" stroke="black"/>'
        named.append(text(x(best.time), y(best.accuracy) - 10, f"< {best.level:g}"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
        f'<rect width="{width}" height="{height}" fill="white"/>{grid}'
        f'<rect x="{left}" y="{margin}" width="{width - left - 20}" height="{height - 2 * margin}" fill="none" stroke="#888"/>'
        f"{line}{curve}{dots}{''.join(marks)}{''.join(named)}"
        f"{text(width / 2, 24, f'{names[0]} first, {names[1]} where it is unsure: accuracy')}"
        f"{text(width / 2, height - 10, f'device time per flow, {names[1]} alone = 1')}</svg>\n"
    )


def run(args):
    heldout.new_file(args.out, "--out")
    first, second = bundle.read(args.first), bundle.read(args.second)
    in_order(first, second)
    depths = depth_of(first, args.first_depth, "--first-depth"), depth_of(second, args.second_depth, "--second-depth")
    if args.held_out:
        answers = of_held_out(first, second, depths, args.held_out)
    else:
        answers = of_table(first, second, depths, args.labels, args.label_column, args.join, args.split_by)
    levels = args.confidence or LEVELS
    costs = measured(answers, (first.session(), second.session()), levels, args.batch)
    names = [made.manifest["name"] for made in (first, second)]
    if names[0] == names[1]:
        names = [made.folder.name for made in (first, second)]
    text, steps, best = report(answers, names, levels, costs)
    print(f"A row of {names[0]} costs {costs.us[0]:.2f} us, one of {names[1]} {costs.us[1]:.2f} us, {1 / costs.first:.1f} times as much"
          f" (ONNX Runtime, one thread, batches of {args.batch}, interleaved, medians of {ROUNDS} rounds).")
    print(f"{names[0]} after {depths[0]}, {names[1]} after {depths[1]} elements. {text}")
    if args.out:
        alone = [(t, metrics.score(answers.truth, p)["accuracy"]) for t, p in ((costs.first, answers.first), (1.0, answers.second))]
        try:
            pathlib.Path(args.out).write_text(plot(steps, *alone, best, names))
        except OSError as error:
            raise Refusal(f"{args.out}: {error.strerror or error}", CANNOT_CREATE) from None
