"""Community ID version 1: one name for a flow in both directions, the same in other tools."""

import base64
import hashlib
import ipaddress

from .table import integer


def community_id(proto, src, sport, dst, dport, seed=0):
    """The Community ID of a TCP or UDP flow; addresses are texts."""
    ends = sorted([(ipaddress.ip_address(src).packed, integer(str(sport))), (ipaddress.ip_address(dst).packed, integer(str(dport)))])
    (a, a_port), (b, b_port) = ends
    data = seed.to_bytes(2, "big") + a + b + bytes([integer(str(proto)), 0]) + a_port.to_bytes(2, "big") + b_port.to_bytes(2, "big")
    return "1:" + base64.b64encode(hashlib.sha1(data).digest()).decode()


def of_row(row):
    """The Community ID of a table's row: its column, or from its 5-tuple; None if the addresses are invalid."""
    if row.get("community_id"):
        return row["community_id"]
    try:
        return community_id(row["proto"], row["src"], row["sport"], row["dst"], row["dport"])
    except (KeyError, ValueError, OverflowError):
        return None
