"""Scores of probabilities against true classes."""

import numpy as np

BINS = 15
DECIDED = 0.8  # the level at which shares decided are compared between models


def f1_by_class(truth, guess, count):
    """Precision, recall, F1 and flows of each class."""
    rows = []
    for c in range(count):
        right = np.sum((guess == c) & (truth == c))
        guessed, true = np.sum(guess == c), np.sum(truth == c)
        precision, recall = right / guessed if guessed else 0.0, right / true if true else 0.0
        f1 = 2 * precision * recall / (precision + recall) if right else 0.0
        rows.append((precision, recall, f1, int(true)))
    return rows


def score(truth, probabilities):
    """Accuracy, macro-F1 over the classes that occur, calibration error, and what is decided at p >= 0.8."""
    guess, top = probabilities.argmax(axis=1), probabilities.max(axis=1)
    right = guess == truth
    by_class = f1_by_class(truth, guess, probabilities.shape[1])
    occurring = [row[2] for c, row in enumerate(by_class) if row[3]]
    share, precision = decided(right, top, DECIDED)
    return {
        "flows": len(truth),
        "accuracy": float(right.mean()) if len(truth) else 0.0,
        "macro_f1": float(np.mean(occurring)) if occurring else 0.0,
        "ece": calibration_error(right, top),
        "decided": share,
        "decided_right": precision,
        "by_class": by_class,
    }


def decided(right, top, level):
    """Share of flows whose top probability is at least `level`, and how many of those are right."""
    sure = top >= level
    return float(sure.mean()) if len(sure) else 0.0, float(right[sure].mean()) if sure.any() else 0.0


def reliability(right, top):
    """For each bin of probability: lower end, flows, mean probability, share right."""
    places = np.minimum((top * BINS).astype(int), BINS - 1)
    rows = []
    for b in range(BINS):
        own = places == b
        if own.any():
            rows.append((b / BINS, int(own.sum()), float(top[own].mean()), float(right[own].mean())))
    return rows


def calibration_error(right, top):
    """Mean difference between probability and share right, weighted by flows."""
    return float(sum(n * abs(p - r) for _, n, p, r in reliability(right, top)) / max(len(right), 1))


def reliability_svg(rows, title):
    """A reliability plot: share right over probability, the diagonal in grey."""
    side, margin = 320, 40
    x = lambda v: margin + v * (side - 2 * margin)
    y = lambda v: side - margin - v * (side - 2 * margin)
    most = max((n for _, n, _, _ in rows), default=1)
    dots = "".join(
        f'<circle cx="{x(p):.1f}" cy="{y(r):.1f}" r="{2 + 8 * (n / most) ** 0.5:.1f}" fill="#1f77b4" fill-opacity="0.7"/>'
        for _, n, p, r in rows
    )
    text = lambda a, b, t: f'<text x="{a}" y="{b}" font-family="sans-serif" font-size="11" text-anchor="middle">{t}</text>'
    marks = "".join(text(f"{x(v):.0f}", side - margin + 14, v) + text(margin - 14, f"{y(v) + 4:.0f}", v) for v in (0, 0.5, 1))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{side}" height="{side}" viewBox="0 0 {side} {side}">'
        f'<rect width="{side}" height="{side}" fill="white"/>'
        f'<rect x="{x(0)}" y="{y(1)}" width="{side - 2 * margin}" height="{side - 2 * margin}" fill="none" stroke="#888"/>'
        f'<line x1="{x(0)}" y1="{y(0)}" x2="{x(1)}" y2="{y(1)}" stroke="#bbb"/>{dots}{marks}'
        f"{text(side / 2, 24, title)}{text(side / 2, side - 8, 'probability (dots: share right, size: flows)')}</svg>\n"
    )
