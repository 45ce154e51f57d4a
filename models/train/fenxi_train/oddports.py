"""Flows of a laboratory, on ports that say nothing: for training only."""

import numpy as np

from . import data, table


def load(paths, flows, column):
    """The flows of these tables with the input and the classes of `flows`, without a port."""
    read = table.read_all(paths, [])
    table.check_columns(read, paths, flows.input)
    series, counts = table.series(read, flows.input)
    labels, count = np.array([data.label_of(r, column) for r in read.rows]), len(series)
    index = {n: i for i, n in enumerate(flows.names)}
    known = np.array([n in index for n in labels]) | (flows.outlier is not None)
    classes = np.array([index.get(n, flows.outlier or 0) for n in labels])
    context = table.context(read, flows.input, np.ones(count, bool))
    # A group for each label, so that each is drawn about as often as a project's.
    group = np.array([f"odd ports {n}" for n in labels])
    made = data.Flows(flows.input, series, context, counts, table.midstream(read), classes, flows.names, flows.taxonomy, group,
                      np.zeros((count, 2), int), labels, group, group, group)
    return made.take(np.where(known & ~made.midstream)[0])
