"""The range that each channel of a network fills on real flows, for the engine's integers.

`ranges.csv` has a line for each ReLU in the order of the graph: the name of its output, then a
range for each of its channels, a convolution's over all places.  Trees have none, and a network in
8 bits has its own scales.
"""

import numpy as np
import onnx

from . import forest, runtime, table
from .bundle import RANGES, ranges_keys
from .errors import Refusal

QUANTILE = 0.9999  # the few numbers above it are cut, so that they do not coarsen all others
LEAST_SHARE = 1e-2  # of the layer's median channel: what a channel that is almost never used gets
ROWS_MAX = 65_536  # drawn from more, to bound memory


def layers(model):
    """Names of the outputs of all ReLUs of a model given as bytes; none if it has no ranges."""
    nodes = onnx.load_from_string(model).graph.node
    if any(node.op_type == "QuantizeLinear" for node in nodes):
        return []
    return [node.output[0] for node in nodes if node.op_type == "Relu"]


def with_output(model, name):
    """The same model with an inner value as its only output."""
    made = onnx.load_from_string(model)
    del made.graph.output[:]
    value = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
    made.graph.output.append(value)
    return made.SerializeToString()


def rows_of(flows):
    """Series and context of these flows as they were at each depth that they reached."""
    return drawn(flows.input, flows.series, flows.seen_context(), flows.counts)


def rows_of_tables(made, paths, joined=()):
    """The same of all flows in tables, labelled or not, as fenxi asks a bundle about them: without
    the port of a flow that began mid-stream, or that the port has named."""
    read = table.read_all(paths, joined)
    table.check_columns(read, paths, made.input)
    series, counts = table.series(read, made.input)
    hidden = table.midstream(read)
    if made.contradiction:
        hidden |= np.array([port in made.port_classes for port in table.ports(read)])
    return drawn(made.input, series, table.context(read, made.input, hidden), counts)


def drawn(input, series, context, counts):
    series, context, _ = forest.at_all_depths(input, series, context, counts)
    if len(series) <= ROWS_MAX:
        return series, context
    chosen = np.random.default_rng(1).permutation(len(series))[:ROWS_MAX]
    return series[chosen], context[chosen]


def measured(model, series, context):
    """The ranges of each layer by name, float32 [channels]; `model` is given as bytes."""
    found = {}
    for name in layers(model):
        values = runtime.run_all(runtime.session(with_output(model, name)), series, context)
        channels = np.moveaxis(values, 1, -1).reshape(-1, values.shape[1])
        found[name] = of_layer(channels)
    return found


def of_layer(values):
    """The range of each channel, from values [rows, channels] that are 0 or more."""
    high = np.quantile(values.astype(np.float64), QUANTILE, axis=0)
    least = LEAST_SHARE * np.median(values.max(axis=0))
    # If most channels are dead there is no median to go by; any range does for a channel of zeros.
    return np.maximum(high, least if least > 0 else 1.0).astype(np.float32)


def text(found):
    """The file; digits are as many as identify a float32."""
    number = lambda v: np.format_float_positional(v, trim="-")
    return "".join(",".join([name, *map(number, row)]) + "\n" for name, row in found.items())


def read(path):
    """The ranges in a file, as `measured` gives them."""
    found = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        name, *values = line.split(",")
        try:
            row = np.array(values, np.float32)
        except ValueError:
            row = np.zeros(0, np.float32)
        if not len(row) or not (np.isfinite(row) & (row > 0)).all():
            problem = "not a name and ranges above 0; write it with fenxi-train ranges"
            raise Refusal(f"{path}: line {number}: {problem}")
        found[name] = row
    return found


def write(made, series, context):
    """Writes the ranges of a bundle that exists, and the keys of its manifest."""
    found = measured((made.folder / made.manifest["file"]).read_bytes(), series, context)
    if not found:
        raise Refusal(f"{made.folder}: neither trees nor a network in 8 bits have ranges")
    manifest = made.folder / "model.toml"
    is_old = lambda line: line.startswith(("ranges =", "ranges_sha256 ="))
    lines = [line for line in manifest.read_text().splitlines() if not is_old(line)]
    at = next(i for i, line in enumerate(lines) if line.startswith("precision")) + 1
    replace(made.folder / RANGES, text(found))
    replace(manifest, "".join(f"{line}\n" for line in [*lines[:at], *ranges_keys(text(found)), *lines[at:]]))
    return found


def replace(path, content):
    """Writes a file so that it is never seen half."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(content)
    part.replace(path)
