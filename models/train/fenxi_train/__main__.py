"""python -m fenxi_train, and the entry points of the package."""

import os

# Sums on one thread give the same bits on any number of cores.
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import sys


def main():
    from . import cli

    sys.exit(cli.main(sys.argv[1:]))


def tune():
    if sys.argv[1:2] == ["pull"]:  # a router needs no numpy for it
        from . import fleet

        sys.exit(fleet.main(sys.argv[2:]))
    from . import tune

    sys.exit(tune.main(sys.argv[1:]))


if __name__ == "__main__":
    main()
