"""How well a model holds with other seeds: what `fenxi-train fit` measures, by seed and source.

usage: seeds.py DEPTH SEED,SEED,... FIT-OPTIONS     fit's options without --out and --seed

For the flows that reach DEPTH: the share named by the answer there with p of --min-confidence, and
right of these; the same by the whole walk; the calibration error, and the error of perfectly calibrated
models on as many flows (mean and 95% quantile of 500 drawn ones). Last the share of --foreign flows
that get a name at DEPTH, each source left out of training in turn.
It needs PYTHONPATH=models/train and the packages of requirements.lock.
"""

import dataclasses
import sys

import numpy as np

from fenxi_train import calibrate, cli, data, fit, metrics, ports
from fenxi_train.network import softmax

DRAWN = 500


def shares(named, right):
    return f"{named.mean():.3f} {right[named].mean():.3f}" if named.any() else "0.000 -"


def perfect(top):
    """Calibration errors of models whose probabilities are right."""
    rng = np.random.default_rng(1)
    drawn = [metrics.calibration_error(rng.random(len(top)) < top, top) for _ in range(DRAWN)]
    return np.mean(drawn), np.quantile(drawn, 0.95)


def held_out(flows, options, split, depth):
    """Prints the rows of one seed; gives the temperature of the depth."""
    folds = fit.folds_of(flows, options, split)
    scores = fit.held_out(flows, folds, options)
    temperatures, probabilities = {}, {}
    for d in flows.input.depths:
        long = (flows.counts >= d) & ~flows.midstream
        temperatures[d] = calibrate.temperature(scores[d][long], flows.classes[long])
        probabilities[d] = softmax(scores[d] / temperatures[d])
    port_guess = ports.held_out(flows, folds, options.port_precision)
    least, none = options.min_confidence, np.zeros(len(flows.classes), bool)
    levels = calibrate.confidences(
        flows, probabilities, flows.input.depths, options.precision, least, none
    )
    levels = [max(v, least) for v in levels]
    answer, _ = calibrate.walk(flows, probabilities, flows.input.depths, levels, least, port_guess)
    long = (flows.counts >= depth) & ~flows.midstream
    for source in ("all", *sorted(set(flows.sources[long]))):
        own = long & ((flows.sources == source) | (source == "all"))
        p, truth = probabilities[depth][own], flows.classes[own]
        top, guess = p.max(axis=1), p.argmax(axis=1)
        at_depth = shares((guess != flows.outlier) & (top >= least), guess == truth)
        in_the_end = shares(answer[own] >= 0, answer[own] == truth)
        error, (mean, high) = metrics.calibration_error(guess == truth, top), perfect(top)
        print(
            f"seed {options.seed}, {source}: {own.sum()} flows, answer {at_depth}, walk"
            f" {in_the_end}, ECE {error:.3f}, of a perfect model {mean:.3f}, {high:.3f}",
            flush=True,
        )
    return temperatures[depth]


def foreign_named(flows, options, depth, temperature):
    """Share of the foreign flows that get a name."""
    foreign, found = options.foreign, []
    projects = np.array([n.split("\0")[0] for n in foreign.sources])
    for project in sorted(set(projects)):
        others = projects != project
        taught = foreign.take(others) if others.any() else None
        made = fit.trained(flows, dataclasses.replace(options, foreign=taught))
        own = foreign.take(~others & (foreign.counts >= depth) & ~foreign.midstream)
        scores = made.scores(flows.input.cut(own.series, depth), own.seen_context())
        p = softmax(scores / temperature)
        named = p.argmax(axis=1) != flows.outlier
        found.append(named & (p.max(axis=1) >= options.min_confidence))
    return np.concatenate(found)


def main(depth, seeds, *arguments):
    args = cli.parser().parse_args(["fit", *arguments, "--out", "none"])
    flows, options = cli.flows_and_options(args)
    for seed in cli.whole_numbers(seeds):
        options = dataclasses.replace(options, seed=seed)
        temperature = held_out(flows, options, args.split_by, int(depth))
        if options.foreign is not None:
            named = foreign_named(flows, options, int(depth), temperature)
            share = f"{len(named)} flows, named {named.mean():.4f}"
            print(f"seed {seed}, foreign: {share}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
