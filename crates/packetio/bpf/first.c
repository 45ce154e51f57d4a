// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
//
// Sends the first packets of each flow to user space, and counts the others.
//
// Attached to both directions of an interface (TC, by TCX), it looks at each packet and lets all of them go on. Sent up are:
// packets with SYN, FIN or RST; the first ones of a flow, as many as the model's series may need, until user space says that
// the flow has its label; and all that it does not parse, from fragments to tunnels. Of the others it adds up packets and bytes
// by flow, each merged packet (GRO, TSO) as its segments.
//
// The flows are in a table of its own making, an array that user space has mapped: sets of four entries, of which a new flow
// takes a free one or the one used least recently. The kernel's LRU hash was measured first: it cost a packet some 330 ns,
// most of it for lines of memory that are not in the cache; here a packet of IPv4 touches one line, and user space reads what
// was counted without a system call.
//
// The kernel lets whoever has no CAP_PERFMON add constants to pointers only, and compare pointers to a packet's end only. So
// headers at a variable place are copied, a flow's direction is no index, and `SAME` hides from the compiler what two pointers
// have in common.
//
// Shared with src/first/: the layout of `key`, `entry`, `record` and `counters`, the words of `asleep`, and the hash of a flow.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

// Set before the program is loaded.
const volatile __u32 workers = 1;         // flow workers, each with a ring and a part of the table
const volatile __u32 sets = 16;           // of a worker; a power of two
const volatile __u32 is_ethernet = 1;     // frames have Ethernet headers
const volatile __u32 packets_wanted = 12; // of a flow, whatever they hold; below 256
const volatile __u32 data_wanted = 0;     // of a flow, packets with payload; below 256
const volatile __u32 forget_ticks = 0;    // a flow that was silent for so long begins anew; 0: never
const volatile __u64 hash_seed = 0;

#define WORKERS_MAX 64
#define WAYS 4

// The two ends in order, so that both directions have one key. Addresses and ports are numbers; an address' last
// word comes first, so an IPv4 address is the first one.
struct key {
	__u32 low[4];
	__u32 high[4];
	__u16 low_port;
	__u16 high_port;
	__u8 protocol;
	__u8 is_v6;
	__u16 zero;
};

// A flow, in two lines of memory, of which packets of IPv4 touch the first. Index 0: from the low end; 1: from the high end.
struct entry {
	__u32 version; // of its flow and its counts: see below
	__u32 low;     // the last words of the addresses
	__u32 high;
	__u16 low_port;
	__u16 high_port;
	__u8 protocol; // 0: free
	__u8 is_v6;
	__u8 sent;      // packets sent up
	__u8 sent_data; // of these, packets with payload
	__u32 last;     // when the last packet came, in ticks of 2^20 ns, about a millisecond, of CLOCK_MONOTONIC
	__u32 is_quiet; // none needs to be sent up any more; user space says so, too
	__u32 zero;
	__u64 packets[2]; // counted
	__u64 bytes[2];   // at the IP layer
	__u32 low_words[3]; // of IPv6, the others
	__u32 high_words[3];
	__u64 rest[5];
};

struct set {
	struct entry ways[WAYS];
};

// A version: what is being done to the entry, its number among the ways, and how often it was given to a flow or its counts
// began again. So two counts of a flow with one version are of one counter, wherever in its set it had its places.
#define GIVING 1 // to another flow: the key is none
#define CLEARING 2 // the counts
#define DOING (GIVING | CLEARING)
#define WAY_SHIFT 2
#define VERSION_STEP 16

#define HAS_COUNTS 1 // `key` and what comes behind it hold what was counted of the flow before this packet
#define OPENS 2      // with it: they are of the flow before, and begin again with this packet
#define IS_UDP 4     // `gso_size` is that of UDP, or of what is in it

// In front of each frame in a ring.
struct record {
	__u64 time_ns; // CLOCK_BOOTTIME
	__u32 wire;    // bytes of the frame
	__u32 captured;
	__u32 tag; // TPID and TCI of a tag that the kernel took off; 0 for none
	__u16 gso_size;
	__u16 flags;
	struct key key;
	__u64 packets[2];
	__u64 bytes[2];
	__u32 last;
	__u32 version;
};

// Bytes of a frame that are sent up: headers that were parsed fit into the first; those that were not may be longer.
#define SHORT_FRAME 136
#define LONG_FRAME 2048

struct counters {
	__u64 counted;       // packets
	__u64 counted_bytes; // of frames
	__u64 sent;          // records
	__u64 dropped;       // records that found no room
	__u64 evicted;       // flows that were in use and made room for others
};

struct ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, WORKERS_MAX);
	__uint(key_size, 4);
	__array(values, struct ring);
} rings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 16); // sets of all workers
	__uint(key_size, 4);
	__uint(value_size, sizeof(struct set));
} table SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, WORKERS_MAX);
	__type(key, __u32);
	__type(value, struct counters);
} counts SEC(".maps");

// Of each worker, whether it sleeps.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, WORKERS_MAX);
	__type(key, __u32);
	__type(value, __u64);
} asleep SEC(".maps");

// What a packet's headers say.
struct packet {
	struct key key;
	__u32 from_high; // its direction
	__u32 length;    // at the IP layer
	__u32 headers;   // of these, headers
	__u8 tcp_flags;
};

// The packet goes on to whatever comes next, with clsact (TC_ACT_UNSPEC) and TCX (TCX_NEXT) alike.
#define GO_ON TC_ACT_UNSPEC

#define TCP_FIN 1
#define TCP_SYN 2
#define TCP_RST 4
#define TCP_ACK 16

#define MORE_FRAGMENTS_AND_OFFSET 0x3fff

static __always_inline __u16 be16(const __u8 *at) { return (__u16)at[0] << 8 | at[1]; }
static __always_inline __u32 be32(const __u8 *at) { return bpf_ntohl(*(const __u32 *)at); }

// Whether a packet is one of VXLAN or Geneve.
static __always_inline int is_tunnel(const struct packet *packet)
{
	__u16 to = packet->from_high ? packet->key.low_port : packet->key.high_port;
	return to == 4789 || to == 8472 || to == 6081;
}

#define SAME(pointer) asm volatile("" : "+r"(pointer))

// Reads a TCP or UDP header, of which there are as many bytes as `l4_bytes` says. The source is the low end as yet.
static __always_inline int parse_l4(const __u8 *l4, struct packet *packet)
{
	if (packet->key.protocol == IPPROTO_TCP) {
		__u32 header = (l4[12] >> 4) * 4;
		if (header < 20)
			return 0;
		packet->headers += header;
		packet->tcp_flags = l4[13];
	} else {
		if (be16(l4 + 4) < 8)
			return 0;
		packet->headers += 8;
	}
	packet->key.low_port = be16(l4);
	packet->key.high_port = be16(l4 + 2);
	return packet->length >= packet->headers;
}

static __always_inline __u32 l4_bytes(const struct packet *packet) { return packet->key.protocol == IPPROTO_TCP ? 20 : 8; }

static __always_inline int is_in_order(const struct key *key)
{
#pragma unroll
	for (int i = 3; i >= 0; i--) {
		if (key->low[i] != key->high[i])
			return key->low[i] < key->high[i];
	}
	return key->low_port <= key->high_port;
}

#define SWAP(type, a, b)                                                                                                           \
	do {                                                                                                                       \
		type swapped = a;                                                                                                  \
		a = b;                                                                                                             \
		b = swapped;                                                                                                       \
	} while (0)

// Puts the ends in order, of which the source is the first as yet.
static __always_inline void put_in_order(struct packet *packet)
{
	struct key *key = &packet->key;
	packet->from_high = !is_in_order(key);
	if (!packet->from_high)
		return;
	SWAP(__u16, key->low_port, key->high_port);
	SWAP(__u32, key->low[0], key->high[0]);
	if (key->is_v6) {
#pragma unroll
		for (int i = 1; i < 4; i++)
			SWAP(__u32, key->low[i], key->high[i]);
	}
}

#define OTHER 0
#define PLAIN 1
#define CUT 2 // its headers may lie outside of the linear part

// Reads the headers of a plain TCP or UDP packet.
static __always_inline int parse(struct __sk_buff *skb, struct packet *packet)
{
	const __u8 *ip = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u16 protocol = bpf_ntohs(skb->protocol);
	__u32 at = 0; // of `ip` in the frame

	if (is_ethernet) {
		if (ip + 14 > end)
			return CUT;
		protocol = be16(ip + 12);
		ip += 14;
		at = 14;
#pragma unroll
		for (int i = 0; i < 2; i++) {
			if (protocol != ETH_P_8021Q && protocol != ETH_P_8021AD)
				break;
			if (ip + 4 > end)
				return CUT;
			protocol = be16(ip + 2);
			ip += 4;
			at += 4;
			SAME(ip);
		}
	}
	const __u8 *l4;
	__u32 options = 0;
	if (protocol == ETH_P_IP) {
		if (ip + 20 > end)
			return CUT;
		__u32 header = (ip[0] & 15) * 4;
		if (ip[0] >> 4 != 4 || header < 20 || be16(ip + 6) & MORE_FRAGMENTS_AND_OFFSET)
			return OTHER;
		options = header - 20;
		packet->length = be16(ip + 2);
		packet->headers = header;
		packet->key.protocol = ip[9];
		packet->key.low[0] = be32(ip + 12);
		packet->key.high[0] = be32(ip + 16);
		l4 = ip + 20;
	} else if (protocol == ETH_P_IPV6) {
		if (ip + 40 > end)
			return CUT;
		__u32 payload = be16(ip + 4);
		if (ip[0] >> 4 != 6 || payload == 0) // its length is elsewhere
			return OTHER;
		packet->length = payload + 40;
		packet->headers = 40;
		packet->key.protocol = ip[6];
		packet->key.is_v6 = 1;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			packet->key.low[i] = be32(ip + 20 - 4 * i);
			packet->key.high[i] = be32(ip + 36 - 4 * i);
		}
		l4 = ip + 40;
	} else {
		return OTHER;
	}
	if (packet->key.protocol != IPPROTO_TCP && packet->key.protocol != IPPROTO_UDP)
		return OTHER;
	int is_plain;
	if (options) {
		__u8 copy[20] = {};
		if (bpf_skb_load_bytes(skb, at + 20 + options, copy, l4_bytes(packet)))
			return OTHER;
		is_plain = parse_l4(copy, packet);
	} else if (packet->key.protocol == IPPROTO_TCP ? l4 + 20 > end : l4 + 8 > end) {
		return CUT;
	} else {
		is_plain = parse_l4(l4, packet);
	}
	if (!is_plain)
		return OTHER;
	put_in_order(packet);
	return PLAIN;
}

#define MIX(hash, word) (((hash) ^ (word)) * 0x9e3779b97f4a7c15ull)

static __always_inline __u64 hash(const struct key *key)
{
	__u64 hash = MIX(hash_seed, key->low[0] | (__u64)key->high[0] << 32);
	if (key->is_v6) {
#pragma unroll
		for (int i = 1; i < 4; i++) {
			hash ^= hash >> 32;
			hash = MIX(hash, key->low[i] | (__u64)key->high[i] << 32);
		}
	}
	hash ^= hash >> 32;
	hash = MIX(hash, key->low_port | (__u64)key->high_port << 16 | (__u64)key->protocol << 32 | (__u64)key->is_v6 << 40);
	return hash ^ hash >> 32;
}

static __always_inline int is_of(const struct entry *entry, const struct key *key)
{
	if (entry->low != key->low[0] || entry->high != key->high[0] || entry->low_port != key->low_port ||
	    entry->high_port != key->high_port || entry->protocol != key->protocol || entry->is_v6 != key->is_v6 ||
	    entry->version & GIVING)
		return 0;
	if (key->is_v6) {
#pragma unroll
		for (int i = 0; i < 3; i++) {
			if (entry->low_words[i] != key->low[i + 1] || entry->high_words[i] != key->high[i + 1])
				return 0;
		}
	}
	return 1;
}

static __always_inline struct entry *find(struct set *set, const struct key *key)
{
#pragma unroll
	for (int i = 0; i < WAYS; i++) {
		struct entry *entry = &set->ways[i];
		SAME(entry);
		if (is_of(entry, key))
			return entry;
	}
	return 0;
}

// Ticks since the flow's last packet. Another CPU may have seen one in a later tick than this one's.
static __always_inline __u32 silence(const struct entry *entry, __u32 now)
{
	__u32 ticks = now - entry->last;
	return ticks < -(1u << 16) ? ticks : 0;
}

// Whether it was silent for so long that its flow has ended.
static __always_inline int is_forgotten(const struct entry *entry, __u32 now)
{
	return forget_ticks && silence(entry, now) > forget_ticks;
}

static __always_inline int swap(__u32 *version, __u32 from, __u32 to)
{
	// A full barrier: whoever sees the new version sees what was written before it.
	return __sync_val_compare_and_swap(version, from, to) == from;
}

// Begins a flow in the first free entry, else in the one used least recently. Another CPU, or user space, may be changing that
// entry, and then there is none for the flow yet.
static __always_inline void begin(struct set *set, const struct key *key, __u32 now, __u32 data, struct counters *counters)
{
	struct entry *entry = &set->ways[0];
	__u32 longest = 0, way = 0;
#pragma unroll
	for (int i = 0; i < WAYS; i++) {
		struct entry *other = &set->ways[i];
		SAME(other);
		__u32 silent = other->protocol ? silence(other, now) : ~0u;
		if (silent > longest) {
			longest = silent;
			entry = other;
			way = i;
		}
	}
	__u32 version = entry->version;
	if (version & DOING || !swap(&entry->version, version, version | GIVING))
		return;
	if (entry->protocol && !is_forgotten(entry, now))
		counters->evicted++;
	entry->low = key->low[0];
	entry->high = key->high[0];
	entry->low_port = key->low_port;
	entry->high_port = key->high_port;
	entry->protocol = key->protocol;
	entry->is_v6 = key->is_v6;
	entry->sent = 1;
	entry->sent_data = data;
	entry->last = now;
	entry->is_quiet = 0;
	entry->packets[0] = entry->packets[1] = entry->bytes[0] = entry->bytes[1] = 0;
#pragma unroll
	for (int i = 0; i < 3; i++) {
		entry->low_words[i] = key->low[i + 1];
		entry->high_words[i] = key->high[i + 1];
	}
	swap(&entry->version, version | GIVING, ((version & -VERSION_STEP) + VERSION_STEP) | way << WAY_SHIFT);
}

// An entry's flow begins anew, of which so many packets were sent up already.
static __always_inline void begin_again(struct entry *entry, __u32 sent, __u32 data)
{
	__u32 version = entry->version;
	if (version & DOING || !swap(&entry->version, version, version | CLEARING))
		return;
	entry->packets[0] = entry->packets[1] = entry->bytes[0] = entry->bytes[1] = 0;
	entry->sent = sent;
	entry->sent_data = data;
	entry->is_quiet = 0;
	swap(&entry->version, version | CLEARING, version + VERSION_STEP);
}

// Sends a packet up; whether there was room. `packet` is null for one that was not parsed, `entry` where it has none; else its
// counts go with it.
static __always_inline int send_up(struct __sk_buff *skb, __u32 gso_size, __u32 worker, struct counters *counters,
				    const struct packet *packet, const struct entry *entry, __u16 flags)
{
	void *ring = bpf_map_lookup_elem(&rings, &worker);
	if (!ring)
		return 0;
	struct record *record;
	if (packet)
		record = bpf_ringbuf_reserve(ring, sizeof(*record) + SHORT_FRAME, 0);
	else
		record = bpf_ringbuf_reserve(ring, sizeof(*record) + LONG_FRAME, 0);
	if (!record) {
		counters->dropped++;
		return 0;
	}
	__u32 captured = skb->len;
	record->time_ns = bpf_ktime_get_boot_ns();
	record->wire = captured;
	record->tag = skb->vlan_present ? skb->vlan_proto | skb->vlan_tci << 16 : 0;
	record->gso_size = gso_size;
	record->flags = flags;
	if (packet && entry) {
		record->key = packet->key;
		record->packets[0] = entry->packets[0];
		record->packets[1] = entry->packets[1];
		record->bytes[0] = entry->bytes[0];
		record->bytes[1] = entry->bytes[1];
		record->last = entry->last;
		record->version = entry->version & ~DOING;
	}
	long failed = 1;
	if (packet) {
		if (captured > SHORT_FRAME)
			captured = SHORT_FRAME;
		if (captured)
			failed = bpf_skb_load_bytes(skb, 0, record + 1, captured);
	} else {
		if (captured > LONG_FRAME)
			captured = LONG_FRAME;
		if (captured)
			failed = bpf_skb_load_bytes(skb, 0, record + 1, captured);
	}
	record->captured = failed ? 0 : captured;
	counters->sent++;
	__u64 *is_asleep = bpf_map_lookup_elem(&asleep, &worker), wake = BPF_RB_NO_WAKEUP;
	// A worker that sleeps is woken once, by one packet; it finds those that follow when it looks.
	if (is_asleep && *is_asleep) {
		*is_asleep = 0;
		wake = BPF_RB_FORCE_WAKEUP;
	}
	bpf_ringbuf_submit(record, wake);
	return 1;
}

// Whether a packet that carries no SYN, FIN or RST is one of the first of its flow.
static __always_inline int is_first(struct entry *entry, __u32 data)
{
	if (entry->is_quiet)
		return 0;
	__u32 sent = entry->sent, sent_data = entry->sent_data;
	if (sent < packets_wanted || (data && sent_data < data_wanted)) {
		entry->sent = sent < 255 ? sent + 1 : 255;
		sent_data += data;
		entry->sent_data = sent_data < 255 ? sent_data : 255;
		return 1;
	}
	if (sent_data >= data_wanted)
		entry->is_quiet = 1;
	return 0;
}

static __always_inline int first(struct __sk_buff *skb)
{
	struct packet packet = {};
	int kind = parse(skb, &packet);
	if (kind == CUT && bpf_skb_pull_data(skb, skb->len < SHORT_FRAME ? skb->len : SHORT_FRAME) == 0) {
		__builtin_memset(&packet, 0, sizeof(packet));
		kind = parse(skb, &packet);
	}
	int is_plain = kind == PLAIN;
	__u32 segments = 1, length = packet.length, payload = packet.length - packet.headers, gso_size = skb->gso_size;
	__u16 flags = 0;
	if (is_plain && gso_size) {
		if (packet.key.protocol == IPPROTO_UDP || payload == 0) {
			// Merged UDP may be TCP in a tunnel, which user space takes apart.
			flags = packet.key.protocol == IPPROTO_UDP && !is_tunnel(&packet) ? IS_UDP : 0;
			is_plain = 0;
		} else {
			segments = (payload + gso_size - 1) / gso_size;
			length += (segments - 1) * packet.headers;
		}
	}
	__u32 worker = 0;
	__u64 flow_hash = 0;
	if (is_plain) {
		flow_hash = hash(&packet.key);
		if (workers > 1)
			worker = (__u32)(flow_hash >> 40) % workers;
	}
	struct counters *counters = bpf_map_lookup_elem(&counts, &worker);
	if (!counters)
		return GO_ON;
	if (!is_plain) {
		send_up(skb, gso_size, worker, counters, 0, 0, flags);
		return GO_ON;
	}
	__u32 at = worker * sets + ((__u32)flow_hash & (sets - 1));
	struct set *set = bpf_map_lookup_elem(&table, &at);
	if (!set)
		return GO_ON;
	__u32 now = bpf_ktime_get_coarse_ns() >> 20;
	struct entry *entry = find(set, &packet.key);
	int has_marks = packet.tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST);
	__u32 data = payload ? segments : 0, few_data = data < 255 ? data : 255;
	// Its ports are used again, or user space has ended it because it was silent, and takes this packet for another flow.
	int is_syn = (packet.tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN, opens = entry && (is_syn || is_forgotten(entry, now));
	if (!entry || has_marks || opens || is_first(entry, data)) {
		if (entry) {
			flags = HAS_COUNTS;
			if (opens && entry->packets[0] | entry->packets[1])
				flags |= OPENS;
		}
		if (!send_up(skb, gso_size, worker, counters, &packet, entry, flags) && opens)
			// User space knows of no other flow.
			return GO_ON;
		// A packet with SYN makes no entry, so a flood of them fills no table.
		if (!entry && !has_marks)
			begin(set, &packet.key, now, few_data, counters);
		if (opens)
			begin_again(entry, has_marks ? 0 : 1, has_marks ? 0 : few_data);
		if (entry)
			entry->last = now;
		return GO_ON;
	}
	// Two CPUs may count a flow's packets at once.
	if (packet.from_high) {
		__sync_fetch_and_add(&entry->packets[1], segments);
		__sync_fetch_and_add(&entry->bytes[1], length);
	} else {
		__sync_fetch_and_add(&entry->packets[0], segments);
		__sync_fetch_and_add(&entry->bytes[0], length);
	}
	entry->last = now;
	counters->counted += segments;
	counters->counted_bytes += skb->len + (segments - 1) * (skb->len - packet.length + packet.headers);
	return GO_ON;
}

SEC("classifier")
int fenxi_first(struct __sk_buff *skb) { return first(skb); }

char LICENSE[] SEC("license") = "GPL";
