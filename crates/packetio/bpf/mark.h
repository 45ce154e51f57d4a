// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
//
// Writes into the mark of a packet's connection.
//
// The kernel's functions for it (since 6.1) are no helpers. They are called here as helpers whose
// numbers do not exist; src/first/kfunc.rs makes these calls of the running kernel's functions.
// Where it cannot, `marks_connections` stays 0, and the verifier drops the calls as dead code.

#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "first.h"

const volatile __u32 marks_connections = 0; // set before loading if the calls are linked

#define MARKED 0 // it has the bits now
#define KEPT 1   // it has other bits under the mask, which stay
#define NO_CONNECTION 2

// The loader looks up where the running kernel has `mark` (CO-RE).
struct nf_conn {
	__u32 mark;
} __attribute__((preserve_access_index));

// 12 bytes, which all kernels take. These look in zone 0; zones need 16 (6.11).
struct conntrack_options {
	__s32 netns_id; // -1: that of the packet's interface
	__s32 error;
	__u8 protocol;
	__u8 direction;
	__u8 reserved[2];
};

// bpf_skb_ct_lookup
static struct nf_conn *(*const conntrack_find)(struct __sk_buff *, struct bpf_sock_tuple *, __u32,
					       struct conntrack_options *,
					       __u32) = (void *)0x7f000001;
// bpf_ct_release
static void (*const conntrack_release)(struct nf_conn *) = (void *)0x7f000002;

// Writes `bits` under `mask` into the mark of a packet that comes in, for a rule that copies them
// to its connection (examples/kernel-mark).
static __always_inline void mark_packet(struct __sk_buff *skb, __u32 bits, __u32 mask)
{
	skb->mark = (skb->mark & ~mask) | bits;
}

// A key's word, from the source on.
static __always_inline __u64 from_source(__u64 word, int source_is_high)
{
	return source_is_high ? word << 32 | word >> 32 : word;
}

// Writes `bits` under `mask` into the mark of a packet's connection. `from_high` (0 or 1) says
// which end of `key` sent the packet, `is_egress` (0 or 1) where it is. Conntrack knows tuples of
// packets that come in, before NAT: of one that goes out it has the reverse. Bits that are there
// stay, except for `before`, which the flow's last label wrote (0: none), or if all give way to
// labels (`overwrites`).
static __always_inline int mark_connection(struct __sk_buff *skb, const struct key *key,
					   int from_high, int is_egress, __u32 bits, __u32 mask,
					   __u32 before, int overwrites)
{
	if (!marks_connections)
		return NO_CONNECTION;
	struct bpf_sock_tuple tuple = {};
	struct conntrack_options options = {
	    .netns_id = -1,
	    .protocol = key->kind >> PROTOCOL_SHIFT,
	};
	int source_is_high = from_high != is_egress;
	__u32 ports = key->kind;
	__u16 from = bpf_htons(source_is_high ? ports >> 16 : ports);
	__u16 to = bpf_htons(source_is_high ? ports : ports >> 16);
	__u32 size = sizeof(tuple.ipv4);
	if (key->kind >> IS_V6_SHIFT) {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			__u64 word = from_source(key->words[i], source_is_high);
			tuple.ipv6.saddr[3 - i] = bpf_htonl(word);
			tuple.ipv6.daddr[3 - i] = bpf_htonl(word >> 32);
		}
		tuple.ipv6.sport = from;
		tuple.ipv6.dport = to;
		size = sizeof(tuple.ipv6);
	} else {
		__u64 word = from_source(key->words[0], source_is_high);
		tuple.ipv4.saddr = bpf_htonl(word);
		tuple.ipv4.daddr = bpf_htonl(word >> 32);
		tuple.ipv4.sport = from;
		tuple.ipv4.dport = to;
	}
	struct nf_conn *connection =
	    conntrack_find(skb, &tuple, size, &options, sizeof(options));
	if (!connection)
		return NO_CONNECTION;
	__u32 mark = connection->mark, found = mark & mask;
	int outcome = MARKED;
	if (found && found != bits && found != before && !overwrites) {
		outcome = KEPT;
	} else if (found != bits) {
		mark = (mark & ~mask) | bits;
		// The kernel allows a store of the whole word only, and clang would narrow it.
		asm volatile("" : "+r"(mark));
		connection->mark = mark;
	}
	conntrack_release(connection);
	return outcome;
}
