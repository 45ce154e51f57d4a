"""The file of `fit --held-out`: predictions for flows that the models had not seen."""

import os
import pathlib
import zipfile

import numpy as np

from .errors import CANNOT_CREATE, NO_INPUT, Refusal

SAME_FLOW = ("labels", "groups", "hosts", "ports")  # by these a row is known to be the same flow in two files


def new_file(path, option):
    """Refuses a file that exists, or whose folder does not."""
    if path and os.path.lexists(path):
        raise Refusal(f"{path}: exists already; give another {option}, or remove it", CANNOT_CREATE)
    if path and not pathlib.Path(path).absolute().parent.is_dir():
        raise Refusal(f"{path}: the folder above does not exist; create it first", CANNOT_CREATE)
    return path


def write(path, flows, folds, probabilities):
    """Writes predictions for flows that the models have not seen, and the inputs, one row for each flow of the tables."""
    arrays = {name: getattr(flows, name) for name in ("classes", "counts", "midstream", *SAME_FLOW)}
    arrays |= {"series": flows.series, "context": flows.seen_context()}
    arrays |= {f"depth_{depth}": p.astype(np.float32) for depth, p in probabilities.items()}
    try:
        with open(path, "xb") as file:
            np.savez_compressed(file, names=np.array(flows.names), folds=folds, **arrays)
    except OSError as error:
        raise Refusal(f"{path}: {error.strerror or error}; give another --held-out", CANNOT_CREATE) from None


def read(path, made, depth):
    """The arrays of a file that the fit of this bundle wrote."""
    cure = f"write it with the fit of {made.folder} and --held-out"
    try:
        with open(path, "rb") as opened, np.lib.npyio.NpzFile(opened, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise Refusal(f"{path}: no such file; {cure}", NO_INPUT) from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise Refusal(f"{path}: not readable: {error}; {cure}") from None
    missing = [n for n in ("names", "folds", "classes", "counts", "midstream", "series", "context", f"depth_{depth}", *SAME_FLOW) if n not in found]
    if missing:
        raise Refusal(f"{path}: no {', '.join(missing)}; {cure}")
    if list(found["names"]) != made.labels:
        raise Refusal(f"{path}: labels differ from {made.folder}; give the file that its fit wrote")
    return found
