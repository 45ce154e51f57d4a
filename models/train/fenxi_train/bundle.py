"""Bundles: writing one to a new folder, reading one.  docs/model.md specifies the files."""

import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import tempfile
import tomllib

import numpy as np

from . import inputs, runtime
from .data import OUTLIERS
from .errors import CANNOT_CREATE, NO_INPUT, Refusal
from .inputs import TCP, UDP

GOLDEN_ROWS = 64
RANGES = "ranges.csv"
GOLDEN = "golden/inputs.csv", "golden/outputs.csv"


@dataclasses.dataclass
class Bundle:
    """A bundle that was read."""

    folder: pathlib.Path
    manifest: dict
    input: inputs.Input

    @property
    def labels(self):
        return [label["name"] for label in self.manifest["labels"]]

    @property
    def outlier(self):
        return next((n for n in self.labels if n in OUTLIERS), None)

    @property
    def confidences(self):
        default = [self.manifest.get("min_confidence", 0.0)] * len(self.input.depths)
        return self.manifest.get("confidence", default)

    @property
    def contradiction(self):
        """Levels by depth where ports come first, else None."""
        return self.manifest.get("contradiction")

    @property
    def port_classes(self):
        """(protocol, port) -> class, of the bundle's table of ports."""
        return {(TCP if p["protocol"] == "tcp" else UDP, p["port"]): (self.labels.index(p["label"]),) for p in self.manifest.get("ports", [])}

    @property
    def target(self):
        """What the labels are bands of, and their edges; else None."""
        target = self.manifest.get("target")
        return target and (target["of"], target["edges"])

    def session(self):
        return runtime.session(str(self.folder / self.manifest["file"]))

    def goldens(self):
        """Golden series, context and outputs."""
        rows, outputs = (
            np.loadtxt(self.folder / "golden" / name, np.float32, delimiter=",", ndmin=2)
            for name in ("inputs.csv", "outputs.csv")
        )
        size = len(self.input.features) * self.input.k
        return rows[:, :size].reshape(-1, len(self.input.features), self.input.k), rows[:, size:], outputs


def read(folder):
    folder = pathlib.Path(folder)
    try:
        manifest = tomllib.loads((folder / "model.toml").read_text())
    except FileNotFoundError:
        raise Refusal(f"{folder}: no bundle here: model.toml is missing", NO_INPUT) from None
    except (OSError, UnicodeDecodeError) as error:
        raise Refusal(f"{folder}/model.toml: {error}", NO_INPUT) from None
    except tomllib.TOMLDecodeError as error:
        raise Refusal(f"{folder}/model.toml: {error}") from None
    missing = [key for key in ("name", "version", "file", "k", "features", "labels") if key not in manifest]
    if missing:
        raise Refusal(f"{folder}/model.toml: no {', '.join(missing)}; see docs/model.md")
    return Bundle(folder, manifest, inputs.of_manifest(manifest))


def new_folder(folder):
    """Refuses a folder that exists already."""
    folder = pathlib.Path(folder)
    if os.path.lexists(folder):
        raise Refusal(f"{folder}: exists already, and no bundle is ever overwritten; give another --out", CANNOT_CREATE)
    if not folder.absolute().parent.is_dir():
        raise Refusal(f"{folder}: the folder above does not exist; create it first", CANNOT_CREATE)
    if not os.access(folder.absolute().parent, os.W_OK):
        raise Refusal(f"{folder}: no permission to write there; give another --out", CANNOT_CREATE)
    return folder


def golden_inputs(flows):
    """Series and context: flows of every class in turn, cut to each depth in turn, then extremes."""
    extreme_series, extreme_context = flows.input.extremes()
    order = np.random.default_rng(1).permutation(len(flows.series))
    queues = [[i for i in order if flows.classes[i] == c and flows.counts[i] > 0] for c in range(len(flows.names))]
    turns = []
    while len(turns) < GOLDEN_ROWS - len(extreme_series) and any(queues):
        turns += [queue.pop(0) for queue in queues if queue]
    turns = np.array(turns[: GOLDEN_ROWS - len(extreme_series)])
    depths = np.array([flows.input.depths[i % len(flows.input.depths)] for i in range(len(turns))])
    series = flows.input.cut(flows.series[turns], depths)
    return np.concatenate([series, extreme_series]), np.concatenate([flows.seen_context()[turns], extreme_context])


def write_rows(path, rows):
    """One row per line, the numbers exact (nine digits identify a float32)."""
    path.write_text("".join(",".join(f"{v:.9g}" for v in row.ravel()) + "\n" for row in rows))


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def quoted(text):
    """As TOML quotes."""
    return json.dumps(str(text), ensure_ascii=False)


def ranges_keys(text):
    """What the manifest says about the file with the ranges of a network's channels."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    return [f"ranges = {quoted(RANGES)}", f'ranges_sha256 = "{digest}"']


def manifest(name, version, flows, digests, confidences, min_confidence, ports, precision="fp32",
             midstream=False, hosts=None, contradiction=None, ranges=None, target=None, learn=None):
    """The text of model.toml; `digests` are the hashes of model, golden inputs and outputs, `ranges` is
    the text of the file with the ranges of its channels, `target` ("volume", "duration" or "rate",
    edges) says what the names of `flows` are bands of, `learn` how fenxi-tune came to it."""
    input = flows.input
    lines = [
        "# Written by fenxi-train; see CARD.md.",
        "schema_version = 1",
        f"name = {quoted(name)}",
        f"version = {quoted(version)}",
        'file = "model.onnx"',
        f'sha256 = "{digests[0]}"',
        f"golden_sha256 = {json.dumps(digests[1:])}",
        f"k = {input.k}",
        f'unit = "{input.unit}"',
        f"features = {json.dumps(input.features)}",
        f'precision = "{precision}"',
        f"min_confidence = {min_confidence}",
    ]
    if ranges:
        lines += ranges_keys(ranges)
    if len(input.depths) > 1:
        lines += [f"depths = {list(input.depths)}", f"confidence = {list(confidences)}"]
    if contradiction:
        lines.append(f"contradiction = {list(contradiction)}")
    if input.context:
        lines.append(f"context = {json.dumps(input.context)}")
    if midstream:
        lines.append("midstream = true")
    lines += ["", "[input]", 'name = "series"', ""]
    if input.context:
        lines += ["[context_input]", 'name = "context"', ""]
    lines += ["[output]", 'name = "probabilities"', "", "# In the order of the output's columns."]
    for label in flows.names:
        lines += ["[[labels]]", f"name = {quoted(label)}", f"taxonomy = {quoted(flows.taxonomy[label])}", ""]
    if ports:
        lines.append("# Ports that name a flow " + ("at once." if contradiction else "which ends before the model is sure."))
    for port in ports:
        lines += ["[[ports]]", f'protocol = "{port["protocol"]}"', f"port = {port['port']}",
                  f"label = {quoted(port['label'])}", f"precision = {port['precision']}", ""]
    if hosts:
        lines += ['# Hosts are named by the labels of their first flows; see "Hosts" in CARD.md.', "[hosts]",
                  *(f"{key} = {hosts[key]}" for key in ("flows", "min_flows", "confidence")), ""]
        if hosts["confusions"]:
            lines.append("# What held-out flows are that wrongly get a label; the rest of each is spread evenly.")
        for named, label, share in hosts["confusions"]:
            lines += ["[[hosts.confusions]]", f"named = {quoted(named)}", f"label = {quoted(label)}", f"share = {share}", ""]
    if target:
        of, edges = target
        lines += ["# The labels are bands of this, behind the packet that decides.", "[target]",
                  f"of = {quoted(of)}", f"edges = {[int(edge) for edge in edges]}", ""]
    if learn:
        lines += ["[learn]", *(f"{key} = {value}" for key, value in learn.items()), ""]
    return "\n".join(lines).rstrip() + "\n"


def write(folder, name, version, flows, model, confidences, min_confidence, ports, files, precision="fp32", hosts=None, contradiction=None,
          target=None, learn=None):
    """The bundle of a model given as bytes; `files` are further texts by name.  It appears whole or not at all."""
    folder = new_folder(folder)
    made = pathlib.Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.absolute().parent))
    try:
        os.chmod(made, 0o755)
        (made / "golden").mkdir()
        (made / "model.onnx").write_bytes(model)
        series, context = golden_inputs(flows)
        flat = np.concatenate([series.reshape(len(series), -1), context], axis=1)
        write_rows(made / "golden/inputs.csv", flat)
        write_rows(made / "golden/outputs.csv", runtime.run(runtime.session(model), series, context))
        digests = [sha256(made / file) for file in ("model.onnx", *GOLDEN)]
        text = manifest(name, version, flows, digests, confidences, min_confidence, ports, precision,
                        hosts=hosts, contradiction=contradiction, ranges=files.get(RANGES),
                        target=target, learn=learn)
        (made / "model.toml").write_text(text)
        for file, content in files.items():
            (made / file).write_text(content)
        made.rename(new_folder(folder))
    except OSError as error:
        raise Refusal(f"{folder}: {error.strerror or error}", CANNOT_CREATE) from None
    finally:
        shutil.rmtree(made, ignore_errors=True)
