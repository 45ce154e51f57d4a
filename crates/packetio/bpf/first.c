// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
//
// Sends the first packets of each flow to user space, and counts the others.
//
// Attached to both directions of an interface (TC, by TCX or clsact), it looks at each packet and
// lets all of them go on. Sent up are:
// packets with SYN, FIN or RST; the first ones of a flow, as many as the model's series may need, until user space says that
// the flow has its label; those with which a flow crosses the bound of bulk; and all that it does not parse, from fragments to tunnels and packets that claim more bytes than their
// frames have. Of the others it adds up packets and bytes by flow, each merged packet (GRO, TSO) as its segments.
//
// The flows are in a table of its own making, an array that user space has mapped: sets of four entries, of which a new flow
// takes a free one or the one used least recently. The kernel's LRU hash was measured first: it cost a packet some 330 ns,
// most of it for lines of memory that are not in the cache; here a packet of IPv4 touches one line, and user space reads what
// was counted without a system call.
//
// What is done with packets that are only counted is in `look`, the rest in functions of their own, so that the former needs
// little of the stack. Without CAP_PERFMON the kernel puts a barrier behind each first write to a place of it, of some 15 ns;
// and lets nothing but constants be added to pointers to packets and the stack. So headers behind options are copied, a flow's
// direction is no index, and `OWN` hides from the compiler what two pointers have in common.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "first.h"
#ifdef LABELS
#include "series.h"
#endif

// The packet goes on to whatever comes next, with clsact (TC_ACT_UNSPEC) and TCX (TCX_NEXT) alike.
#define GO_ON TC_ACT_UNSPEC

#define TCP_FIN 1
#define TCP_SYN 2
#define TCP_RST 4
#define TCP_ACK 16

#define MORE_FRAGMENTS 0x2000
#define FRAGMENT_OFFSET 0x1fff
#ifdef LABELS
#define FRAGMENTS_NOT_TAKEN FRAGMENT_OFFSET // the first one says that user space labels the flow
#else
#define FRAGMENTS_NOT_TAKEN (MORE_FRAGMENTS | FRAGMENT_OFFSET)
#endif

static __always_inline __u16 be16(const __u8 *at) { return (__u16)at[0] << 8 | at[1]; }
static __always_inline __u32 be32(const __u8 *at) { return bpf_ntohl(*(const __u32 *)at); }

#define NO_WAY WAYS

// A packet that is sent up. Functions that take one are verified by themselves, once, so no
// pointers are in it, and the verifier does not know whether its flow has an entry. Without
// CAP_PERFMON, that of Linux 6.12 follows both ways from a branch whose way it knows, as the
// processor may, and refuses what one of them reads through a null.
struct packet {
	struct key key;
	__u32 worker;
	__u32 gso_size;
	// The rest is of packets that were parsed.
	__u32 at; // of the set
	__u32 now;
	__u32 marks; // SYN, FIN, RST, and ACK
	__u32 data;   // segments with payload, up to 255
	__u32 length; // at the IP layer
	__u32 way;    // of the flow's entry; NO_WAY: it has none
#ifdef LABELS
	__u64 hash;
	__u32 segments;
	__u32 headers;     // bytes of each segment that are not payload
	__u32 begins_with; // flags of the entry that it begins
	__u32 version;     // of the entry whose label may be decided by now
	__u32 written;     // elements of it
	__u32 ip_at;       // of the IP header in the frame
	__u32 overhead;    // bytes of the frame that are not the IP packet's
	__u8 from_high;
	__u8 is_egress;
	__u8 is_odd; // it is no element for the kernel: a fragment, or merged UDP
#endif
};

// Linux 6.1 wants the keys of maps on the function's own stack.
static __always_inline void *at_number(void *map, __u32 number)
{
	return bpf_map_lookup_elem(map, &number);
}

static __always_inline struct counters *counters_of(const struct packet *packet)
{
	return at_number(&counts, packet->worker);
}

static __always_inline struct set *set_of(const struct packet *packet)
{
	return at_number(&table, packet->at);
}

static __always_inline struct entry *entry_of(const struct packet *packet)
{
	struct set *set = set_of(packet);
	__u32 way = packet->way;
	if (!set || way >= WAYS)
		return 0;
	OWN(way); // The verifier wants the bound where it is used.
	return &set->ways[way & (WAYS - 1)];
}

static __always_inline void count_up(const struct packet *packet, __u32 sent, __u32 dropped, __u32 evicted)
{
	struct counters *counters = counters_of(packet);
	if (counters) {
		counters->sent += sent;
		counters->dropped += dropped;
		counters->evicted += evicted;
	}
}

static __always_inline __u64 fold(__u64 hash) { return hash ^ hash >> 32; }

// A term of the hash: of one word, whose halves are masked by secrets of their own.
static __always_inline __u64 term(__u64 word, int i)
{
	return ((__u32)word + hash_secrets[2 * i]) * ((word >> 32) + hash_secrets[2 * i + 1]);
}

// The sum of the terms is strongly universal (Lemire and Kaser 2014, "multilinear-HM"): any two flows collide in it for few
// secrets. The last round hides from regular tuples that it is nearly linear. User space has the same in src/first/hash.rs.
static __always_inline __u64 hash_of(const __u64 words[4], __u64 kind, int is_v6)
{
	__u64 sum = term(kind, 0) + term(words[0], 1);
	if (is_v6)
		sum += term(words[1], 2) + term(words[2], 3) + term(words[3], 4);
	return fold(fold(sum) * hash_secrets[10]);
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

// What user space has seen of a flow in front of its entry, such as SYN and the answer to it: so near to the bound, packets are
// sent up already, so that the one that crosses it is among them.
#define BULK_SLACK 256

static __always_inline __u64 bytes_so_far(const struct entry *entry)
{
	return entry->bytes[0] + entry->bytes[1] + entry->sent_bytes;
}

// Whether the flow crosses the bound of bulk, or may.
static __always_inline int may_cross(const struct entry *entry, __u32 length)
{
	return bulk_bytes && !(entry->flags & IS_BULK) && bytes_so_far(entry) + length + BULK_SLACK > bulk_bytes;
}

static __always_inline int swap(__u32 *version, __u32 from, __u32 to)
{
	// A full barrier: whoever sees the new version sees what was written before it.
	return __sync_val_compare_and_swap(version, from, to) == from;
}

// Writes an entry's counts in front of a packet. `version` is that of the flow that they are of.
static __always_inline void write_counts(struct record *record, const struct entry *entry, __u32 version)
{
	record->packets[0] = entry->packets[0];
	record->packets[1] = entry->packets[1];
	record->bytes[0] = entry->bytes[0];
	record->bytes[1] = entry->bytes[1];
	record->last = entry->last;
	record->version = version;
}

// Where the kernel collects series: writes into a record those elements of a flow that no record has.
static __always_inline void write_elements(struct record *record, const struct packet *packet, const struct entry *entry,
					   __u32 version)
{
#ifdef LABELS
	struct series *series = series_of(packet->at, version >> WAY_SHIFT);
	record->reported.from = record->reported.to = 0;
	if (series && report(&record->reported, series, entry, version))
		count_up(packet, record->reported.to - record->reported.from, 0, 0);
#endif
}

// Whether an entry's flow has elements that no record has.
static __always_inline int is_to_be_reported(const struct packet *packet, const struct entry *entry, __u32 version)
{
#ifdef LABELS
	struct series *series = series_of(packet->at, version >> WAY_SHIFT);
	return series && has_more(series, entry, version);
#else
	return 0;
#endif
}

// Nothing is known any more of an entry's flow but what was sent up.
static __always_inline void clear(struct entry *entry, const struct packet *packet, __u32 bytes, __u32 sent, __u32 data)
{
	entry->packets[0] = entry->packets[1] = entry->bytes[0] = entry->bytes[1] = 0;
	entry->sent_bytes = bytes;
	entry->is_quiet = entry->flags = 0;
	entry->sent = sent;
	entry->sent_data = data;
#ifdef LABELS
	entry->flags = packet->begins_with;
	if (packet->begins_with)
		entry->sent_bytes = entry->sent = entry->sent_data = 0;
#endif
}

// Where the kernel collects series: that of the entry's flow begins.
static __always_inline void clear_series(const struct packet *packet, __u32 version)
{
#ifdef LABELS
	struct series *series = series_of(packet->at, version >> WAY_SHIFT);
	if (series && packet->begins_with)
		begin_series(series, version);
#endif
}

// Whether another entry than `way` has, or is being given, a packet's key. Apart from `begin`, whose stack would be too full.
__noinline int is_elsewhere(struct packet *packet, __u32 way)
{
	if (!packet)
		return 0;
	const struct set *set = set_of(packet);
	const struct words_of_set *words = at_number(&table_words, packet->at);
	if (!set || !words)
		return 0;
	int found = 0;
#pragma unroll
	for (int i = 0; i < WAYS; i++) {
		const struct entry *other = &set->ways[i];
		const __u64 *rest = words->ways[i];
		__u64 differs = (other->ends ^ packet->key.words[0]) | (other->kind ^ packet->key.kind) |
				(rest[0] ^ packet->key.words[1]) | (rest[1] ^ packet->key.words[2]) | (rest[2] ^ packet->key.words[3]);
		found |= i != way && !differs;
	}
	return found;
}

// Begins a flow in the first free entry, else in the one used least recently, whose counts go up with the packet, in `record`;
// the record's flags. Where there is no record for them (null), or another CPU or user space is changing that entry or begins
// the same flow, there is none for the flow yet.
__noinline int begin(struct packet *packet, struct record *record)
{
	if (!packet)
		return 0;
	struct set *set = set_of(packet);
	struct words_of_set *words = at_number(&table_words, packet->at);
	if (!set || !words)
		return 0;
	struct entry *entry = &set->ways[0];
	__u64 *rest = words->ways[0];
	__u32 longest = 0, way = 0;
#pragma unroll
	for (int i = 0; i < WAYS; i++) {
		struct entry *other = &set->ways[i];
		OWN(other);
		__u32 silent = other->kind ? silence(other, packet->now) : ~0u;
		if (silent > longest) {
			longest = silent;
			entry = other;
			way = i;
			rest = words->ways[i];
			OWN(rest);
		}
	}
	__u32 version = entry->version;
	if (version & DOING || !swap(&entry->version, version, version | GIVING))
		return 0;
	__u16 flags = 0;
	if (entry->kind) {
		if (entry->packets[0] | entry->packets[1] | is_to_be_reported(packet, entry, version)) {
			if (!record) {
				swap(&entry->version, version | GIVING, version);
				return 0;
			}
			flags = HAS_COUNTS | OPENS;
			record->key.words[0] = entry->ends;
			record->key.words[1] = rest[0];
			record->key.words[2] = rest[1];
			record->key.words[3] = rest[2];
			record->key.kind = entry->kind;
			write_counts(record, entry, version);
			write_elements(record, packet, entry, version);
		}
		if (!is_forgotten(entry, packet->now))
			count_up(packet, 0, 0, 1);
	}
	entry->ends = packet->key.words[0];
	entry->kind = packet->key.kind;
	entry->last = packet->now;
	clear(entry, packet, packet->length, 1, packet->data);
	rest[0] = packet->key.words[1];
	rest[1] = packet->key.words[2];
	rest[2] = packet->key.words[3];
	__u32 new_version = ((version & -VERSION_STEP) + VERSION_STEP) | way << WAY_SHIFT;
	clear_series(packet, new_version);
	// Two CPUs may begin one flow, for its two directions, in two entries. Behind a full barrier, one of them at least sees the
	// other's key, and gives way.
	swap(&entry->version, version | GIVING, version | GIVING);
	if (is_elsewhere(packet, way)) {
		entry->kind = 0;
		way = NO_WAY;
	}
	swap(&entry->version, version | GIVING, new_version);
#ifdef LABELS
	packet->way = packet->begins_with ? way : NO_WAY;
#endif
	return flags;
}

// An entry's flow begins anew, with a packet that was sent up, or not.
static __always_inline void begin_again(const struct packet *packet, struct entry *entry, __u32 sent, __u32 data)
{
	__u32 version = entry->version;
	if (version & DOING || !swap(&entry->version, version, version | CLEARING))
		return;
	clear(entry, packet, 0, sent, data);
	clear_series(packet, version + VERSION_STEP);
	swap(&entry->version, version | CLEARING, version + VERSION_STEP);
}

// What is known of a packet's flow.
static __always_inline void fill(struct record *record, const struct packet *packet, const struct entry *entry)
{
	__u32 version = entry->version & ~DOING;
	record->key = packet->key;
	write_counts(record, entry, version);
	write_elements(record, packet, entry, version);
}

static __always_inline void submit(const struct packet *packet, struct record *record)
{
	record->time_ns = bpf_ktime_get_boot_ns();
	__u64 *is_asleep = at_number(&asleep, packet->worker), wake = BPF_RB_NO_WAKEUP;
	// A worker that sleeps is woken once, by one packet; it finds those that follow when it looks.
	if (is_asleep && *is_asleep) {
		*is_asleep = 0;
		wake = BPF_RB_FORCE_WAKEUP;
	}
	bpf_ringbuf_submit(record, wake);
}

// Counts packets of a flow. Two CPUs may do so at once.
static __always_inline void count(struct entry *entry, struct counters *counters, int from_high, __u32 packets, __u32 bytes,
				  __u32 overhead)
{
	if (from_high) {
		__sync_fetch_and_add(&entry->packets[1], packets);
		__sync_fetch_and_add(&entry->bytes[1], bytes);
	} else {
		__sync_fetch_and_add(&entry->packets[0], packets);
		__sync_fetch_and_add(&entry->bytes[0], bytes);
	}
	counters->counted += packets;
	counters->counted_bytes += bytes + packets * overhead;
}

#define BEGINS 0x100 // a flow with it

// Sends a packet up, with the counts of its entry, or of that which it is given if it begins one;
// whether there was room. `how`: flags of the record, or BEGINS.
static __always_inline int send_with(struct __sk_buff *skb, struct packet *packet, __u32 most, __u32 how)
{
	void *ring = at_number(&rings, packet->worker);
	if (!ring)
		return 0;
	__u32 captured = skb->len;
	struct record *record = bpf_ringbuf_reserve(ring, sizeof(*record) + most, 0);
	__u16 flags = how & BEGINS ? begin(packet, record) : how;
	if (!record) {
		count_up(packet, 0, 1, 0);
		return 0;
	}
	record->wire = captured;
	record->tag = skb->vlan_present ? skb->vlan_proto | skb->vlan_tci << 16 : 0;
	record->gso_size = packet->gso_size;
	record->flags = flags;
	const struct entry *entry = how & HAS_COUNTS ? entry_of(packet) : 0;
	if (entry)
		fill(record, packet, entry);
	if (captured > most)
		captured = most;
	record->captured = 0;
	// Linux 6.1 learns nothing of a number from its being unequal to 0.
	__u32 last = captured - 1;
	OWN(last);
	if (last < most && bpf_skb_load_bytes(skb, 0, record + 1, last + 1) == 0)
		record->captured = captured;
	count_up(packet, 1, 0, 0);
	submit(packet, record);
	return 1;
}

// The same with one that was parsed.
__noinline int send_up(struct __sk_buff *skb, struct packet *packet, __u32 how)
{
	if (!packet)
		return 0;
#ifdef LABELS
	if (packet->is_odd)
		return send_with(skb, packet, LONG_FRAME, how);
#endif
	return send_with(skb, packet, SHORT_FRAME, how);
}

// Sends up a packet that was not parsed. `flags` is 0, or `IS_UDP`.
static __noinline int send_other(struct __sk_buff *skb, __u32 gso_size, __u32 flags)
{
	struct packet packet = {.gso_size = gso_size};
	// So the compiler knows that there is no entry, and leaves out what is done with one.
	send_with(skb, &packet, LONG_FRAME, flags & IS_UDP);
	return GO_ON;
}

// Whether a packet that carries no SYN, FIN or RST is one of the first of its flow.
static __always_inline int is_first(struct entry *entry, __u32 data)
{
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

// Sends up a packet of a flow, unless its flow has had all of its first packets; then it is to be counted.
__noinline int send_first(struct __sk_buff *skb, struct packet *packet)
{
	if (!packet)
		return 0;
	struct entry *entry = entry_of(packet);
	int has_marks = packet->marks & (TCP_SYN | TCP_FIN | TCP_RST);
	if (!entry) {
		// A packet with SYN makes no entry, so a flood of them fills no table.
		send_up(skb, packet, has_marks ? 0 : BEGINS);
		return 1;
	}
	// Its ports are used again, or user space has ended it because it was silent, and takes this packet for another flow.
	int opens = (packet->marks & (TCP_SYN | TCP_ACK)) == TCP_SYN || is_forgotten(entry, packet->now);
	int crosses = may_cross(entry, packet->length);
	if (!has_marks && !opens && !crosses && (entry->is_quiet || !is_first(entry, packet->data)))
		return 0;
	__u16 flags = opens && entry->packets[0] | entry->packets[1] ? HAS_COUNTS | OPENS : HAS_COUNTS;
	if (!send_up(skb, packet, flags) && opens)
		return 1; // User space knows of no other flow.
	if (opens)
		begin_again(packet, entry, has_marks ? 0 : 1, has_marks ? 0 : packet->data);
	else if (crosses && bytes_so_far(entry) > bulk_bytes)
		entry->flags |= IS_BULK; // The one before has crossed it, unless two CPUs counted at once; then this one has.
	entry->sent_bytes += packet->length;
	entry->last = packet->now;
	return 1;
}

#ifdef LABELS
#include "labels.h"
#define LABELS_HERE 1
#else
#define LABELS_HERE 0
#endif

#define CUT 1000      // the headers may lie outside of the linear part
#define EXTENDED 2000 // IPv6 with extension headers; its offset is added

// What a TCP or UDP header says.
struct l4 {
	__u16 from;
	__u16 to;
	__u32 header; // its bytes; 0: it is none; or CUT
	__u32 marks;
};

static __always_inline struct l4 parse_l4(const __u8 *at, const __u8 *end, int is_tcp)
{
	struct l4 l4 = {.header = CUT};
	if (at + 8 > end)
		return l4;
	l4.from = be16(at);
	l4.to = be16(at + 2);
	if (is_tcp) {
		if (at + 20 > end)
			return l4;
		l4.header = (at[12] >> 4) * 4;
		l4.marks = at[13] & (TCP_SYN | TCP_FIN | TCP_RST | TCP_ACK);
		if (l4.header < 20)
			l4.header = 0;
	} else {
		l4.header = be16(at + 4) >= 8 ? 8 : 0;
	}
	return l4;
}

// A plain packet of TCP or UDP: counts it, or sends it up. `words` has the addresses' words as in a key, but from the source on.
// `is_odd`: it is the first fragment of one.
static __always_inline int plain(struct __sk_buff *skb, __u64 words[4], int is_v6, int is_tcp, struct l4 l4, __u32 l3_length,
				 __u32 headers, __u32 ip_at, int is_egress, int is_odd)
{
	__u32 gso_size = skb->gso_size, length = l3_length, payload = length - headers, segments = 1;
	if (gso_size) {
		// Merged UDP may be TCP in a tunnel (VXLAN, Geneve), which user space takes apart.
		int is_tunnel = l4.to == 4789 || l4.to == 8472 || l4.to == 6081;
		if (!payload || (!is_tcp && (is_tunnel || !LABELS_HERE)))
			return send_other(skb, gso_size, is_tcp || is_tunnel ? 0 : IS_UDP);
		is_odd |= !is_tcp;
		segments = (payload + gso_size - 1) / gso_size;
		length += (segments - 1) * headers;
	}
	// Whether the source exceeds the destination: the borrow of a long subtraction. After
	// branches, the verifier would follow all that comes behind for each way. So halves are
	// swapped by shifts, too, which are 0 where they stay.
	__u64 from_high = ((__u64)l4.to - l4.from) >> 63;
#pragma unroll
	for (int i = 0; i < (is_v6 ? 4 : 1); i++)
		from_high = ((words[i] >> 32) - (__u32)words[i] - from_high) >> 63;
	OWN(from_high);
#pragma unroll
	for (int i = 0; i < (is_v6 ? 4 : 1); i++)
		words[i] = words[i] << 32 * from_high | words[i] >> 32 * from_high;
	__u32 ports = l4.from | (__u32)l4.to << 16;
	ports = ports << 16 * from_high | ports >> 16 * from_high;
	__u64 kind = ports | (__u64)(is_tcp ? IPPROTO_TCP : IPPROTO_UDP) << PROTOCOL_SHIFT | (__u64)is_v6 << IS_V6_SHIFT;
	__u64 hash = hash_of(words, kind, is_v6);
	__u32 worker = workers > 1 ? (__u32)(hash >> 40) % workers : 0;
	__u32 at = worker * sets + ((__u32)hash & (sets - 1));
	struct set *set = bpf_map_lookup_elem(&table, &at);
	struct words_of_set *others = is_v6 ? bpf_map_lookup_elem(&table_words, &at) : 0;
	struct counters *counters = bpf_map_lookup_elem(&counts, &worker);
	if (!set || !counters || (is_v6 && !others))
		return GO_ON;
	struct entry *entry = 0;
	__u32 way = NO_WAY;
#ifdef LABELS
	__u32 zero = 0;
#endif
#pragma unroll
	for (int i = 0; i < WAYS; i++) {
		struct entry *other = &set->ways[i];
		OWN(other);
		if (other->kind != kind || other->ends != words[0] || *(volatile __u32 *)&other->version & GIVING)
			continue;
		if (is_v6 && (others->ways[i][0] != words[1] || others->ways[i][1] != words[2] || others->ways[i][2] != words[3]))
			continue;
		entry = other;
		way = i;
		break;
	}
	// A CPU that gives way in `begin` takes the key back before its entry is free.
	if (entry && *(volatile __u64 *)&entry->kind != kind) {
		entry = 0;
		way = NO_WAY;
	}
	__u32 now = bpf_ktime_get_coarse_ns() >> 20;
	if (!entry || !entry->is_quiet || l4.marks & ~TCP_ACK || is_forgotten(entry, now) || may_cross(entry, length)) {
		__u32 data = !payload ? 0 : segments < 255 ? segments : 255;
#ifdef LABELS
		struct packet *packet = bpf_map_lookup_elem(&packets, &zero);
		if (!packet)
			return GO_ON;
		packet->hash = hash;
		packet->segments = segments;
		packet->headers = headers;
		packet->version = packet->written = packet->begins_with = 0;
		packet->ip_at = ip_at;
		packet->from_high = from_high;
		packet->is_egress = is_egress;
		packet->is_odd = is_odd;
#else
		struct packet on_stack = {}, *packet = &on_stack;
#endif
		packet->key.words[0] = words[0];
		packet->key.kind = kind;
		packet->worker = worker;
		packet->gso_size = gso_size;
		packet->at = at;
		packet->now = now;
		packet->marks = l4.marks;
		packet->data = data;
		packet->length = length;
		packet->way = way;
		packet->key.words[1] = is_v6 ? words[1] : 0;
		packet->key.words[2] = is_v6 ? words[2] : 0;
		packet->key.words[3] = is_v6 ? words[3] : 0;
#ifdef LABELS
		packet->overhead = skb->len - l3_length;
		return IS_SLOW;
#else
		if (send_first(skb, packet))
			return GO_ON;
		entry = entry_of(packet);
		if (!entry)
			return GO_ON;
#endif
	}
	count(entry, counters, from_high, segments, length, skb->len - l3_length);
	entry->last = now;
#ifdef LABELS
	act(skb, entry, ip_at, is_v6, is_egress);
#endif
	return GO_ON;
}

#ifdef LABELS
static __always_inline int is_extension(__u8 next)
{
	const __u64 extensions = 1ull << IPPROTO_HOPOPTS | 1ull << IPPROTO_ROUTING | 1ull << IPPROTO_FRAGMENT | 1ull << IPPROTO_DSTOPTS;
	return next < 64 && extensions >> next & 1;
}

#define EXTENSIONS_MAX 4

// An IPv6 packet at `at` with extension headers: user space labels its flow.
__noinline int look_behind(struct __sk_buff *skb, __u32 at, int is_egress)
{
	__u8 ip[40], next, header[20];
	__u32 end = at + sizeof(ip);
	if (bpf_skb_load_bytes(skb, at, ip, sizeof(ip)))
		goto other;
	next = ip[6];
	for (int i = 0; i < EXTENSIONS_MAX && is_extension(next); i++) {
		if (bpf_skb_load_bytes(skb, end, header, 8))
			goto other;
		if (next == IPPROTO_FRAGMENT && be16(header + 2) & 0xfff8)
			goto other; // not the first one
		end += next == IPPROTO_FRAGMENT ? 8 : 8 * (header[1] + 1);
		next = header[0];
	}
	int is_tcp = next == IPPROTO_TCP;
	__u32 length = be16(ip + 4) + sizeof(ip);
	if ((!is_tcp && next != IPPROTO_UDP) || bpf_skb_load_bytes(skb, end, header, is_tcp ? 20 : 8))
		goto other;
	struct l4 l4 = parse_l4(header, header + sizeof(header), is_tcp);
	if (!l4.header || length < end - at + l4.header || at + length > skb->len)
		goto other;
	__u64 words[4];
#pragma unroll
	for (int i = 0; i < 4; i++)
		words[i] = be32(ip + 20 - 4 * i) | (__u64)be32(ip + 36 - 4 * i) << 32;
	return plain(skb, words, 1, is_tcp, l4, length, end - at + l4.header, at, is_egress, 1);
other:
	return send_other(skb, skb->gso_size, 0);
}
#endif

// Parses a packet and deals with it, unless it is `CUT`.
static __noinline int look(struct __sk_buff *skb, int is_egress)
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
			OWN(ip);
		}
	}
	if (protocol == ETH_P_IP) {
		if (ip + 20 > end)
			return CUT;
		__u32 header = (ip[0] & 15) * 4, length = be16(ip + 2);
		__u32 fragment = be16(ip + 6);
		int is_tcp = ip[9] == IPPROTO_TCP;
		if (ip[0] >> 4 != 4 || header < 20 || fragment & FRAGMENTS_NOT_TAKEN || (!is_tcp && ip[9] != IPPROTO_UDP))
			goto other;
		struct l4 l4;
		if (header > 20) {
			__u8 copy[20] = {};
			if (bpf_skb_load_bytes(skb, at + header, copy, is_tcp ? 20 : 8))
				goto other;
			l4 = parse_l4(copy, copy + sizeof(copy), is_tcp);
		} else {
			l4 = parse_l4(ip + 20, end, is_tcp);
		}
		if (l4.header == CUT)
			return CUT;
		if (!l4.header || length < header + l4.header || at + length > skb->len)
			goto other;
		__u64 words[4] = {be32(ip + 12) | (__u64)be32(ip + 16) << 32};
		return plain(skb, words, 0, is_tcp, l4, length, header + l4.header, at, is_egress, fragment & MORE_FRAGMENTS);
	}
	if (protocol == ETH_P_IPV6) {
		if (ip + 40 > end)
			return CUT;
		__u32 payload = be16(ip + 4);
		int is_tcp = ip[6] == IPPROTO_TCP;
#ifdef LABELS
		if (ip[0] >> 4 == 6 && is_extension(ip[6]))
			return EXTENDED + at;
#endif
		if (ip[0] >> 4 != 6 || (!is_tcp && ip[6] != IPPROTO_UDP))
			goto other;
		struct l4 l4 = parse_l4(ip + 40, end, is_tcp);
		if (l4.header == CUT)
			return CUT;
		// A payload of 0 says that its length is elsewhere.
		if (!l4.header || payload < l4.header || at + 40 + payload > skb->len)
			goto other;
		__u64 words[4];
#pragma unroll
		for (int i = 0; i < 4; i++)
			words[i] = be32(ip + 20 - 4 * i) | (__u64)be32(ip + 36 - 4 * i) << 32;
		return plain(skb, words, 1, is_tcp, l4, payload + 40, 40 + l4.header, at, is_egress, 0);
	}
other:
	return send_other(skb, skb->gso_size, 0);
}

static __always_inline int see(struct __sk_buff *skb, int is_egress)
{
	int found = look(skb, is_egress);
	if (found == CUT && bpf_skb_pull_data(skb, skb->len < SHORT_FRAME ? skb->len : SHORT_FRAME) == 0)
		found = look(skb, is_egress);
#ifdef LABELS
	if (found >= EXTENDED)
		found = look_behind(skb, found - EXTENDED, is_egress);
	if (found == IS_SLOW)
		return look_closer(skb);
#endif
	return found == CUT ? send_other(skb, skb->gso_size, 0) : found;
}

SEC("classifier")
int fenxi_first(struct __sk_buff *skb) { return see(skb, 0); }

#ifdef LABELS
SEC("classifier")
int fenxi_out(struct __sk_buff *skb) { return see(skb, 1); }
#endif

char LICENSE[] SEC("license") = "GPL";
