"""A cheap model first and a large one where that is unsure, against the large one and others alone: accuracy and device time."""

import dataclasses
import html
import json
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
    """The predictions of the models for the same flows, and the fold of each flow if these are held-out flows."""

    truth: np.ndarray
    first: np.ndarray  # probabilities [flows, classes]
    second: np.ndarray
    folds: np.ndarray | None = None
    others: tuple = ()  # the same of models that are compared only
    rows: tuple = ()  # series and context of the flows, as each model reads them, in the order above

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
    others: tuple[float, ...] = ()

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


@dataclasses.dataclass
class Single:
    """A model alone; `time` as in a step.  `won` flows are correct with it and not with the second, `lost` the other way round."""

    name: str
    accuracy: float
    macro_f1: float
    time: float
    won: int = 0
    lost: int = 0

    @property
    def is_alike(self):
        """Whether it is no less accurate than the second beyond chance: two standard errors of the difference."""
        return self.lost - self.won <= 2 * (self.won + self.lost) ** 0.5


def of_held_out(models, depths, paths):
    """Predictions of fits on the same tables, each for flows that its models have not seen."""
    found = [heldout.read(path, made, depth) for path, made, depth in zip(paths, models, depths)]
    for other, path in zip(found[1:], paths[1:]):
        if any(found[0][n].shape != other[n].shape or (found[0][n] != other[n]).any() for n in heldout.SAME_FLOW):
            raise Refusal(f"{path}: other flows than in {paths[0]}; fit all models on the same tables with the same --split-by and --classes")
    long = np.logical_and.reduce([f["counts"] >= depth for f, depth in zip(found, depths)]) & ~found[0]["midstream"]
    refuse_none(long, paths, depths)
    rows = tuple((made.input.cut(f["series"][long], d), f["context"][long]) for made, f, d in zip(models, found, depths))
    said = [f[f"depth_{d}"][long][:, in_order(models[0], made)] for made, f, d in zip(models, found, depths)]
    return Answers(found[0]["classes"][long], *said[:2], found[0]["folds"][long], tuple(said[2:]), rows)


def of_table(models, depths, paths, column, joined, split):
    """Predictions for the flows of tables, which no model should have seen."""
    found = [data.of_bundle(made, paths, column, joined, split) for made in models]
    long = np.logical_and.reduce([(flows.counts >= depth) & ~flows.midstream for flows, depth in zip(found, depths)])
    refuse_none(long, paths, depths)
    rows = tuple((flows.input.cut(flows.series[long], depth), flows.seen_context()[long]) for flows, depth in zip(found, depths))
    said = [runtime.run_all(made.session(), *own)[:, in_order(models[0], made)] for made, own in zip(models, rows)]
    # A table has other labels, but a bundle may have no class for them.
    said = [np.pad(p, ((0, 0), (0, len(found[0].names) - p.shape[1]))) for p in said]
    return Answers(found[0].classes[long], *said[:2], None, tuple(said[2:]), rows)


def refuse_none(long, paths, depths):
    if not long.any():
        raise Refusal(f"{', '.join(map(str, paths))}: no flow has {depths[0]} elements for the first and {depths[1]} for the second; give smaller depths")


def in_order(first, second):
    """The columns of the second bundle in the order of the first one's labels."""
    if set(first.labels) != set(second.labels):
        odd = sorted(set(first.labels) ^ set(second.labels))
        raise Refusal(f"{second.folder}/model.toml: labels differ from {first.folder} ({', '.join(odd[:5])} in one only);"
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
    """Costs on the flows themselves, because rows of which the first is unsure may cost the second more than others; medians of
    interleaved rounds."""
    rounds = []
    order = np.random.default_rng(1).permutation(len(answers.truth))  # flows of one capture follow each other in a table only
    every = [tuple(a[order] for a in rows) for rows in answers.rows]
    own = [tuple(a[answers.asked(level)[order]] for a in every[1]) for level in levels]
    for _ in range(ROUNDS):
        rounds.append([seconds(s, r, batch) for s, r in zip(sessions, every)] + [seconds(sessions[1], r, batch) for r in own])
    found, count = np.array(rounds), len(answers.truth)
    beside = np.median(found / found[:, 1:2], axis=0)
    alone, shares = len(sessions), [len(r[0]) / count for r in own]
    asked = {level: float(b / share) for level, b, share in zip(levels, beside[alone:], shares) if share}
    return Costs(float(beside[0]), asked, tuple(np.median(found[:, :2], axis=0) / count * 1e6), tuple(map(float, beside[2:alone])))


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


def alone(answers, names, costs):
    """Each model alone: the first, the second, the others."""
    times, second = (costs.first, 1.0, *costs.others), answers.second.argmax(axis=1) == answers.truth
    singles = []
    for name, said, time in zip(names, (answers.first, answers.second, *answers.others), times):
        score, right = metrics.score(answers.truth, said), said.argmax(axis=1) == answers.truth
        singles.append(Single(name, score["accuracy"], score["macro_f1"], time, int((right & ~second).sum()), int((second & ~right).sum())))
    return singles


def cheapest(singles):
    """The fastest model as accurate as the second, and the fastest model not less accurate beyond chance."""
    found = {"": lambda s: s.accuracy >= singles[1].accuracy, " within chance": lambda s: s.is_alike}
    return {but: min(filter(is_good, singles), key=lambda s: s.time) for but, is_good in found.items()}


def figures(answers, names, levels, costs):
    """What is reported, for people and programs."""
    best = least(answers, levels, costs)
    singles = alone(answers, names, costs)
    found = {
        "flows": len(answers.truth),
        "single": [dataclasses.asdict(s) for s in singles],
        "cheapest": {f"as accurate{but}": dataclasses.asdict(s) for but, s in cheapest(singles).items()},
        "steps": [dataclasses.asdict(step(answers, level, costs)) for level in levels],
        "best": dataclasses.asdict(best) if best and best.time < 1 else None,
        "elsewhere": None,
    }
    if answers.folds is not None:
        accuracy, time, used = chosen_elsewhere(answers, levels, costs)
        found["elsewhere"] = {"accuracy": accuracy, "time": time, "levels": used}
    return found


def rows_of(found, names):
    """The table: models alone, then the cascade at each confidence."""
    rows = [(f"{s['name']} alone", "", f"{s['accuracy']:.4f}", f"{s['macro_f1']:.4f}", f"{s['time']:.3f}", "") for s in found["single"]]
    for s in found["steps"]:
        mark = "least time" if found["best"] and s["level"] == found["best"]["level"] else ""
        name = f"< {s['level']:g}" if s["level"] < 1 else "always"
        rows.append((name, f"{s['share']:.1%}", f"{s['accuracy']:.4f}", f"{s['macro_f1']:.4f}", f"{s['time']:.3f}", mark))
    return lines(("confidence", f"flows for {names[1]}", "accuracy", "macro-F1", "device time", ""), rows)


def report(answers, names, found):
    """The text."""
    singles = [Single(**s) for s in found["single"]]
    first, second = singles[:2]
    out = [f"{found['flows']} flows; device time per flow as a share of {second.name} alone", "", rows_of(found, names), ""]
    if found["best"] is None:
        out += [f"No confidence is as accurate as {second.name} alone in less device time: run {second.name} alone."]
    else:
        out += saved(answers, Step(**found["best"]), second)
    if first.accuracy >= second.accuracy:
        out += [f"{first.name} alone is as accurate as {second.name}: {second.name} is not worth its time on these flows."]
    if found["best"] and singles[2:]:
        out += [beside(Step(**found["best"]), Single(**s), how) for how, s in found["cheapest"].items()]
    if found["elsewhere"]:
        chosen = found["elsewhere"]
        levels = ", ".join(f"{u:g}" for u in chosen["levels"])
        out += [f"With the confidence for each fold chosen on the other folds ({levels}): accuracy {chosen['accuracy']:.4f}"
                f" ({second.name} alone {second.accuracy:.4f}), device time {chosen['time']:.3f}, {1 / chosen['time']:.1f} times less."]
    if found["best"]:
        level = found["best"]["level"]
        out += ["", "In the [[task]] of the large model:", "", f'    when = "{first.name}.confidence < {level:g}"' if level else "    # leave it out"]
    return "\n".join(out)


def saved(answers, best, second):
    """What the cascade saves, and how its answers differ from the second's alone."""
    ours, theirs = (p.argmax(axis=1) == answers.truth for p in (answers.mixed(best.level), answers.second))
    return [f"As accurate as {second.name} alone in {1 / best.time:.1f} times less device time: it runs on {best.share:.1%} of flows."
            f" Of {len(ours)} flows, {(ours & ~theirs).sum()} are correct only with the cascade, and {(theirs & ~ours).sum()} only with {second.name} alone."]


def beside(best, single, how):
    """The cascade beside the cheapest model that is as accurate alone as the second."""
    compared = f"{single.time / best.time:.1f} times less" if single.time >= best.time else f"{best.time / single.time:.1f} times more"
    return (f"The cheapest model alone that is {how} is {single.name} ({single.accuracy:.4f}, {single.won} flows won and {single.lost} lost,"
            f" device time {single.time:.3f}): the cascade takes {compared}.")


@dataclasses.dataclass
class Axes:
    """Where a device time and an accuracy are on the plot."""

    right: float
    low: float
    high: float
    width: int = 520
    height: int = 360
    left: int = 56
    margin: int = 44

    def x(self, time):
        return self.left + time / self.right * (self.width - self.left - 20)

    def y(self, accuracy):
        return self.height - self.margin - (accuracy - self.low) / (self.high - self.low) * (self.height - 2 * self.margin)

    def dot(self, at, radius, fill):
        return f'<circle cx="{self.x(at.time):.1f}" cy="{self.y(at.accuracy):.1f}" r="{radius}" fill="{fill}"/>'

    def frame(self):
        """Grid, border and numbers."""
        gap = next((g for g in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1) if (self.high - self.low) / g <= 6), 0.2)
        ticks, end = np.arange(np.ceil(self.low / gap), np.floor(self.high / gap) + 1) * gap, self.width - 20
        parts = [f'<line x1="{self.left}" y1="{self.y(v):.1f}" x2="{end}" y2="{self.y(v):.1f}" stroke="#ddd"/>' for v in ticks]
        parts.append(f'<rect x="{self.left}" y="{self.margin}" width="{end - self.left}" height="{self.height - 2 * self.margin}"'
                     ' fill="none" stroke="#888"/>')
        parts += [words(self.left - 6, self.y(v) + 4, f"{v:.3f}", "end") for v in ticks]
        return parts + [words(self.x(v), self.height - self.margin + 15, f"{v:g}") for v in (0, 0.25, 0.5, 0.75, 1)]


def words(x, y, text, anchor="middle"):
    return f'<text x="{x:.0f}" y="{y:.0f}" font-family="sans-serif" font-size="11" text-anchor="{anchor}">{html.escape(text)}</text>'


def axes_for(points):
    """Axes on which all of these are."""
    low, high = (f(p.accuracy for p in points) for f in (min, max))
    beyond = 0.1 * (high - low or 0.01)
    return Axes(max(p.time for p in points) * 1.05, low - beyond, high + beyond)


def plot(steps, singles, best):
    """An SVG: accuracy over device time, of the cascade and of each model alone."""
    axes = axes_for([*steps, *singles])
    first, second, *others = singles
    y = axes.y(second.accuracy)
    parts = axes.frame()
    parts.append(f'<line x1="{axes.left}" y1="{y:.1f}" x2="{axes.width - 20}" y2="{y:.1f}" stroke="#d62728" stroke-dasharray="4 3"/>')
    points = sorted((axes.x(s.time), axes.y(s.accuracy)) for s in steps)
    parts.append(f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}" fill="none" stroke="#1f77b4"/>')
    parts += [axes.dot(s, 2.5, "#1f77b4") for s in steps]
    for single, color in ((first, "#2ca02c"), (second, "#d62728"), *((o, "#888") for o in others)):
        parts.append(axes.dot(single, 5 if color != "#888" else 4, color))
        side = 7 if axes.x(single.time) < axes.width / 2 else -7
        parts.append(words(axes.x(single.time) + side, axes.y(single.accuracy) + 14, single.name, "start" if side > 0 else "end"))
    if best is not None:
        parts.append(f'<circle cx="{axes.x(best.time):.1f}" cy="{axes.y(best.accuracy):.1f}" r="6" fill="none" stroke="black"/>')
        parts.append(words(axes.x(best.time), axes.y(best.accuracy) - 10, f"< {best.level:g}"))
    parts.append(words(axes.width / 2, 24, f"{first.name} first, {second.name} where it is unsure: accuracy"))
    parts.append(words(axes.width / 2, axes.height - 10, f"device time per flow, {second.name} alone = 1; line: both, single points: models alone"))
    size = f'width="{axes.width}" height="{axes.height}"'
    return (f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {axes.width} {axes.height}">'
            f'<rect {size} fill="white"/>{"".join(parts)}</svg>\n')


def write(path, text):
    if not path:
        return
    try:
        pathlib.Path(path).write_text(text)
    except OSError as error:
        raise Refusal(f"{path}: {error.strerror or error}", CANNOT_CREATE) from None


def names_of(models):
    """What the models are called: by their folders where two have the same name."""
    names = [made.manifest["name"] for made in models]
    return names if len(set(names)) == len(names) else [made.folder.name for made in models]


def run(args):
    for path, option in ((args.out, "--out"), (args.json, "--json")):
        heldout.new_file(path, option)
    if args.held_out and len(args.held_out) != 2 + len(args.beside):
        raise Refusal(f"--held-out: {len(args.held_out)} files for {2 + len(args.beside)} bundles; give one for each, in the same order", USAGE)
    models = [bundle.read(path) for path in (args.first, args.second, *args.beside)]
    for made in models[1:]:
        in_order(models[0], made)
    depths = [depth_of(models[0], args.first_depth, "--first-depth")]
    depths += [depth_of(made, args.second_depth, "--second-depth") for made in models[1:]]
    if args.held_out:
        answers = of_held_out(models, depths, args.held_out)
    else:
        answers = of_table(models, depths, args.labels, args.label_column, args.join, args.split_by)
    levels = args.confidence or LEVELS
    costs = measured(answers, [made.session() for made in models], levels, args.batch)
    names = names_of(models)
    found = figures(answers, names, levels, costs)
    print(f"A row of {names[0]} costs {costs.us[0]:.2f} us, one of {names[1]} {costs.us[1]:.2f} us, {1 / costs.first:.1f} times as much"
          f" (ONNX Runtime, one thread, batches of {args.batch}, interleaved, medians of {ROUNDS} rounds).")
    print(f"{names[0]} after {depths[0]}, {names[1]} after {depths[1]} elements. {report(answers, names, found)}")
    steps, best = [Step(**s) for s in found["steps"]], found["best"] and Step(**found["best"])
    write(args.out, plot(steps, [Single(**s) for s in found["single"]], best))
    write(args.json, json.dumps(found) + "\n")
