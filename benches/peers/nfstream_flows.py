"""Takes the flows of a capture out of nfstream, with its labels (nDPI, the default) and
without its statistics; run by figures/peers.py.

usage: nfstream_flows.py CAPTURE
"""

import sys

from nfstream import NFStreamer


def main():
    streamer = NFStreamer(source=sys.argv[1], n_meters=1, statistical_analysis=False)
    print(sum(1 for _ in streamer), "flows")


if __name__ == "__main__":  # its meters are processes that import this file
    main()
