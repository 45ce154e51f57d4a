"""The reference of the engine's arithmetic: against fp32 on golden rows, and against the engine itself, to the bit."""

import os
import pathlib
import shutil
import subprocess

import numpy as np
import pytest

from fenxi_train import bundle, ranges, reference, table
from fenxi_train.errors import Refusal

ROOT = pathlib.Path(__file__).resolve().parents[3]
NETWORKS = ("protocol", "app-id-k10", "fenxi-cnn-k10")
LAB = [ROOT / "models/train/lab" / name for name in ("odd_train.csv.gz", "odd_judge.csv.gz")]
ROWS = 100_000
AARCH64 = ROOT / "target/aarch64-unknown-linux-musl/release/examples"


def shipped(name):
    return bundle.read(ROOT / "models" / name)


def compiled(made):
    net = reference.read((made.folder / made.manifest["file"]).read_bytes())
    return reference.compiled(net, ranges.read(made.folder / made.manifest["ranges"]))


def in_parts(integers, series, context, size=10_000):
    """Classes and confidences of many rows, in bounded memory."""
    parts = [reference.run(integers, series[i : i + size], context[i : i + size])[:2] for i in range(0, len(series), size)]
    return tuple(np.concatenate(p) for p in zip(*parts))


def rows(made, rng, count=ROWS):
    """Series and context: real lengths of the laboratory, half of them a little off, cut to any depth; then uniform ones; then
    what no flow has."""
    read = table.read_all([str(path) for path in LAB])
    series, _ = table.series(read, made.input)
    context = table.context(read, made.input)
    chosen = rng.integers(0, len(series), count)
    series, context = series[chosen], context[chosen]
    off = rng.integers(-16, 17, series.shape) * ((rng.random(series.shape) < 0.5) & (series != 0))
    series = made.input.cut(series + off.astype(np.float32), rng.integers(1, made.input.k + 1, count))
    uniform, own_context = made.input.random(rng, count // 4)
    near = rng.random(len(uniform)) < 0.5
    uniform[near] = np.fix(uniform[near] / 40)
    series[: len(uniform)], context[: len(uniform)] = uniform, own_context
    odd = np.array([np.nan, np.inf, -np.inf, 1e30, -65_536, 70_000, 0.5, -0.5, 99.9, -99.9, -0.0], np.float32)
    places = rng.random((100, *series.shape[1:])) < 0.3
    series[:100][places] = rng.choice(odd, places.sum())
    return series, context


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


def test_powers_of_two_are_exact_to_their_last_digits():
    t = np.arange(32_768)
    found = reference.exp2(t)
    assert np.abs(found - 32_768 * 2.0 ** (-t / 2048)).max() < 5
    assert found.min() >= 0 and found.max() == 32_767


def test_the_exponent_is_exact_at_powers_of_two():
    assert list(reference.exponent(np.array([1, 2, 8, np.nextafter(8, 0), 0.5, 0.25, 3]))) == [0, 1, 3, 2, -1, -2, 1]


def test_halves_round_to_the_even_number():
    assert list(reference.rounded(np.array([0.5, 1.5, 2.5, -0.5, -1.5]))) == [0, 2, 2, 0, -2]


def small_net(scale, rng):
    """A network of one matrix over codes and one between activations, whose weights are `scale` large."""
    weights = lambda *shape: (rng.normal(0, 1, shape) * scale).astype(np.float64)
    first, second = (reference.Layer(n, weights(i, o), weights(o)) for n, i, o in (("a", 12, 8), ("b", 8, 6)))
    out = reference.Layer("out", weights(6, 4), weights(4))
    codes = rng.normal(0, 1, (50, 3))
    return reference.Net(rng.integers(0, 50, 131_071), codes, [first, second], out, np.array([1, 1, 0.5, 2, 1.0]),
                         np.zeros(65_536, int), np.zeros((1, 0)), np.zeros((1, 4)), False)


@pytest.mark.parametrize("scale", [1e-6, 1e-2, 1, 10])
@pytest.mark.parametrize("narrow", [1e-6, 1, 1e6])
def test_sums_stay_within_their_bits_whatever_the_ranges(scale, narrow):
    rng = np.random.default_rng(3)
    net = small_net(scale, rng)
    try:
        made = reference.compiled(net, {"a": np.full(8, narrow, np.float32), "b": np.full(6, narrow, np.float32)})
    except Refusal as refusal:
        assert scale * narrow >= 10 and str(refusal).startswith("out: ")
        return
    assert np.abs(made["t"]).max() <= 127 and np.abs(made["w1"]).max() <= 127 and np.abs(made["wo"]).max() <= 127
    assert np.abs(made["p"]).max() <= 32_767 and made["m"].max() <= 32_767 and made["m"].min() >= 0
    series = rng.integers(-65_535, 65_536, (500, 1, 4)).astype(np.float32)
    classes, confidences, weights = reference.run(made, series, np.zeros((500, 0), np.float32))
    assert (weights >= 0).all() and (weights.sum(axis=1) >= 32_767).all()
    assert ((confidences > 0) & (confidences <= 32_768)).all() and (classes < 4).all()


# Against the engine.


@pytest.fixture(scope="session")
def engine():
    """The folder of the engine's example programs, built if they are not."""
    if not (ROOT / "crates/engine").is_dir():
        pytest.skip("needs the crate engine")
    if not shutil.which("cargo"):
        pytest.skip("needs the program cargo")
    command = ["cargo", "build", "--quiet", "--release", "--package", "engine", "--examples"]
    subprocess.run(command, cwd=ROOT, check=True)
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release/examples"


def files(made):
    return [made.folder / made.manifest["file"], made.folder / made.manifest["ranges"]]


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
    own, theirs = compiled(shipped(name)), dumps[name]
    assert set(own) == set(theirs)
    # Codes may be numbered otherwise.
    pairs = np.unique(np.stack([own.pop("row"), theirs["row"]]), axis=1)
    for key in set(own) & {"t", "tap"}:
        assert (own.pop(key)[:, pairs[0]] == theirs[key][:, pairs[1]]).all(), key
    for key, values in own.items():
        assert values.shape == theirs[key].shape and (values == theirs[key]).all(), key


def answers(command, made, series, context):
    """Classes and confidences by the program `rows`."""
    given = np.concatenate([series.reshape(len(series), -1), context], axis=1).astype("<f4")
    done = subprocess.run([*command], input=given.tobytes(), capture_output=True, check=True)
    found = np.frombuffer(done.stdout, "<u2").reshape(-1, 2).astype(int)
    return found[:, 0], found[:, 1]


def compare(program, made, integers):
    """Holds every instruction set that a program lists against the reference."""
    series, context = rows(made, np.random.default_rng(1))
    wanted = in_parts(integers, series, context)
    listed = subprocess.run([*program, *files(made), "--list"], capture_output=True, check=True, text=True).stdout.split()
    assert listed
    for name in listed:
        found = answers([*program, *files(made), "--isa", name], made, series, context)
        different = (found[0] != wanted[0]) | (found[1] != wanted[1])
        assert len(found[0]) == len(series) and not different.any(), f"{name}: {different.sum()} rows, the first {different.argmax()}"


@pytest.mark.parametrize("name", NETWORKS)
def test_every_instruction_set_gives_the_same_answers(engine, dumps, name):
    compare([engine / "rows"], shipped(name), dumps[name])


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.skipif(not shutil.which("qemu-aarch64-static"), reason="needs the program qemu-aarch64-static")
@pytest.mark.skipif(not (AARCH64 / "rows").is_file(), reason=f"needs the engine's examples in {AARCH64}")
def test_aarch64_gives_the_same_answers(dumps, name):
    compare(["qemu-aarch64-static", AARCH64 / "rows"], shipped(name), dumps[name])
