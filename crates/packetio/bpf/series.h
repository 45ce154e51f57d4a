// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
//
// Labels in the kernel: the series of each flow beside the table, the answers of the network, and the decision.
//
// An *element* is a packet with payload. Elements are collected until the flow has its label; user space learns of them by a
// *report*, and walks them as packets. What the program cannot collect is left to user space, flow by flow: its packets come up.
//
// Two CPUs may see a flow's two directions at once. Each claims places in the series, writes its elements there, and says so;
// whoever finds that all that was claimed is written asks the network. Answers depend on the elements alone, so that it does
// not matter if two CPUs ask the same. A packet that was on its way for so long that its entry belongs to another flow
// finds another version in the state, and changes nothing; what it wrote has another tag.

#pragma once

#include "first.h"
#include "mark.h"
#include "net.h"

#define CLASSES_MAX 255
#define NEVER 0xffff
#define NO_CLASS 0xff

// Flags of an entry.
#define IS_OURS 2          // its elements are collected here; else user space labels the flow
#define FROM_HIGH 4        // its first packet came from the high end
#define IS_NAMED 8         // its class is in `sent_data`
#define IS_UNMARKED 16     // its connection has not got the mark of that class yet
#define IS_CONTRADICTED 32 // that is not the class of its port
#define IS_MARKED 64       // its connection has the mark
#define IS_KEPT 128        // or keeps another

// An *edition* is a network and how labels are decided by it, in one map. A flow keeps the one that named it or was asked about
// it first: its number is in `sent`; 0: none yet. Only the last `EDITIONS` stay; a flow whose edition is gone before its label
// is decided is left to user space.

// From the lowest bit on: the entry's version; how many elements have been claimed, written, reported; the elements of the depth
// that decided, or 0.
#define CLAIMED_SHIFT 32
#define WRITTEN_SHIFT 40
#define REPORTED_SHIFT 48
#define DECIDED_SHIFT 56
#define FIELD(state, shift) ((__u32)((state) >> (shift)) & 0xff)

struct series {
	__u64 state;
	__u32 answers[DEPTHS_MAX]; // by depth: 0, or class, confidence (Q15) and edition
	__u64 elements[ELEMENTS_MAX];
};

#define ANSWER_CONFIDENCE_SHIFT 8
#define ANSWER_EDITION_SHIFT 24

// An element: its time in us of CLOCK_BOOTTIME, length at the IP layer, whether it came from the high end, FIN and RST, and a
// tag of its flow.
#define LENGTH_SHIFT 32
#define ELEMENT_FROM_HIGH (1ull << 48)
#define ELEMENT_FIN (1ull << 49)
#define ELEMENT_RST (1ull << 50)
#define TAG_SHIFT 51

static __always_inline __u64 tag_of(__u32 version) { return (__u64)(version / VERSION_STEP) << TAG_SHIFT; }

// Set by user space before the program is loaded.
const volatile struct {
	__u32 depths;
	__u32 elements;         // collected, at most
	__u32 keeps_collecting; // up to there, although the label is decided: user space wants the series
	__u32 reports_at_once;  // user space waits for each element
	__u32 is_ports_first;   // ports name flows until an answer contradicts them
	__u32 marks;            // labels have marks
	__u32 marks_packets;    // they are set in packets that come in, too
	__u32 writes_dscp;
} settings = {};

// How a flow's label is decided, and what becomes of it.
struct deciding {
	__u32 edition;                 // from 1 to 255, also of the network in front of it
	__u32 k[DEPTHS_MAX];           // elements, rising
	__u32 sure[DEPTHS_MAX];        // the confidence (Q15) from which an answer is
	__u32 contradicts[DEPTHS_MAX]; // and that from which another class contradicts the port, or NEVER
	__u32 sure_classes;            // the others never are
	__u32 unknown;                 // the class of answers below the bound of theirs
	__u32 mark_mask;
	__u32 mark_overwrites;
	__u32 least[CLASSES_MAX + 1];  // that bound
	__u32 mark[CLASSES_MAX + 1];   // by class
	__u8 dscp[CLASSES_MAX + 1];    // by class; NO_CLASS for none
};

_Static_assert(BESIDE + sizeof(struct deciding) <= BLOCK, "both are in one block, and so in one map");

static __always_inline __u32 place_of(__u32 edition) { return edition ? 1 + edition % EDITIONS : CURRENT; }

static __always_inline const struct deciding *deciding_at(__u32 place)
{
	__u32 zero = 0;
	void *blocks = bpf_map_lookup_elem(&nets, &place);
	const __u8 *block = blocks ? bpf_map_lookup_elem(blocks, &zero) : 0;
	if (!block)
		return 0;
	OWN(block); // nobody adds to it before it is known not to be null
	return (const void *)(block + BESIDE);
}

// The classes of TCP's ports, and of UDP's; NO_CLASS for none.
struct ports {
	__u8 class[65536];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct ports);
} ports SEC(".maps");

// One for each entry of the table.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 16);
	__type(key, __u32);
	__type(value, struct series);
} series SEC(".maps");

// SYNs that wait for their flow's first other packet: a hash of the flow, the direction, and when.
#define HANDSHAKES (1 << 16)
#define HANDSHAKE_TICKS (60 * 1024) // about a minute

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, HANDSHAKES);
	__type(key, __u32);
	__type(value, __u64);
} handshakes SEC(".maps");

static __always_inline __u64 *handshake_of(__u64 hash)
{
	__u32 at = hash >> 8 & (HANDSHAKES - 1);
	return bpf_map_lookup_elem(&handshakes, &at);
}

static __always_inline void note_handshake(__u64 hash, __u32 from_high, __u32 now)
{
	__u64 *handshake = handshake_of(hash);
	if (handshake)
		*handshake = (hash & ~0xffffffffull) | (now << 1 | from_high);
}

// Takes the direction of the SYN that began a flow; -1 where it is not known.
static __always_inline int take_handshake(__u64 hash, __u32 now)
{
	__u64 *handshake = handshake_of(hash);
	__u64 noted = handshake ? *handshake : 0;
	if (!noted || noted >> 32 != hash >> 32 || ((now << 1) - ((__u32)noted & ~1u)) >> 1 > HANDSHAKE_TICKS)
		return -1;
	*handshake = 0;
	return noted & 1;
}

static __always_inline struct series *series_of(__u32 set, __u32 way)
{
	__u32 at = set * WAYS + (way & (WAYS - 1));
	return bpf_map_lookup_elem(&series, &at);
}

// An entry is given to a flow of this version, and nobody else uses it yet.
static __always_inline void begin_series(struct series *series, __u32 version)
{
#pragma unroll
	for (int i = 0; i < DEPTHS_MAX; i++)
		series->answers[i] = 0;
#pragma unroll
	for (int i = 0; i < ELEMENTS_MAX; i++)
		series->elements[i] = 0;
	*(volatile __u64 *)&series->state = version;
}

static __always_inline int swap_state(struct series *series, __u64 from, __u64 to)
{
	return __sync_val_compare_and_swap(&series->state, from, to) == from;
}

#define TRIES 8 // more than CPUs that see a flow at once

// Adds `by` to a field of the state of a flow of this version; the state before it, or 0 if the entry is another flow's, or
// other CPUs were faster each time.
static __always_inline __u64 add_to_state(struct series *series, __u32 version, __u64 by)
{
	for (int i = 0; i < TRIES; i++) {
		__u64 state = *(volatile __u64 *)&series->state;
		if ((__u32)state != version)
			return 0;
		if (swap_state(series, state, state + by))
			return state;
	}
	return 0;
}

// The state of a flow whose elements are all written and not all in a record; else 0.
static __always_inline __u64 has_more(const struct series *series, const struct entry *entry, __u32 version)
{
	__u64 state = *(const volatile __u64 *)&series->state;
	__u32 written = FIELD(state, WRITTEN_SHIFT);
	int is_whole = (__u32)state == version && written == FIELD(state, CLAIMED_SHIFT);
	return entry->flags & IS_OURS && is_whole && FIELD(state, REPORTED_SHIFT) < written ? state : 0;
}

// Claims for a record the elements that no record has; whether there are any.
static __always_inline int report(struct reported *reported, struct series *series, const struct entry *entry, __u32 version)
{
	__u64 state = has_more(series, entry, version);
	__u32 written = FIELD(state, WRITTEN_SHIFT), from = FIELD(state, REPORTED_SHIFT);
	if (!state || !swap_state(series, state, state + ((__u64)(written - from) << REPORTED_SHIFT)))
		return 0;
	reported->from = from;
	reported->to = written;
	reported->decided = FIELD(state, DECIDED_SHIFT);
	reported->class = entry->flags & IS_NAMED ? entry->sent_data : NO_CLASS;
	reported->marked = entry->flags & (IS_MARKED | IS_KEPT);
#pragma unroll
	for (int i = 0; i < DEPTHS_MAX; i++)
		reported->answers[i] = series->answers[i];
#pragma unroll
	for (int i = 0; i < ELEMENTS_MAX; i++)
		reported->elements[i] = series->elements[i];
	return 1;
}
