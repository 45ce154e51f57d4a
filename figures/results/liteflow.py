"""Figures of LiteFlow (Zhang et al., SIGCOMM 2022)."""

from .run import Figure, Outcome

ENDING = ", onnxruntime"


def fig15(run):
    """Each model in ONNX Runtime, and in the engine with the best instructions here."""
    told = run.lab("engine", 20)
    ending = ", times faster"
    models = [line.removesuffix(ENDING) for line in told if line.endswith(ENDING)]
    rows, ratios = [], []
    for model in models:
        of_model = [line.removesuffix(ending) for line in told if line.endswith(ending)]
        own = next(it for it in of_model if it.startswith(model + ", ") and it != model + ENDING)
        rows += [[line, told[line][1]["value"] / 1e3] for line in (model + ENDING, own)]
        ratios.append(told[own + ending][1]["value"])
    why = (
        f"One series at once in the engine is {min(ratios):.1f} to {max(ratios):.1f} times as fast "
        "as in ONNX Runtime, in the same process. The paper's ratios, 2.0 and 3.7, are between "
        "programs on both sides of the kernel's border, which this does not show."
    )
    return Outcome(["device", "us_per_series"], rows, None, why, bars=dict(rows), y="µs a series")


FIGURES = [
    Figure(
        "liteflow-fig15",
        "LiteFlow, Fig. 15: latency of one inference",
        "A small network that runs where its input arises answers sooner than one that is asked "
        "in another place.",
        "real time",
        fig15,
    ),
]
