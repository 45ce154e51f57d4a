// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
//
// Marks the connection of each TCP and UDP packet, for tests of mark.h.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/pkt_cls.h>
#include "mark.h"

const volatile __u32 bits = 0;
const volatile __u32 mask = 0;
const volatile __u32 before = 0;
const volatile __u32 overwrites = 0;
const volatile __u32 marks_packets = 0; // and not their connections

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 3); // by outcome
	__type(key, __u32);
	__type(value, __u64);
} outcomes SEC(".maps");

static __always_inline __u16 be16(const __u8 *at) { return (__u16)at[0] << 8 | at[1]; }
static __always_inline __u32 be32(const __u8 *at) { return bpf_ntohl(*(const __u32 *)at); }

static __always_inline int mark(struct __sk_buff *skb, int is_egress)
{
	const __u8 *ip = (void *)(long)skb->data + 14, *end = (void *)(long)skb->data_end;
	if (ip + 48 > end && (skb->protocol != bpf_htons(ETH_P_IP) || ip + 28 > end))
		return TC_ACT_UNSPEC;
	int is_v6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	if (!is_v6 && skb->protocol != bpf_htons(ETH_P_IP))
		return TC_ACT_UNSPEC;
	__u8 protocol = is_v6 ? ip[6] : ip[9];
	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
		return TC_ACT_UNSPEC;
	struct key key = {};
	const __u8 *ports;
	if (is_v6) {
		if (ip + 48 > end)
			return TC_ACT_UNSPEC;
#pragma unroll
		for (int i = 0; i < 4; i++)
			key.words[i] = be32(ip + 20 - 4 * i) | (__u64)be32(ip + 36 - 4 * i) << 32;
		ports = ip + 40;
	} else {
		key.words[0] = be32(ip + 12) | (__u64)be32(ip + 16) << 32;
		ports = ip + 20;
	}
	__u32 from = be16(ports), to = be16(ports + 2);
	// Not the order of `plain`, but both ways round.
	int from_high = to == 7777;
	if (from_high) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			key.words[i] = key.words[i] << 32 | key.words[i] >> 32;
		from = to;
		to = be16(ports);
	}
	key.kind = from | to << 16;
	key.kind |= (__u64)protocol << PROTOCOL_SHIFT | (__u64)is_v6 << IS_V6_SHIFT;
	if (marks_packets) {
		mark_packet(skb, bits, mask);
		return TC_ACT_UNSPEC;
	}
	__u32 outcome =
	    mark_connection(skb, &key, from_high, is_egress, bits, mask, before, overwrites);
	__u64 *count = bpf_map_lookup_elem(&outcomes, &outcome);
	if (count)
		__sync_fetch_and_add(count, 1);
	return TC_ACT_UNSPEC;
}

SEC("classifier")
int mark_in(struct __sk_buff *skb) { return mark(skb, 0); }

SEC("classifier")
int mark_out(struct __sk_buff *skb) { return mark(skb, 1); }

char LICENSE[] SEC("license") = "GPL";
