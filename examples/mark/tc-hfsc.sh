#!/bin/sh
# HFSC by the DSCP of fenxi's labels, in both directions. Needs mark.as = "dscp" with the built-in [tag.dscp], and a kernel with
# sch_hfsc, act_ctinfo and ifb.
#
#   tc-hfsc.sh DEVICE UP_KBIT DOWN_KBIT    shape the uplink DEVICE: what leaves to UP_KBIT, what arrives to DOWN_KBIT; a little
#                                          below the line's rates, so that the queues form here and not in the modem
#   tc-hfsc.sh DEVICE off                  remove the shaper
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

# A filter for each family; DSCP is the upper six bits of the byte that tc compares.
sort_into() {
	tc filter add dev "$1" parent 1: protocol ip prio 1 u32 match ip dsfield "$3" 0xfc flowid "$2"
	tc filter add dev "$1" parent 1: protocol ipv6 prio 2 u32 match ip6 priority "$3" 0xfc flowid "$2"
}

shape() {
	kbit=$2
	share() { echo "$((kbit * $1 / 100))kbit"; }
	tc qdisc add dev "$1" root handle 1: hfsc default 40
	tc class add dev "$1" parent 1: classid 1:1 hfsc ls m2 "$(share 100)" ul m2 "$(share 100)"
	# Interactive traffic gets its packets out within 10 ms; bulk gets what the others leave, and never nothing.
	tc class add dev "$1" parent 1:1 classid 1:10 hfsc sc m1 "$(share 60)" d 10ms m2 "$(share 30)"
	tc class add dev "$1" parent 1:1 classid 1:20 hfsc ls m2 "$(share 35)"
	tc class add dev "$1" parent 1:1 classid 1:30 hfsc ls m2 "$(share 5)"
	tc class add dev "$1" parent 1:1 classid 1:40 hfsc ls m2 "$(share 30)"
	sort_into "$1" 1:10 0x48 # AF21: DNS, SSH
	sort_into "$1" 1:10 0x40 # CS2: SNMP, NTP, MQTT
	sort_into "$1" 1:20 0x28 # AF11: TLS, HTTP, QUIC
	sort_into "$1" 1:30 0x20 # CS1: NetBIOS
}

tc qdisc add dev "$device" clsact

# What leaves: the DSCP first, then the queue.
tc filter add dev "$device" egress protocol all prio 10 u32 match u32 0 0 action ctinfo dscp 63 128
shape "$device" "$2"

# What arrives: the DSCP, then the queue of the ifb.
ip link add name "$ifb" type ifb
ip link set dev "$ifb" up
tc filter add dev "$device" ingress protocol all prio 10 u32 match u32 0 0 action ctinfo dscp 63 128 action mirred egress redirect dev "$ifb"
shape "$ifb" "$3"
