"""The three interfaces of LiteFlow (SIGCOMM 2022, section 4.1), which fenxi-tune drives.

A tuner is a class with `adapt`, `evaluate` and `freeze`.  It gets samples as arrays (Batch) and may
use any framework to learn from them.  To tune a model of another kind, derive from Tuner and give
the class to tune.Service.
"""

import abc
import collections
import dataclasses
import json
import os

import numpy as np

from . import bundle, calibrate, forest, forestgraph, volume
from .errors import USAGE, Refusal
from .network import softmax
from .series import micros

LEARNABLE = ("signed_length", "inter_arrival_us")  # the features that samples hold
SAMPLES_MIN = 300  # fewer make no model
LABELS_BYTES_MAX = 64 << 20


@dataclasses.dataclass
class Batch(volume.Asked):
    """Samples with their classes, in the order in which they came.

    series    float32 [samples, features, k]: a channel for each feature, 0 behind the depth
    context   float32 [samples, numbers]: in the order of input.context
    counts    int [samples]: the depth, one of input.depths
    began_us  int [samples]: when the flow began, us since the epoch
    weights   float [samples]: how many flows a sample stands for
    classes   int [samples]: column of the true label
    """

    classes: np.ndarray


class Tuner(abc.ABC):
    """A model that learns on.  `like` is the bundle that it starts from.  What it writes has the
    same inputs, labels and target, or fenxi refuses it."""

    error = 0.0  # standard error of the stability, if it is a mean over samples

    def __init__(self, like):
        missing = [name for name in like.input.features if name not in LEARNABLE]
        if missing:
            text = f"feature {', '.join(missing)}: samples do not hold it"
            raise Refusal(f"{like.folder}: {text}", USAGE)
        self.like = like

    @abc.abstractmethod
    def adapt(self, batch):
        """Learns from the samples that came since the last call.  Only this may take seconds."""

    @abc.abstractmethod
    def evaluate(self, batch):
        """(stability, outputs) of the model as it is.

        The stability is a number, such as a loss, that settles once learning has converged; nan as
        long as there is no model.  The outputs are probabilities, float32 [samples, labels].
        """

    @abc.abstractmethod
    def freeze(self, folder, version, learn):
        """Writes the model as a bundle to this new folder; `learn` is the table [learn] of its
        model.toml."""

    def write(self, folder, version, learn, batch, model, files):
        """The bundle of a model in ONNX, with further files by name; golden rows are of the batch."""
        like, manifest = self.like, self.like.manifest
        taxonomy = {label["name"]: label["taxonomy"] for label in manifest["labels"]}
        flows = volume.Flows(like.input, batch.series, batch.context, batch.counts, batch.classes,
                             like.labels, taxonomy)
        bundle.write(folder, manifest["name"], version, flows, model, like.confidences,
                     manifest.get("min_confidence", 0.0), manifest.get("ports", []), files,
                     contradiction=like.contradiction, target=like.target, learn=learn)


class Forest(Tuner):
    """A forest over a living window: at each depth the last `window` samples.  Every `adapt` grows
    it anew.  The stability is the log loss on the newest fifth of the window of a forest of the
    others."""

    def __init__(self, like, window=20_000, size=forest.Size(leaf=6, features=0.4), seed=1):
        super().__init__(like)
        self.size, self.seed = size, seed
        self.rows = {depth: collections.deque(maxlen=window) for depth in like.input.depths}
        self.window = self.forest = None
        self.loss = float("nan")

    def adapt(self, batch):
        asked = batch.series, batch.context, batch.counts, batch.began_us, batch.weights
        for row in zip(*asked, batch.classes):
            self.rows[row[2]].append(row)
        rows = sorted((row for rows in self.rows.values() for row in rows), key=lambda row: row[3])
        if len(rows) < SAMPLES_MIN:
            return
        self.window = Batch(self.like.input, *(np.array(column) for column in zip(*rows)))
        self.forest, self.temperatures, (self.loss, self.error) = volume.grown_in_time(
            self.window, self.window.classes, len(self.like.labels), self.size, self.seed
        )

    def evaluate(self, batch):
        input = self.like.input
        if self.forest is None:
            shape = len(batch.counts), len(self.like.labels)
            return self.loss, np.full(shape, np.nan, np.float32)
        by_count = calibrate.by_count(input.depths, self.temperatures, input.k)
        scores = self.forest.scores(batch.series, batch.context)
        return self.loss, softmax(scores / by_count[batch.counts][:, None]).astype(np.float32)

    def freeze(self, folder, version, learn):
        input = self.like.input
        by_count = calibrate.by_count(input.depths, self.temperatures, input.k)
        model = forestgraph.model(self.forest, by_count, self.like.manifest["name"])
        self.write(folder, version, learn, self.window, model, {})


class Flow:
    """The teacher of bands: a flow tells itself what it weighed."""

    may_come_later, truths = False, ()

    def __init__(self, like):
        if not like.target:
            text = "its labels are no bands; a teacher is needed: --labels"
            raise Refusal(f"{like.folder}: {text}", USAGE)
        self.labels = like.labels

    def refresh(self):
        pass

    def label(self, sample):
        """The true label of a sample, or None."""
        return (sample.get("truth") or {}).get("label")


class Operator:
    """The teacher of classes: an operator's file of labels, read again when it has changed.

    A line names a flow as flow records do, so a record with another label will do:
    {"first": "2026-11-27T09:00:00.123456Z", "proto": 6, "src_port": 40000, "dst_port": 443,
    "label": "video"}.  `truths` are those with src_port, without which fenxi does not know them, by
    their time.
    """

    may_come_later = True

    def __init__(self, like, path):
        self.labels, self.path = like.labels, path
        self.outlier = like.outlier
        self.read_at, self.by_flow, self.truths = None, {}, ()

    def label(self, sample):
        key = sample["proto"], sample["server_port"], sample["began_us"]
        found = self.by_flow.get(key)
        return found if found in self.labels else found and self.outlier

    def refresh(self):
        """Reads the file if it has changed; a Refusal leaves what was known."""
        try:
            now = os.stat(self.path)
            if self.read_at == (now.st_mtime_ns, now.st_size):
                return
            if now.st_size > LABELS_BYTES_MAX:
                raise Refusal(f"{self.path}: {now.st_size:,} bytes; remove old labels")
            with open(self.path, encoding="utf-8") as file:
                truths = [truth_of(line) for line in file if line.strip()]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            text = f"{error}; a line is a JSON object with a flow and its label"
            raise Refusal(f"{self.path}: {text}") from None
        self.read_at = (now.st_mtime_ns, now.st_size)
        self.by_flow = {(t["proto"], t["dst_port"], t["first_us"]): t["label"] for t in truths}
        self.truths = sorted(filter(is_whole, truths), key=lambda truth: truth["first_us"])


def truth_of(line):
    """A flow and its label, as fenxi reads them."""
    given = json.loads(line)
    truth = {name: given[name] for name in ("proto", "dst_port")}
    truth |= {"first_us": micros(given["first"]), "label": str(given["label"])}
    return truth | ({"src_port": given["src_port"]} if "src_port" in given else {})


def is_whole(truth):
    """Whether fenxi takes it: it refuses all where one is not."""
    numbers = (truth["proto"], 255), (truth["dst_port"], 65_535), (truth.get("src_port"), 65_535)
    return bool(truth["label"]) and all(type(number) is int and 0 <= number <= most for number, most in numbers)


def batch_of(samples, teacher, like):
    """The samples, dictionaries as they came, whose label is known: as arrays, or None if there are
    none.  And those whose label may still come."""
    rows, later = [], []
    for sample in samples:
        label = teacher.label(sample)
        if label in like.labels:
            rows.append((*volume.asked_of(sample, like.input), like.labels.index(label)))
        elif teacher.may_come_later:
            later.append(sample)
    batch = Batch(like.input, *(np.array(column) for column in zip(*rows))) if rows else None
    return batch, later
