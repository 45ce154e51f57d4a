#!/bin/sh
# A shaper for the classes that nftables.nft derives from fenxi's connection marks.
#
#   tc-htb.sh DEVICE KBIT    shape outgoing traffic of DEVICE to KBIT kbit/s: a little below the line's rate, so that the
#                            queue forms here and not in the modem
#   tc-htb.sh DEVICE off     remove the shaper
#
# It shapes one direction: run it for the device of the uplink with the uplink's rate, and for the device of the LAN with the
# downlink's. No filters are needed: nftables writes the class into the packet's priority, and htb follows it. If rules
# copy the class into the packet's mark instead, a filter does the same on kernels with cls_fw:
#   tc filter add dev DEVICE parent 1: protocol all handle 0x7000000/0xff000000 fw classid 1:30
set -eu

if [ $# -ne 2 ]; then
	echo "usage: $0 DEVICE KBIT|off" >&2
	exit 64
fi
device=$1

tc qdisc del dev "$device" root 2>/dev/null || true
[ "$2" = off ] && exit 0
kbit=$2

share() { echo "$((kbit * $1 / 100))kbit"; }

# Bytes that a class sends before another one with the same prio may: what its rate carries in 10 ms, but at least a packet and
# at most 60000. By default htb derives it from the rate, and warns where that is too little or too much.
quantum() {
	bytes=$((kbit * $1 / 80))
	[ "$bytes" -ge 1514 ] || bytes=1514
	[ "$bytes" -le 60000 ] || bytes=60000
	echo "$bytes"
}

# PARENT CLASS RATE CEIL PRIO, rates in percent of the line.
class() {
	tc class add dev "$device" parent "$1" classid "$2" htb \
		rate "$(share "$3")" ceil "$(share "$4")" prio "$5" quantum "$(quantum "$3")"
}

tc qdisc add dev "$device" root handle 1: htb default 40
class 1: 1:1 100 100 0
# Interactive traffic first, up to half of the line; then web; then traffic without a label; bulk last and never above a tenth.
class 1:1 1:10 30 50 0
class 1:1 1:20 35 100 1
class 1:1 1:40 30 100 2
class 1:1 1:30 5 10 3
