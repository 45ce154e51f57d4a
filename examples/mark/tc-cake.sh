#!/bin/sh
# cake by the DSCP of fenxi's labels, in both directions. Needs mark.as = "dscp", and a kernel with sch_cake, act_ctinfo and ifb.
#
#   tc-cake.sh DEVICE UP_KBIT DOWN_KBIT    shape the uplink DEVICE: what leaves to UP_KBIT, what arrives to DOWN_KBIT; a little
#                                          below the line's rates, so that the queues form here and not in the modem
#   tc-cake.sh DEVICE off                  remove the shaper
#
# No rule of nftables is needed: act_ctinfo copies the DSCP from the connection's mark into each packet whose mark has the bit
# 128. What arrives is shaped on an ifb, because a queue can be had only where packets leave.
set -eu

if [ $# -ne 3 ] && [ "$#,${2-}" != 2,off ]; then
	echo "usage: $0 DEVICE UP_KBIT DOWN_KBIT | $0 DEVICE off" >&2
	exit 64
fi
device=$1
# Names of devices have 15 characters at most.
ifb=$(printf 'ifb-%.11s' "$device")

tc qdisc del dev "$device" root 2>/dev/null || true
tc qdisc del dev "$device" clsact 2>/dev/null || true
ip link del dev "$ifb" 2>/dev/null || true
[ "$2" = off ] && exit 0

tc qdisc add dev "$device" clsact

# What leaves: the DSCP first, then the queue.
tc filter add dev "$device" egress protocol all prio 10 u32 match u32 0 0 action ctinfo dscp 63 128
tc qdisc add dev "$device" root cake bandwidth "$2kbit" diffserv4 nat

# What arrives: the DSCP, then the queue of the ifb.
ip link add name "$ifb" type ifb
ip link set dev "$ifb" up
tc filter add dev "$device" ingress protocol all prio 10 u32 match u32 0 0 action ctinfo dscp 63 128 action mirred egress redirect dev "$ifb"
tc qdisc add dev "$ifb" root cake bandwidth "$3kbit" diffserv4 nat ingress
