"""The walk from labelled flows to a bundle: folds, calibration, baselines, the final networks, card and goldens."""

import dataclasses

import numpy as np

from . import (
    baselines, bundle, calibrate, card, cluster, data, ensemble, forest, forestgraph, graph, groups,
    heldout, hosts, int8, integers, leftout, metrics, ports, ranges, table, unfamiliar,
)
from .errors import Refusal
from .network import Shape, softmax


@dataclasses.dataclass(frozen=True)
class Options:
    """How a model is trained and calibrated."""

    model: str = "net"  # or "forest"
    shape: Shape = Shape()
    size: forest.Size = forest.Size()
    foreign: data.Flows | None = None  # further flows, for training only
    ports_first: bool = False  # ports name a flow at once, and answers may contradict them
    nets: int = 3
    teacher: Shape | None = None  # of the networks that teach, if they have another shape
    own_lengths: int | None = None  # lengths that keep a code each; None: all
    min_groups: int = 2  # groups of flows in which a length must occur to be a category of its own
    capture_weight: float = 0.5  # a flow's weight is its group's size to the power of minus this
    unfamiliar: float = 0.2  # share of made-up flows of the outlier class
    sureness: float = 0.7
    unfamiliar_ports: bool = True
    near_misses: float = 0.0  # share of the made-up flows whose lengths are only a few bytes off
    precision: float = 0.98  # share right among sure answers, on held-out flows
    min_confidence: float = 0.7
    confidence: tuple[float, ...] | None = None
    port_precision: float = 0.9  # above 1: no table of ports
    folds: int = 5
    seed: int = 1
    ablate: bool = False
    leave_labels_out: bool = False
    platforms: tuple[tuple[str, ...], ...] = ()  # labels that are left out together
    hosts: bool = False
    integers: bool = True  # whether the integers of a network are scored, too
    int8: str | None = None  # folder of a second bundle, in 8 bits
    score_as: tuple[str, ...] = ()  # classes to which scores are also reduced
    classes_given: bool = False  # the labels were chosen one by one, also those that are then held out whole
    second_split: str | None = None  # a second split that is scored, too
    limits: str = ""  # last words of the card
    held_out: str | None = None  # file for the predictions for held-out flows


@dataclasses.dataclass
class Scored:
    """What was measured on held-out flows; `depths` has the scores of each depth."""

    folds: np.ndarray
    probabilities: dict[int, np.ndarray]
    temperatures: list[float]
    confidences: list[float]
    depths: dict[int, dict]
    baselines: dict[int, dict]
    ports: list[dict]
    port_guess: np.ndarray  # the class of each flow by the ports of the other folds, -1 for none
    contradiction: list[float] | None
    kind: np.ndarray  # what decided each flow's name
    answer: np.ndarray  # the class that each flow ends with by the walk through the depths, -1 for none
    coverage: tuple
    ablation: dict[str, dict]
    left_out: dict[tuple, tuple]  # by the labels that were left out together
    hosts: list[tuple]
    host_labels: tuple | None  # the table for the bundle, and rows of scores
    int8: list[tuple]
    integers: tuple | None  # rows by depth, and a line on the names in the end


def trained(flows, options, seed=None):
    """An ensemble for these flows, from those that have as many elements as the first depth."""
    if options.ports_first:
        flows = ports.hidden(flows, ports.guesses(flows, ports.table(flows, options.port_precision)))
    usable = flows.take(np.where(flows.counts >= flows.input.depths[0])[0])
    extra = None
    if flows.outlier is not None and options.unfamiliar > 0 and flows.input.has_lengths:
        extra = unfamiliar.Maker(flows.outlier, options.unfamiliar, options.sureness, options.unfamiliar_ports, near=options.near_misses)
    others = options.foreign
    if others is not None:
        others = dataclasses.replace(others.take(np.where(others.counts >= flows.input.depths[0])[0]), input=flows.input)
    if options.model == "forest":
        return forest.fit(usable, options.size, extra, others, options.seed)
    return ensemble.fit(
        usable, options.shape, options.nets, options.min_groups, options.capture_weight, extra,
        options.seed, others, options.teacher, options.own_lengths,
    )


def trained_without(given, test):
    """An ensemble for all flows but these, bool [flows]."""
    flows, options = given
    return trained(flows.take(np.where(~test)[0]), options)


def form(made, temperatures, name):
    """The ONNX model of what was trained."""
    if made.form == "forest":
        return forestgraph.model(made, temperatures, name)
    return graph.model(made.nets, temperatures, name)


def held_out(flows, folds, options, context=None, each=None):
    """Scores before softmax by depth, of each flow by models that have not seen its fold; `each` gets every model with
    the rows of its training and of its held-out flows."""
    context = flows.seen_context() if context is None else context
    made = {d: np.zeros((len(flows.classes), len(flows.names)), np.float32) for d in flows.input.depths}
    long = flows.counts >= flows.input.depths[0]
    tests = [folds == fold for fold in sorted(set(folds)) if long[folds != fold].any()]
    for test, net in zip(tests, cluster.mapped(trained_without, (flows, options), tests)):
        for depth in flows.input.depths:
            made[depth][test] = net.scores(flows.input.cut(flows.series[test], depth), context[test])
        if each:
            each(net, np.where(~test)[0], np.where(test)[0])
    return made


def folds_of(flows, options, split):
    folds = groups.folds(flows.groups, flows.classes, options.folds)
    if folds is None:
        raise Refusal(
            f"all flows belong to one {split} ({flows.groups[0]}), so nothing can be held out; add flows of another one,"
            " or split by something else (--split-by capture, host or day)"
        )
    alone = in_one_group(flows)
    if alone and not options.classes_given:
        listed = ", ".join(f"{flows.names[c]} ({group})" for c, group in alone.items())
        others = ",".join(n for c, n in enumerate(flows.names) if c not in alone and c != flows.outlier)
        raise Refusal(
            f"all flows of a label belong to one {split}, so it cannot be learned while that is held out: {listed}; add flows from another"
            f" {split}, give another --split-by (flow is the last resort){f', or leave such labels out (--classes {others})' if others else ''}"
        )
    return folds


def in_one_group(flows):
    """The classes whose flows that count for training all belong to one group."""
    own = (flows.counts >= flows.input.depths[0]) & (flows.classes != calibrate.outlier(flows))
    return groups.only_one(flows.groups[own], flows.classes[own])


def by_depth(flows, folds, scores, split, methods, say):
    """Temperatures, probabilities, scores and baselines' scores, each by depth."""
    temperatures, depth_scores, beside, probabilities = [], {}, {}, {}
    for depth in flows.input.depths:
        long = (flows.counts >= depth) & ~flows.midstream
        if not long.any():
            long = flows.counts >= depth
        # What a device sends once in a capture is new while it is held out, but known in the next capture: a temperature
        # measured by flows would make the model less sure than it has reason to be.
        t = 1.0 if split == "flow" else calibrate.temperature(scores[depth][long], flows.classes[long])
        probabilities[depth] = softmax(scores[depth] / t)
        found = probabilities[depth][long]
        top, guess = found.max(axis=1), found.argmax(axis=1)
        temperatures.append(t)
        depth_scores[depth] = {**metrics.score(flows.classes[long], found), "reliability": metrics.reliability(guess == flows.classes[long], top)}
        beside[depth] = {}
        for name, method in methods.items():
            guessed = baselines.folded(flows, folds, method, depth)[long]
            beside[depth][name] = plain_score(flows.classes[long], guessed, len(flows.names))
        s = depth_scores[depth]
        ports_alone = "".join(f", {name} {a:.3f} / {f1:.3f}" for name, (a, f1) in beside[depth].items() if name == "port table")
        say(f"depth {depth}: accuracy {s['accuracy']:.3f}, macro-F1 {s['macro_f1']:.3f}{ports_alone}")
    return temperatures, probabilities, depth_scores, beside


def evaluate(flows, options, split, say=lambda text: None):
    """Scores, calibration and baselines by folds."""
    folds = folds_of(flows, options, split)
    say(f"{len(set(folds))} folds by {split}, {len(set(flows.groups))} groups")
    port_guess = ports.held_out(flows, folds, options.port_precision)
    asked = ports.hidden(flows, port_guess) if options.ports_first else flows
    eight = int8.Comparison(asked) if options.int8 else None
    has_integers = options.integers and options.model == "net"
    own = integers.Comparison(asked, options.foreign) if has_integers else None
    told = [one for one in (eight, own) if one]
    each = lambda *fold: [one.add(*fold) for one in told]
    scores = held_out(flows, folds, options, asked.seen_context(), each)
    # A model that is not shown the port has nothing to beat but the ports, and those come first: see the card's coverage.
    methods = {} if options.ports_first else baselines.ALL
    temperatures, probabilities, depth_scores, beside = by_depth(flows, folds, scores, split, methods, say)
    named_before = options.ports_first & (port_guess >= 0)
    measured = calibrate.confidences(flows, probabilities, flows.input.depths, options.precision, options.min_confidence, named_before)
    # Below min_confidence an answer is unknown, so it cannot be sure.
    confidences = [max(c, options.min_confidence) for c in options.confidence or measured]
    contradiction = ports.contradictions(flows, probabilities, port_guess, options.min_confidence) if options.ports_first else None
    levels = confidences, options.min_confidence, port_guess, contradiction
    walk = lambda p: calibrate.walk(flows, p, flows.input.depths, *levels)
    walked = walk(probabilities)
    changed = in_integers(flows, probabilities, own, temperatures, confidences, walk, say)
    seen = ~flows.midstream
    covered = calibrate.coverage(flows.take(seen), *(w[seen] for w in walked))
    port_rows = ports.rows(flows, ports.table(flows, options.port_precision))
    ablation = ablated(flows, folds, options, say) if options.ablate and flows.input.context else {}
    left_out = {}
    if options.leave_labels_out:
        for platforms in ((), options.platforms) if options.platforms else ((),):
            found = leftout.measured(flows, options, trained, temperatures, confidences, say, platforms)
            left_out[platforms] = found, leftout.shared_prefixes(flows, platforms)
    by_rows = [(n, *calibrate.hosts(flows, probabilities, flows.input.depths, n)) for n in calibrate.FIRST_FLOWS] if options.hosts else []
    host_labels = None
    if options.hosts:
        host_labels = hosts.measured(flows, folds, probabilities, confidences, options.min_confidence, port_rows, port_guess)
    return Scored(folds, probabilities, temperatures, confidences, depth_scores, beside, port_rows, port_guess, contradiction, walked[1], walked[0], covered, ablation, left_out,
                  by_rows, host_labels, eight.rows(plain_score) if eight else [], changed)


def in_integers(flows, probabilities, own, temperatures, confidences, walk, say):
    """What integers change in the answers, for the card; none without a comparison, or if such
    graphs have no integers."""
    found = own and own.probabilities(temperatures)
    if not found:
        return None
    rows, line = integers.report(flows, probabilities, found, confidences, walk, plain_score)
    same = ", ".join(f"{row[4]} the same class at depth {row[0]}" for row in rows)
    say(f"in integers: {same}; {line}")
    return rows, line


def plain_score(truth, guess, count):
    rows = [r[2] for r in metrics.f1_by_class(truth, guess, count) if r[3]]
    return float(np.mean(truth == guess)), float(np.mean(rows))


def ablated(flows, folds, options, say):
    """Accuracy and macro-F1 by depth of models without the context, by one network that learns from the flows alone."""
    options, many = dataclasses.replace(options, nets=1), options.model == "net" and options.nets > 1
    bare_input = dataclasses.replace(flows.input, context=())
    bare = dataclasses.replace(flows, input=bare_input, context=np.zeros((len(flows.classes), 0), np.float32))
    if options.foreign is not None:
        none = np.zeros((len(options.foreign.classes), 0), np.float32)
        options = dataclasses.replace(options, foreign=dataclasses.replace(options.foreign, input=bare_input, context=none))
    say("the same without the context")
    scores = held_out(bare, folds, options)
    found = {}
    for depth in flows.input.depths:
        long = (flows.counts >= depth) & ~flows.midstream
        found[depth] = plain_score(flows.classes[long], scores[depth][long].argmax(axis=1), len(flows.names))
    return {"no context, one network" if many else "no context": found}


def port_remark(scored):
    """One plain line where a table of ports is as good."""
    last = [d for d in scored.depths if scored.depths[d]["flows"]]
    worse = [d for d in last if scored.baselines[d]["port table"][0] >= scored.depths[d]["accuracy"] - 0.01
             and scored.baselines[d]["port table"][1] >= scored.depths[d]["macro_f1"] - 0.01]
    if not worse:
        return ""
    return (
        f"a table of ports is as good as this model at depth {', '.join(map(str, worse))}: the ports tell these labels"
        " apart, and a rule by port costs nothing"
    )


def second(flows, options, say):
    """The same model scored by another split: flows and scores, or None."""
    if not options.second_split:
        return None
    flows = dataclasses.replace(flows, groups=flows.second_groups)
    alone = in_one_group(flows)
    if alone:
        say(f"not scored by {options.second_split}, because all its flows lie in one: {', '.join(flows.names[c] for c in alone)}")
        flows = flows.take(np.where(~np.isin(flows.classes, list(alone)))[0])
    plain = dataclasses.replace(options, ablate=False, leave_labels_out=False, hosts=False, int8=None,
                                integers=False)
    return flows, evaluate(flows, plain, options.second_split, say)


def run(flows, options, split, out, name, version, command, about="", say=table.note):
    """Everything; returns what was measured."""
    for folder in filter(None, (out, options.int8)):
        bundle.new_folder(folder)
    scored = evaluate(flows, options, split, say)
    other = second(flows, options, say)
    remark = "" if options.ports_first else port_remark(scored)
    if remark:
        say(remark)
    final = trained(flows, options)
    if options.ports_first:
        flows = ports.hidden(flows, ports.guesses(flows, ports.table(flows, options.port_precision)))
    temperatures = calibrate.by_count(flows.input.depths, scored.temperatures, flows.input.k)
    model = form(final, temperatures, name)
    compare_forms(final, model, flows, temperatures)
    files = {"CARD.md": card.text(flows, scored, options, split, name, version, final.description, command, about, remark, other)}
    taught = flows.beside(options.foreign) if options.foreign else flows
    if measured := ranges.measured(model, *ranges.rows_of(taught)):
        files[bundle.RANGES] = ranges.text(measured)
    for depth in flows.input.depths:
        files[f"reliability-{depth}.svg"] = metrics.reliability_svg(scored.depths[depth]["reliability"], f"{name}, depth {depth}")
    bundle.write(out, name, version, flows, model, scored.confidences, options.min_confidence, scored.ports, files,
                 hosts=scored.host_labels and scored.host_labels[0], contradiction=scored.contradiction)
    if options.held_out:
        heldout.write(options.held_out, flows, scored.folds, scored.probabilities)
    if options.int8:
        made = int8.of_model(model, flows)
        own = f"{name}-int8"
        files = {"CARD.md": int8.text(own, version, out.name, scored.int8, command)}
        bundle.write(options.int8, own, version, flows, made, scored.confidences, options.min_confidence, scored.ports, files, "int8",
                     contradiction=scored.contradiction)
    return scored


def compare_forms(final, model, flows, temperatures):
    """Refuses an ONNX model that does not compute what the network computes."""
    from . import runtime

    rows = slice(0, min(len(flows.series), 512))
    series, context = flows.series[rows], flows.context[rows]
    counts = flows.input.present(series).sum(axis=1)
    wanted = softmax(final.scores(series, context) / temperatures[counts][:, None])
    found = runtime.run_all(runtime.session(model), series, context)
    if np.abs(wanted - found).max() > 1e-3:
        raise AssertionError(f"the ONNX model differs from the network by {np.abs(wanted - found).max()}")
