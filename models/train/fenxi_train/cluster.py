"""Work on the processes of a Dask cluster, if one was asked for; else in this one.

The captures of `series` and the folds of `fit` are pieces that need nothing of each other.  Their
results come in the order of the pieces, so they are the same on any number of workers.  Workers of
a scheduler have fenxi-train installed and reach the program and the captures by the same paths.
"""

import contextlib
import logging
import os

from .errors import NO_INPUT, USAGE, Refusal

CONNECT_S = 30

_client = None


def options(parser):
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--workers", type=int, default=None, metavar="N",
                       help="work in N processes of a local Dask cluster (0: one for each core)")
    where.add_argument("--scheduler", default=None, metavar="tcp://HOST:PORT",
                       help="work on this Dask cluster")


@contextlib.contextmanager
def workers(args):
    """Within it, `mapped` works as the options say."""
    global _client
    if args.workers is None and args.scheduler is None:
        yield
        return
    if args.workers is not None and args.workers < 0:
        raise Refusal(f"--workers {args.workers}: give 0 or more", USAGE)
    try:
        import distributed
    except ImportError:
        raise Refusal("Dask is not installed: pip install 'fenxi-train[dask]'", USAGE) from None
    with contextlib.ExitStack() as stack:
        address = args.scheduler or stack.enter_context(distributed.LocalCluster(
            n_workers=args.workers or os.cpu_count(), threads_per_worker=1, dashboard_address=None,
            silence_logs=logging.CRITICAL))  # a Refusal says what failed
        try:
            _client = stack.enter_context(distributed.Client(address, timeout=CONNECT_S))
        except (OSError, ValueError) as error:
            text = str(error) or "nobody answers"
            raise Refusal(f"--scheduler {address}: {text}", NO_INPUT) from None
        try:
            yield
        finally:
            _client = None


def mapped(function, shared, items):
    """function(shared, item) for each item, in order; workers get `shared` once."""
    if _client is None:
        for item in items:
            yield function(shared, item)
        return
    shared = _client.scatter([shared], broadcast=True)[0]
    futures = [_client.submit(function, shared, item, pure=False) for item in items]
    while futures:
        yield futures.pop(0).result()
