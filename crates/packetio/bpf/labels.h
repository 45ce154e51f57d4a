// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
//
// What becomes of a packet where the kernel labels flows: part of first.c.

// The packet that a CPU is at: it stands here and not on the stack, so that a label can be decided once its packet has been
// dealt with, and the network has the stack. No packet interrupts another one here: both directions run with softirqs off.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct packet);
} packets SEC(".maps");

#define IS_SLOW 1001 // the packet may be one of those that its flow's label needs

// A question on its way.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct question);
} questions SEC(".maps");

static __always_inline void set_flags(struct entry *entry, __u32 flags)
{
	__sync_fetch_and_or(&entry->word, flags << FLAGS_SHIFT);
}

static __always_inline void clear_flags(struct entry *entry, __u32 flags)
{
	__sync_fetch_and_and(&entry->word, ~(flags << FLAGS_SHIFT));
}

// How a flow's label is decided: by its edition, which is the current one from here on if it has none. Null if that has given
// way to others.
static __always_inline const struct deciding *keep_edition(struct entry *entry)
{
	for (int i = 0; i < TRIES; i++) {
		__u32 word = *(volatile __u32 *)&entry->word, edition = word & 0xff;
		const struct deciding *how = deciding_at(place_of(edition));
		if (!how)
			return 0;
		__u32 found = how->edition & 0xff;
		if (edition)
			return found == edition ? how : 0;
		if (__sync_val_compare_and_swap(&entry->word, word, word | found) == word)
			return how;
	}
	return 0;
}

// What becomes of a labelled flow: as its edition says, else as the current one, whose classes are the same.
static __always_inline const struct deciding *edition_of(const struct entry *entry)
{
	__u32 edition = entry->sent;
	const struct deciding *how = deciding_at(place_of(edition));
	return how && how->edition == edition ? how : deciding_at(CURRENT);
}

// Names a flow, from this packet on.
static __always_inline void name(struct entry *entry, const struct deciding *deciding, __u32 class)
{
	entry->sent_data = class;
	clear_flags(entry, IS_MARKED | IS_KEPT);
	set_flags(entry, IS_NAMED | (settings.marks && deciding->mark[class & CLASSES_MAX] ? IS_UNMARKED : 0));
}

// The port of the flow's server.
static __always_inline __u32 server_port(const struct entry *entry)
{
	__u32 both = entry->kind;
	return (entry->flags & FROM_HIGH ? both : both >> 16) & 0xffff;
}

static __always_inline int is_of_tcp(const struct entry *entry)
{
	return (entry->kind >> PROTOCOL_SHIFT & 0xff) == IPPROTO_TCP;
}

// The class of a flow by the port of its server, or NO_CLASS.
static __always_inline __u32 class_by_port(const struct entry *entry)
{
	__u32 is_udp = !is_of_tcp(entry);
	const struct ports *classes = bpf_map_lookup_elem(&ports, &is_udp);
	return settings.is_ports_first && classes ? classes->class[server_port(entry)] : NO_CLASS;
}

// Names a flow that begins by the port of its server.
static __always_inline void name_by_port(struct entry *entry)
{
	__u32 class = class_by_port(entry);
	const struct deciding *how = class != NO_CLASS ? keep_edition(entry) : 0;
	if (how)
		name(entry, how, class);
}

// All bits, if a number is below another; else none.
static __always_inline __u64 if_below(__u64 number, __u64 other)
{
	__s64 mask = (__s64)(number - other) >> 63;
	OWN(mask);
	return mask;
}

// Fills a question about a flow's first `k` elements; whether all of them are its own. Without branches, all of whose ways the
// verifier would follow.
__noinline int pose(const struct series *series, const struct entry *entry, __u32 version, __u32 k)
{
	__u32 zero = 0;
	struct question *question = bpf_map_lookup_elem(&questions, &zero);
	if (!question || !series || !entry)
		return 0;
	__u32 before = (__u32)series->elements[0];
	__u64 tag = tag_of(version), foreign = 0, is_high = (entry->flags & FROM_HIGH) / FROM_HIGH;
#pragma unroll
	for (int i = 0; i < ELEMENTS_MAX; i++) {
		__u64 element = series->elements[i], is_there = if_below(i, k);
		__s64 length = element >> LENGTH_SHIFT & 0xffff;
		__s64 is_back = -((element / ELEMENT_FROM_HIGH & 1) ^ is_high);
		// CPUs read the clock before they claim a place, so time may step back.
		__s32 gap = (__u32)element - before, sign = gap >> 31;
		foreign |= (element ^ tag) >> TAG_SHIFT & is_there;
		question->lengths[i] = ((length ^ is_back) - is_back) & is_there;
		question->gaps_us[i] = gap & ~sign & is_there;
		before = element;
	}
	question->elements = k;
	question->is_tcp = is_of_tcp(entry);
	question->server_port = entry->flags & IS_NAMED ? 0 : server_port(entry);
	return !foreign;
}

#define UNDECIDED -1
#define LEFT -2 // to user space

// The answer about a flow's first `k` elements, of the depth with this number; 0 where there is none.
static __always_inline __u32 answer_of(struct series *series, const struct entry *entry, __u32 version,
				       const struct deciding *how, __u32 k, __u32 number)
{
	__u32 zero = 0;
	struct question *question = bpf_map_lookup_elem(&questions, &zero);
	if (!pose(series, entry, version, k) || !question)
		return 0;
	question->place = place_of(how->edition);
	long asked = ask(question);
	// The edition may have given way to another one since.
	if (asked < 0 || asked >> 32 != how->edition)
		return 0;
	__u32 class = asked & 0xff, confidence = asked >> 16 & 0xffff;
	if (confidence < how->least[class])
		class = how->unknown & 0xff;
	__u32 answer = class | confidence << ANSWER_CONFIDENCE_SHIFT | how->edition << ANSWER_EDITION_SHIFT;
	series->answers[number] = answer;
	return answer;
}

// What the answers about a flow's first `n` elements come to: the elements of the depth that decides in the bits from 8 on, and
// the class; or UNDECIDED.
static __always_inline int resolve(struct series *series, const struct entry *entry, __u32 version,
				   const struct deciding *how, __u32 n)
{
	__u32 is_by_port = entry->flags & IS_NAMED, port = entry->sent_data;
	for (int i = 0; i < DEPTHS_MAX; i++) {
		__u32 k = how->k[i];
		if (i >= settings.depths || k > n)
			return UNDECIDED;
		int is_last = i + 1 == settings.depths;
		if (!is_by_port || how->contradicts[i] != NEVER) {
			__u32 answer = series->answers[i];
			if (!answer)
				answer = answer_of(series, entry, version, how, k, i);
			if (!answer)
				return LEFT;
			__u32 class = answer & 0xff, confidence = answer >> ANSWER_CONFIDENCE_SHIFT & 0xffff;
			int decides = is_by_port ? class != port && confidence >= how->contradicts[i]
						 : class < how->sure_classes && confidence >= how->sure[i];
			if (decides || (is_last && !is_by_port))
				return k << 8 | class;
		}
		if (is_last)
			return k << 8 | port;
	}
	return UNDECIDED;
}

// Writes the mark of a flow's class into the packet's connection, if it is there by now. `way`: from the high end 1, at egress 2.
__noinline int mark(struct __sk_buff *skb, struct entry *entry, const struct key *key, __u32 way)
{
	if (!entry || !key || !settings.marks || !(entry->flags & IS_UNMARKED))
		return 0;
	const struct deciding *how = edition_of(entry);
	if (!how)
		return 0;
	__u32 bits = how->mark[entry->sent_data], before = 0;
	if (entry->flags & IS_CONTRADICTED)
		before = how->mark[class_by_port(entry) & CLASSES_MAX];
	int outcome = mark_connection(skb, key, way & 1, way >> 1 & 1, bits, how->mark_mask, before,
				      how->mark_overwrites);
	if (outcome == NO_CONNECTION)
		return 0;
	set_flags(entry, outcome == KEPT ? IS_KEPT : IS_MARKED);
	clear_flags(entry, IS_UNMARKED);
	return 0;
}

// Writes a DSCP into the header of a packet at `ip_at`, in its place: a helper that writes costs some 40 ns. The kernel copies what
// others read, too, for a program that writes so; one that has no DSCP to write does not.
__noinline int set_dscp(struct __sk_buff *skb, __u32 ip_at, int is_v6, __u32 dscp)
{
	if (!settings.writes_dscp || ip_at > 64)
		return 0;
	__u8 *ip = (void *)(long)skb->data;
	ip += ip_at;
	if (ip + 20 > (__u8 *)(long)skb->data_end)
		return 0;
	// The traffic class follows a version of four bits in IPv6, and a byte in IPv4.
	__u32 shift = is_v6 ? 6 : 2, before = be16(ip);
	__u32 after = (before & ~(0x3f << shift)) | dscp << shift;
	if (after == before)
		return 0;
	ip[0] = after >> 8;
	ip[1] = after;
	if (!is_v6) {
		// RFC 1624: the checksum is of one word less and of another more.
		__u32 sum = (__u16)~be16(ip + 10) + (__u16)~before + after;
		sum = (sum & 0xffff) + (sum >> 16);
		sum = ~(sum + (sum >> 16));
		ip[10] = sum >> 8;
		ip[11] = sum;
	}
	return 1;
}

// Does to a packet what its flow's label asks for. A DSCP is the current edition's: it is of packets, not of flows.
static __always_inline void act(struct __sk_buff *skb, const struct entry *entry, __u32 ip_at, int is_v6, int is_egress)
{
	const __u32 is_labelled = IS_OURS | IS_NAMED;
	if (!(is_egress ? settings.writes_dscp : settings.marks_packets) || (entry->flags & is_labelled) != is_labelled)
		return;
	const struct deciding *how = is_egress ? deciding_at(CURRENT) : edition_of(entry);
	if (!how)
		return;
	__u32 class = entry->sent_data, bits = how->mark[class], dscp = how->dscp[class];
	if (is_egress && dscp != NO_CLASS)
		set_dscp(skb, ip_at, is_v6, dscp);
	if (!is_egress && bits)
		mark_packet(skb, bits, how->mark_mask);
}

// Whether a flow's label is decided and nothing is to be done any more but counting.
static __always_inline int is_settled(const struct entry *entry, __u64 state)
{
	return FIELD(state, DECIDED_SHIFT) && !(entry->flags & IS_UNMARKED) &&
	       (!settings.keeps_collecting || FIELD(state, CLAIMED_SHIFT) >= settings.elements);
}

// User space labels the flow from here on: it gets the elements so far with a packet, and then packets.
static __always_inline void leave(struct entry *entry, __u32 collected)
{
	clear_flags(entry, IS_OURS | IS_NAMED | IS_UNMARKED | IS_CONTRADICTED);
	entry->sent = entry->sent_data = collected;
}

// Decides a flow's label if it can be, after `n` elements were written. Returns what `resolve` does.
__noinline int decide(struct series *series, struct entry *entry, __u32 version, __u32 n)
{
	if (!series || !entry)
		return LEFT;
	const struct deciding *how = keep_edition(entry);
	int found = how ? resolve(series, entry, version, how, n) : LEFT;
	if (found == LEFT) {
		// User space asks about all of it.
#pragma unroll
		for (int i = 0; i < DEPTHS_MAX; i++)
			series->answers[i] = 0;
	}
	if (found < 0)
		return found;
	int class = found & 0xff;
	for (int i = 0; i < TRIES; i++) {
		__u64 state = *(volatile __u64 *)&series->state;
		if ((__u32)state != version || FIELD(state, DECIDED_SHIFT))
			return UNDECIDED; // by this CPU
		if (!swap_state(series, state, state | (__u64)(found >> 8) << DECIDED_SHIFT))
			continue;
		if (entry->flags & IS_NAMED && entry->sent_data != class)
			set_flags(entry, IS_CONTRADICTED);
		if (!(entry->flags & IS_NAMED) || entry->sent_data != class)
			name(entry, how, class);
		return found;
	}
	return LEFT;
}

// A packet with payload, as its segments.
struct arrived {
	__u32 version;  // of its flow's entry
	__u32 segments; // those that are left to be counted, after some have become elements
	__u32 length;   // their bytes at the IP layer
	__u32 full;     // those of each but the last
	__u32 from_high;
	__u32 marks;
};

// Adds a packet to the flow's elements, each segment as one, as many as are wanted. Returns LEFT; or how many elements there
// are, if the label may be decided; or 0.
__noinline int collect(struct series *series, struct entry *entry, struct arrived *arrived)
{
	if (!series || !entry || !arrived)
		return LEFT;
	__u32 version = arrived->version, segments = arrived->segments, claimed = 0, first = 0, bytes = 0;
	__u32 us = bpf_ktime_get_boot_ns() / 1000;
	for (int i = 0; i < TRIES; i++) {
		__u64 state = *(volatile __u64 *)&series->state;
		first = FIELD(state, CLAIMED_SHIFT);
		if ((__u32)state != version || first >= settings.elements)
			return 0;
		__u32 room = settings.elements - first, wanted = segments < room ? segments : room;
		if (swap_state(series, state, state + ((__u64)wanted << CLAIMED_SHIFT))) {
			claimed = wanted;
			break;
		}
	}
	if (!claimed)
		return LEFT;
	__u32 last = arrived->length - (segments - 1) * arrived->full;
	__u64 common = us | tag_of(version) | (arrived->from_high ? ELEMENT_FROM_HIGH : 0);
	__u64 ends = (arrived->marks & TCP_FIN ? ELEMENT_FIN : 0) | (arrived->marks & TCP_RST ? ELEMENT_RST : 0);
	for (__u32 i = 0; i < ELEMENTS_MAX; i++) {
		__u64 at = first + i;
		__u32 length = arrived->full;
		OWN(at); // Else the compiler counts with a pointer, whose bound the verifier does not see.
		if (i >= claimed || at >= ELEMENTS_MAX)
			break;
		__u64 of_last = 0;
		if (i + 1 == segments) {
			length = last;
			of_last = ends;
		}
		bytes += length;
		series->elements[at] = common | of_last | (__u64)(length < 0xffff ? length : 0xffff) << LENGTH_SHIFT;
	}
	arrived->segments = segments - claimed;
	arrived->length -= bytes;
	__sync_fetch_and_add(&entry->sent_bytes, bytes);
	// A full barrier: whoever sees the elements as written sees them.
	__u64 state = add_to_state(series, version, (__u64)claimed << WRITTEN_SHIFT);
	if (!state)
		return LEFT;
	__u32 written = FIELD(state, WRITTEN_SHIFT) + claimed;
	return written == FIELD(state, CLAIMED_SHIFT) ? written : 0;
}

static __always_inline void submit_report(const struct packet *packet, struct record *record, __u16 flags)
{
	record->flags = flags | IS_REPORT;
	record->captured = record->wire = 0;
	record->gso_size = 0;
	record->tag = 0;
	submit(packet, record);
}

// Sends up what is known of a flow, without a frame: counts and elements. With `opens`, of a flow that ends.
__noinline int send_report(struct packet *packet, __u32 flags)
{
	if (!packet)
		return 0;
	const struct entry *entry = entry_of(packet);
	void *ring = at_number(&rings, packet->worker);
	struct record *record = ring ? bpf_ringbuf_reserve(ring, sizeof(*record), 0) : 0;
	if (!record)
		return 0; // What is not reported stays, and goes up later.
	if (!entry) {
		bpf_ringbuf_discard(record, BPF_RB_NO_WAKEUP);
		return 0;
	}
	fill(record, packet, entry);
	submit_report(packet, record, HAS_COUNTS | flags);
	return 1;
}

// Begins a flow whose elements are collected here, where its packet came from `forward`; whether it could.
__noinline int begin_ours(struct packet *packet, int forward)
{
	if (!packet)
		return 0;
	void *ring = at_number(&rings, packet->worker);
	struct record *record = ring ? bpf_ringbuf_reserve(ring, sizeof(*record), 0) : 0;
	packet->begins_with = IS_OURS | (forward ? FROM_HIGH : 0);
	__u16 flags = begin(packet, record);
	// Linux 6.1 forgets that a record is not null, so nothing asks twice.
	if (record) {
		if (flags & OPENS)
			submit_report(packet, record, flags);
		else
			bpf_ringbuf_discard(record, BPF_RB_NO_WAKEUP);
	}
	struct entry *entry = entry_of(packet);
	if (!entry)
		return 0;
	name_by_port(entry);
	return 1;
}

static __always_inline void mark_flow(struct __sk_buff *skb, struct packet *packet, struct entry *entry)
{
	if (entry->flags & IS_UNMARKED)
		mark(skb, entry, &packet->key, packet->from_high | packet->is_egress << 1);
}

// An element of a flow: collects it. Returns whether nothing is left to be counted.
static __always_inline int add(struct __sk_buff *skb, struct packet *packet, struct entry *entry, struct series *series)
{
	struct arrived arrived = {
	    .version = entry->version,
	    .segments = packet->segments,
	    .length = packet->length,
	    .full = packet->headers + packet->gso_size,
	    .from_high = packet->from_high,
	    .marks = packet->marks,
	};
	int found = collect(series, entry, &arrived);
	int is_collected = packet->segments != arrived.segments;
	packet->segments = arrived.segments;
	packet->length = arrived.length;
	packet->version = arrived.version;
	if (found > 0)
		packet->written = found;
	if (found == LEFT) {
		if (is_collected)
			send_report(packet, 0);
		else
			send_up(skb, packet, HAS_COUNTS);
		leave(entry, 0);
		return !is_collected || !packet->segments;
	}
	return !packet->segments;
}

// A flow got elements: decides its label if it can be, marks, and reports.
static __always_inline int label(struct __sk_buff *skb, struct packet *packet, struct entry *entry)
{
	__u32 version = packet->version;
	struct series *series = series_of(packet->at, version >> WAY_SHIFT);
	if (!series)
		return 0;
	__u64 state = *(volatile __u64 *)&series->state;
	int found = UNDECIDED;
	if (!FIELD(state, DECIDED_SHIFT))
		found = decide(series, entry, version, packet->written);
	mark_flow(skb, packet, entry);
	state = *(volatile __u64 *)&series->state;
	if (found == LEFT && entry->version == version) {
		send_report(packet, 0);
		leave(entry, packet->written);
		return 0;
	}
	int is_full = FIELD(state, WRITTEN_SHIFT) >= settings.elements, ends = packet->marks & (TCP_FIN | TCP_RST);
	if (settings.reports_at_once || ends || (settings.keeps_collecting ? is_full : found >= 0))
		send_report(packet, 0);
	if ((__u32)state == version && is_settled(entry, state))
		entry->is_quiet = 1;
	return 0;
}

// Deals with a packet of a flow, unless all that is left to do is to count it, or what remains of it.
__noinline int handle(struct __sk_buff *skb, struct packet *packet)
{
	if (!packet)
		return 1;
	int has_marks = packet->marks & (TCP_SYN | TCP_FIN | TCP_RST);
	int is_syn = (packet->marks & (TCP_SYN | TCP_ACK)) == TCP_SYN;
	int is_tcp = (packet->key.kind >> PROTOCOL_SHIFT & 0xff) == IPPROTO_TCP;
	if (packet->way == NO_WAY) {
		if (has_marks) {
			// One with payload is an element, but no flow has an entry for it: user space labels the flow.
			if (is_syn && !packet->data)
				note_handshake(packet->hash, packet->from_high, packet->now);
			send_up(skb, packet, 0);
			return 1;
		}
		// Of a TCP flow that began out of sight nobody knows which end began it.
		int forward = !is_tcp ? (packet->data ? packet->from_high : -1) : take_handshake(packet->hash, packet->now);
		if (packet->is_odd || forward < 0) {
			send_up(skb, packet, BEGINS);
			return 1;
		}
		if (!begin_ours(packet, forward)) {
			send_up(skb, packet, 0);
			return 1;
		}
	}
	struct entry *entry = entry_of(packet);
	if (!entry)
		return 1;
	if (!(entry->flags & IS_OURS))
		return send_first(skb, packet);
	int opens = is_syn || is_forgotten(entry, packet->now);
	if (opens) {
		int is_ours = is_syn ? !packet->data : !is_tcp && packet->data && !packet->is_odd;
		int comes_up = is_syn || !is_ours;
		if (!(comes_up ? send_up(skb, packet, HAS_COUNTS | OPENS) : send_report(packet, OPENS)))
			return 1; // User space knows of no other flow.
		packet->begins_with = !is_ours ? 0 : IS_OURS | (packet->from_high ? FROM_HIGH : 0);
		begin_again(packet, entry, is_syn ? 0 : 1, is_syn ? 0 : packet->data);
		if (entry->flags & IS_OURS)
			name_by_port(entry);
		if (comes_up)
			return 1;
	}
	struct series *series = series_of(packet->at, entry->version >> WAY_SHIFT);
	__u64 state = series ? *(volatile __u64 *)&series->state : 0;
	int is_collecting = (__u32)state == entry->version && FIELD(state, CLAIMED_SHIFT) < settings.elements &&
			    (settings.keeps_collecting || !FIELD(state, DECIDED_SHIFT));
	int crosses = may_cross(entry, packet->length);
	entry->last = packet->now;
	if (series && is_collecting && packet->data && !packet->is_odd && !crosses && !(packet->marks & TCP_SYN)) {
		return add(skb, packet, entry, series);
	}
	if (has_marks || crosses || (is_collecting && packet->is_odd)) {
		send_up(skb, packet, HAS_COUNTS);
		if (is_collecting && packet->data)
			leave(entry, FIELD(state, CLAIMED_SHIFT));
		if (crosses && bytes_so_far(entry) + packet->length > bulk_bytes)
			set_flags(entry, IS_BULK);
		__sync_fetch_and_add(&entry->sent_bytes, packet->length);
		return 1;
	}
	mark_flow(skb, packet, entry);
	if ((__u32)state == entry->version && is_settled(entry, state))
		entry->is_quiet = 1;
	return 0;
}

// What is to be done about a packet of a flow that is not labelled, or with which something begins or ends.
static __always_inline int look_closer(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct packet *packet = bpf_map_lookup_elem(&packets, &zero);
	if (!packet)
		return GO_ON;
	int is_done = handle(skb, packet);
	struct entry *entry = entry_of(packet);
	struct counters *counters = counters_of(packet);
	if (!entry || !counters)
		return GO_ON;
	if (!is_done) {
		count(entry, counters, packet->from_high, packet->segments, packet->length, packet->overhead);
		entry->last = packet->now;
	}
	if (packet->written)
		label(skb, packet, entry);
	act(skb, entry, packet->ip_at, packet->key.kind >> IS_V6_SHIFT, packet->is_egress);
	return GO_ON;
}
