"""Scores of the network, of its int8 form and of three baselines, each on both splits, as JSON.

Baselines, on the same flows and folds: always the commonest class; the commonest class of the
training folds for (IP protocol, lower port), the commonest of all where that pair is new; a
random forest of 300 trees on the same numbers.  Scores are taken over the pooled predictions of the
five folds; macro-F1 is the mean over the classes that occur.  The int8 form is made of each fold's
network, calibrated on its training flows; its "agreement" is the share of flows that get the class
which the same network gives them in fp32.
"""

import argparse
import collections
import json

import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import accuracy_score, f1_score

import dataset
import export
import quantize
import runtime
import train

SEEDS = (1, 2, 3)


def commonest(values):
    return collections.Counter(values).most_common(1)[0][0]


def port_table(flows, rows, test):
    """Classes of the test rows by what their ports carried in the training rows."""
    votes = collections.defaultdict(list)
    for i in rows:
        votes[flows.ports[i]].append(flows.classes[i])
    fallback = commonest(flows.classes[rows])
    return [commonest(votes[flows.ports[i]]) if flows.ports[i] in votes else fallback for i in test]


def forest(flows, rows, test):
    model = RandomForestClassifier(300, random_state=1, n_jobs=-1)
    numbers = flows.series.reshape(len(flows.series), -1)
    return model.fit(numbers[rows], flows.classes[rows]).predict(numbers[test])


def folded(flows, split, classify):
    """The pooled predictions of the five folds; `classify` gives the classes of (flows, training rows, test rows)."""
    guess = np.zeros(len(flows.classes), int)
    for rows, test in dataset.folds(flows, split):
        guess[test] = classify(flows, rows, test)
    return guess


def networks(flows, rows, test, seed):
    """Classes of the test rows by the network, in fp32 and in int8."""
    params = train.fit(flows.series[rows], flows.classes[rows], len(flows.names), seed)
    int8 = quantize.quantized(export.model(params, len(flows.names)), flows.series[rows])
    probabilities = runtime.run(runtime.session(int8), flows.series[test])
    return train.predict(params, flows.series[test]), probabilities.argmax(axis=1)


def score(flows, guess):
    """Accuracy, macro-F1 and F1 by class of one guess per flow."""
    numbers = range(len(flows.names))
    by_class = f1_score(flows.classes, guess, labels=numbers, average=None, zero_division=0)
    return {
        "accuracy": accuracy_score(flows.classes, guess),
        "macro_f1": float(np.mean(by_class)),
        "f1": dict(zip(flows.names, map(float, by_class))),
    }


def evaluate(flows, split):
    """Scores by method; the network once per seed, because its result depends on it."""
    guesses = collections.defaultdict(lambda: np.zeros(len(flows.classes), int))
    guesses["commonest"][:] = commonest(flows.classes)
    for rows, test in dataset.folds(flows, split):
        guesses["port table"][test] = port_table(flows, rows, test)
        guesses["random forest"][test] = forest(flows, rows, test)
        for seed in SEEDS:
            fp32, int8 = f"network, seed {seed}", f"int8, seed {seed}"
            guesses[fp32][test], guesses[int8][test] = networks(flows, rows, test, seed)
    scores = {method: score(flows, guess) for method, guess in guesses.items()}
    for seed in SEEDS:
        equal = guesses[f"int8, seed {seed}"] == guesses[f"network, seed {seed}"]
        scores[f"int8, seed {seed}"]["agreement"] = float(np.mean(equal))
    return scores


def main():
    parser = argparse.ArgumentParser(description="score the network and the baselines")
    parser.add_argument("table", help="train.csv.gz")
    parser.add_argument("scores", help="file to write (.json)")
    args = parser.parse_args()
    flows = dataset.load(args.table)
    scores = {split: evaluate(flows, split) for split in ("captures", "flows")}
    for split, methods in scores.items():
        for method, s in methods.items():
            print(f"{split:9} {method:16} accuracy {s['accuracy']:.3f}  macro-F1 {s['macro_f1']:.3f}")
    with open(args.scores, "w") as file:
        json.dump(scores, file, indent=1)


if __name__ == "__main__":
    main()
