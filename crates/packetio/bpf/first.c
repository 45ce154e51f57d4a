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

// A flow, in two lines of memory, of which packets of IPv4 touch the first. Index 0: from the low end; 1: from the high end.
struct entry {
	__u32 version; // 0: free; odd: being changed; goes on with each flow
	__u32 low;     // the last words of the addresses
	__u32 high;
	__u16 low_port;
	__u16 high_port;
	__u8 protocol;
	__u8 is_v6;
	__u8 sent;      // packets sent up
	__u8 sent_data; // of these, packets with payload
	__u32 last;     // when the last packet came, in ticks of 2^20 ns, about a millisecond, of CLOCK_MONOTONIC
	__u32 is_quiet; // none needs to be sent up any more; user space says so, too
	__u32 zero;
	__u64 packets[2]; // counted
	__u64 bytes[2];   // at the IP layer
	__u32 low_words[3];
	__u32 high_words[3];
	__u64 rest[5];
};

struct set {
	struct entry ways[WAYS];
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
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64[WORKERS_MAX]);
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

// Whether a packet is one of VXLAN or Geneve.
static __always_inline int is_tunnel(const struct packet *packet)
{
	__u16 to = packet->from_high ? packet->key.low_port : packet->key.high_port;
	return to == 4789 || to == 8472 || to == 6081;
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
	int last = key->is_v6 ? 3 : 0;
	if (entry->low != key->low[last] || entry->high != key->high[last] || entry->low_port != key->low_port ||
	    entry->high_port != key->high_port || entry->protocol != key->protocol || entry->is_v6 != key->is_v6 ||
	    !entry->version || entry->version & 1)
		return 0;
	if (key->is_v6) {
#pragma unroll
		for (int i = 0; i < 3; i++) {
			if (entry->low_words[i] != key->low[i] || entry->high_words[i] != key->high[i])
				return 0;
		}
	}
	return 1;
}

static __always_inline struct entry *find(struct set *set, const struct key *key)
{
#pragma unroll
	for (int i = 0; i < WAYS; i++) {
		if (is_of(&set->ways[i], key))
			return &set->ways[i];
	}
	return 0;
}

// The entry that a new flow takes: a free one, else the one used least recently.
static __always_inline struct entry *choose(struct set *set, __u32 now)
{
	struct entry *chosen = &set->ways[0];
	__u32 longest = 0;
#pragma unroll
	for (int i = 0; i < WAYS; i++) {
		struct entry *entry = &set->ways[i];
		__u32 silent = entry->version ? now - entry->last : ~0u;
		if (silent >= longest) {
			longest = silent;
			chosen = entry;
		}
	}
	return chosen;
}

// Begins a flow; another CPU, or user space, may be doing so with the same entry, and then there is none for it yet.
static __always_inline void begin(struct set *set, const struct key *key, __u32 now, __u32 data, struct counters *counters)
{
	struct entry *entry = choose(set, now);
	__u32 version = entry->version;
	if (version & 1 || __sync_val_compare_and_swap(&entry->version, version, version | 1) != version)
		return;
	if (version && !(forget_ticks && now - entry->last > forget_ticks))
		counters->evicted++;
	int last = key->is_v6 ? 3 : 0;
	entry->low = key->low[last];
	entry->high = key->high[last];
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
		entry->low_words[i] = key->low[i];
		entry->high_words[i] = key->high[i];
	}
	// What is written before is seen before by whoever sees the version (the swap is a full barrier).
	__sync_val_compare_and_swap(&entry->version, version | 1, (version | 1) + 1);
}

// Sends a packet up. `packet` is null for one that was not parsed, `entry` where it has none; else its counts go with it.
static __always_inline void send_up(struct __sk_buff *skb, __u32 gso_size, __u32 worker, struct counters *counters,
				    const struct packet *packet, const struct entry *entry, __u16 flags)
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
		record->version = entry->version;
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
	__u32 zero = 0;
	__u64 *words = bpf_map_lookup_elem(&asleep, &zero), wake = BPF_RB_NO_WAKEUP;
	// A worker that sleeps is woken once, by one packet; it finds those that follow when it looks.
	if (words && worker < WORKERS_MAX && words[worker]) {
		words[worker] = 0;
		wake = BPF_RB_FORCE_WAKEUP;
	}
	bpf_ringbuf_submit(record, wake);
}

// Whether a packet that carries no SYN, FIN or RST is one of the first of its flow.
static __always_inline int is_first(struct entry *entry, __u32 now, __u32 data)
{
	if (forget_ticks && now - entry->last > forget_ticks)
		entry->sent = entry->sent_data = entry->is_quiet = 0;
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
	__u32 data = payload ? segments : 0;
	if (!entry || has_marks || is_first(entry, now, data)) {
		int opens = entry && (packet.tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
		if (entry)
			flags = HAS_COUNTS | (opens ? OPENS : 0);
		send_up(skb, gso_size, worker, counters, &packet, entry, flags);
		if (entry)
			entry->last = now;
		// A packet with SYN makes no entry, so a flood of them fills no table.
		else if (!has_marks)
			begin(set, &packet.key, now, data < 255 ? data : 255, counters);
		if (opens) {
			// The ports are used again.
			entry->packets[0] = entry->packets[1] = entry->bytes[0] = entry->bytes[1] = 0;
			entry->sent = entry->sent_data = entry->is_quiet = 0;
			__sync_fetch_and_add(&entry->version, 2);
		}
		return GO_ON;
	}
	// Two CPUs may count a flow's packets at once.
	__u32 direction = packet.from_high & 1;
	__sync_fetch_and_add(&entry->packets[direction], segments);
	__sync_fetch_and_add(&entry->bytes[direction], length);
	entry->last = now;
	counters->counted += segments;
	counters->counted_bytes += skb->len + (segments - 1) * (skb->len - packet.length + packet.headers);
	return GO_ON;
}

SEC("classifier")
int fenxi_first(struct __sk_buff *skb) { return first(skb); }

char LICENSE[] SEC("license") = "GPL";
