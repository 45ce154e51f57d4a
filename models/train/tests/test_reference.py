"""The reference of the engine's arithmetic: near fp32, and the engine's own to the bit."""

import os
import pathlib
import shutil
import subprocess

import numpy as np
import onnx
import pytest
from conftest import FAST

from fenxi_train import bundle, ranges, reference, reference_int8, reference_trees, runtime
from fenxi_train import table as tables
from fenxi_train.errors import Refusal
from fenxi_train.network import softmax

ROOT = pathlib.Path(__file__).resolve().parents[3]
NETWORKS = ("protocol", "protocol-small", "app-id-k10", "fenxi-cnn-k10")
FOREST, EIGHT_BITS = "iot-family", ("protocol-int8", "app-id-k10-int8")
LAB = [ROOT / "models/train/lab" / name for name in ("odd_train.csv.gz", "odd_judge.csv.gz")]
ROWS = 100_000
ODD = (np.nan, np.inf, -np.inf, 1e30, -65_536, 70_000, 0.5, -0.5, 99.9, -99.9, -0.0)
AARCH64 = "aarch64-unknown-linux-musl"
EMULATOR = "qemu-aarch64-static"
WHOLE_EMULATED = "protocol", FOREST


def shipped(name):
    return bundle.read(ROOT / "models" / name)


def compiled(made):
    net = reference.read((made.folder / made.manifest["file"]).read_bytes())
    return reference.compiled(net, ranges.read(made.folder / made.manifest["ranges"]))


def forest(made):
    return reference_trees.read((made.folder / made.manifest["file"]).read_bytes())


def in_parts(integers, series, context, size=10_000):
    """Classes and confidences of many rows, in bounded memory."""
    parts = [reference.run(integers, *part)[:2] for part in cut(series, context, size)]
    return tuple(np.concatenate(p) for p in zip(*parts))


def cut(series, context, size):
    return [(series[i : i + size], context[i : i + size]) for i in range(0, len(series), size)]


def rows(made, rng, count=ROWS):
    """Series and context: real lengths of the laboratory, half of them a little off, cut to any
    depth; a quarter of uniform ones; and some of what no flow has."""
    read = tables.read_all([str(path) for path in LAB])
    series, _ = tables.series(read, made.input)
    context = tables.context(read, made.input)
    chosen = rng.integers(0, len(series), count)
    series, context = series[chosen], context[chosen]
    off = rng.integers(-16, 17, series.shape) * ((rng.random(series.shape) < 0.5) & (series != 0))
    depths = rng.integers(1, made.input.k + 1, count)
    series = made.input.cut(series + off.astype(np.float32), depths)
    uniform, own_context = made.input.random(rng, count // 4)
    near = rng.random(len(uniform)) < 0.5
    uniform[near] = np.fix(uniform[near] / 40)
    series[: len(uniform)], context[: len(uniform)] = uniform, own_context
    places = rng.random((100, *series.shape[1:])) < 0.3
    series[:100][places] = rng.choice(ODD, places.sum()).astype(np.float32)
    context[:200] = rng.choice([*ODD, *range(20)], context[:200].shape).astype(np.float32)
    return series, context


def usual_rows(made, count=ROWS):
    """The same of whole numbers that a flow may have."""
    series, context = rows(made, np.random.default_rng(1), count)
    limit = np.float32(65_535)
    series, context = (np.clip(np.nan_to_num(np.fix(v)), -limit, limit) for v in (series, context))
    return series, np.maximum(context, 0)


@pytest.mark.parametrize("name", NETWORKS)
def test_golden_rows_are_as_in_fp32(name):
    made = shipped(name)
    series, context, outputs = made.goldens()
    classes, confidences, weights = reference.run(compiled(made), series, context)
    sure = outputs.max(axis=1) >= 0.85
    assert sure.sum() >= 10 and (classes == outputs.argmax(axis=1))[sure].all()
    assert (classes == outputs.argmax(axis=1)).mean() > 0.95
    assert np.abs(confidences / 32768 - outputs.max(axis=1)).max() < 0.05
    assert np.abs(weights / weights.sum(axis=1, keepdims=True) - outputs).max() < 0.05


def test_a_forest_is_as_in_fp32():
    made = shipped(FOREST)
    series, context, outputs = made.goldens()
    classes, confidences = reference_trees.run(forest(made), series, context)
    assert (classes == outputs.argmax(axis=1)).all()
    assert np.abs(confidences - outputs.max(axis=1)).max() < 1e-5


@pytest.mark.parametrize("name", EIGHT_BITS)
def test_a_network_in_8_bits_has_the_scores_of_onnx_runtime(name):
    made = shipped(name)
    series, context = usual_rows(made, 5_000)
    model = (made.folder / made.manifest["file"]).read_bytes()
    before = onnx.load_from_string(model).graph.node[-1].input[0]
    wanted = runtime.run_all(runtime.session(ranges.with_output(model, before)), series, context)
    assert (reference_int8.scores(model, series, context) == wanted).all()


def test_powers_of_two_are_exact_to_their_last_digits():
    t = np.arange(32_768)
    found = reference.exp2(t)
    assert np.abs(found - 32_768 * 2.0 ** (-t / 2048)).max() < 5
    assert found.min() >= 0 and found.max() == 32_767


def test_the_exponent_is_exact_at_powers_of_two():
    values = np.array([1, 2, 8, np.nextafter(8, 0), 0.5, 0.25, 3])
    assert list(reference.exponent(values)) == [0, 1, 3, 2, -1, -2, 1]


def test_halves_round_to_the_even_number():
    assert list(reference.rounded(np.array([0.5, 1.5, 2.5, -0.5, -1.5]))) == [0, 2, 2, 0, -2]


def small_net(scale, rng):
    """A network of one matrix over codes and one between activations."""
    weights = lambda *shape: rng.normal(0, 1, shape) * scale
    sizes = ("a", 12, 8), ("b", 8, 6), ("out", 6, 4)
    *layers, out = (reference.Layer(name, weights(i, o), weights(o)) for name, i, o in sizes)
    codes, row = rng.normal(0, 1, (50, 3)), rng.integers(0, 50, 131_071)
    context = np.zeros(65_536, int), np.zeros((1, 0)), np.zeros((1, 4)), np.zeros((1, 0))
    return reference.Net(row, codes, layers, out, np.array([1, 1, 0.5, 2, 1.0]), *context)


@pytest.mark.parametrize("scale", [1e-6, 1e-2, 1, 10])
@pytest.mark.parametrize("narrow", [1e-6, 1, 1e6])
def test_sums_stay_within_their_bits_whatever_the_ranges(scale, narrow):
    rng = np.random.default_rng(3)
    found = {name: np.full(count, narrow, np.float32) for name, count in (("a", 8), ("b", 6))}
    try:
        made = reference.compiled(small_net(scale, rng), found)
    except Refusal as refusal:
        assert scale * narrow >= 10 and str(refusal).startswith("out: ")
        return
    weights = made["hidden0.weights"], made["output.weights"]
    assert all(np.abs(values).max() <= 2047 for values in weights)
    assert np.abs(made["first.port"]).max() <= 32_767 >= np.abs(made["first.tables"]).max()
    series = rng.integers(-65_535, 65_536, (500, 1, 4)).astype(np.float32)
    classes, confidences, weights = reference.run(made, series, np.zeros((500, 0), np.float32))
    assert (weights >= 0).all() and (weights.sum(axis=1) >= 32_767).all()
    assert ((confidences > 0) & (confidences <= 32_768)).all() and (classes < 4).all()


# Against the engine.


def missing(what):
    """Skips a test that needs something, or fails where all tests have to run."""
    (pytest.fail if os.environ.get("FENXI_REQUIRE_ALL") == "1" else pytest.skip)(f"needs {what}")


def built(*options):
    command = ["cargo", "build", "--quiet", "--release", "--package", "engine", "--examples", *options]
    # Rust's own linker, for no other of another processor need be there.
    linker = {"CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER": "rust-lld"}
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **linker}).returncode == 0


def folder_of(*machine):
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return target.joinpath(*machine, "release/examples")


@pytest.fixture(scope="session")
def engine():
    """The folder of the engine's example programs, built if they are not."""
    if not (ROOT / "crates/engine").is_dir():
        pytest.skip("needs the crate engine")
    if not shutil.which("cargo"):
        missing("the program cargo")
    assert built()
    return folder_of()


@pytest.fixture(scope="session")
def programs(engine):
    """The program `rows` of this machine and, where it can be emulated, of aarch64."""
    found = [[engine / "rows"]]
    if shutil.which(EMULATOR) and built("--target", AARCH64):
        found.append([EMULATOR, folder_of(AARCH64) / "rows"])
    return found


def test_the_instruction_sets_of_aarch64_are_among_those_that_are_held(programs):
    if len(programs) == 1:
        missing(f"{EMULATOR} and the Rust target {AARCH64}")
    assert {"neon", "neon-dotprod"} < set(instruction_sets(programs[1], shipped(FOREST)))


def files(made):
    """The model, and its ranges if it has any."""
    return [made.folder / made.manifest[key] for key in ("file", "ranges") if key in made.manifest]


@pytest.fixture(scope="session")
def dumps(engine, tmp_path_factory):
    """The integers that the engine compiled, by bundle."""
    folder, found = tmp_path_factory.mktemp("dumps"), {}
    for name in NETWORKS:
        subprocess.run([engine / "dump", *files(shipped(name)), folder / name], check=True)
        found[name] = reference.load(folder / name)
    return found


@pytest.mark.parametrize("name", NETWORKS)
def test_the_engine_compiles_the_same_integers(dumps, name):
    own, theirs = compiled(shipped(name)), dict(dumps[name])
    assert set(own) == set(theirs)
    # Rows of tables may be numbered otherwise.
    codes = np.unique(np.stack([own.pop("elements"), theirs["elements"]]), axis=1)
    for key in set(own) & {"first.tables", "first.taps"}:
        assert (own.pop(key)[:, codes[0]] == theirs[key][:, codes[1]]).all(), key
    if "ports" in own:
        ports = own.pop("ports"), theirs["ports"]
        for key in ("first.port", "output.scores"):
            assert (own.pop(key)[ports[0]] == theirs[key][ports[1]]).all(), key
        # The last row counts for all protocols beyond.
        last = len(theirs["first.protocol"]) - 1
        protocols = np.minimum(np.arange(len(own["first.protocol"])), last)
        assert (own.pop("first.protocol") == theirs["first.protocol"][protocols]).all()
    for key, values in own.items():
        assert values.shape == theirs[key].shape and (values == theirs[key]).all(), key


def instruction_sets(program, made):
    command = [*program, *files(made), "--list"]
    listed = subprocess.run(command, capture_output=True, check=True, text=True).stdout.split()
    assert listed
    return listed


def answers(program, made, series, context, name, kind="<u2"):
    """Classes and confidences by the program `rows` and an instruction set."""
    given = np.concatenate([series.reshape(len(series), -1), context], axis=1).astype("<f4")
    command = [*program, *files(made), "--isa", name, *(["--float"] if kind == "<f4" else [])]
    done = subprocess.run(command, input=given.tobytes(), capture_output=True, check=True)
    found = np.frombuffer(done.stdout, [("class", "<u2"), ("confidence", kind)])
    assert len(found) == len(series)
    return found["class"].astype(int), found["confidence"]


def hold(program, made, series, context, wanted, kind="<u2"):
    """Holds every instruction set that a program lists against these classes and confidences.
    Emulated, only the quick ones get all rows."""
    for name in instruction_sets(program, made):
        is_quick = EMULATOR not in program or made.folder.name in WHOLE_EMULATED and name != "scalar"
        part = slice(None, None, 1 if is_quick else 8)
        classes, confidences = answers(program, made, series[part], context[part], name, kind)
        different = (classes != wanted[0][part]) | (confidences != wanted[1][part])
        assert not different.any(), f"{name}: {different.sum()} rows, first {different.argmax()}"


@pytest.mark.parametrize("name", NETWORKS)
def test_every_instruction_set_gives_the_same_answers(programs, dumps, name):
    made = shipped(name)
    given = rows(made, np.random.default_rng(1))
    for program in programs:
        hold(program, made, *given, in_parts(dumps[name], *given))


FITTED = [
    ("--depths", "2,3,5", "--context", "protocol,server_port", "--hidden", "16"),
    ("--k", "5", "--context", "protocol", "--hidden", "8,8"),
    ("--k", "5", "--features", "payload_length", "--hidden", "10,8,6"),
    ("--depths", "2,5", "--network", "cnn", "--hidden", "20"),
]


@pytest.mark.parametrize("options", FITTED)
def test_other_networks_have_the_same_answers(fenxi_train, programs, table, tmp_path, options):
    fast = [o for o in FAST if o not in ("--hidden", "16")]
    code, _, err = fenxi_train("fit", table, "--out", tmp_path / "b", *options, *fast)
    assert code == 0, err
    made = bundle.read(tmp_path / "b")
    series, context = made.input.random(np.random.default_rng(1), 20_000)
    series[:10_000] = np.fix(series[:10_000] / 40)
    wanted = in_parts(compiled(made), series, context)
    for program in programs:
        hold(program, made, series, context, wanted)


def test_every_instruction_set_gives_the_same_answers_of_a_forest(programs):
    made = shipped(FOREST)
    given = rows(made, np.random.default_rng(1))
    for program in programs:
        hold(program, made, *given, reference_trees.run(forest(made), *given), "<f4")


@pytest.mark.parametrize("name", EIGHT_BITS)
def test_every_instruction_set_gives_the_same_answers_in_8_bits(programs, name):
    made = shipped(name)
    given = usual_rows(made)
    model = (made.folder / made.manifest["file"]).read_bytes()
    scores = np.concatenate([reference_int8.scores(model, *part) for part in cut(*given, 5_000)])
    native = programs[0]
    tried = subprocess.run([*native, *files(made)], input=b"", capture_output=True)
    if tried.returncode:
        pytest.skip(f"needs an engine that takes {name}: {tried.stderr.decode().strip()}")
    first = answers(native, made, *given, instruction_sets(native, made)[0], "<f4")
    assert (first[0] == scores.argmax(axis=1)).all()
    assert np.abs(first[1] - softmax(scores.astype(np.float64)).max(axis=1)).max() < 2e-6
    for program in programs:
        hold(program, made, *given, first, "<f4")
