// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
//
// Sends the first packets of each flow to user space, and counts the others.
//
// Attached to both directions of an interface (TC, by TCX), it looks at each packet and lets all of them go on. Sent up are:
// packets with SYN, FIN or RST; the first ones of a flow, as many as the model's series may need, until user space says that
// the flow has its label; and all that it does not parse, from fragments to tunnels. Of the others it adds up packets and bytes
// by flow, each merged packet (GRO, TSO) as its segments.
//
// Shared with src/first/: the layout of `key`, `flow`, `record` and `counters`, the words of `shared`, and the hash of a flow.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

// Set before the program is loaded.
const volatile __u32 workers = 1;         // flow workers, each with a ring and a table
const volatile __u32 is_ethernet = 1;     // frames have Ethernet headers
const volatile __u32 packets_wanted = 12; // of a flow, whatever they hold
const volatile __u32 data_wanted = 0;     // of a flow, packets with payload
const volatile __u64 forget_ns = 0;       // a flow that was silent for so long begins anew; 0: never
const volatile __u64 hash_seed = 0;

#define WORKERS_MAX 64
// Words in front of those of flows: of each worker, whether it sleeps.
#define ASLEEP_WORDS WORKERS_MAX
#define FLOW_WORDS 65536

// The two ends in order, so that both directions have one key. Addresses and ports are numbers; an IPv4 address is the first word.
struct key {
	__u32 low[4];
	__u32 high[4];
	__u16 low_port;
	__u16 high_port;
	__u8 protocol;
	__u8 is_v6;
	__u16 zero;
};

// Index 0: from the low end; 1: from the high end.
struct flow {
	__u64 packets[2];
	__u64 bytes[2]; // at the IP layer
	__u64 last_ns;  // CLOCK_BOOTTIME
	__u32 sent;     // packets sent up
	__u32 sent_data;
	__u32 is_quiet; // needs none any more
	__u32 zero;
};

#define HAS_COUNTS 1 // `key` and what comes behind it hold what was counted of the flow before this packet
#define OPENS 2      // with it: the counts begin again after this packet
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
	__u64 last_ns;
};

// Bytes of a frame that are sent up: headers that were parsed fit into the first; those that were not may be longer.
#define SHORT_FRAME 136
#define LONG_FRAME 2048

struct counters {
	__u64 counted;       // packets
	__u64 counted_bytes; // of frames
	__u64 sent;          // records
	__u64 dropped;       // records that found no room
	__u64 begun;         // entries made in a table
	__u64 refused;       // entries that could not be made; their packets are sent up
};

struct ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
};

struct table {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 64);
	__uint(key_size, sizeof(struct key));
	__uint(value_size, sizeof(struct flow));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, WORKERS_MAX);
	__uint(key_size, 4);
	__array(values, struct ring);
} rings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, WORKERS_MAX);
	__uint(key_size, 4);
	__array(values, struct table);
} tables SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, WORKERS_MAX);
	__type(key, __u32);
	__type(value, struct counters);
} counts SEC(".maps");

// Words that user space reads and writes without a system call. The first ones say which workers sleep. In the others user space
// puts the hash of a flow that needs no more packets; a flow with another hash may take its place, which costs a few packets.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64[ASLEEP_WORDS + FLOW_WORDS]);
} shared SEC(".maps");

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

// Whether the source is the low end.
static __always_inline int source_is_low(const __u8 *source, const __u8 *destination, int is_v6, __u16 from, __u16 to)
{
	__u32 a = be32(source), b = be32(destination);
	if (a != b)
		return a < b;
	if (is_v6) {
#pragma unroll
		for (int i = 1; i < 4; i++) {
			a = be32(source + 4 * i);
			b = be32(destination + 4 * i);
			if (a != b)
				return a < b;
		}
	}
	return from <= to;
}

// Reads the headers of a plain TCP or UDP packet; 0 for anything else.
static __always_inline int parse(struct __sk_buff *skb, struct packet *packet)
{
	const __u8 *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	const __u8 *ip = data;
	__u16 protocol = bpf_ntohs(skb->protocol);

	if (is_ethernet) {
		if (data + 14 > end)
			return 0;
		ip += 14;
		protocol = be16(data + 12);
#pragma unroll
		for (int i = 0; i < 2; i++) {
			if (protocol != ETH_P_8021Q && protocol != ETH_P_8021AD)
				break;
			if (ip + 4 > end)
				return 0;
			protocol = be16(ip + 2);
			ip += 4;
		}
	}
	const __u8 *source, *destination, *l4;
	if (protocol == ETH_P_IP) {
		if (ip + 20 > end || ip[0] >> 4 != 4)
			return 0;
		__u32 header = (ip[0] & 15) * 4;
		if (header < 20 || be16(ip + 6) & MORE_FRAGMENTS_AND_OFFSET)
			return 0;
		packet->length = be16(ip + 2);
		packet->headers = header;
		packet->key.protocol = ip[9];
		source = ip + 12;
		destination = ip + 16;
		l4 = ip + header;
	} else if (protocol == ETH_P_IPV6) {
		if (ip + 40 > end || ip[0] >> 4 != 6)
			return 0;
		__u32 payload = be16(ip + 4);
		if (payload == 0) // its length is elsewhere
			return 0;
		packet->length = payload + 40;
		packet->headers = 40;
		packet->key.protocol = ip[6];
		packet->key.is_v6 = 1;
		source = ip + 8;
		destination = ip + 24;
		l4 = ip + 40;
	} else {
		return 0;
	}
	if (packet->key.protocol == IPPROTO_TCP) {
		if (l4 + 20 > end)
			return 0;
		__u32 header = (l4[12] >> 4) * 4;
		if (header < 20)
			return 0;
		packet->headers += header;
		packet->tcp_flags = l4[13];
	} else if (packet->key.protocol == IPPROTO_UDP) {
		if (l4 + 8 > end || be16(l4 + 4) < 8)
			return 0;
		packet->headers += 8;
	} else {
		return 0;
	}
	if (packet->length < packet->headers)
		return 0;
	__u16 from = be16(l4), to = be16(l4 + 2);
	const __u8 *low = source, *high = destination;
	packet->from_high = !source_is_low(source, destination, packet->key.is_v6, from, to);
	packet->key.low_port = from;
	packet->key.high_port = to;
	if (packet->from_high) {
		low = destination;
		high = source;
		packet->key.low_port = to;
		packet->key.high_port = from;
	}
	packet->key.low[0] = be32(low);
	packet->key.high[0] = be32(high);
	if (packet->key.is_v6) {
#pragma unroll
		for (int i = 1; i < 4; i++) {
			packet->key.low[i] = be32(low + 4 * i);
			packet->key.high[i] = be32(high + 4 * i);
		}
	}
	return 1;
}

static __always_inline __u64 hash(const struct key *key)
{
	const __u32 *words = (const __u32 *)key;
	__u64 hash = hash_seed;
#pragma unroll
	for (int i = 0; i < (int)(sizeof(*key) / 4); i++) {
		hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15ull;
		hash ^= hash >> 32;
	}
	return hash;
}

static __always_inline __u64 *shared_words(void)
{
	__u32 zero = 0;
	return bpf_map_lookup_elem(&shared, &zero);
}

// The word of a flow among those that say which flows need no more packets.
static __always_inline __u64 *quiet_word(__u64 flow_hash)
{
	__u64 *words = shared_words();
	__u32 at = ASLEEP_WORDS + (flow_hash & (FLOW_WORDS - 1));
	return words && at < ASLEEP_WORDS + FLOW_WORDS ? words + at : 0;
}

// Sends a packet up. `packet` is null for one that was not parsed, `flow` where it has no entry; else its counts go with it.
static __always_inline void send_up(struct __sk_buff *skb, __u32 gso_size, __u32 worker, __u64 now, struct counters *counters,
				    const struct packet *packet, const struct flow *flow, __u16 flags)
{
	void *ring = bpf_map_lookup_elem(&rings, &worker);
	if (!ring)
		return;
	struct record *record;
	if (packet)
		record = bpf_ringbuf_reserve(ring, sizeof(*record) + SHORT_FRAME, 0);
	else
		record = bpf_ringbuf_reserve(ring, sizeof(*record) + LONG_FRAME, 0);
	if (!record) {
		counters->dropped++;
		return;
	}
	__u32 captured = skb->len;
	record->time_ns = now;
	record->wire = captured;
	record->tag = skb->vlan_present ? skb->vlan_proto | skb->vlan_tci << 16 : 0;
	record->gso_size = gso_size;
	record->flags = flags;
	if (packet && flow) {
		record->key = packet->key;
		record->packets[0] = flow->packets[0];
		record->packets[1] = flow->packets[1];
		record->bytes[0] = flow->bytes[0];
		record->bytes[1] = flow->bytes[1];
		record->last_ns = flow->last_ns;
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
	__u64 *words = shared_words(), wake = BPF_RB_NO_WAKEUP;
	// A worker that sleeps is woken once, by one packet; it finds those that follow when it looks.
	if (words && worker < ASLEEP_WORDS && words[worker]) {
		words[worker] = 0;
		wake = BPF_RB_FORCE_WAKEUP;
	}
	bpf_ringbuf_submit(record, wake);
}

// Whether a packet that carries no SYN, FIN or RST is one of the first of its flow; makes the entry of a flow that has none.
static __always_inline int is_first(void *table, struct flow *flow, const struct packet *packet, __u32 data, __u64 flow_hash,
				    __u64 now, struct counters *counters)
{
	__u64 *word = quiet_word(flow_hash);
	if (!word)
		return 1;
	if (!flow) {
		struct flow begun = {.last_ns = now, .sent = 1, .sent_data = data};
		if (bpf_map_update_elem(table, &packet->key, &begun, BPF_ANY))
			counters->refused++;
		else
			counters->begun++;
		if (*word == flow_hash)
			*word = 0;
		return 1;
	}
	if (forget_ns && now - flow->last_ns > forget_ns) {
		flow->sent = flow->sent_data = flow->is_quiet = 0;
		if (*word == flow_hash)
			*word = 0;
	}
	int has_label = *word == flow_hash;
	if (!has_label && (flow->sent < packets_wanted || (data && flow->sent_data < data_wanted))) {
		flow->sent++;
		flow->sent_data += data;
		return 1;
	}
	flow->is_quiet = has_label || (flow->sent >= packets_wanted && flow->sent_data >= data_wanted);
	return 0;
}

static __always_inline int first(struct __sk_buff *skb)
{
	struct packet packet = {};
	int is_plain = parse(skb, &packet);
	if (!is_plain && skb->len > (__u32)((long)skb->data_end - (long)skb->data)) {
		// The headers may lie outside of the linear part.
		if (bpf_skb_pull_data(skb, skb->len < SHORT_FRAME ? skb->len : SHORT_FRAME) == 0) {
			__builtin_memset(&packet, 0, sizeof(packet));
			is_plain = parse(skb, &packet);
		}
	}
	__u32 segments = 1, length = packet.length, payload = packet.length - packet.headers, gso_size = skb->gso_size;
	__u16 flags = 0;
	if (is_plain && gso_size) {
		if (packet.key.protocol == IPPROTO_UDP || payload == 0) {
			// Merged UDP may be TCP in a tunnel, which user space takes apart.
			flags = packet.key.protocol == IPPROTO_UDP ? IS_UDP : 0;
			is_plain = 0;
		} else {
			segments = (payload + gso_size - 1) / gso_size;
			length += (segments - 1) * packet.headers;
		}
	}
	__u64 now = bpf_ktime_get_boot_ns();
	__u32 worker = 0;
	__u64 flow_hash = 0;
	struct flow *flow = 0;
	if (is_plain && workers > 1) {
		flow_hash = hash(&packet.key);
		worker = (__u32)(flow_hash >> 32) % workers;
	}
	struct counters *counters = bpf_map_lookup_elem(&counts, &worker);
	if (!counters)
		return GO_ON;
	if (!is_plain) {
		send_up(skb, gso_size, worker, now, counters, 0, 0, flags);
		return GO_ON;
	}
	void *table = bpf_map_lookup_elem(&tables, &worker);
	if (!table)
		return GO_ON;
	flow = bpf_map_lookup_elem(table, &packet.key);
	int has_marks = packet.tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST);
	int opens = (packet.tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
	int is_quiet = flow && flow->is_quiet && !(forget_ns && now - flow->last_ns > forget_ns);
	if (has_marks || !is_quiet) {
		int goes_up = 1;
		if (!flow_hash)
			flow_hash = hash(&packet.key);
		// A packet with SYN makes no entry, so a flood of them fills no table.
		if (!has_marks)
			goes_up = is_first(table, flow, &packet, payload ? segments : 0, flow_hash, now, counters);
		if (goes_up) {
			if (flow)
				flags = HAS_COUNTS | (opens ? OPENS : 0);
			send_up(skb, gso_size, worker, now, counters, &packet, flow, flags);
			if (opens) {
				// The ports are used again.
				__u64 *word = quiet_word(flow_hash);
				if (word && *word == flow_hash)
					*word = 0;
				if (flow) {
					flow->packets[0] = flow->packets[1] = flow->bytes[0] = flow->bytes[1] = 0;
					flow->sent = flow->sent_data = flow->is_quiet = 0;
				}
			}
			if (flow)
				flow->last_ns = now;
			return GO_ON;
		}
	}
	if (!flow)
		return GO_ON;
	// Two CPUs may count a flow's packets at once.
	__u32 direction = packet.from_high & 1;
	__sync_fetch_and_add(&flow->packets[direction], segments);
	__sync_fetch_and_add(&flow->bytes[direction], length);
	flow->last_ns = now;
	counters->counted += segments;
	counters->counted_bytes += skb->len + (segments - 1) * (skb->len - packet.length + packet.headers);
	return GO_ON;
}

SEC("classifier")
int fenxi_first(struct __sk_buff *skb) { return first(skb); }

char LICENSE[] SEC("license") = "GPL";
