"""Sends the flows of a capture as a kernel hands them to its cards: packets in a row as one, to be split by TSO or UDP segmentation.

usage: merged.py CAPTURE SEGMENTS COPIES TAG CLIENT_NETNS CLIENT_DEVICE CLIENT_MAC SERVER_NETNS SERVER_DEVICE SERVER_MAC

Whether they are split before a receiver sees them is a matter of the interface's offloads. SEGMENTS gets a capture of the packets that
must be on the wire, made here. TAG is a VLAN number, or 0. A MAC is where that side's frames go. Prints the numbers of packets
sent, merged packets among them, and packets on the wire.
"""
import ctypes
import ipaddress
import os
import socket
import struct
import sys
import time

TCP, UDP = 6, 17
FIN, SYN, RST, PSH, URG, CWR = 1, 2, 4, 8, 0x20, 0x80
NEEDS_CHECKSUM, TCP_V4, TCP_V6, UDP_L4 = 1, 1, 4, 5
SOL_PACKET, PACKET_VNET_HDR = 263, 15
CLONE_NEWNET = 0x40000000
MSS = 1400
MERGED_MAX = 60_000
CLIENTS = [ipaddress.ip_network("192.0.2.0/24"), ipaddress.ip_network("2001:db8:a::/64")]
SERVERS = [ipaddress.ip_network("198.51.100.0/24"), ipaddress.ip_network("2001:db8:b::/64")]


class Packet:
    """A TCP or UDP packet: addresses, ports, layer-4 header, payload."""

    def __init__(self, frame):
        ethertype, = struct.unpack_from("!H", frame, 12)
        ip = frame[14:]
        self.is_v6 = ethertype == 0x86DD
        if self.is_v6:
            self.ip, self.protocol, length = ip[:40], ip[6], 40 + struct.unpack_from("!H", ip, 4)[0]
            self.source, self.destination = ip[8:24], ip[24:40]
        elif ethertype == 0x0800 and not struct.unpack_from("!H", ip, 6)[0] & 0x3FFF:
            self.ip, self.protocol, length = ip[:(ip[0] & 15) * 4], ip[9], struct.unpack_from("!H", ip, 2)[0]
            self.source, self.destination = ip[12:16], ip[16:20]
        else:
            raise ValueError
        rest = ip[len(self.ip):length]
        if self.protocol not in (TCP, UDP):
            raise ValueError
        header = (rest[12] >> 4) * 4 if self.protocol == TCP else 8
        self.header, self.payload = bytearray(rest[:header]), rest[header:]
        self.ports = struct.unpack_from("!HH", rest)
        self.size = len(self.payload)

    def flags(self):
        return self.header[13] if self.protocol == TCP else 0

    def side(self):
        """0 for a packet of the client, 1 for one of the server."""
        ends = [ipaddress.ip_address(self.source), ipaddress.ip_address(self.destination)]
        of = [[any(end in net for net in nets) for end in ends] for nets in (CLIENTS, SERVERS)]
        if of[0][0] and of[1][1]:
            return 0
        if of[0][1] and of[1][0]:
            return 1
        raise ValueError

    def flow(self):
        return frozenset([(self.source, self.ports[0]), (self.destination, self.ports[1])]), self.protocol

    def with_client_port(self, copy):
        """The same in another flow."""
        other = Packet.__new__(Packet)
        other.__dict__.update(self.__dict__, header=bytearray(self.header))
        at = self.side()
        port = 1024 + (self.ports[at] - 1024 - 10_000 * copy) % 64_512
        struct.pack_into("!H", other.header, 2 * at, port)
        return other

    def takes(self, other):
        """Whether a kernel would have sent both at once."""
        keeps_on = SYN | RST | URG | PSH | FIN
        return (
            self.side() == other.side() and 0 < len(other.payload) <= self.size and len(self.payload) % self.size == 0
            and not self.flags() & keeps_on and not other.flags() & (SYN | RST | URG | CWR)
            and len(self.payload) + len(other.payload) <= MERGED_MAX
        )

    def take(self, other):
        self.payload += other.payload
        if self.protocol == TCP:
            self.header[13] |= other.header[13] & (PSH | FIN)

    def frame(self, mac, tag, payload, flags):
        """It with this payload and these TCP flags, its checksum begun with the pseudo-header."""
        header, ip = bytearray(self.header), bytearray(self.ip)
        length = len(header) + len(payload)
        if self.protocol == TCP:
            header[13] = flags
        else:
            struct.pack_into("!H", header, 4, length)
        pseudo = self.source + self.destination + struct.pack("!II", length, self.protocol)
        struct.pack_into("!H", header, 16 if self.protocol == TCP else 6, folded(pseudo))
        if self.is_v6:
            struct.pack_into("!H", ip, 4, length)
        else:
            struct.pack_into("!H", ip, 2, len(ip) + length)
            struct.pack_into("!H", ip, 10, 0)
            struct.pack_into("!H", ip, 10, folded(ip) ^ 0xFFFF)
        vlan = struct.pack("!HH", 0x8100, tag) if tag else b""
        return mac + bytes(6) + vlan + (b"\x86\xdd" if self.is_v6 else b"\x08\x00") + bytes(ip + header) + payload

    def is_merged(self):
        return len(self.payload) > self.size

    def offload(self, tag):
        """The `virtio_net_hdr` in front of it."""
        if not self.is_merged():
            return bytes(10)
        kind = UDP_L4 if self.protocol == UDP else TCP_V6 if self.is_v6 else TCP_V4
        start = (18 if tag else 14) + len(self.ip)
        checksum = 16 if self.protocol == TCP else 6
        return struct.pack("=BBHHHH", NEEDS_CHECKSUM, kind, start + len(self.header), self.size, start, checksum)

    def segments(self, mac, tag):
        """It as it must be on the wire."""
        parts = [self.payload[at:at + self.size] for at in range(0, len(self.payload), self.size)] if self.size else [b""]
        for at, part in enumerate(parts):
            cleared = (CWR if at else 0) | (PSH | FIN if at + 1 < len(parts) else 0)
            yield self.frame(mac, tag, part, self.flags() & ~cleared)


def folded(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def flows(path):
    """The packets of each flow between clients and servers."""
    data, at, by_flow = open(path, "rb").read(), 24, {}
    while at < len(data):
        captured, = struct.unpack_from("<I", data, at + 8)
        try:
            packet = Packet(data[at + 16:at + 16 + captured])
            packet.side()
            by_flow.setdefault(packet.flow(), []).append(packet)
        except ValueError:
            pass
        at += 16 + captured
    return by_flow.values()


def merged(packets):
    """Packets in a row as one. A packet that was merged when it was captured is one of several again."""
    sent = []
    for packet in packets:
        if packet.protocol == TCP:
            packet.size = min(packet.size, MSS)
        if sent and sent[-1].takes(packet):
            sent[-1].take(packet)
        else:
            sent.append(packet)
    return sent


def out(netns, device):
    namespace = os.open(f"/run/netns/{netns}", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), netns)
    interface = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    interface.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    interface.bind((device, 0))
    return interface


def main():
    capture, reference, copies, tag, *sides = sys.argv[1:]
    # From two CPUs packets could overtake each other.
    os.sched_setaffinity(0, {0})
    tag = int(tag)
    macs = [bytes.fromhex(mac.replace(":", "")) for mac in sides[2::3]]
    interfaces = [out(*side) for side in zip(sides[::3], sides[1::3])]
    originals = list(flows(capture))
    sent = several = on_wire = 0
    with open(reference, "wb") as wire:
        wire.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for copy in range(int(copies)):
            for packets in originals:
                for packet in merged([packet.with_client_port(copy) for packet in packets]):
                    side = packet.side()
                    whole = packet.frame(macs[side], tag, packet.payload, packet.flags())
                    interfaces[side].send(packet.offload(tag) + whole)
                    sent, several = sent + 1, several + packet.is_merged()
                    for segment in packet.segments(macs[side], tag):
                        on_wire += 1
                        wire.write(struct.pack("<IIII", 1_700_000_000 + on_wire // 10**6, on_wire % 10**6, len(segment), len(segment)))
                        wire.write(segment)
                    if sent % 16 == 0:
                        time.sleep(0.001)
    print(sent, several, on_wire)


main()
