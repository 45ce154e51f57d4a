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

tc qdisc add dev "$device" root handle 1: htb default 40
tc class add dev "$device" parent 1: classid 1:1 htb rate "$(share 100)"
# Calls first, up to half of the line; then web; then traffic without a label; bulk last and never above a tenth.
tc class add dev "$device" parent 1:1 classid 1:10 htb rate "$(share 30)" ceil "$(share 50)" prio 0
tc class add dev "$device" parent 1:1 classid 1:20 htb rate "$(share 35)" ceil "$(share 100)" prio 1
tc class add dev "$device" parent 1:1 classid 1:40 htb rate "$(share 30)" ceil "$(share 100)" prio 2
tc class add dev "$device" parent 1:1 classid 1:30 htb rate "$(share 5)" ceil "$(share 10)" prio 3
