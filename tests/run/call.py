"""A call: a packet each 20 ms there and back over UDP, and how long they are on their way.

usage: call.py answer PORT | call.py call ADDRESS PORT PACKETS

A caller prints p50 and p95 of the delay there and back, in ms. What counts is the time from send() to the kernel's receipt, both ways
added up, so it does not matter when the answering program gets its turn; both must have the same clock. A lost packet counts as
one minute. The first packets have the lengths of a STUN client and its server, the others the length of 20 ms of G.711 over RTP.
"""
import socket
import struct
import sys
import threading
import time

SO_TIMESTAMPNS = 35  # Python has no name for it.
EVERY_S, PATIENCE_S, LOST_MS = 0.02, 3, 60_000
NUMBERS = struct.Struct("=qq")
ASKED, ANSWERED, SOUND = 20, 80, 172


def udp():
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    return sock


def send(sock, length, peer, *numbers):
    message = NUMBERS.pack(time.time_ns(), *numbers).ljust(length, b"\0")
    sock.sendto(message, peer)


def receive(sock):
    """The packet's delay, the number that came with it, its length, and who sent it."""
    message, [(_, _, received)], _, peer = sock.recvmsg(2048, 64)
    seconds, ns = struct.unpack("qq", received)
    sent, number = NUMBERS.unpack_from(message)
    return seconds * 10**9 + ns - sent, number, len(message), peer


def answer(port):
    sock = udp()
    sock.bind(("", port))
    while True:
        delay, _, length, peer = receive(sock)
        send(sock, ANSWERED if length == ASKED else SOUND, peer, delay)


def call(address, port, packets):
    sock, delays = udp(), []
    sock.settimeout(PATIENCE_S)
    sock.bind(("", 0))

    def listen():
        try:
            while len(delays) < packets:
                back, there, _, _ = receive(sock)
                delays.append((there + back) / 1e6)
        except TimeoutError:
            delays.extend([LOST_MS] * (packets - len(delays)))

    listener = threading.Thread(target=listen)
    listener.start()
    for number in range(packets):
        send(sock, SOUND if number else ASKED, (address, port), 0)
        time.sleep(EVERY_S)
    listener.join()
    delays.sort()
    print(*(round(delays[packets * percent // 100], 2) for percent in (50, 95)))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["answer", port]:
            answer(int(port))
        case ["call", address, port, packets]:
            call(address, int(port), int(packets))
        case _:
            sys.exit(__doc__)
