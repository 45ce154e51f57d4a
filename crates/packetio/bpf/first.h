// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
//
// What the program and user space share: layouts, maps, settings. On the other side are src/first/layout.rs and table.rs.

#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

// The compiler knows nothing of a value's origin from here on, and so moves no arithmetic on it to before its checks.
#define OWN(value) asm volatile("" : "+r"(value))

// Set before the program is loaded.
const volatile __u32 workers = 1;         // flow workers, each with a ring and a part of the table
const volatile __u32 sets = 16;           // of a worker; a power of two
const volatile __u32 is_ethernet = 1;     // frames have Ethernet headers
const volatile __u32 packets_wanted = 12; // of a flow, whatever they hold; below 256
const volatile __u32 data_wanted = 0;     // of a flow, packets with payload; below 256
const volatile __u32 bulk_bytes = 0;      // a flow's packet that makes them more is sent up, too; 0: none
const volatile __u32 forget_ticks = 0;    // a flow that was silent for so long begins anew; 0: never
const volatile __u64 hash_secrets[11];    // the last one is odd

#define WORKERS_MAX 64
#define WAYS 4

// The two ends in order, so that both directions have one key. Each word holds a word of the low address in its lower half, and
// that of the high address in its upper half. The last ones come first, so IPv4 has only one.
struct key {
	__u64 words[4];
	__u64 kind; // from the lowest bit on: low port, high port, protocol, whether it is IPv6
};

#define PROTOCOL_SHIFT 32
#define IS_V6_SHIFT 40

// A flow, in one line of memory. Index 0: from the low end; 1: from the high end.
struct entry {
	__u64 ends; // the first word of its key; of IPv6 the others are in `words`
	__u64 kind; // 0: free
	__u32 version; // of its flow and its counts: see below
	__u32 last;    // when the last packet came, in ticks of 2^20 ns, about a millisecond, of CLOCK_MONOTONIC
	union {
		struct {
			__u8 sent;      // packets sent up; 255 for more; or the edition, see series.h
			__u8 sent_data; // of these, packets with payload; or the class
			__u8 is_quiet;  // none needs to be sent up any more; user space says so, too
			__u8 flags;     // IS_BULK, and what series.h adds
		};
		__u32 word; // the same, for atomic operations
	};
	__u32 sent_bytes; // of what was sent up, at the IP layer
	__u64 packets[2]; // counted
	__u64 bytes[2];   // at the IP layer
};

#define IS_BULK 1     // no packet needs to be sent up for the flow's bytes any more
#define FLAGS_SHIFT 24 // of the flags in `word`; processors that run BPF with the highest byte first are not supported

struct set {
	struct entry ways[WAYS];
};

struct words_of_set {
	__u64 ways[WAYS][3];
};

// A version: what is being done to the entry, its number among the ways, and how often it was given to a flow or its counts
// began again. So two counts of a flow with one version are of one counter, wherever in its set it had its places.
#define GIVING 1   // to another flow: the key is none
#define CLEARING 2 // the counts
#define DOING (GIVING | CLEARING)
#define WAY_SHIFT 2
#define VERSION_STEP 16

#define HAS_COUNTS 1 // `key` and what comes behind it hold what was counted of the flow before this packet
#define OPENS 2      // with it: they are of a flow that ends before this packet: the flow before with the same key, or another
                     // one, whose entry this packet's flow was given
#define IS_UDP 4     // `gso_size` is that of UDP, or of what is in it

#define IS_REPORT 8  // there is no frame

#define ELEMENTS_MAX 12
#define DEPTHS_MAX 6

// Elements of a flow's series that go up.
struct reported {
	__u8 from;
	__u8 to;         // excluded
	__u8 decided;    // elements of the depth that decided the label, or 0
	__u8 class;      // the label, if there is one, or NO_CLASS
	__u32 marked;    // IS_MARKED or IS_KEPT, if the program has seen to the connection's mark
	__u32 answers[DEPTHS_MAX];
	__u64 elements[ELEMENTS_MAX];
};

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
#ifdef LABELS
	struct reported reported;
#endif
};

// Bytes of a frame that are sent up: headers that were parsed fit into the first; those that were not may be longer.
#define SHORT_FRAME 136
#define LONG_FRAME 2048

struct counters {
	__u64 counted;       // packets
	__u64 counted_bytes; // of frames
	__u64 sent;          // records
	__u64 dropped;       // records that found no room
	__u64 evicted;       // flows that were in use and gave their entries to others
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
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 16); // as many
	__uint(key_size, 4);
	__uint(value_size, sizeof(struct words_of_set));
} table_words SEC(".maps");

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
